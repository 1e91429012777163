"""Views, waits and casts behind an operator that a rule names follow it: saved in its place, they would defeat the rule.

    gelu = gelu(fc1)           RECOMPUTE     select_module: {'.*\\.gelu': ...}
    flat = view(gelu)          -  ->  RECOMPUTE
    fc2  = addmm(flat)

Only nodes with that single input follow.
"""

from __future__ import annotations

from dataclasses import replace

from ..communication import is_wait
from ..joint import JointGraph, decide, decision_of, is_recomputed
from ..matched import Matched
from ..operators import target_names, viewed

_CASTS = frozenset({"_to_copy", "convert_element_type"})


def recompute_tails(joint: JointGraph, matched: Matched) -> None:
    """Give single-input nodes behind a recomputed operator its decision."""
    for node in joint.forward_operators():
        if decision_of(node) is not None or len(node.all_input_nodes) != 1:
            continue
        source = node.all_input_nodes[0]
        rule = matched.operators.get(source)
        decision = decision_of(source)
        if rule is None or decision is None or not is_recomputed(source):
            continue
        if viewed(node) is source or is_wait(node) or not _CASTS.isdisjoint(target_names(node)):
            matched.operators[node] = rule
            decide(node, replace(decision, reason=f"it follows {source.name}, which is recomputed"))
