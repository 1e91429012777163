"""Which values may lie in the memory of an input that the forward changes.

    b     = placeholder                 (changed by copy_ at the end of the forward)
    part  = select(b, 0)                a view of it
    one   = add(part, 1)
    b1    = select_scatter(b, one, 0)   written where b lies: what a backend may make of ``b[0] += 1``
    all   = sin(b1)                     a value of its own
    copy_(b, b1)

A later write into such memory changes the values there; saved for the backward, they would be wrong.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torch.fx import Node

from .joint import JointGraph
from .operators import is_mutating, is_symbolic, target_names, viewed

# What inductor computes in place of its first argument, and what any backend may.
_WRITTEN_IN_PLACE = frozenset(
    {"select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter", "index_put", "_unsafe_index_put"}
    | {"all_reduce", "all_reduce_coalesced"}
)
# Functional forms of operators and kernels that write into any of their arguments.
_FUNCTIONALISED = frozenset({"auto_functionalized", "auto_functionalized_v2", "triton_kernel_wrapper_functional"})
# Copies that a backend leaves out when they change neither type nor layout.
COPIES = frozenset({"clone", "copy", "lift_fresh_copy", "_to_copy", "convert_element_type", "device_put", "repeat"} | {"cat"})


@dataclass
class ChangedMemory:
    """The forward's values that may lie in the memory of some inputs.

    Attributes:
        owners: value -> the inputs in whose memory it may lie; the inputs themselves are among the values.
        overwritten: those values that exist by writing into that memory, or see what was written there.
    """

    owners: dict[Node, frozenset[Node]] = field(default_factory=dict)
    overwritten: set[Node] = field(default_factory=set)


def changed_memory(joint: JointGraph, inputs: Iterable[Node]) -> ChangedMemory:
    """Find the values that may lie in the memory of ``inputs``, each in one step from its arguments."""
    found = ChangedMemory({node: frozenset([node]) for node in inputs})
    for node in joint.graph.nodes:
        if node.op != "call_function" or node in joint.backward or is_mutating(node) or is_symbolic(node):
            continue
        written = [i for i in _written_in_place(node) if i in found.owners]
        # A copy of the input itself is made; one of what was written over it may be left out.
        shared = [i for i in _shared(node) if i in found.owners and (i in found.overwritten or viewed(node) is i)]
        if written or shared:
            found.owners[node] = frozenset().union(*(found.owners[i] for i in (*written, *shared)))
        if written or any(i in found.overwritten for i in shared):
            found.overwritten.add(node)
    return found


def _written_in_place(node: Node) -> Iterator[Node]:
    names = target_names(node)
    if not _FUNCTIONALISED.isdisjoint(names) or any(name.startswith("_foreach_") for name in names):
        yield from node.all_input_nodes
    elif getattr(node.target, "__name__", "") == "with_effects":
        yield from node.all_input_nodes[1:]
    elif not _WRITTEN_IN_PLACE.isdisjoint(names) and node.args and isinstance(node.args[0], Node):
        yield node.args[0]


def _shared(node: Node) -> Iterator[Node]:
    """The values in whose memory a view, an output of a tuple, or a copy may lie."""
    base = viewed(node)
    if base is not None:
        yield base
    elif (node.target is operator.getitem and isinstance(node.args[0], Node)) or not COPIES.isdisjoint(target_names(node)):
        yield from node.all_input_nodes[:1]
