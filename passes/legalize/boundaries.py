"""What leaves a region is kept where others need it, and their recomputation does not run the region again.

    fc2  = addmm(gelu)         layers.0   RECOMPUTE
    h    = add(x, fc2)         layers.0   RECOMPUTE  ->  SAVE     layers.1 is recomputed from it
    norm = layer_norm(h)       layers.1   RECOMPUTE

    out  = tanh(fc2)           mlp        RECOMPUTE               only its own backward needs it
    sum  = add(x, out)                    -          ->  SAVE     recomputing it would run the mlp for what is behind it

SAVE here means: if a backward needs the value at all, it is saved. A value that the forward returns is no exception: its caller
may drop it before the backward (a key-value cache, say). An operator that a rule names itself has no such border: not keeping
its output is what the rule asks for.

A region of which nothing but views is recomputed in the end has no borders: torch decides there as without the rule.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from ..joint import JointGraph, decide, decision_of, is_recomputed, region_of
from ..keep import keep
from ..mark_checkpoint import RULE as CHECKPOINT
from ..matched import Matched
from ..operators import is_view_of, storage_root, viewed

RULE = "legalize.boundaries"


def keep_what_leaves_a_region(joint: JointGraph, matched: Matched) -> None:
    """Save what others need of a region, and what reads it without being in one."""
    operators = set(joint.forward_operators())
    for node in joint.forward_operators():
        region = region_of(node)
        if not is_recomputed(node) or region is None or node in matched.operators:
            continue
        outside = [u for u in _readers(joint, node, region) if u in joint.backward or u in operators]
        needing = next((u for u in outside if _needs(joint, u, region)), None)
        if needing is not None:
            where = "another region" if needing not in joint.backward else "the rest of the model"
            keep(node, RULE, f"{needing.name} in {where} needs it")
        elif not _is_users_checkpoint(node):
            for user in outside:
                if user in operators and decision_of(user) is None:
                    _keep_reader(joint, user, node)


def leave_regions_that_recompute_nothing(joint: JointGraph, matched: Matched) -> None:
    """Leave to torch, as without the rule, what was kept of or behind a region of which only views are recomputed."""
    alive = {region_of(n) for n in joint.forward_operators() if is_recomputed(n) and viewed(n) is None}
    for node in joint.forward_operators():
        decision = decision_of(node)
        if decision is None or node in matched.operators or decision.region in alive - {None}:
            continue
        if decision.region is not None:
            idle = is_recomputed(node) or decision.rule == RULE
        else:
            idle = decision.rule == RULE and not any(is_recomputed(storage_root(i)) for i in node.all_input_nodes)
        if idle:
            decide(node, None)


def _readers(joint: JointGraph, node: Node, region: int) -> Iterator[Node]:
    """The nodes outside the region that read the value; behind a view of it, those that read the view."""
    pending = [node]
    for value in pending:
        for user in value.users:
            if user not in joint.backward and user.op == "call_function" and region_of(user) != region:
                if is_view_of(user, storage_root(value)) and decision_of(user) is None:
                    pending.append(user)
                else:
                    yield user
            elif user in joint.backward:
                yield user


def _needs(joint: JointGraph, reader: Node, region: int) -> bool:
    """Whether the reader runs in the backward for another region, or for what lies in none."""
    if reader not in joint.backward:
        return is_recomputed(reader)
    origin = joint.origin_of(reader)
    return origin is not None and region_of(origin) != region


def _is_users_checkpoint(node: Node) -> bool:
    """Around the model's own checkpoints, torch decides as it would without memopt."""
    decision = decision_of(node)
    return decision is not None and decision.rule == CHECKPOINT


def _keep_reader(joint: JointGraph, reader: Node, node: Node) -> None:
    scope = joint.scopes.get(reader)
    layer, path = (scope.layer, scope.path) if scope is not None else (None, "")
    keep(reader, RULE, f"recomputing it would run the region of {node.name} again", layer=layer, path=path)
