"""Mark what ``recompute`` asks for: whole layers, modules, and operators.

    recompute: {mode: select, select_module: {'.*mlp': [0]}}

    norm  = layer_norm(x)      layers.0.norm
    fc1   = addmm(norm)        layers.0.mlp.fc1    RECOMPUTE  region 0
    gelu  = gelu(fc1)          layers.0.mlp.act    RECOMPUTE  region 0
    fc2   = addmm(gelu)        layers.0.mlp.fc2    RECOMPUTE  region 0

A region is one call of one layer, module or operator: a layer that runs twice has two.
"""

from __future__ import annotations

from collections.abc import Hashable

from torch.fx import Node

from .joint import JointGraph, decide
from .matched import Matched
from .operators import function_names, target_names
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
        named = _by_operator(node, scope, pending, matched)
        found = _by_layer_or_module(plan.layers[scope.layer], scope)
        if found is None and named is not None:
            found = named
            matched.operators.setdefault(node, named[0])
        if found is None:
            continue
        rule, key, reason = found
        matched.credit(rule, scope.layer)
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


def _by_operator(node: Node, scope: Scope, rules: list[Rule], matched: Matched) -> tuple[Rule, Hashable, str] | None:
    """The first rule that names the operator; every one that does is credited."""
    called = [(path, scope.call) for path in operator_paths(scope, function_names(scope))]
    own = [(path, node.name) for path in operator_paths(scope, target_names(node))]
    first: tuple[Rule, Hashable, str] | None = None
    for rule in rules:
        if scope.layer is None or scope.layer not in rule.layers:
            continue
        found = next(((path, call) for path, call in called + own if matched.fullmatch(rule, path)), None)
        if found is not None:
            matched.credit(rule, scope.layer)
            first = first or (rule, (found[0], scope.chain[-1][1], found[1]), f"operator {found[0]} is recomputed")
    return first


def operator_paths(scope: Scope, names: tuple[str, ...]) -> tuple[str, ...]:
    """The paths by which a pattern can name an operator: ``mlp.fc1.linear``; without a module, the name alone."""
    prefix = scope.path + "." if scope.path else ""
    return tuple(prefix + name for name in names)
