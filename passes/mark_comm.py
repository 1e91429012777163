"""Mark what ``recompute_comm`` asks for: collectives, each with the wait, slice, cast and re-arrangement behind it.

    recompute_comm: {enable: True, select_module: {'.*\\.all_gather': [0]}}

    raw   = all_gather_into_tensor(x, 2)   layers.0.mlp   RECOMPUTE  region 2147483648
    full  = wait_tensor(raw)               layers.0.mlp   RECOMPUTE  region 2147483648
    parts = split(full, 4)                 layers.0.mlp   RECOMPUTE  region 2147483648
    wide  = cat(parts, 1)                  layers.0.mlp   RECOMPUTE  region 2147483648
    out   = mm(wide, w)                    layers.0.mlp

What another rule recomputes or keeps already stays with that rule.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from dataclasses import replace

from torch.fx import Node

from .communication import communicates, is_wait
from .joint import JointGraph, decide, decision_of, is_recomputed
from .matched import Matched
from .naming import rule_naming
from .operators import target_names, viewed
from .policy import Action, Decision, Plan, Rule, RuleKind
from .scopes import Scope

# Far from the regions of mark_recompute, which count from zero, and below those of the model's own checkpoints.
_FIRST_REGION = 1 << 31
_REARRANGING = frozenset({"_to_copy", "convert_element_type", "cat", "clone", "slice", "contiguous", "constant_pad_nd"})


def mark_comm(joint: JointGraph, plan: Plan, matched: Matched) -> None:
    """Decide RECOMPUTE for the collectives that a rule of ``recompute_comm`` names, and for what follows each."""
    rules = [rule for rule in plan.pending if rule.kind is RuleKind.RECOMPUTE_COMM]
    if not rules:
        return
    numbers = itertools.count(_FIRST_REGION)
    for node in joint.forward_operators():
        scope = joint.scopes.get(node)
        if scope is None or scope.layer is None:
            continue
        collective = communicates(node)
        if collective is None:
            _note_what_does_not_communicate(node, scope, rules, matched)
            continue
        named = rule_naming(node, scope, rules, matched)
        if named is None:
            continue
        rule, path, _ = named
        if decision_of(node) is not None:
            _leave_to_other_rule(node, rule, matched)
            continue
        reason = f"communication {path} is recomputed"
        decision = Decision(Action.RECOMPUTE, rule.field, scope.layer, scope.path, reason, next(numbers))
        for member in _with_what_follows(joint, node):
            matched.operators[member] = rule
            decide(member, decision if member is node else replace(decision, reason=f"it follows {node.name}, recomputed"))


def _with_what_follows(joint: JointGraph, collective: Node) -> Iterator[Node]:
    """The collective, and the nodes behind it that wait for its result, cut it, cast it or put it in another order."""
    members = {collective: None}
    pending = [collective]
    for member in pending:
        for user in joint.forward_users(member):
            if user in members or decision_of(user) is not None or not members.keys() >= set(user.all_input_nodes):
                continue
            follows = user.target is operator.getitem or viewed(user) is not None or is_wait(user)
            if follows or not _REARRANGING.isdisjoint(target_names(user)):
                members[user] = None
                pending.append(user)
    yield from members


def _leave_to_other_rule(node: Node, rule: Rule, matched: Matched) -> None:
    decision = decision_of(node)
    if is_recomputed(node):
        matched.fulfilled.add(rule.field)
    elif decision is not None:
        matched.ineffective[rule.field] = (
            f"recomputes nothing: {decision.rule} keeps {node.name}, which lies in a recomputed region"
        )


def _note_what_does_not_communicate(node: Node, scope: Scope, rules: list[Rule], matched: Matched) -> None:
    named = None if is_wait(node) else rule_naming(node, scope, rules, matched)
    if named is not None:
        rule, path, _ = named
        matched.ineffective.setdefault(rule.field, f"recomputes nothing: {path}, which it names, does not communicate")
