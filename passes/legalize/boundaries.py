"""What leaves a region is kept: the layers behind it read that tensor, and would otherwise run the region for it.

    h = add(x, fc2)            layers.0   RECOMPUTE  ->  SAVE     (saved only if a backward needs it)
    norm = layer_norm(h)       layers.1   RECOMPUTE

A value that the forward returns is no exception: its caller may drop it before the backward (a key-value cache, say).
An operator that a rule names itself is no such border: not keeping its output is what the rule asks for.
"""

from __future__ import annotations

from torch.fx import Node

from ..joint import JointGraph, decision_of, is_recomputed, region_of
from ..keep import keep
from ..mark_checkpoint import RULE as CHECKPOINT
from ..matched import Matched

RULE = "legalize.boundaries"


def keep_what_leaves_a_region(joint: JointGraph, matched: Matched) -> None:
    """Save values of a region that operators of the forward outside it read."""
    operators = set(joint.forward_operators())
    for node in joint.forward_operators():
        if not is_recomputed(node) or region_of(node) is None or node in matched.operators:
            continue
        outside = next((u for u in joint.forward_users(node) if u in operators and _keeps(node, u)), None)
        if outside is not None:
            where = "the rest of the model" if region_of(outside) is None else "another region"
            keep(node, RULE, f"{outside.name} in {where} reads it")


def _keeps(node: Node, user: Node) -> bool:
    region, other = region_of(node), region_of(user)
    decision = decision_of(node)
    if decision is not None and decision.rule == CHECKPOINT:
        # The model's own checkpoints mean what they mean to torch: only a later region's recomputation keeps their results.
        return is_recomputed(user) and other is not None and other != region
    return other != region
