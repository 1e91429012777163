"""Mark what ``recompute`` asks for: whole layers, modules, and operators.

    recompute: {mode: select, select_module: {'.*mlp': [0]}}

    norm  = layer_norm(x)      layers.0.norm
    fc1   = addmm(norm)        layers.0.mlp.fc1    RECOMPUTE  region 0
    gelu  = gelu(fc1)          layers.0.mlp.act    RECOMPUTE  region 0
    fc2   = addmm(gelu)        layers.0.mlp.fc2    RECOMPUTE  region 0

A region is one call of one layer, module or operator: a layer that runs twice has two. What the model's own checkpoints
recompute already stays with them.
"""

from __future__ import annotations

from collections.abc import Hashable

from .joint import JointGraph, decide, is_recomputed
from .matched import Matched
from .naming import rule_naming
from .policy import Action, Decision, LayerPlan, Plan, Rule, RuleKind
from .scopes import Scope


def mark_recompute(joint: JointGraph, plan: Plan, matched: Matched) -> None:
    """Decide RECOMPUTE for every operator of the forward that a rule of ``recompute`` covers."""
    pending = [rule for rule in plan.pending if rule.kind is RuleKind.RECOMPUTE_SELECT]
    regions: dict[Hashable, int] = {}
    for node in joint.forward_operators():
        scope = joint.scopes.get(node)
        if scope is None or scope.layer is None:
            continue
        named = rule_naming(node, scope, pending, matched)
        found = _by_layer_or_module(plan.layer(scope.layer), scope)
        if found is None and named is not None:
            rule, path, call = named
            found = rule, (path, scope.chain[-1][1], call), f"operator {path} is recomputed"
            if not is_recomputed(node):
                matched.operators.setdefault(node, rule)
        if found is None:
            continue
        rule, key, reason = found
        matched.credit(rule, scope.layer)
        if is_recomputed(node):
            # The model checkpoints it already: a region of our own within that one would only keep what leaves it.
            matched.fulfilled.add(rule.field)
            continue
        region = regions.setdefault((scope.layer, key), len(regions))
        decide(node, Decision(Action.RECOMPUTE, rule.field, scope.layer, scope.path, reason, region))


def _by_layer_or_module(layer: LayerPlan, scope: Scope) -> tuple[Rule, Hashable, str] | None:
    calls = dict(scope.chain)
    if layer.recompute_full:
        return layer.rules[""], calls[""], "its layer is recomputed"
    for path in layer.recompute:
        if scope.path == path or scope.path.startswith(path + "."):
            # A container (ModuleList) has no call of its own: the layer's stands in.
            return layer.rules[path], (path, calls.get(path, calls[""])), f"module {path} is recomputed"
    return None
