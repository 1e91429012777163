"""What each layer's activations cost: bytes saved, bytes moved, work done again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass

import torch
from torch.fx import GraphModule, Node

from ...passes.joint import JointGraph
from ...passes.operators import is_symbolic, storage_root
from ...passes.sizes import Known, nbytes
from ...passes.verify import saved_values


@dataclass(frozen=True, slots=True)
class LayerTotal:
    """What a layer's activations cost.

    Attributes:
        layer: the layer's number; None for everything outside the layer stacks.
        saved_before: bytes that plain ``torch.compile`` saves for backward, each storage counted once, where it is produced.
        saved_after: the same under the configuration, without what is swapped.
        swapped: bytes that leave for the host or the disk, where each is produced.
        recomputed: how many operators run again in the backward.
        recomputed_flops: floating-point operations of the matrix products, convolutions and attention among them, as
            ``torch.utils.flop_counter`` counts.
        unknown: how many of the values in ``saved_after`` have a size that only a run can tell; their bytes are in no sum.
        unknown_before: the same for ``saved_before``.
        unknown_flops: how many of the operators have work that only a run can tell; it is in no sum.
    """

    layer: int | None
    saved_before: int
    saved_after: int
    recomputed: int
    recomputed_flops: int
    unknown: int
    swapped: int = 0
    unknown_before: int = 0
    unknown_flops: int = 0


def summed(graphs: Iterable[Iterable[LayerTotal]]) -> tuple[LayerTotal, ...]:
    """The totals of several graphs, per layer; what lies outside the layers comes last."""
    sums: dict[int | None, list[int]] = {}
    for totals in graphs:
        for total in totals:
            layer, *parts = astuple(total)
            sums[layer] = [a + b for a, b in zip(sums.get(layer, [0] * len(parts)), parts, strict=True)]
    return tuple(LayerTotal(n, *sums[n]) for n in sorted(sums, key=lambda n: (n is None, n or 0)))


def saved_storages(joint: JointGraph, forward: GraphModule) -> Iterator[Node]:
    """The nodes whose memory the forward keeps for the backward, each once; parameters and inputs left out."""
    saved = (own for _, own in saved_values(joint, forward) if own is not None and not is_symbolic(own))
    roots = dict.fromkeys(storage_root(n) for n in saved)
    yield from (root for root in roots if root.op != "placeholder" or root in joint.layer_inputs)


def bytes_given(joint: JointGraph, forward: GraphModule, known: Known) -> int:
    """The bytes that a layer's forward saves of what the layer was given."""
    given = (root for root in saved_storages(joint, forward) if root in joint.layer_inputs)
    return sum(nbytes(root.meta["val"], known) or 0 for root in given)


def saved_by_layer(joint: JointGraph, forward: GraphModule, known: Known) -> tuple[Counter[int | None], Counter[int | None]]:
    """For each layer, the bytes that are known, and how many values have a size that is not."""
    sizes, unknown = Counter[int | None](), Counter[int | None]()
    for root in saved_storages(joint, forward):
        value = root.meta.get("val")
        size = nbytes(value, known) if isinstance(value, torch.Tensor) else None
        sizes[joint.layer_of(root)] += size or 0
        unknown[joint.layer_of(root)] += size is None
    return sizes, unknown
