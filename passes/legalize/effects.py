"""Operators that are seen from outside (printing, ordered effects, asserts) run once, in the forward."""

from __future__ import annotations

from ..joint import JointGraph, is_recomputed
from ..keep import keep
from ..matched import Matched
from ..operators import has_effect

RULE = "legalize.effects"


def keep_effects(joint: JointGraph, _matched: Matched) -> None:
    """Never repeat an operator that has an effect."""
    for node in joint.forward_operators():
        if is_recomputed(node) and has_effect(node):
            keep(node, RULE, "its effect must happen once")
