"""An estimate as tables for people."""

from __future__ import annotations

import io

from rich.console import Console, Group, RenderableType
from rich.table import Table

from ...runtime.timeline import CATEGORIES, Moment
from ..explain.table import human_bytes, human_count, layer_ranges
from .estimate import Estimate


def tables(estimate: Estimate) -> Group:
    """The tables of an estimate, for a rich console."""
    parts: list[RenderableType] = [_summary(estimate), _peak(estimate)]
    if estimate.formula:
        parts.append(_formulas(estimate))
    parts += [f"note: {text}." for text in estimate.notes]
    parts += [f"warning: {text}" for text in estimate.warnings]
    return Group(*parts)


def render(estimate: Estimate, width: int = 150) -> str:
    """The tables as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, markup=False)
    console.print(tables(estimate))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def place_of(moment: Moment) -> str:
    """``addmm in layer 3, backward``."""
    where = f" in layer {moment.layer}" if moment.layer is not None else ""
    return f"{moment.operator}{where}, {moment.phase}"


def _summary(estimate: Estimate) -> Table:
    sizes = ", ".join(f"{name} {size}" for name, size in estimate.sizes.items())
    table = Table(title=f"One step{f' with {sizes}' if sizes else ''}", title_justify="left", show_header=False)
    resident = ", ".join(f"{name} {human_bytes(size)}" for name, size in estimate.resident.items())
    before = sum(t.saved_before for t in estimate.layers)
    work = estimate.work
    least = "" if estimate.explanation.is_whole else " (at least)"
    peak = f"peak, above what is there all the time{least}"
    unknown = f" ({work.unknown} operators of unknown work left out)" if work.unknown else ""
    share = f" ({work.recompute / work.forward:.0%} of the forward's)" if work.forward else ""
    rows = [
        (peak, human_bytes(estimate.peak_bytes), f"at {place_of(estimate.at_peak)}"),
        ("there all the time", human_bytes(estimate.resident_bytes), resident),
        ("saved for backward", human_bytes(estimate.saved_bytes), f"torch.compile alone: {human_bytes(before)}"),
        ("swapped", human_bytes(estimate.swapped_bytes), "leaves in the forward, returns in the backward"),
        ("FLOPs of the forward", human_count(work.forward), f"matrix products, convolutions and attention{unknown}"),
        ("FLOPs of the backward", human_count(work.backward), "with what runs again"),
        ("FLOPs that run again", human_count(work.recompute), share.strip(" ()")),
    ]
    for column in ("left", "right", "left"):
        table.add_column(justify=column)
    for row in rows:
        table.add_row(*row)
    return table


def _peak(estimate: Estimate) -> Table:
    table = Table(title="What is alive at the peak", title_justify="left")
    table.add_column("what for")
    table.add_column("bytes", justify="right")
    for category in CATEGORIES:
        if estimate.at_peak.bytes.get(category):
            table.add_row(category, human_bytes(estimate.at_peak.bytes[category]))
    table.add_section()
    table.add_row("all", human_bytes(estimate.peak_bytes))
    return table


def _formulas(estimate: Estimate) -> Table:
    table = Table(title="Bytes saved for backward, as a formula", title_justify="left")
    table.add_column("layers")
    table.add_column("bytes", overflow="fold")
    table.add_column("here", justify="right")
    here = {total.layer: total.saved_after for total in estimate.layers}
    alike: dict[tuple[bool, str], list[int]] = {}
    sizes: dict[tuple[bool, str], int] = {}
    for layer, formula in estimate.formula.items():
        key = layer is None, str(formula)
        alike.setdefault(key, []).extend([] if layer is None else [layer])
        sizes[key] = here.get(layer, 0)
    for (outside, text), layers in alike.items():
        name = "outside layers" if outside else layer_ranges(layers) + (" (each)" if len(layers) > 1 else "")
        table.add_row(name, text, human_bytes(sizes[outside, text]))
    table.add_section()
    table.add_row("all", str(estimate.saved_formula), human_bytes(estimate.saved_bytes))
    return table
