"""Decide SAVE for a value, in the form that a partitioner can honour.

A view is kept by keeping its storage, and one output of a tuple-valued operator by keeping the operator with all outputs:

    attn  = sdpa(q, k, v)      RECOMPUTE  ->  SAVE
    out   = getitem(attn, 0)   RECOMPUTE  ->  SAVE
    heads = permute(out)       RECOMPUTE  ->  SAVE      <- keep(heads)
"""

from __future__ import annotations

import operator
from dataclasses import replace

from torch.fx import Node

from .joint import decide, decision_of
from .operators import producer, storage_root
from .policy import Action, Decision


def keep(node: Node, rule: str, reason: str, *, layer: int | None = None, path: str = "") -> None:
    """Save the node's value, its storage, and the tuple it is part of.

    Args:
        node: an operator of the forward.
        rule: what asked for it.
        reason: why, as a clause.
        layer: the layer of a node about which nothing was decided yet.
        path: the module path of such a node.
    """
    root = producer(storage_root(node))
    kept = decision_of(node) or Decision(Action.SAVE, rule, layer, path, reason)
    members = {node: None}
    # A view of what lies outside all regions leaves that to torch: nothing of it was to be recomputed.
    if root is producer(node) or decision_of(root) is not None:
        members |= dict.fromkeys([root, *(u for u in root.users if u.target is operator.getitem)])
    for member in members:
        if member.op == "call_function":
            own = decision_of(member) or kept
            decide(member, replace(own, action=Action.SAVE, rule=rule, reason=reason))
