"""A collective is decided with the wait behind it: saving attaches behind the wait, so the raw result gains no user.

    raw  = all_gather_into_tensor(x)   SAVE       ->  -
    full = wait_tensor(raw)            RECOMPUTE  ->  SAVE

Fusions of a collective with a matrix product look at the number of users, and still match.
"""

from __future__ import annotations

from ..joint import JointGraph, decide, decision_of
from ..keep import keep
from ..matched import Matched
from ..operators import is_collective, is_wait
from ..policy import Action


def decide_collective_with_wait(joint: JointGraph, _matched: Matched) -> None:
    """Move SAVE from a collective to its waits."""
    for node in joint.forward_operators():
        decision = decision_of(node)
        if decision is None or decision.action is not Action.SAVE or not is_collective(node):
            continue
        waits = [u for u in node.users if is_wait(u)]
        for wait in waits:
            keep(wait, decision.rule, decision.reason)
        if waits:
            decide(node, None)
