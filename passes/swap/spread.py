"""Where in the backward of a layer the reloads of an earlier layer are issued: one by one, each when there is room for it.

    backward of layer 4     released     reloads of layer 3, default_prefetch: 1
    mm(g, fc2)                           mask    at the beginning
    mm(g, gelu)             gelu
    ...                                  gelu    its bytes are free now
    mul(g, norm)            norm         the rest, at the latest before the last operator

Copies run one after another: memory for all of them at once would only wait. So that copies have time where a backward
releases little, a reload is issued at the latest when as large a part of the operators has run as of the bytes is then issued.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.fx import Node

from ..operators import storage_root, viewed
from ..sizes import nbytes
from .choose_offload import Move
from .pair import Pair

_FUSED = frozenset({torch.Tag.pointwise, torch.Tag.reduction})


def spread(stretch: Sequence[Node], sizes: Sequence[int], released: Mapping[Node, int]) -> list[Node]:
    """Find the operator before which each reload is issued.

    Args:
        stretch: the operators of the layer's backward, in order.
        sizes: the bytes of the reloads, in the order of their first use.
        released: operator -> bytes of the values that it is the last to read.
    """
    total, last = max(sum(sizes), 1), len(stretch) - 1
    room = _room(stretch, released)
    places: list[Node] = []
    place = issued = 0
    for size in sizes:
        issued += size
        latest = min(len(stretch) * issued // total, last) if places else 0
        while place < latest and room[place] < issued:
            place += 1
        places.append(stretch[place])
    return places


def releases(pair: Pair, moves: Sequence[Move]) -> dict[Node, int]:
    """The bytes that each operator of the backward, not edited yet, is the last to read, of what crosses or comes back."""
    position = {n: i for i, n in enumerate(pair.backward.graph.nodes)}
    size = {storage_root(m.value): m.size for m in moves}
    last: dict[Node, Node] = {}
    for crossing in pair.crossings:
        root = storage_root(crossing.own)
        readers = [*pair.readers(crossing.loaded), *([last[root]] if root in last else [])]
        if root.op != "placeholder" and readers:
            last[root] = max(readers, key=position.__getitem__)
    found: dict[Node, int] = {}
    for root, reader in last.items():
        found[reader] = found.get(reader, 0) + (size.get(root, nbytes(root.meta["val"])) or 0)
    return found


def _room(stretch: Sequence[Node], released: Mapping[Node, int]) -> list[int]:
    """The bytes that are free before each operator: what a fused kernel reads, only when a kernel of another kind comes."""
    found = []
    free = pending = 0
    for node in stretch:
        fused = _may_be_fused(node)
        if not fused:
            free, pending = free + pending, 0
        found.append(free)
        if fused:
            pending += released.get(node, 0)
        else:
            free += released.get(node, 0)
    return found


def _may_be_fused(node: Node) -> bool:
    """Whether a backend may run the operator as a part of another one's kernel, later than the graph says."""
    return viewed(node) is not None or not _FUSED.isdisjoint(getattr(node.target, "tags", ()))
