"""What leaves a region is kept: the layers behind it read that tensor, and would otherwise run the region for it.

    h = add(x, fc2)            layers.0   RECOMPUTE  ->  SAVE     (saved only if a backward needs it)
    norm = layer_norm(h)       layers.1   RECOMPUTE

An operator that a rule names itself is no such border: not keeping its output is what the rule asks for.
"""

from __future__ import annotations

from ..joint import JointGraph, decision_of, is_recomputed, region_of
from ..keep import keep
from ..matched import Matched

RULE = "legalize.boundaries"


def keep_what_leaves_a_region(joint: JointGraph, matched: Matched) -> None:
    """Save values of a region that operators of the forward outside it read."""
    operators = set(joint.forward_operators())
    for node in joint.forward_operators():
        region = region_of(node)
        if not is_recomputed(node) or region is None or node in matched.operators:
            continue
        if node in joint.returned:
            keep(node, RULE, "the forward returns it, so it is in memory anyway")
            continue
        outside = next((u for u in joint.forward_users(node) if u in operators and region_of(u) != region), None)
        if outside is not None:
            decision = decision_of(outside)
            where = "another region" if decision is not None and decision.region is not None else "the rest of the model"
            keep(node, RULE, f"{outside.name} in {where} reads it")
