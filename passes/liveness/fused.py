"""What a backend runs that fuses elementwise operators and reductions into kernels, as inductor does.

    mm -> add -> gelu -> mul -> mm        mm | add gelu mul | mm      between the kernels only `mul` is in memory

A model of it, not the thing itself: a value is written if something reads it that is not fused, or a kernel other than its
own; elsewhere it is computed where it is read, which keeps what it is computed from alive until then.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node

from ..operators import is_symbolic, target_names, viewed
from ..swap.targets import OFFLOAD, WAIT
from ..turns import keep_apart
from .kernels import Kernel
from .storages import Storages

_FUSED = frozenset({torch.Tag.pointwise, torch.Tag.reduction})
_FUSED_TOO = frozenset(
    {"embedding", "index", "gather", "full", "full_like", "arange", "iota", "clone", "_to_copy", "convert_element_type"}
    | {"var_mean", "constant_pad_nd", "scalar_tensor", "inductor_random", "inductor_lookup_seed", "cat", "empty", "rand"}
    | {"slice_scatter", "select_scatter", "rev", "flip", "copy", "copy_", "zeros", "zeros_like", "ones", "_assert_async"}
)
# Inductor computes these once, where more than one operator reads them.
_COSTLY = frozenset({"exp", "sigmoid"})
_MOST_READS = 4
_RESHAPES = frozenset({"view", "reshape", "_unsafe_view", "squeeze", "unsqueeze", "detach", "alias", "_reshape_alias"})


def fused(graph: Graph, storages: Storages, kept: frozenset[str], *, in_place: bool = True) -> Iterator[Kernel]:
    """The kernels of a graph in an order they can run in. ``kept`` outlives the graph.

    ``in_place``: a kernel may write its result over an input of the same size that nothing else reads.
    """
    return _Fusion(graph, storages, kept).kernels(in_place=in_place)


def is_fused(node: Node) -> bool:
    """Whether a fusing backend makes the operator a part of a kernel."""
    if not _FUSED.isdisjoint(getattr(node.target, "tags", ())):
        return True
    return not _FUSED_TOO.isdisjoint(target_names(node)[:1])


Time = tuple[int, int]
"""When a kernel can run at the earliest: after the node at this place in the graph, and after so many kernels behind it."""


def _is_reshaped(node: Node) -> bool:
    """Whether the value is another's, elements in the same order."""
    return viewed(node) is not None and bool(_RESHAPES.intersection(target_names(node)[:1]))


@dataclass(eq=False)
class _Group:
    """Operators in one kernel.

    Attributes:
        space: over how many elements it runs.
        time: when it can run at the earliest.
        wanted: when something else first reads what it makes: it must run before.
    """

    space: int
    time: Time
    nodes: list[Node] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)
    wanted: Time = (sys.maxsize, 0)


class _Fusion:
    def __init__(self, graph: Graph, storages: Storages, kept: frozenset[str]) -> None:
        self.graph, self.storages, self.kept = graph, storages, kept
        self.order = list(graph.nodes)
        self.position = {n: i for i, n in enumerate(self.order)}
        self.maker = {s: n for n, made in storages.made.items() for s in made}
        self.reads: dict[Node, tuple[str, ...]] = {}
        self.straight: dict[Node, frozenset[str]] = {}
        self.written: set[Node] = set()
        self._find_written()

    def _find_written(self) -> None:
        """Which operators write what they make; what each reads is resolved to what is written."""
        for node in self.graph.nodes:
            if node.op != "call_function" or is_symbolic(node):
                continue
            if node.target is operator.getitem or viewed(node) is not None:
                continue
            reads = self._sources(node)
            self.reads[node] = reads
            self.straight[node] = self._straight_sources(node)
            if self._is_written(node, reads):
                self.written.add(node)

    def _sources(self, node: Node) -> tuple[str, ...]:
        """What an operator reads, in the order in which a kernel does."""
        found: dict[str, None] = {}
        for given in node.all_input_nodes:
            storage = self.storages.of.get(given)
            if storage is None:
                continue
            maker = self.maker.get(storage)
            if maker is None or maker in self.written:
                found[storage] = None
            else:
                found |= dict.fromkeys(self.reads.get(maker, ()))
        return tuple(found)

    def _straight_sources(self, node: Node) -> frozenset[str]:
        """What is read of it in its own order only, so that the result can lie in the same place."""
        if _FUSED.isdisjoint(getattr(node.target, "tags", ())):
            return frozenset()
        straight: set[str | None] = set()
        crooked: set[str | None] = set()
        for given in node.all_input_nodes:
            storage = self.storages.of.get(given)
            maker = self.maker.get(storage) if storage is not None else None
            read = {*self.reads.get(maker, ())} if maker is not None and maker not in self.written else {storage}
            same = self.straight[maker] if maker is not None and maker not in self.written else {storage}
            while _is_reshaped(given):
                given = given.args[0]  # type: ignore[assignment]
            if viewed(given) is not None:
                same = frozenset()
            straight |= same
            crooked |= read - same
        return frozenset(s for s in straight - crooked if s is not None)

    def _is_written(self, node: Node, reads: tuple[str, ...]) -> bool:
        made = self.storages.made.get(node, ())
        if not made or not is_fused(node) or torch.Tag.reduction in getattr(node.target, "tags", ()) or len(made) > 1:
            return True
        if self.kept.intersection(made):
            return True
        users = list(self._users(node))
        if any(not is_fused(user) for user in users):
            return True
        if len(users) > 1 and (len(reads) > _MOST_READS or not _COSTLY.isdisjoint(target_names(node)[:1])):
            return True
        return len(reads) > 2 * _MOST_READS

    def _users(self, node: Node) -> Iterator[Node]:
        """What reads the value, through views of it."""
        pending, seen = [node], {node}
        for value in pending:
            for user in value.users:
                if user in seen or user.op == "output":
                    continue
                seen.add(user)
                if user.target is operator.getitem or (viewed(user) is value and user.target is not WAIT):
                    pending.append(user)
                else:
                    yield user

    def kernels(self, *, in_place: bool) -> Iterator[Kernel]:
        groups = self._groups()
        readers: dict[str, set[_Group]] = {}
        for group in groups:
            for storage in group.reads:
                readers.setdefault(storage, set()).add(group)
        inside = {s for group in groups for s in self._makes(group) if readers.get(s) == {group} and s not in self.kept}
        groups.sort(key=lambda group: group.time)
        last = {s: group for group in groups for s in (*self._makes(group), *group.reads)}
        frees: dict[_Group, list[str]] = {}
        for storage, group in last.items():
            if storage not in self.kept and storage not in inside:
                frees.setdefault(group, []).append(storage)
        for group in groups:
            makes = [s for s in self._makes(group) if s not in inside]
            reads = tuple(s for s in group.reads if s not in inside)
            free = frees.get(group, [])
            gone = [s for s in self._makes(group) if s in inside]
            over = tuple(self._written_over(group, free, gone)) if in_place else ()
            yield Kernel(group.nodes[-1], self.order[group.time[0]], reads, tuple(makes), tuple(free), over)

    def _written_over(self, group: _Group, free: list[str], inside: list[str]) -> Iterator[str]:
        """The inputs in whose place results of the same size lie: those that only the operator reads, or what it is made from.

        A result takes the place of the first value that fits, in the order of reading, be it one of the kernel's own.
        """
        if not is_fused(group.nodes[-1]):
            return
        readers: dict[str, set[Node]] = {}
        for node in group.nodes:
            for storage in self.reads[node]:
                readers.setdefault(storage, set()).add(node)
        left = {*free, *([] if self._is_looped(group) else inside)}
        for node in group.nodes:
            for made in self.storages.made.get(node, ()):
                size = self.storages.size[made]
                fits = (
                    s
                    for s in self.reads[node]
                    if s in left and self._fits(s, node, size) and self._comes_last(node, readers[s])
                )
                over = next(fits, None)
                if over is not None and made not in inside:
                    left.remove(over)
                    if over not in inside:
                        yield over

    def _fits(self, storage: str, node: Node, size: int) -> bool:
        return self.storages.size[storage] == size and storage in self.straight[node]

    def _comes_last(self, node: Node, readers: set[Node]) -> bool:
        """Whether the other readers in the kernel are what the operator is made from."""
        pending, found = [node], {node}
        while pending and not readers <= found:
            makers = {self.maker[s] for s in self.reads.get(pending.pop(), ()) if s in self.maker} - found
            found |= makers
            pending += makers
        return readers <= found

    def _is_looped(self, group: _Group) -> bool:
        """Whether a kernel for the CPU loops again after it has reduced: its own values then lie in buffers of a row's size."""
        if any(self.storages.device[made] != "cpu" for made in self._makes(group)):
            return False
        reduced: set[str] = set()
        for node in group.nodes:
            if not reduced.isdisjoint(self.reads[node]):
                return True
            if torch.Tag.reduction in getattr(node.target, "tags", ()):
                reduced.update(self.storages.made.get(node, ()))
        return False

    def _makes(self, group: _Group) -> list[str]:
        return [s for node in group.nodes for s in self.storages.made.get(node, ())]

    def _groups(self) -> list[_Group]:
        groups: list[_Group] = []
        of: dict[str, _Group] = {}
        reader: dict[str, _Group] = {}
        for node in self.graph.nodes:
            if node not in self.reads or (node not in self.written and node.target is not OFFLOAD):
                continue
            reads = self.reads[node]
            before = {of[s] for s in reads if s in of}
            beside = {reader[s] for s in reads if s in reader} - before
            group = self._joinable(node, before, beside)
            if group is None:
                group = _Group(self._space(node), (self.position[node], 0))
                groups.append(group)
            for other in before - {group}:
                group.time = max(group.time, _behind(other))
                if not self._is_last(node):
                    other.wanted = min(other.wanted, group.time)
            group.nodes.append(node)
            group.reads.update(reads)
            reader |= dict.fromkeys(reads, group)
            of |= dict.fromkeys(self.storages.made.get(node, ()), group)
        for group in groups:  # those that nothing waits for come when what they read is there
            group.time = max([group.time, *(_behind(of[s]) for s in group.reads if of.get(s, group) is not group)])
        return groups

    def _is_last(self, node: Node) -> bool:
        """Whether nothing in the graph reads what the operator makes, such as the gradient of a weight."""
        return node.target is not OFFLOAD and not any(True for _ in self._users(node))

    def _joinable(self, node: Node, before: set[_Group], beside: set[_Group]) -> _Group | None:
        """The latest kernel that an operator can be a part of, of those that make what it reads, else that read the same.

        What else it reads must be there before the kernel must run.
        """
        if not is_fused(node):
            return None
        for candidates in (before, beside):
            for group in sorted(candidates, key=lambda g: g.time, reverse=True):
                fits = group.space == self._space(node) and is_fused(group.nodes[-1])
                fits = fits and (candidates is before or not keep_apart(group.nodes, [node]))
                if fits and all(_behind(other) < group.wanted for other in before - {group}):
                    return group
        return None

    def _space(self, node: Node) -> int:
        """Over how many elements an operator runs."""
        reduces = torch.Tag.reduction in getattr(node.target, "tags", ()) or len(self.storages.made.get(node, ())) > 1
        return max(self.storages.elements(i) for i in (node, *(node.all_input_nodes if reduces else ())))


def _behind(group: _Group) -> Time:
    return group.time[0], group.time[1] + 1
