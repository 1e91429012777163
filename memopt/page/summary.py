"""The summary tiles on top of the page: what the whole step costs, in a few numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..compiler.explain.table import human_bytes, human_count


@dataclass(frozen=True, slots=True)
class Tile:
    """One number and what it means.

    Attributes:
        key: its name in the page.
        name: what is counted.
        value: the number, with its unit.
        notes: what else there is to say, in short lines.
    """

    key: str
    name: str
    value: str
    notes: tuple[str, ...] = ()


def tiles(data: Mapping[str, Any]) -> Iterator[Tile]:
    """A tile for each number of ``data["summary"]`` that is there."""
    summary = data.get("summary") or {}
    peak, measured = summary.get("peak_bytes"), summary.get("measured_peak_bytes")
    if peak is not None:
        yield Tile("peak", "Predicted peak", human_bytes(peak), _place(summary.get("peak_at") or {}))
    if measured is not None:
        ratio = (f"{measured / peak:.3f} × predicted",) if peak else ()
        yield Tile("measured", "Measured peak", human_bytes(measured), ratio)
    if summary.get("resident_bytes") is not None:
        parts = (summary.get("resident") or {}).items()
        notes = tuple(f"{name} {human_bytes(count)}" for name, count in parts if count)
        yield Tile("resident", "Resident all the time", human_bytes(summary["resident_bytes"]), notes)
    yield from _saved(summary)
    if swapped := summary.get("swapped_bytes"):
        yield Tile("swapped", "Swapped out and back", human_bytes(swapped), _journeys(data))
    yield from _recomputed(summary)


def _place(at: Mapping[str, Any]) -> tuple[str, ...]:
    if not at.get("operator"):
        return ()
    layer = "outside layers" if at.get("layer") is None else f"layer {at['layer']}"
    return (f"at {at['operator']}", ", ".join(part for part in (layer, at.get("phase")) if part))


def _saved(summary: Mapping[str, Any]) -> Iterator[Tile]:
    before, after = summary.get("saved_before"), summary.get("saved_after")
    if after is None:
        return
    if before is None:
        yield Tile("saved", "Saved for the backward", human_bytes(after))
        return
    change = (f"{100 * (after - before) / before:+.0f} %".replace("-", "−"),) if before else ()
    (old, old_unit), (_, unit) = (human_bytes(count).split(" ") for count in (before, after))
    old = old if old_unit == unit else f"{old} {old_unit}"
    yield Tile("saved", "Saved for the backward", f"{old} → {human_bytes(after)}", change)


def _journeys(data: Mapping[str, Any]) -> tuple[str, ...]:
    swaps = data.get("swaps") or ()
    stores = sorted({swap["store"] for swap in swaps if swap.get("store")})
    values = f"{len(swaps):,} value{'' if len(swaps) == 1 else 's'}"
    return (f"{values} to {' and '.join(stores)}" if stores else values,) if swaps else ()


def _recomputed(summary: Mapping[str, Any]) -> Iterator[Tile]:
    forward, again = summary.get("forward_flops"), summary.get("recompute_flops")
    if again is None:
        return
    if forward:
        notes = ("of the forward's work", f"{_flops(again)} of {_flops(forward)}")
        yield Tile("recomputed", "Recomputed", f"{100 * again / forward:.0f} %", notes)
    else:
        yield Tile("recomputed", "Recomputed", _flops(again))


def _flops(count: float) -> str:
    text = human_count(count)
    return f"{text}FLOPs" if " " in text else f"{text} FLOPs"
