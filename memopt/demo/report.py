"""What the demonstration prints: what was decided in each run, and all runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console, Group
from rich.table import Table

from ..compiler.explain.explanation import Explanation
from ..compiler.explain.table import human_bytes, layer_ranges
from ..compiler.explain.values import ValueRow
from .train import Run, gradient_difference

EQUAL = 1e-5
"""Gradients that differ by less than this part of the largest one are called equal: float32 sums in another order."""

_BARS = "▁▂▃▄▅▆▇█"


def megabytes(count: float) -> str:
    """Bytes as ``163 MB``, or ``1.6 MB`` when there are few; 1 MB is 10**6 bytes."""
    return f"{count / 1e6:.0f} MB" if count >= 1e7 else f"{count / 1e6:.2f} MB"


def change(before: float, after: float) -> str:
    """``-42%``."""
    return f"{100 * (after - before) / before:+.0f}%" if before else "-"


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """``values`` as bars, at most ``width`` of them, from the lowest value to the highest."""
    if not values:
        return ""
    count = min(width, len(values))
    picked = [values[i * (len(values) - 1) // max(count - 1, 1)] for i in range(count)]
    low, high = min(picked), max(picked)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in picked)


def comparison(plain: Run, ours: Mapping[str, Run], seconds: Sequence[float]) -> Table:
    """All runs, measure by measure; ``seconds`` are their step times, the plain run's first."""
    table = Table(title="Training with and without a configuration", title_justify="left")
    table.add_column("")
    for name in ("torch.compile", *ours):
        table.add_column(name, justify="right")
    runs = [plain, *ours.values()]
    times = dict(zip(runs, seconds, strict=True))
    measures: list[tuple[str, Callable[[Run], float], Callable[[float], str]]] = [
        ("peak memory of a step (activations, gradients)", lambda run: run.peak_bytes, megabytes),
        ("training step, median", times.__getitem__, "{:.3f} s".format),
        ("first step, with compilation", lambda run: run.first_seconds, "{:.1f} s".format),
        ("loss, first step", lambda run: run.losses[0], "{:.5f}".format),
        ("loss, last step", lambda run: run.losses[-1], "{:.5f}".format),
        ("loss on held-out text", lambda run: run.held_out_loss, "{:.5f}".format),
    ]
    for name, measure, text in measures:
        before = measure(plain)
        cells = [text(before)]
        for run in ours.values():
            after = measure(run)
            against = f"{after - before:+.1e}" if name.startswith("loss") else change(before, after)
            cells.append(f"{text(after)}  {against}")
        table.add_row(name, *cells)
    table.add_section()
    width = 20 if len(runs) == 2 else 16
    table.add_row("loss over training", *(sparkline(run.losses, width) for run in runs))
    differences = (f"{gradient_difference(plain, run):.1e}" for run in ours.values())
    table.add_row("largest gradient difference / largest gradient", "", *differences)
    return table


def decisions(explanation: Explanation) -> Group:
    """What was decided, summed up: per layer, then per rule."""
    return Group(_by_layer(explanation), _by_rule(explanation.values))


def conclusion(name: str, plain: Run, ours: Run, seconds: Sequence[float]) -> str:
    """The result of one run in one line; ``seconds`` are the plain run's step time and its own."""
    difference = gradient_difference(plain, ours)
    agree = f"gradients equal to {difference:.0e}" if difference <= EQUAL else f"gradients DIFFER by {difference:.0e}"
    agree = "gradients identical" if difference == 0 else agree
    before, after = plain.peak_bytes, ours.peak_bytes
    peak = f"peak {megabytes(before)} -> {megabytes(after)} ({change(before, after)})"
    return f"{name}: {peak}, step {seconds[0]:.2f} s -> {seconds[1]:.2f} s ({change(*seconds)}), {agree}"


def print_decisions(console: Console, name: str, explanation: Explanation) -> None:
    """Print what was decided in one run."""
    console.rule(name, align="left")
    console.print(decisions(explanation))
    console.print("The whole table, value by value: print(memopt.explain(model)), or memopt explain.\n")


def print_report(console: Console, plain: Run, ours: Mapping[str, Run], seconds: Sequence[float]) -> None:
    """Print the runs side by side; ``seconds`` are their step times, the plain run's first."""
    console.print(comparison(plain, ours, seconds))
    for (name, run), own in zip(ours.items(), seconds[1:], strict=True):
        console.print(conclusion(name, plain, run, (seconds[0], own)), style="bold", highlight=False)


def _by_layer(explanation: Explanation) -> Table:
    table = Table(title="Activations saved for backward", title_justify="left")
    swaps = bool(explanation.swapped)
    for name in ("layer", "torch.compile", "memopt", *(("swapped",) if swaps else ()), "operators run again"):
        table.add_column(name, justify="left" if name == "layer" else "right")
    for total in explanation.totals:
        name = "outside layers" if total.layer is None else str(total.layer)
        moved = [human_bytes(total.swapped)] if swaps else []
        table.add_row(name, human_bytes(total.saved_before), human_bytes(total.saved_after), *moved, str(total.recomputed))
    table.add_section()
    again = str(sum(total.recomputed for total in explanation.totals))
    moved = [human_bytes(explanation.swapped)] if swaps else []
    table.add_row("all", human_bytes(explanation.saved_before), human_bytes(explanation.saved_after), *moved, again)
    return table


def _by_rule(values: Sequence[ValueRow]) -> Table:
    table = Table(title="Values that the backward needs, by the rule that decided", title_justify="left")
    for name in ("layers", "action", "rule", "values", "bytes", "the largest: where, operator, shape"):
        table.add_column(name, justify="right" if name in ("values", "bytes") else "left", overflow="fold")
    groups: dict[tuple[bool, str, str], list[ValueRow]] = {}
    for row in values:
        if row.kind == "activation":
            groups.setdefault((row.layer is None, row.action, row.rule), []).append(row)
    for (outside, action, rule), rows in groups.items():
        layers = "outside" if outside else layer_ranges(row.layer for row in rows if row.layer is not None)
        size = sum(row.bytes or 0 for row in rows)
        largest = max(rows, key=lambda row: row.bytes or 0)
        path = largest.path or ("the model" if outside else "the layer")
        where = f"{path}: {largest.op}, {' x '.join(map(str, largest.shape)) or 'scalar'}"
        table.add_row(layers, action, rule or "none: torch's own choice", str(len(rows)), human_bytes(size), where)
    return table
