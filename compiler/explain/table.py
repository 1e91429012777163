"""An explanation as a table for people: per layer, then per value, equal values of consecutive layers in one line."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from typing import TYPE_CHECKING, Literal

from rich.console import Console, Group, RenderableType
from rich.table import Table

if TYPE_CHECKING:
    from .collectives import CollectiveRow
    from .explanation import Explanation
    from .totals import LayerTotal
    from .values import ValueRow

_WIDE = 160
"""Consoles of so many characters have room for the names of operators and rules in one piece."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def human_bytes(count: float | None) -> str:
    """``3.5 MiB``; ``?`` where the size is unknown."""
    if count is None:
        return "?"
    for unit in _UNITS[:-1]:
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"


def human_count(count: float) -> str:
    """``1.2 G``; 0 stays ``0``."""
    for unit in ("", " k", " M", " G", " T", " P"):
        if abs(count) < 1000:
            return f"{count:.0f}" if not unit else f"{count:.1f}{unit}"
        count /= 1000
    return f"{count:.1f} E"


def layer_ranges(layers: Iterable[int]) -> str:
    """``0-3, 8``, as a configuration writes it."""
    parts: list[list[int]] = []
    for n in sorted(set(layers)):
        if parts and n == parts[-1][1] + 1:
            parts[-1][1] = n
        else:
            parts.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def tables(explanation: Explanation, width: int = 200) -> Group:
    """The tables of an explanation, for a rich console ``width`` characters wide."""
    parts: list[RenderableType] = [_layer_table(explanation)]
    if any(share < 1 for share in explanation.shares.values()):
        parts.append(_spoken_shares(explanation.shares))
    if explanation.collectives:
        parts.append(_collective_table(explanation.collectives))
    parts.append(_value_table(explanation.values, narrow=width < _WIDE))
    if len(explanation.current) < len(explanation.graphs):
        numbers = layer_ranges(graph.number for graph in explanation.current)
        parts.append(f"Of {len(explanation.graphs)} graphs, what the latest call ran: {numbers}. The others are in `graphs`.")
    parts += [f"warning: {text}" for text in explanation.warnings]
    return Group(*parts)


def render(explanation: Explanation, width: int = 200) -> str:
    """The tables as plain text, ``width`` characters wide."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, markup=False)
    console.print(tables(explanation, width))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def _layer_table(explanation: Explanation) -> Table:
    table = Table(title="Activations saved for backward", title_justify="left")
    swaps = ("swapped",) if explanation.swapped else ()
    for name in ("layer", "torch.compile", "memopt", *swaps, "operators run again", "FLOPs run again"):
        table.add_column(name, justify="left" if name == "layer" else "right")
    rows: dict[tuple[int, ...], list[LayerTotal]] = {}
    for total in explanation.totals:
        alike = astuple(total)[1:]
        key = alike if total.layer is not None else (*alike, -1)
        rows.setdefault(key, []).append(total)
    for totals in rows.values():
        first = totals[0]
        numbers = [t.layer for t in totals if t.layer is not None]
        name = layer_ranges(numbers) + (" (each)" if len(numbers) > 1 else "") if numbers else "outside layers"
        table.add_row(name, *_cells(first, swaps=bool(swaps)))
    table.add_section()
    sums = [sum(parts) for parts in zip(*(astuple(t)[1:] for t in explanation.totals), strict=True)]
    if sums:
        table.add_row("all", *_cells(type(explanation.totals[0])(None, *sums), swaps=bool(swaps)))
    return table


def _cells(total: LayerTotal, *, swaps: bool) -> list[str]:
    unknown = [f" + {n} unknown" if n else "" for n in (total.unknown_before, total.unknown, total.unknown_flops)]
    return [
        human_bytes(total.saved_before) + unknown[0],
        human_bytes(total.saved_after) + unknown[1],
        *([human_bytes(total.swapped)] if swaps else []),
        str(total.recomputed),
        human_count(total.recomputed_flops) + unknown[2],
    ]


def _spoken_shares(shares: Mapping[int, float]) -> str:
    """How much of which layers is under its rules, where it is not all of all."""
    layers: dict[str, list[int]] = {}
    for layer, share in shares.items():
        layers.setdefault(f"{share:.0%}", []).append(layer)
    parts = (f"layers {layer_ranges(numbers)}: {share}" for share, numbers in layers.items())
    return f"Share of each layer's operators that its rules reach: {'; '.join(parts)}."


def _collective_table(collectives: tuple[CollectiveRow, ...]) -> Table:
    """How often the collectives of a layer run in the forward, and again in the backward; equal layers in one line."""
    table = Table(title="Collectives of the forward (each, where a line stands for several layers)", title_justify="left")
    for name in ("layers", "collective", "in forward", "bytes", "again in backward", "bytes again", "rule"):
        table.add_column(name, justify="left" if name in ("layers", "collective", "rule") else "right", overflow="fold")
    by_layer: dict[tuple[int | None, str, str], list[CollectiveRow]] = {}
    for row in collectives:
        by_layer.setdefault((row.layer, row.op, row.rule), []).append(row)
    alike: dict[tuple[bool, tuple[str, ...]], list[int]] = {}
    for (layer, op, rule), rows in by_layer.items():
        again = [row for row in rows if row.again]
        cells = (op, str(len(rows)), _sum_of_bytes(rows), str(len(again)), _sum_of_bytes(again), rule)
        alike.setdefault((layer is None, cells), []).extend([] if layer is None else [layer])
    for (_, alike_cells), layers in alike.items():
        table.add_row(layer_ranges(layers) if layers else "outside layers", *alike_cells)
    return table


def _sum_of_bytes(rows: list[CollectiveRow]) -> str:
    known = [row.bytes for row in rows if row.bytes is not None]
    unknown = len(rows) - len(known)
    return human_bytes(sum(known)) + (f" + {unknown} unknown" if unknown else "")


def _value_table(values: tuple[ValueRow, ...], *, narrow: bool) -> Table:
    title = "Values that the backward needs (parameters and inputs left out: they are in memory anyway)"
    if any(row.store for row in values):
        title += "; n is the row's own layer"
    table = Table(title=title, title_justify="left")
    # Where there is room, names of operators and rules stay in one piece, to be searched for and copied.
    whole = ("bytes", "action") if narrow else ("operator", "rule")
    for name in ("layers", "path", "operator", "shape", "bytes", "action", "rule", "reason"):
        justify: Literal["left", "right"] = "right" if name == "bytes" else "left"
        table.add_column(name, no_wrap=name in whole, justify=justify, overflow="fold")
    groups: dict[tuple[bool, str, str, str, int | None, str, str, str], list[ValueRow]] = {}
    for row in values:
        if row.kind in ("parameter", "input"):
            continue
        shape = " x ".join(str(s) for s in row.shape) + f" {row.dtype}"
        key = (row.layer is None, row.path, row.op, shape, row.bytes, row.action, row.rule, _reason(row))
        groups.setdefault(key, []).append(row)
    for key, rows in groups.items():
        _, path, op, shape, size, action, rule, reason = key
        layers = layer_ranges(r.layer for r in rows if r.layer is not None) or "-"
        numbers = {r.layer for r in rows}
        per_layer = len(rows) // len(numbers) if len(rows) % len(numbers) == 0 else None
        times = "" if len(rows) == 1 else f" x {len(rows)}" if per_layer != 1 or None in numbers else f" x {len(numbers)}"
        cells = (layers, path, op, shape, human_bytes(rows[0].bytes if size is not None else None) + times)
        table.add_row(*(str(c) for c in (*cells, action, rule, reason)))
    return table


def _reason(row: ValueRow) -> str:
    """The reason without the node's own number, so that equal layers read equal; for a swapped value, its journey."""
    if row.store:
        leaves, issued, returns = (_place(layer, row) for layer in (row.leaves, row.issued, row.returns))
        return f"on the {row.store}: leaves in {leaves}, fetched at {issued}, used in {returns}"
    return " ".join(word.rstrip("0123456789").rstrip("_") if "_" in word else word for word in row.reason.split(" "))


def _place(layer: int | None, row: ValueRow) -> str:
    """A layer's number, seen from the row's own layer ``n``."""
    if layer is None:
        return "no layer"
    if row.layer is None:
        return f"layer {layer}"
    return "n" if layer == row.layer else f"n{layer - row.layer:+d}"
