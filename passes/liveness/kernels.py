"""What a backend runs, one after the other: for one that runs node by node, every operator that makes something."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass

from torch.fx import Graph, Node

from ..operators import is_symbolic
from ..swap.targets import OFFLOAD
from .storages import Storages


@dataclass(frozen=True, slots=True)
class Kernel:
    """What runs at once.

    Attributes:
        node: the operator; of several in one kernel the last.
        begin: what is inserted into the graph before this node runs before the kernel.
        reads: the storages that must be there while it runs.
        makes: the storages that are there from when it begins.
        frees: the storages that nothing reads any more.
        over: those of ``frees`` in whose place it writes results: they are not there beside them.
    """

    node: Node
    begin: Node
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    frees: tuple[str, ...]
    over: tuple[str, ...] = ()


def node_by_node(graph: Graph, storages: Storages, kept: frozenset[str]) -> Iterator[Kernel]:
    """The operators of a graph as an interpreter runs them: what no later node reads is free. ``kept`` outlives the graph."""
    last = last_readers(graph, storages)
    frees: dict[Node, list[str]] = {}
    for storage, node in last.items():
        if storage not in kept:
            frees.setdefault(node, []).append(storage)
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        makes, free = storages.made.get(node, ()), frees.get(node, [])
        if makes or free or node.target is OFFLOAD:
            reads = tuple(dict.fromkeys(storages.of[i] for i in node.all_input_nodes if i in storages.of))
            yield Kernel(node, node, reads, makes, tuple(free))


def last_readers(graph: Graph, storages: Storages) -> dict[str, Node]:
    """For every storage the last node that reads it, or makes a view of it; what nothing reads is free where it was made."""
    last: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op == "output" or is_symbolic(node):
            continue
        for made in storages.made.get(node, ()):
            last[made] = node
        for read in node.all_input_nodes:
            if read in storages.of:
                last[storages.of[read]] = node
            if node.target is operator.getitem and read in storages.made:
                last.update(dict.fromkeys((s for s in storages.made[read] if storages.held.get(s) is node), node))
    return last
