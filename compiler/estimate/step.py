"""The live bytes of one step: forward and backward of every graph, in the order in which they run.

    forward 0, forward 1, ...   backward 1, backward 0      each node by node, or kernel by kernel where a backend fuses

Counted as there before, and not as of the step: parameters, buffers, inputs. Gradients of parameters count from when they are
made, outputs of the model until the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch.fx import Graph, GraphModule, Node

from ...passes.joint import JointGraph
from ...passes.liveness.kernels import Kernel, node_by_node
from ...passes.liveness.storages import SizeOf, Storages
from ...passes.operators import target_names
from ...passes.swap.targets import OFFLOAD, PREFETCH
from ...runtime.timeline import Moment

if TYPE_CHECKING:
    from ..explain.explanation import GraphExplanation

Schedule = Callable[[Graph, Storages, frozenset[str], str], Iterable[Kernel]]
"""What a backend makes of a graph: its storages, those that outlive it, and whether it is ``forward`` or ``backward``."""


def simulate(graphs: Sequence[GraphExplanation], size_of: SizeOf, schedule: Schedule | None = None) -> tuple[Moment, ...]:
    """The moments of one step.

    Args:
        graphs: what the step runs, in the order of the forward.
        size_of: the bytes of a tensor's storage.
        schedule: what a backend makes of a graph; None for every operator by itself.
    """
    schedule = schedule or _one_by_one
    live = _Live()
    halves = [_Forward(graph, size_of, number) for number, graph in enumerate(graphs)]
    moments = [moment for half in halves for moment in half.run(live, schedule)]
    knows_parameters = any(half.joint.parameters for half in halves)
    for half, before in zip(reversed(halves), [*reversed(halves[:-1]), None], strict=True):
        backward = _Backward(half, size_of, knows_parameters=knows_parameters)
        moments += backward.run(live, schedule)
        for storage in before.outputs if before is not None else ():  # what this part was given
            live.drop(storage)
    return tuple(moments)


def _one_by_one(graph: Graph, storages: Storages, kept: frozenset[str], _phase: str) -> Iterable[Kernel]:
    return node_by_node(graph, storages, kept)


@dataclass
class _Live:
    """What is alive now."""

    size: dict[str, int] = field(default_factory=dict)
    category: dict[str, str] = field(default_factory=dict)
    bytes: Counter[str] = field(default_factory=Counter)

    def add(self, storage: str, size: int, category: str) -> None:
        if size and storage not in self.category:
            self.size[storage], self.category[storage] = size, category
            self.bytes[category] += size

    def drop(self, storage: str) -> None:
        if storage in self.category:
            self.bytes[self.category.pop(storage)] -= self.size.pop(storage)

    def now(self) -> dict[str, int]:
        return {category: count for category, count in self.bytes.items() if count}


class _Forward:
    """The forward of one graph, and what it leaves behind for the backward."""

    def __init__(self, explained: GraphExplanation, size_of: SizeOf, number: int) -> None:
        self.explained, self.number = explained, number
        self.joint = explained.facts
        self.graph = explained.forward.graph
        self.storages = Storages(self.graph, size_of, f"{number}f.")
        of = self.storages.of
        returned = returned_by(explained.forward)
        split = self.joint.num_fwd_outputs
        self.given = {of[n] for n in self.graph.find_nodes(op="placeholder") if n in of}
        self.outputs = {of[n] for n in returned[:split] if n in of} - self.given
        self.saved = {of[n] for n in returned[split:] if n in of} - self.given
        self.crossing = {n.name: of[n] for n in returned[split:] if n is not None and n in of}
        for storage in self.given:
            self.storages.size[storage] = 0

    def run(self, live: _Live, schedule: Schedule) -> Iterator[Moment]:
        """The moments of the forward."""
        of = self.storages.of
        leaving = {of[n.args[0]] for n in self.graph.nodes if n.target is OFFLOAD if n.args[0] in of}
        kinds = dict.fromkeys(leaving, "leaving") | dict.fromkeys(self.saved, "saved") | dict.fromkeys(self.outputs, "outputs")
        kept = frozenset(self.saved | self.outputs | self.given)
        kernels = schedule(self.graph, self.storages, kept, "forward")
        yield from _moments(kernels, self.storages, live, kinds, "forward", self.joint)


class _Backward:
    """The backward of one graph: what crosses to it goes by its name in the forward."""

    def __init__(self, forward: _Forward, size_of: SizeOf, *, knows_parameters: bool) -> None:
        self.forward, self.joint = forward, forward.joint
        self.knows_parameters = knows_parameters
        self.module = forward.explained.backward
        self.graph = self.module.graph
        self.storages = Storages(self.graph, size_of, f"{forward.number}b.")
        self._adopt_crossings()

    def run(self, live: _Live, schedule: Schedule) -> Iterator[Moment]:
        """The moments of the backward; of what is alive afterwards, outputs of the model and gradients stay."""
        of, forward = self.storages.of, self.forward
        for node in self.graph.find_nodes(op="placeholder"):  # gradients that arrive
            if node in of and of[node].startswith(self.storages.prefix):
                live.add(of[node], self.storages.size[of[node]], "temporary")
        ends = dict(self._ends())
        gradients = {storage for storage, is_gradient in ends.items() if is_gradient}
        kept = frozenset(ends.keys() | forward.outputs | forward.given)
        kinds = self._kinds() | dict.fromkeys(gradients, "gradients")
        kernels = schedule(self.graph, self.storages, kept, "backward")
        yield from _moments(kernels, self.storages, live, kinds, "backward", self.joint)
        for storage in list(live.category):
            own = storage.startswith((forward.storages.prefix, self.storages.prefix))
            if own and storage not in gradients and storage not in forward.outputs:
                live.drop(storage)

    def _adopt_crossings(self) -> None:
        of, size = self.storages.of, self.storages.size
        renamed = {}
        for node in self.graph.find_nodes(op="placeholder"):
            if node not in of:
                continue
            if node.name in self.forward.crossing:
                renamed[of[node]] = self.forward.crossing[node.name]
            elif "tangents" not in str(node.target):
                size[of[node]] = 0
        for node, storage in of.items():
            of[node] = renamed.get(storage, storage)
        for old, new in renamed.items():
            del size[old]
            size[new] = self.forward.storages.size[new]

    def _kinds(self) -> dict[str, str]:
        ran = {n.name for n in self.forward.graph.nodes}
        kinds: dict[str, str] = {}
        for node, made in self.storages.made.items():
            if node.target is PREFETCH:
                kinds |= dict.fromkeys(made, "reloaded")
            elif node.name in ran:
                kinds |= dict.fromkeys(made, "recomputed")
        return kinds

    def _ends(self) -> Iterator[tuple[str, bool]]:
        """The storages that the backward returns, each with whether it is a gradient of a parameter."""
        primals = [n for n in self.joint.graph.find_nodes(op="placeholder") if n not in self.joint.tangents]
        for node, primal in zip(returned_by(self.module), primals, strict=False):
            if node is not None and node in self.storages.of:
                yield self.storages.of[node], primal in self.joint.parameters or not self.knows_parameters


def _moments(
    kernels: Iterable[Kernel], storages: Storages, live: _Live, kinds: Mapping[str, str], phase: str, joint: JointGraph
) -> Iterator[Moment]:
    own = {n.name: n for n in joint.graph.nodes}
    for kernel in kernels:
        for storage in kernel.over:
            live.drop(storage)
        for storage in kernel.makes:
            live.add(storage, storages.size[storage], kinds.get(storage, "temporary"))
        names = target_names(kernel.node)
        node = own.get(kernel.node.name)
        layer = joint.layer_of(node) if node is not None else None
        yield Moment(phase, names[0] if names else kernel.node.name, kernel.node.name, layer, live.now())
        for storage in kernel.frees:
            live.drop(storage)


def returned_by(module: GraphModule) -> list[Node | None]:
    """What a graph returns; None for what is no value of a node."""
    (output,) = module.graph.find_nodes(op="output")
    returned = output.args[0]
    assert isinstance(returned, list | tuple)
    return [n if isinstance(n, Node) else None for n in returned]
