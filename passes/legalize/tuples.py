"""A tuple-valued operator and its ``getitem``s decide as one: half saved, half recomputed has no solution.

    pair    = topk(x)             SAVE
    values  = getitem(pair, 0)    RECOMPUTE  ->  SAVE
    indices = getitem(pair, 1)    RECOMPUTE  ->  SAVE

The operator decides, unless one of its outputs is to be saved.
"""

from __future__ import annotations

import operator
from dataclasses import replace

from ..joint import JointGraph, decide, decision_of, is_recomputed
from ..matched import Matched
from ..operators import producer
from ..policy import Action


def decide_tuples_as_one(joint: JointGraph, matched: Matched) -> None:
    """Give each ``getitem`` the decision of its operator; where one of them is saved, all are."""
    for node in joint.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or node in joint.backward:
            continue
        members = [u for u in node.users if u.target is operator.getitem and producer(u) is node]
        decision = decision_of(node)
        if not members or decision is None:
            continue
        saved = next((d for m in members if (d := decision_of(m)) is not None and d.action is Action.SAVE), None)
        if is_recomputed(node) and saved is not None:
            decision = replace(decision, action=Action.SAVE, rule=saved.rule, reason=saved.reason)
            decide(node, decision)
        for member in members:
            decide(member, decision)
            if node in matched.operators:
                matched.operators[member] = matched.operators[node]
