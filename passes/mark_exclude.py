"""Mark what ``exclude_op`` keeps: inside recomputed regions, the outputs of the named operators.

    exclude_op: [MatMul]

    fc1   = addmm(norm)        RECOMPUTE  ->  SAVE
    gelu  = gelu(fc1)          RECOMPUTE
    fc2   = addmm(gelu)        RECOMPUTE  ->  SAVE

A function the user called may have become several operators; only what leaves it is its output.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from .joint import JointGraph, is_recomputed
from .keep import keep
from .matched import Matched
from .naming import operator_paths
from .operators import function_names, simplified, target_names
from .policy import Plan, Rule
from .scopes import Scope


def mark_exclude(joint: JointGraph, plan: Plan, matched: Matched) -> None:
    """Turn RECOMPUTE into SAVE for the outputs of operators that ``exclude_op`` names."""
    if not plan.exclude:
        return
    for node in list(joint.forward_operators()):
        scope = joint.scopes.get(node)
        if scope is None or not is_recomputed(node):
            continue
        found = _matches(joint, node, scope, plan.exclude, matched)
        if found:
            rule, name = found[0]
            keep(node, rule.field, f"{name} is excluded from recomputation")


def _matches(joint: JointGraph, node: Node, scope: Scope, rules: tuple[Rule, ...], matched: Matched) -> list[tuple[Rule, str]]:
    """The rules that name the node, each with the name it matched; all of them are credited."""
    found = []
    names = list(_output_names(joint, node, scope))
    for rule in rules:
        if scope.layer is None or scope.layer not in rule.layers:
            continue
        name = next((name for name in names if _names(rule, scope, name, matched)), None)
        if name is not None:
            matched.credit(rule, scope.layer)
            found.append((rule, name))
    return found


def _output_names(joint: JointGraph, node: Node, scope: Scope) -> Iterator[str]:
    yield from target_names(node)
    if _is_output_of_call(joint, node, scope):
        yield from function_names(scope)


def _is_output_of_call(joint: JointGraph, node: Node, scope: Scope) -> bool:
    """Whether the call ends with the node. Removing common subexpressions lets other calls read its first steps too."""
    users = [joint.scopes.get(user) for user in joint.forward_users(node)]
    return not any(_same_call(scope, user) for user in users) and (bool(users) or node in joint.returned)


def _same_call(scope: Scope, other: Scope | None) -> bool:
    return other is not None and other.call == scope.call and other.chain[-1:] == scope.chain[-1:]


def _names(rule: Rule, scope: Scope, name: str, matched: Matched) -> bool:
    if rule.literal:
        return simplified(rule.pattern) in simplified(name)
    return any(matched.fullmatch(rule, path) for path in operator_paths(scope, (name,)))
