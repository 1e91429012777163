"""From an estimate, its explanation and the configuration to what the page shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..compiler.config.load import MemoptConfig
from ..compiler.errors import line_of
from ..compiler.estimate.estimate import Estimate
from ..compiler.explain.table import layer_ranges
from ..compiler.explain.totals import LayerTotal
from ..compiler.explain.values import ValueRow
from ..compiler.plan.rules import Rules, active_rules
from ..runtime.measure import Measurement
from ..runtime.timeline import CATEGORIES

_MAIN = ("layer", "path", "op", "shape", "dtype", "bytes", "kind", "action", "rule", "reason")
COLUMNS = (*_MAIN, "store", "leaves", "issued", "returns")


def page_data(
    estimate: Estimate, config: MemoptConfig, facts: Mapping[str, str], measured: Measurement | None = None
) -> dict[str, Any]:
    """What ``render.page`` takes.

    Args:
        estimate: of one step.
        config: what it was estimated for.
        facts: what the page says about the model and the backend, in its first line.
        measured: a real step of the same model, to be laid over the estimate.
    """
    rules = active_rules(config)
    return {
        "title": "memopt: one training step",
        "facts": {**facts, "memopt": __version__, "torch": torch.__version__},
        "warnings": [*estimate.warnings, *(f"Not counted: {note}." for note in estimate.notes)],
        "summary": _summary(estimate, measured),
        "categories": list(CATEGORIES),
        "timeline": _timeline(estimate),
        "measured": _measured(measured) if measured is not None else None,
        "layers": [_layer(total, estimate) for total in estimate.layers],
        "swaps": list(_swaps(estimate)),
        "config": _config(estimate, config, rules),
        "values": {"columns": list(COLUMNS), "rows": [_value(row) for row in _by_kind(estimate.explanation.values)]},
    }


def _summary(estimate: Estimate, measured: Measurement | None) -> dict[str, Any]:
    peak = estimate.at_peak
    return {
        "peak_bytes": estimate.peak_bytes,
        "peak_at": {"operator": peak.operator, "layer": peak.layer, "phase": peak.phase},
        "resident_bytes": estimate.resident_bytes,
        "resident": dict(estimate.resident),
        "saved_before": sum(total.saved_before for total in estimate.layers),
        "saved_after": estimate.saved_bytes,
        "swapped_bytes": estimate.swapped_bytes,
        "forward_flops": estimate.work.forward,
        "backward_flops": estimate.work.backward,
        "recompute_flops": estimate.recompute_flops,
        "measured_peak_bytes": measured.peak_bytes if measured is not None else None,
    }


def _timeline(estimate: Estimate) -> dict[str, Any]:
    names = {name: place for place, name in enumerate(dict.fromkeys(moment.operator for moment in estimate.timeline))}
    return {
        "phase": [int(moment.phase == "backward") for moment in estimate.timeline],
        "operator": [names[moment.operator] for moment in estimate.timeline],
        "layer": [-1 if moment.layer is None else moment.layer for moment in estimate.timeline],
        "bytes": {kind: [moment.bytes.get(kind, 0) for moment in estimate.timeline] for kind in CATEGORIES},
        "names": list(names),
    }


def _measured(measured: Measurement) -> dict[str, Any]:
    count = len(measured.timeline)
    first = next((i for i, moment in enumerate(measured.timeline) if moment.phase == "backward"), count)
    return {
        "at": [i / count for i in range(count)],
        "total": [moment.total for moment in measured.timeline],
        "backward_at": first / count,
    }


def _layer(total: LayerTotal, estimate: Estimate) -> dict[str, Any]:
    own = [row for row in estimate.explanation.values if row.layer == total.layer]
    swaps, recomputes = total.swapped > 0, any(row.action == "recompute" and row.rule for row in own)
    paths = estimate.explanation.layer_paths
    return {
        "layer": total.layer,
        "path": paths.get(total.layer, "") if total.layer is not None else "outside layers",
        "action": "mixed" if swaps and recomputes else "swap" if swaps else "recompute" if recomputes else "keep",
        "rules": sorted({row.rule for row in own if row.rule}),
        "before": total.saved_before,
        "after": total.saved_after,
        "swapped": total.swapped,
        "recomputed": total.recomputed,
        "recomputed_flops": total.recomputed_flops,
    }


def _swaps(estimate: Estimate) -> Iterator[dict[str, Any]]:
    """When each value leaves, is fetched and is used, as places in the timeline."""
    place = {(moment.phase, moment.node): i for i, moment in enumerate(estimate.timeline)}
    for graph in estimate.explanation.current:
        rows = {row.name: row for row in graph.values if row.store and row.bytes}
        for journey in graph.journeys:
            row = rows.get(journey.move.crossings[0].own.name)
            name = journey.move.value.name
            leaves, issued = place.get(("forward", f"{name}_ticket")), place.get(("backward", f"{name}_prefetch"))
            if row is None or leaves is None or issued is None:
                continue
            used = place.get(("backward", journey.first_use.name), _first_in(estimate, row.returns, issued))
            yield {
                "name": row.name,
                "layer": row.layer,
                "bytes": row.bytes,
                "store": row.store,
                "leaves": leaves,
                "issued": issued,
                "returns": used,
                "leaves_in": row.leaves,
                "issued_in": row.issued,
                "returns_in": row.returns,
            }


def _first_in(estimate: Estimate, layer: int | None, since: int) -> int:
    """The place of the first moment of a layer's backward: what uses a value may be a part of a kernel."""
    behind = enumerate(estimate.timeline[since:], since)
    return next((i for i, moment in behind if moment.phase == "backward" and moment.layer == layer), since)


def _config(estimate: Estimate, config: MemoptConfig, rules: Rules) -> dict[str, Any]:
    source = config.origin.source
    text = Path(source).read_text(encoding="utf-8") if source is not None and Path(source).is_file() else ""
    told = []
    for rule in rules.all():
        own = [row for row in estimate.explanation.values if row.rule == rule.field]
        actions: dict[str, int] = {}
        for row in own:
            actions[row.action] = actions.get(row.action, 0) + 1
        told.append(
            {
                "line": line_of(rules.loc(rule), config.origin.lines),
                "field": rule.field,
                "layers": layer_ranges(rule.layers),
                "values": len(own),
                "bytes": sum(row.bytes or 0 for row in own),
                "actions": actions,
            }
        )
    return {"path": source or "", "lines": text.splitlines(), "rules": told}


def _by_kind(rows: tuple[ValueRow, ...]) -> list[ValueRow]:
    """What costs memory first: parameters and inputs are in memory anyway."""
    return sorted(rows, key=lambda row: row.kind in ("parameter", "input"))


def _value(row: ValueRow) -> list[Any]:
    cells = {name: getattr(row, name) for name in COLUMNS}
    return list({**cells, "shape": " x ".join(map(str, row.shape))}.values())
