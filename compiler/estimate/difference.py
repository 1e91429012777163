"""What one configuration gives and another: totals, layers, and the values to which something else happens."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table

from ..explain.table import human_bytes, human_count, layer_ranges
from ..explain.values import ValueRow
from .estimate import Estimate
from .table import place_of

_THERE_ANYWAY = ("parameter", "input")


@dataclass(frozen=True)
class Change:
    """A value to which something else happens.

    Attributes:
        before, after: its rows; None where the backward does not need it.
    """

    before: ValueRow | None
    after: ValueRow | None

    @property
    def row(self) -> ValueRow:
        """The one that is there."""
        found = self.after or self.before
        assert found is not None
        return found


def changes(before: Estimate, after: Estimate) -> tuple[Change, ...]:
    """The values whose action, rule or store differs, in the order of the forward."""
    rows = ([row for row in found.explanation.values if row.kind not in _THERE_ANYWAY] for found in (before, after))
    ours, theirs = ({_key(row): row for row in own} for own in rows)
    pairs = (Change(ours.get(key), theirs.get(key)) for key in {**ours, **theirs})
    return tuple(change for change in pairs if _what(change.before) != _what(change.after))


def tables(before: Estimate, after: Estimate, names: tuple[str, str]) -> Group:
    """The difference as tables for people; ``names`` are the configurations'."""
    parts: list[RenderableType] = [_totals(before, after, names)]
    found = changes(before, after)
    layers = _layers(before, after, names)
    if layers.row_count:
        parts.append(layers)
    parts.append(_values(found, names) if found else "To every value the same happens.")
    return Group(*parts)


def _totals(before: Estimate, after: Estimate, names: tuple[str, str]) -> Table:
    table = Table(title="One step", title_justify="left")
    table.add_column("")
    for name in (*names, "difference"):
        table.add_column(name, justify="right", overflow="fold")
    both = (before, after)
    rows = [
        ("estimated peak", [e.peak_bytes for e in both], human_bytes),
        ("saved for backward", [e.saved_bytes for e in both], human_bytes),
        ("swapped", [e.swapped_bytes for e in both], human_bytes),
        ("FLOPs that run again", [e.recompute_flops for e in both], human_count),
    ]
    for name, (old, new), shown in rows:
        table.add_row(name, shown(old), shown(new), _signed(new - old, shown(abs(new - old))))
    table.add_row("peak at", *(place_of(e.at_peak) for e in both), "")
    return table


def _layers(before: Estimate, after: Estimate, names: tuple[str, str]) -> Table:
    table = Table(title="Layers that differ (each, where a line stands for several)", title_justify="left")
    table.add_column("layers")
    for what in ("saved", "swapped", "FLOPs again"):
        for name in names:
            table.add_column(f"{what}, {name}", justify="right", overflow="fold")
    ours, theirs = ({total.layer: total for total in found.layers} for found in (before, after))
    alike: dict[tuple[bool, tuple[str, ...]], list[int]] = {}
    for layer in {**ours, **theirs}:
        old, new = ours.get(layer), theirs.get(layer)
        saved, swapped, flops = ([getattr(t, field) if t is not None else 0 for t in (old, new)] for field in _FIELDS)
        if saved[0] != saved[1] or swapped[0] != swapped[1] or flops[0] != flops[1]:
            cells = (*map(human_bytes, saved), *map(human_bytes, swapped), *map(human_count, flops))
            alike.setdefault((layer is None, cells), []).extend([] if layer is None else [layer])
    for (_, cells), layers in alike.items():
        table.add_row(layer_ranges(layers) if layers else "outside layers", *cells)
    return table


_FIELDS = ("saved_after", "swapped", "recomputed_flops")


def _values(found: tuple[Change, ...], names: tuple[str, str]) -> Table:
    table = Table(title="Values to which something else happens", title_justify="left")
    for name in ("layers", "path", "operator", "bytes", *names):
        table.add_column(name, justify="right" if name == "bytes" else "left", overflow="fold")
    alike: dict[tuple[bool, str, str, str, str, str], list[int | None]] = {}
    for change in found:
        row = change.row
        texts = (row.path, row.op, human_bytes(row.bytes), _told(change.before), _told(change.after))
        alike.setdefault((row.layer is None, *texts), []).append(row.layer)
    for (_, path, op, size, old, new), layers in alike.items():
        numbers = {layer for layer in layers if layer is not None}
        times = f" x {len(layers)}" if len(layers) > 1 else ""
        table.add_row(layer_ranges(numbers) if numbers else "-", path, op, f"{size}{times}", old, new)
    return table


def _key(row: ValueRow) -> tuple[int, str, int | None]:
    return row.graph, row.name, row.layer


def _what(row: ValueRow | None) -> tuple[str, str, str] | None:
    return (row.action, row.rule, row.store) if row is not None else None


def _told(row: ValueRow | None) -> str:
    if row is None:
        return "not needed"
    where = f" to {row.store}" if row.store else ""
    return f"{row.action}{where}" + (f" ({row.rule})" if row.rule else "")


def _signed(difference: int, shown: str) -> str:
    return shown if difference == 0 else f"{'+' if difference > 0 else '-'}{shown}"
