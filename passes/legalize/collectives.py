"""A collective is decided with the wait behind it, and is not repeated unless a rule says so.

    raw  = all_gather_into_tensor(x)   SAVE       ->  -
    full = wait_tensor(raw)            RECOMPUTE  ->  SAVE

    raw  = all_reduce(x)               -
    full = wait_tensor(raw)            -          ->  SAVE

Saving attaches behind the wait, so that the raw result gains no user: fusions of a collective with a matrix product look at the
number of users, and still match. What decides is the configuration and the graph's structure alone, never a size or a time: all
ranks have to come to the same.
"""

from __future__ import annotations

import operator

from ..communication import is_collective, waits_of
from ..joint import JointGraph, decide, decision_of
from ..keep import keep
from ..matched import Matched
from ..policy import Action

RULE = "legalize.collectives"


def decide_collective_with_wait(joint: JointGraph, _matched: Matched) -> None:
    """Move SAVE from a collective to its waits."""
    for node in joint.forward_operators():
        decision = decision_of(node)
        if decision is None or decision.action is not Action.SAVE or not is_collective(node):
            continue
        waits = list(waits_of(node))
        for wait in waits:
            keep(wait, decision.rule, decision.reason, layer=decision.layer, path=decision.path)
        if waits:
            for raw in (node, *(u for u in node.users if u.target is operator.getitem)):
                decide(raw, None)


def keep_undecided_collectives(joint: JointGraph, _matched: Matched) -> None:
    """Save what no rule decided about: torch's partitioner leaves most, but not all, collectives alone by itself."""
    for node in joint.forward_operators():
        if not is_collective(node) or decision_of(node) is not None:
            continue
        scope = joint.scopes.get(node)
        layer, path = (scope.layer, scope.path) if scope is not None else (None, "")
        for result in list(waits_of(node)) or [node]:
            if decision_of(result) is None:
                keep(result, RULE, "communication is repeated only where a rule says so", layer=layer, path=path)
