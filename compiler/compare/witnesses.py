"""Other copies of the model that take the same steps, asked only where something differs: who is it that differs?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import nn

from .comparison import ComparisonRow
from .judge import judge
from .step import Runner, State


class Witness:
    """A copy of the model that follows, from the first step, when it is asked what it is left with."""

    def __init__(self, make: Callable[[], nn.Module], run: Runner) -> None:
        self._make = make
        self._run = run
        self._model: nn.Module | None = None
        self._steps = 0
        self._state = State()

    def after(self, step: int) -> State:
        """What the step with this number leaves behind; raises what the model raises."""
        if self._model is None:
            self._model = self._make()
        while self._steps <= step:
            self._state = self._run.step(self._model, self._steps)
            self._steps += 1
        return self._state


def beside_torch(
    rows: Sequence[ComparisonRow], found: State, wanted: State, torchs: State, rounding: float | None
) -> list[ComparisonRow]:
    """The rows, those that do not agree with what ``torch.compile`` alone does to them.

    Args:
        rows: of the comparison.
        found: of the configured model.
        wanted: of the plain model.
        torchs: of the plain model under ``torch.compile``.
        rounding: how much is allowed to what is in every bit as ``torch.compile`` gives it; None for no more than to others.
    """
    step = rows[0].step
    alone = {(row.kind, row.name): row.relative for row in judge(torchs, wanted, step, 0.0)}
    same = {(row.kind, row.name) for row in judge(found, torchs, step, 0.0) if row.bitwise}

    def told(row: ComparisonRow) -> ComparisonRow:
        if row.agrees:
            return row
        key = row.kind, row.name
        row = replace(row, as_torch=key in same, by_torch=alone.get(key))
        if rounding is None or not (row.as_torch and row.is_rounded and row.relative <= rounding):
            return row
        return replace(row, allowed=rounding)

    return [told(row) for row in rows]


def beside_eager(rows: Sequence[ComparisonRow], wanted: State, again: State) -> list[ComparisonRow]:
    """The rows, each with whether another plain copy is left with the same bits."""
    differ = {(row.kind, row.name) for row in judge(again, wanted, rows[0].step, 0.0) if not row.bitwise}
    return [replace(row, reproducible=(row.kind, row.name) not in differ) for row in rows]
