"""How much arithmetic a step has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.fx import Graph

from ...passes.sizes import Known
from ...passes.work import flops

if TYPE_CHECKING:
    from ..explain.explanation import GraphExplanation


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations of matrix products, convolutions and attention; a multiply-add counts as two.

    Attributes:
        forward: in the forward.
        backward: in the backward, with what runs again.
        recompute: what runs again.
        unknown: how many operators have work that only a run can tell; it is in no sum.
    """

    forward: int
    backward: int
    recompute: int
    unknown: int


def work_of(graphs: Sequence[GraphExplanation], recompute: int, known: Known) -> Work:
    """Sum the work of a step, for sizes that ``known`` tells; ``recompute`` is what of it runs again."""
    forward, unknown = _sum((graph.forward.graph for graph in graphs), known)
    backward, more = _sum((graph.backward.graph for graph in graphs), known)
    return Work(forward, backward, recompute, unknown + more)


def _sum(graphs: Iterable[Graph], known: Known) -> tuple[int, int]:
    found = [flops(node, known) for graph in graphs for node in graph.nodes if node.op == "call_function"]
    return sum(f or 0 for f in found), sum(f is None for f in found)
