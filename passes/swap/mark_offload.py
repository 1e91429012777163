"""Mark what ``swap`` asks for: whole layers, modules, and operators.

    swap: {enable: True, op_swap: [{op_name: '.*mlp', layers: [0]}]}

    norm  = layer_norm(x)      layers.0.norm       -
    fc1   = addmm(norm)        layers.0.mlp.fc1    OFFLOAD
    gelu  = gelu(fc1)          layers.0.mlp.act    OFFLOAD

A mark says whose backward is swapped, not which values move: what the backward of a marked operator reads, and only such
backwards, moves (``choose_offload``). Nothing that was decided before is changed.
"""

from __future__ import annotations

from torch.fx import Node

from ..joint import JointGraph, decide, decision_of
from ..matched import Matched
from ..naming import rule_naming
from ..policy import Action, Decision, LayerPlan, Plan, Rule, RuleKind
from ..scopes import Scope


def mark_offload(joint: JointGraph, plan: Plan, matched: Matched) -> None:
    """Note the rule of every operator of the forward that ``swap`` covers, and decide OFFLOAD where nothing was decided."""
    if plan.swap is None:
        return
    pending = [rule for rule in plan.pending if rule.kind is RuleKind.SWAP_OP]
    for node in joint.graph.nodes:
        scope = joint.scopes.get(node)
        if node.op != "call_function" or scope is None or scope.layer is None:
            continue
        found = _rule_for(node, scope, plan.layer(scope.layer), pending, matched)
        if found is None:
            continue
        rule, reason = found
        matched.credit(rule, scope.layer)
        matched.swapped[node.name] = rule
        if decision_of(node) is None:
            decide(node, Decision(Action.OFFLOAD, rule.field, scope.layer, scope.path, reason))


def _rule_for(node: Node, scope: Scope, layer: LayerPlan, pending: list[Rule], matched: Matched) -> tuple[Rule, str] | None:
    named = rule_naming(node, scope, pending, matched)
    if layer.swap_full:
        return layer.rules[""], "its layer is swapped"
    for path in layer.swap:
        if scope.path == path or scope.path.startswith(path + "."):
            return layer.rules[path], f"module {path} is swapped"
    return (named[0], f"operator {named[1]} is swapped") if named is not None else None
