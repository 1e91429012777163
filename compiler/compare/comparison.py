"""What a comparison found, tensor by tensor; ``str()`` is a table for people."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table

KINDS = ("output", "gradient", "buffer", "random state")
_LISTED = 10
"""Tensors that are told by name, of those that differ."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One tensor, in the step in which it differs most.

    Attributes:
        kind: ``output``, ``gradient``, ``buffer`` or ``random state``.
        name: the parameter or buffer; for the rest, where it stands: ``output.logits``, ``args[0]``, ``cpu``.
        step: the step, from 0.
        absolute: the largest difference of an element; infinite where one side has no such tensor, one of another shape or
            type, or a number where the other has none.
        relative: ``absolute`` as a part of the largest finite value of the eager model: of that tensor, and for a gradient, of
            all gradients of the step, since one that is zero but for rounding can only be measured against the others.
        bitwise: the two are the same in every bit; values that are no numbers (NaN) count as one.
        allowed: the largest ``relative`` with which they count as the same; 0 for integers and random states.
        is_rounded: it has floating-point numbers that rounding may change.
        reproducible: two eager runs agree about it in every bit; only asked where something is not the same.
        as_torch: ``torch.compile`` without memopt, under the same backend, gives it in every bit; only asked where it is not
            the same as in eager.
        by_torch: its relative difference there from eager; None where that was not asked, or could not be found.
    """

    kind: str
    name: str
    step: int
    absolute: float
    relative: float
    bitwise: bool
    allowed: float
    is_rounded: bool = True
    reproducible: bool = True
    as_torch: bool = False
    by_torch: float | None = None

    @property
    def agrees(self) -> bool:
        """Whether the difference is within what is allowed."""
        return self.bitwise or self.relative <= self.allowed

    @property
    def title(self) -> str:
        """What sentences call the tensor."""
        if self.kind in ("gradient", "random state"):
            return f"{self.kind} of {self.name}"
        return f"buffer {self.name}" if self.kind == "buffer" else self.name


@dataclass(frozen=True, slots=True)
class Comparison:
    """A configured model beside plain eager.

    Attributes:
        agrees: every tensor of every step is the same, as far as rounding can tell.
        deterministic: the differences are not those that two eager runs show too. False tells nothing about memopt.
        largest: the largest relative difference, see ``ComparisonRow.relative``.
        worst: the name of its tensor; empty where all are the same bit for bit.
        rows: one for each tensor.
        warnings: what the user should know: what the configuration does not do, and what weakens the comparison.
        steps: how many steps were compared; a difference ends the comparison.
    """

    agrees: bool
    deterministic: bool
    largest: float
    worst: str
    rows: tuple[ComparisonRow, ...]
    warnings: tuple[str, ...]
    steps: int

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        bad = [row for row in self.rows if not row.agrees]
        if not bad:
            if all(row.bitwise for row in self.rows):
                return "the same bit for bit"
            allowed = max(row.allowed for row in self.rows)
            text = f"the same within {allowed:.1e} (largest relative difference {self.largest:.1e}, {self.worst})"
            is_torchs = all(row.bitwise or row.as_torch for row in self.rows)
            return f"{text}, and in every bit what torch.compile gives without memopt" if is_torchs else text
        row = worst_of([row for row in bad if row.reproducible] or bad)
        found = f"the {row.title} in step {row.step}: {_differs(row)}"
        if self.deterministic:
            return f"DIFFERENT: {found}; {len(bad)} of {len(self.rows)} tensors differ{_beside_torch(row)}"
        return (
            f"NOT DETERMINISTIC: {found}, but two runs of the plain model from the same seed differ in it too, so that this "
            "tells nothing about memopt"
        )

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=150, color_system=None, highlight=False, markup=False)
        console.print(tables(self), soft_wrap=True)
        file = console.file
        assert isinstance(file, io.StringIO)
        return file.getvalue()


def worst_of(rows: Sequence[ComparisonRow]) -> ComparisonRow:
    """The row that differs most; what is not allowed counts more than what is."""
    return max(rows, key=lambda row: (not row.agrees, row.relative, row.absolute))


def tables(comparison: Comparison) -> Group:
    """One line for each kind of tensor, then the tensors that differ by more than is allowed, then the verdict."""
    parts: list[RenderableType] = [_kinds(comparison.rows)]
    differing = sorted(
        (row for row in comparison.rows if not row.agrees), key=lambda row: (not row.reproducible, -row.relative)
    )
    if differing:
        parts.append(_differing(differing[:_LISTED], len(differing)))
    parts += [f"warning: {text}" for text in comparison.warnings]
    return Group(*parts, comparison.verdict)


def _kinds(rows: Sequence[ComparisonRow]) -> Table:
    table = Table(title="The configured model beside plain eager", title_justify="left")
    for name in ("kind", "tensors", "the same bit for bit", "largest relative difference", "of"):
        table.add_column(name, justify="left" if name in ("kind", "of") else "right", overflow="fold")
    for kind in KINDS:
        own = [row for row in rows if row.kind == kind]
        if own:
            worst = worst_of(own)
            same = sum(row.bitwise for row in own)
            place = "" if worst.bitwise else worst.name
            table.add_row(kind, str(len(own)), str(same), _number(worst.relative), place)
    return table


def _differing(rows: Sequence[ComparisonRow], count: int) -> Table:
    most = f": the worst {len(rows)} of {count}" if count > len(rows) else ""
    table = Table(title=f"What differs{most}", title_justify="left")
    for name in ("tensor", "step", "largest difference", "relative", "allowed", ""):
        table.add_column(name, justify="left" if name in ("tensor", "") else "right", overflow="fold")
    for row in rows:
        verdict = "DIFFERENT" if row.reproducible else "differs in eager too"
        cells = (_number(row.absolute), _number(row.relative), _number(row.allowed))
        table.add_row(row.title, str(row.step), *cells, verdict)
    return table


def _beside_torch(row: ComparisonRow) -> str:
    """What torch.compile alone does to it, as the end of a sentence."""
    if row.by_torch is None:
        return ""
    if row.as_torch:
        return "; torch.compile without memopt gives the same"
    does = "differs too" if row.by_torch > row.allowed else "does not differ"
    return f"; torch.compile without memopt {does} ({_number(row.by_torch)})"


def _differs(row: ComparisonRow) -> str:
    if row.absolute == float("inf"):
        return "one side has no such tensor, one of another shape or type, or a number where the other has none"
    return f"relative difference {row.relative:.1e}, allowed {_number(row.allowed)}"


def _number(value: float) -> str:
    return f"{value:.1e}" if value else "0"
