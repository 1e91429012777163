"""From a captured graph to something that runs, through the backend the user named.

A backend is a name that ``torch.compile`` knows, an object made by ``aot_autograd(...)``, or any callable that takes a graph
and example inputs and returns what runs it: such a callable is given the forward and the backward graph, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from torch.fx import GraphModule

from ..passes.liveness.fused import fused
from ..passes.liveness.kernels import node_by_node
from ..passes.swap.course import Kernels
from . import torch_bridge

Backend = str | Callable[..., Any]

# Backends that run graphs node by node, and so reuse no memory that somebody holds.
_NODE_BY_NODE = ("eager", "aot_eager")

# Names that torch.compile takes and that capture or check without ever making a backward graph.
_TEST_SUFFIX = "_TESTING_ONLY"


def check_backend(backend: Backend, options: Mapping[str, Any] | None) -> None:
    """Refuse a backend or options that could not be honoured.

    Raises:
        ValueError: no such backend, or an unknown option.
        TypeError: neither a name nor a callable; options for another backend than inductor.
    """
    if isinstance(backend, str):
        names = [n for n in torch_bridge.backend_names() if not n.endswith(_TEST_SUFFIX)]
        if backend not in names:
            near = get_close_matches(backend, names, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"backend: found {backend!r}; allowed: {', '.join(names)}, or a callable.{hint}")
    elif not callable(backend):
        raise TypeError(f"backend: found {backend!r}; allowed: a name that torch.compile knows, or a callable.")
    if not options:
        return
    if backend != "inductor":
        raise TypeError(f"options: found {dict(options)!r}; only backend='inductor' takes options, and it is {backend!r}.")
    known = torch_bridge.inductor_option_names()
    for name in options:
        if name.replace("-", "_") not in known:
            near = get_close_matches(name, known, 1)
            raise ValueError(f"options: inductor has no option {name!r}.{f' Did you mean {near[0]!r}?' if near else ''}")
    if "custom_partitioner_fn" in options:
        raise ValueError("options: custom_partitioner_fn is how memopt splits the graph, and cannot be set.")


def reuses_held_memory(backend: Backend) -> bool:
    """Whether the backend may write into the memory of a value that an operator still holds, as far as anybody knows.

    Inductor is told which values these are; backends that run node by node leave memory to Python.
    """
    return not isinstance(backend, str) or not (backend == "inductor" or backend.startswith(_NODE_BY_NODE))


def kernels_of(backend: Backend) -> Kernels:
    """What the backend makes of a graph; one that is not known is taken to run it node by node."""
    return fused if backend == "inductor" else node_by_node


def lower(
    backend: Backend,
    graph: GraphModule,
    inputs: Sequence[Any],
    partition: torch_bridge.Partition,
    key: str,
    options: dict[str, Any] | None,
    *,
    copies_in_background: bool,
    spares_memory: bool = False,
) -> torch_bridge.Compiled:
    """Compile a captured graph, split by ``partition``.

    ``copies_in_background`` says that it will swap, ``spares_memory`` that a rule is there to save memory.

    Raises:
        ValueError: the backend never makes a joint graph, so that there is nothing to decide about.
    """
    if backend == "inductor":
        how = {"copies_in_background": copies_in_background, "spares_memory": spares_memory}
        return torch_bridge.compile_inductor(graph, inputs, partition, key, options, **how)
    if not isinstance(backend, str) and not torch_bridge.is_aot_backend(backend):
        return torch_bridge.compile_graphs(backend, graph, inputs, partition)
    run = torch_bridge.find_backend(backend) if isinstance(backend, str) else backend
    compiled = torch_bridge.compile_aot_backend(run, graph, inputs, partition)
    if compiled is None:
        raise ValueError(
            f"backend: {backend!r} does not run AOTAutograd, so there is no joint graph to rewrite. Use 'inductor', "
            "'aot_eager', an object made by aot_autograd(...), or a callable that compiles one graph."
        )
    return compiled


def split_only(
    backend: Backend,
    graph: GraphModule,
    inputs: Sequence[Any],
    partition: torch_bridge.Partition,
    options: dict[str, Any] | None,
) -> torch_bridge.Compiled:
    """Do what :func:`lower` does up to the split, and lower nothing."""
    if backend == "inductor":
        return torch_bridge.split_inductor(graph, inputs, partition, options)
    if isinstance(backend, str) or torch_bridge.is_aot_backend(backend):
        return lower(backend, graph, inputs, partition, "", options, copies_in_background=False)
    return torch_bridge.compile_graphs(lambda module, _: module.forward, graph, inputs, partition)
