"""What is computed from parameters alone, and cheaply, is recomputed: saved, it would be a second copy of the model.

    w16 = to(weight, bfloat16)   -  ->  RECOMPUTE
    out = mm(x, w16)

Parameters stay in memory, so such a value can always be had again.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.fx import Node

from ..joint import JointGraph, decide, decision_of
from ..matched import Matched
from ..operators import storage_root, target_names, viewed
from ..policy import Action, Decision

RULE = "legalize.parameters"
_CHEAP = frozenset({"_to_copy", "convert_element_type", "clone", "cat", "stack", "contiguous", "repeat"})


def recompute_what_parameters_give(joint: JointGraph, _matched: Matched) -> None:
    """Recompute casts, copies and elementwise results whose only inputs are parameters that the forward leaves alone."""
    derived: set[Node] = set(joint.parameters - joint.mutated)
    for node in joint.forward_operators():
        inputs = node.all_input_nodes
        if not inputs or not derived.issuperset(inputs) or not _is_cheap(node):
            continue
        derived.add(node)
        decision = decision_of(node)
        if storage_root(node).op == "placeholder" or (decision is not None and decision.action is Action.SAVE):
            continue
        scope = joint.scopes.get(node)
        if decision is None:
            layer, path = (scope.layer, scope.path) if scope is not None else (None, "")
            decision = Decision(Action.RECOMPUTE, RULE, layer, path, "")
        reason = "it comes from parameters alone, which stay in memory"
        decide(node, replace(decision, action=Action.RECOMPUTE, rule=RULE, reason=reason, region=None))


def _is_cheap(node: Node) -> bool:
    if viewed(node) is not None:
        return True
    return torch.Tag.pointwise in getattr(node.target, "tags", ()) or not _CHEAP.isdisjoint(target_names(node))
