"""Rules that save more than torch would have saved without them: asked to save memory, they cost some."""

from __future__ import annotations

from collections.abc import Iterator

from ..passes.policy import Plan, Rule, RuleKind
from .explain import GraphExplanation
from .layer_specs import spoken
from .pipeline import Rewritten


def raised(made: Rewritten, plan: Plan) -> Iterator[str]:
    """One sentence for each rule in whose layers more bytes are saved than without memopt.

    Torch's split is made a second time to know that, and only where a rule names modules or operators: whole layers keep no
    more than what lies between them.
    """
    rules = {
        rule.field: rule
        for rule in (*plan.pending, *(rule for layer in plan.layers for rule in layer.rules.values()))
        if rule.kind is RuleKind.RECOMPUTE_SELECT and rule.field in made.matched.effective - made.matched.fulfilled
    }
    if not rules:
        return
    totals = {total.layer: total for total in GraphExplanation(0, made).totals}
    for rule in rules.values():
        met = tuple(layer for layer in rule.layers if (rule.field, layer) in made.matched.met)
        less = sum(totals[layer].saved_before for layer in met)
        more = sum(totals[layer].saved_after for layer in met)
        if more > less:
            yield _sentence(rule, met, less, more)


def _sentence(rule: Rule, layers: tuple[int, ...], less: int, more: int) -> str:
    return (
        f"{rule.field} raises memory: {spoken(layers)} save {more:,} bytes for the backward, and {less:,} without memopt. "
        "Torch recomputes some of it by itself, from less than the rule's regions keep. Name more of the layer, or less."
    )
