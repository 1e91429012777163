"""What the backward does not need is not run again.

    fc1  = addmm(norm)         RECOMPUTE
    gelu = gelu(fc1)           RECOMPUTE          the backward of fc2 reads it
    fc2  = addmm(gelu)         RECOMPUTE  ->  -   only the next layer reads it

Nothing is left undone by that: such a value never crosses to the backward.
"""

from __future__ import annotations

from torch.fx import Node

from ..joint import JointGraph, decide, decision_of, is_recomputed, region_of
from ..matched import Matched
from ..policy import RuleKind


def drop_what_backward_does_not_need(joint: JointGraph, matched: Matched) -> None:
    """Drop RECOMPUTE from values that neither the backward nor another recomputed value reads.

    An operator that a rule names keeps it while an undecided node reads its value: torch could save that very value. So does
    what no region recomputes, but its own nature (what parameters give, what may lie in changed memory).
    """
    operators = set(joint.forward_operators())
    needed: set[Node] = set()
    for node in reversed(joint.graph.nodes):
        if not is_recomputed(node):
            continue
        rule = matched.operators.get(node)
        # What communicates is saved behind its wait or not at all: kept recomputed, it would save what it begins with.
        named = rule is not None and rule.kind is not RuleKind.RECOMPUTE_COMM
        alone = named or region_of(node) is None
        undecided = alone and any(u in operators and decision_of(u) is None for u in node.users)
        if undecided or joint.read_by_backward(node) or any(u in needed for u in node.users):
            needed.add(node)
        else:
            decide(node, None)
