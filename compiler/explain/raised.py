"""Rules that save more than torch would have saved without them: asked to save memory, they cost some."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import Node

from ...passes.communication import is_wait
from ...passes.joint import decision_of, is_recomputed
from ...passes.operators import target_names
from ...passes.policy import Plan, Rule, RuleKind
from ...passes.sizes import nbytes
from ...passes.verify import saved_values
from ..config.layer_specs import spoken
from ..pipeline import Rewritten
from .explanation import GraphExplanation


def raised(made: Rewritten, plan: Plan) -> Iterator[str]:
    """One sentence for each rule in whose layers more bytes are saved than without memopt.

    Torch's split is made a second time to know that, and only where a rule that names modules or operators may have such an
    effect: whole layers keep no more than what lies between them.
    """
    rules = {
        rule.field: rule
        for rule in (*plan.pending, *(rule for layer in plan.layers for rule in layer.rules.values()))
        if rule.kind in (RuleKind.RECOMPUTE_SELECT, RuleKind.RECOMPUTE_COMM)
        and rule.field in made.matched.effective - made.matched.fulfilled
    }
    communicates = any(rule.kind is RuleKind.RECOMPUTE_COMM for rule in rules.values())
    if not rules or _frees_what_it_keeps(made, strictly=communicates):
        return
    totals = {total.layer: total for total in GraphExplanation(0, made).totals}
    for rule in rules.values():
        met = tuple(layer for layer in rule.layers if (rule.field, layer) in made.matched.met)
        less = sum(totals[layer].saved_before for layer in met)
        more = sum(totals[layer].saved_after for layer in met)
        if more > less or (more == less and rule.kind is RuleKind.RECOMPUTE_COMM):
            yield _sentence(rule, met, less, more)


def _frees_what_it_keeps(made: Rewritten, *, strictly: bool) -> bool:
    """Whether what torch never recomputes by itself, and the rules do, outweighs all that is kept for or around it."""
    joint = made.joint
    kept = freed = 0
    for _, node in saved_values(joint, made.forward):
        if node is None or node.op == "placeholder":
            continue
        decision = decision_of(node)
        if any(is_recomputed(u) for u in node.users) or (decision is not None and decision.rule.startswith("legalize.")):
            kept += _bytes(node)
    for node in joint.forward_operators():
        heavy = not _HEAVY.isdisjoint(target_names(node)) or is_wait(node)
        if heavy and is_recomputed(node) and joint.read_by_backward(node):
            freed += _bytes(node)
    return kept < freed or (kept == freed and not strictly)


_HEAVY = frozenset({"matmul", "convolution"})
"""What torch never recomputes by itself, besides collectives."""


def _bytes(node: Node) -> int:
    value = node.meta.get("val")
    return (nbytes(value) or 0) if isinstance(value, torch.Tensor) else 0


def _sentence(rule: Rule, layers: tuple[int, ...], less: int, more: int) -> str:
    if rule.kind is RuleKind.RECOMPUTE_COMM:
        what = "communicates again and saves no memory" if more == less else "raises memory"
        return (
            f"{rule.field} {what}: {spoken(layers)} save {more:,} bytes for the backward, and {less:,} without memopt. What "
            "the collectives begin with is saved in place of their results. Leave it out, or recompute what makes it too."
        )
    return (
        f"{rule.field} raises memory: {spoken(layers)} save {more:,} bytes for the backward, and {less:,} without memopt. "
        "Torch recomputes some of it by itself, from less than the rule's regions keep. Name more of the layer, or less."
    )
