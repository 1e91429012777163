"""The predicted peak against the measured one, and what explains the difference."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table

from ...runtime.measure import Measurement
from ...runtime.timeline import Moment
from ..explain.table import human_bytes
from .estimate import Estimate
from .table import place_of

_KINDS = {
    "gradients": ("gradients",),
    "saved, and outputs": ("saved", "outputs", "leaving"),
    "reloaded": ("reloaded",),
    "recomputed, and temporary": ("recomputed", "temporary"),
}
"""What both sides tell apart: a measured value that was recomputed is as temporary as any other."""


@dataclass(frozen=True)
class Reconciliation:
    """A prediction and a measurement of one step.

    Attributes:
        predicted: the predicted peak, in bytes.
        measured: the measured peak, in bytes.
        rows: what for -> bytes at the predicted peak, and at the measured one.
        reasons: what explains the difference, the largest part first.
    """

    predicted: int
    measured: int
    rows: dict[str, tuple[int, int]]
    reasons: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """Predicted by measured."""
        return self.predicted / self.measured if self.measured else float("inf")


def reconcile(estimate: Estimate, measured: Measurement) -> Reconciliation:
    """Compare them, by category, each at its own peak."""
    ours, theirs = estimate.at_peak, measured.at_peak
    rows = {name: (_sum(ours, kinds), _sum(theirs, kinds)) for name, kinds in _KINDS.items()}
    parts = sorted(rows.items(), key=lambda row: -abs(row[1][1] - row[1][0]))
    reasons = [f"{name}: {_more(real - told)}" for name, (told, real) in parts if real != told]
    if measured.scratch_bytes:
        whose = f"{theirs.operator}'s own" if theirs.operator else "an operator's own"
        reasons.append(f"{human_bytes(measured.scratch_bytes)} of the measured bytes were {whose}, which no graph tells")
    if theirs.phase != ours.phase:
        reasons.append(f"the peaks are not in the same place: {place_of(ours)} was predicted, {place_of(theirs)} measured")
    saved = _saved(estimate.timeline), _saved(measured.timeline)
    if saved[0] != saved[1]:
        reasons.append(f"when the backward begins, the forward has left {_more(saved[1] - saved[0])}")
    return Reconciliation(ours.total, theirs.total, rows, tuple(reasons))


def tables(found: Reconciliation) -> Group:
    """The comparison as a table for people."""
    table = Table(title="The peak, predicted and measured", title_justify="left")
    table.add_column("what for")
    for name in ("predicted", "measured", "difference"):
        table.add_column(name, justify="right")
    for name, (told, real) in found.rows.items():
        if told or real:
            table.add_row(name, human_bytes(told), human_bytes(real), human_bytes(real - told))
    table.add_section()
    both = human_bytes(found.predicted), human_bytes(found.measured)
    table.add_row("all", *both, human_bytes(found.measured - found.predicted))
    parts: list[RenderableType] = [table, f"predicted / measured: {found.ratio:.3f}"]
    parts += [f"- {reason}" for reason in found.reasons]
    return Group(*parts)


def _sum(moment: Moment, kinds: tuple[str, ...]) -> int:
    return sum(moment.bytes.get(kind, 0) for kind in kinds)


def _more(difference: int) -> str:
    return f"{human_bytes(abs(difference))} {'more' if difference > 0 else 'less'} than predicted"


def _saved(timeline: tuple[Moment, ...]) -> int:
    """What is alive of the forward when the backward begins."""
    forward = [moment for moment in timeline if moment.phase == "forward"]
    return _sum(forward[-1], ("saved", "outputs", "leaving")) if forward else 0
