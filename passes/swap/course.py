"""The backward as it will run, found before it is edited: how long each kernel takes, and what is alive beside what moves.

    kernel    begins   alive beside what moves
    mm             0   gradients of later layers, 2 temporary values
    mul          310   ...

Times are in the bytes that go to and from memory meanwhile, as far as anybody can tell without the hardware.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch.fx import Graph, Node

from ..joint import Call
from ..liveness.kernels import Kernel
from ..liveness.storages import Storages
from ..operators import storage_root
from ..sizes import nbytes
from ..work import flops
from .choose_offload import Move
from .pair import Pair

Kernels = Callable[[Graph, Storages, frozenset[str]], Iterable[Kernel]]
"""What a backend makes of a graph, given its storages and those that outlive it: ``fused`` or ``node_by_node``."""

_FLOPS_PER_BYTE = 50
"""Arithmetic in the time that a byte takes: about 10 on a CPU, 150 to 300 on accelerators."""


@dataclass(frozen=True)
class Course:
    """What runs, in order.

    Attributes:
        begins: per kernel, the node of the graph before which a reload is inserted that is to be issued before the kernel.
        time: per kernel, when it begins; at last when all have ended.
        held: per kernel, the bytes alive while it runs, beside what moves.
        gone: what moves -> the first kernel that runs without it.
        position: node -> its place in the graph.
    """

    begins: Sequence[Node]
    time: Sequence[int]
    held: Sequence[int]
    gone: dict[Node, int]
    position: dict[Node, int]

    def at(self, node: Node) -> int:
        """The first kernel that does not run before what is inserted before a node."""
        found = bisect_left(self.begins, self.position[node], key=self.position.__getitem__)
        return min(found, len(self.begins) - 1)

    def layers(self, pair: Pair) -> list[range]:
        """The kernels of each call's backward, in the order of ``pair.calls``."""
        stretches: dict[Call, list[Node]] = pair.stretches()
        found = []
        for call, first in pair.calls.items():
            begin = self.at(first)
            found.append(range(begin, max(self.at(stretches[call][-1]), begin) + 1))
        return found


def course_of(pair: Pair, moves: Sequence[Move], kernels_of: Kernels) -> Course:
    """Run the backward in thought.

    Args:
        pair: both graphs, not edited yet.
        moves: what moves.
        kernels_of: what the backend makes of a graph.
    """
    graph = pair.backward.graph
    storages = Storages(graph, lambda tensor: nbytes(tensor) or 0)
    roots = _one_name_a_storage(pair, moves, storages)
    moving = {roots[storage_root(move.value)]: move.value for move in moves}
    (output,) = graph.find_nodes(op="output")
    kept = frozenset(storages.of[n] for n in output.all_input_nodes if n in storages.of)
    given = {storages.of[n]: n.name for n in graph.find_nodes(op="placeholder") if n in storages.of}
    tangents = {n.name for n in pair.joint.tangents}
    outside = {name for name, own in given.items() if name not in roots.values() and own not in tangents}
    size = {name: 0 if name in outside or name in moving else size for name, size in storages.size.items()}
    alive = sum(size[name] for name in given)
    begins, time, held = [], [0], []
    gone: dict[Node, int] = {}
    for index, kernel in enumerate(kernels_of(graph, storages, kept | outside)):
        alive += sum(size[s] for s in kernel.makes) - sum(size[s] for s in kernel.over)
        begins.append(kernel.begin)
        held.append(alive)
        time.append(time[-1] + _work(kernel, storages))
        alive -= sum(size[s] for s in kernel.frees if s not in kernel.over)
        gone |= {moving[s]: index if s in kernel.over else index + 1 for s in kernel.frees if s in moving}
    return Course(begins, time, held, gone, {n: i for i, n in enumerate(graph.nodes)})


def _one_name_a_storage(pair: Pair, moves: Sequence[Move], storages: Storages) -> dict[Node, str]:
    """Give everything that crosses of an activation the name of its storage; root in the joint graph -> that name."""
    sizes = {storage_root(move.value): move.size or 0 for move in moves}
    names: dict[Node, str] = {}
    renamed: dict[str, str] = {}
    for crossing in pair.crossings:
        root = storage_root(crossing.own)
        if root.op != "placeholder" and crossing.loaded in storages.of:
            own = storages.of[crossing.loaded]
            renamed[own] = names.setdefault(root, own)
    for node, name in storages.of.items():
        storages.of[node] = renamed.get(name, name)
    for root, name in names.items():
        storages.size[name] = sizes.get(root, nbytes(root.meta["val"]) or 0)
    return names


def _work(kernel: Kernel, storages: Storages) -> int:
    traffic = sum(storages.size[s] for s in (*kernel.reads, *kernel.makes))
    return max(traffic, (flops(kernel.node) or 0) // _FLOPS_PER_BYTE)
