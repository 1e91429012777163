"""The backward as it will run, found before it is edited: how long each kernel takes, and what is alive beside what moves.

    kernel    begins   alive beside what moves
    mm             0   gradients of later layers, 2 temporary values
    mul          310   ...

Times are in the bytes that go to and from memory meanwhile, as far as anybody can tell without the hardware.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch.fx import Graph, Node

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
    """What runs, in order. Kernels between which nothing can be inserted count as one.

    Attributes:
        begins: per kernel, the node of the graph before which a reload is inserted that is to be issued before the kernel.
        time: per kernel, when it begins; at last when all have ended.
        held: per kernel, the bytes alive while it runs, beside what moves.
        released: per kernel, the bytes that crossed to the backward, or come back to it, and that are free after it.
        gone: what moves -> the first kernel that runs without it; that which reads it first, if it writes over it.
        position: node -> its place in the graph.
    """

    begins: Sequence[Node]
    time: Sequence[int]
    held: Sequence[int]
    released: Sequence[int]
    gone: dict[Node, int]
    position: dict[Node, int]

    def at(self, node: Node) -> int:
        """The first kernel that does not run before what is inserted before a node."""
        found = bisect_left(self.begins, self.position[node], key=self.position.__getitem__)
        return min(found, len(self.begins) - 1)

    def layers(self, pair: Pair) -> list[range]:
        """The kernels of each call's backward, in the order of ``pair.calls``."""
        ends = pair.ends()
        found = []
        for call, first in pair.calls.items():
            begin = self.at(first)
            end = bisect_right(self.begins, self.position[ends[call]], key=self.position.__getitem__)
            found.append(range(begin, max(end, begin + 1)))
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
    crossed = set(roots.values())
    moving = {roots[storage_root(move.value)]: move.value for move in moves}
    (output,) = graph.find_nodes(op="output")
    kept = frozenset(storages.of[n] for n in output.all_input_nodes if n in storages.of)
    given = {storages.of[n]: n.name for n in graph.find_nodes(op="placeholder") if n in storages.of}
    tangents = {n.name for n in pair.joint.tangents}
    outside = {name for name, own in given.items() if name not in crossed and own not in tangents}
    size = {name: 0 if name in outside or name in moving else size for name, size in storages.size.items()}
    alive = sum(size[name] for name in given)
    begins: list[Node] = []
    held: list[int] = []
    released: list[int] = []
    time = [0]
    gone: dict[Node, int] = {}
    for kernel in kernels_of(graph, storages, kept | outside):
        alive += sum(size[s] for s in kernel.makes) - sum(size[s] for s in kernel.over)
        over = kernel.over
        if begins and kernel.begin is begins[-1]:  # nothing can be inserted between the two
            held[-1] = max(held[-1], alive)
            time[-1] += _work(kernel, storages)
            over = ()
        else:
            begins.append(kernel.begin)
            held.append(alive)
            released.append(0)
            time.append(time[-1] + _work(kernel, storages))
        alive -= sum(size[s] for s in kernel.frees if s not in kernel.over)
        released[-1] += sum(storages.size[s] for s in kernel.frees if s in crossed)
        gone |= {moving[s]: len(begins) - (s in over) for s in kernel.frees if s in moving}
    return Course(begins, time, held, released, gone, {n: i for i, n in enumerate(graph.nodes)})


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
    try:
        arithmetic = flops(kernel.node) or 0
    except Exception:  # a formula of the user's, which may ask for more than sizes: not worth a failing compilation
        arithmetic = 0
    return max(traffic, arithmetic // _FLOPS_PER_BYTE)
