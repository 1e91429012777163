"""A plan as a table for people."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from rich.table import Table
from rich.text import Text

from ...passes.policy import LayerPlan, Plan
from ..config.layer_specs import canonical

_NOTHING = "-"


def plan_table(plan: Plan) -> Table:
    """What holds in which layers: one row for each run of consecutive layers with the same plan.

    Rules that may name operators are listed where they found no module: whether they find any is known once a graph exists.
    """
    stage = f", layers {_numbers(layer.index for layer in plan.layers)}" if len(plan.layers) < plan.num_layers else ""
    table = Table(title=f"memopt plan{stage}, num_layers = {plan.num_layers}")
    for name in ("layers", "modules", "recompute", "swap", "fetched at", "operators looked for", "rules"):
        table.add_column(name, overflow="fold")
    for cells, run in groupby(plan.layers, key=lambda layer: _cells(plan, layer)):
        layers = list(run)
        _add_row(table, _numbers(layer.index for layer in layers), _paths(layers), *cells)
    for rule in plan.exclude:
        kept = f"keep {rule.pattern}"
        _add_row(table, _numbers(rule.layers), _NOTHING, kept, _NOTHING, _NOTHING, _NOTHING, rule.field)
    return table


def _cells(plan: Plan, layer: LayerPlan) -> tuple[str, ...]:
    found = {rule.field for rule in layer.rules.values()}
    pending = [rule for rule in plan.pending if layer.index in rule.layers and rule.field not in found]
    ahead = None if layer.prefetch_at is None else layer.prefetch_at - layer.index
    return (
        "everything" if layer.recompute_full else _joined((*layer.recompute, *layer.recompute_comm)),
        "everything" if layer.swap_full else _joined(layer.swap),
        _NOTHING if ahead is None else f"layer + {ahead}",
        _joined(rule.pattern for rule in pending),
        _joined(dict.fromkeys([*(rule.field for rule in layer.rules.values()), *(rule.field for rule in pending)])),
    )


def _paths(layers: list[LayerPlan]) -> str:
    """``model.layers.0-15``; several stacks are listed one after the other."""
    texts = []
    for stack, run in groupby(layers, key=lambda layer: layer.path.rpartition(".")[0]):
        names = [layer.path.rpartition(".")[2] for layer in run]
        last = names[0] if len(names) == 1 else f"{names[0]}-{names[-1]}"
        texts.append(f"{stack}.{last}" if stack else last)
    return _joined(texts)


def _numbers(layers: Iterable[int]) -> str:
    return _joined(map(str, canonical(tuple(layers))))


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts) or _NOTHING


def _add_row(table: Table, *cells: str) -> None:
    # As plain text: the brackets of a pattern would be read as markup.
    table.add_row(*(Text(cell) for cell in cells))
