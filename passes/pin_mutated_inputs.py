"""Give the backward a copy of an input that it reads and the forward changes.

    b = placeholder                        b = placeholder
    y = mul(b, x)                          before = clone(b)
    copy_(b, b + 1)                  ->    y = mul(before, x)
    grad_x = mul(tangent, b)               copy_(b, before + 1)
                                           grad_x = mul(tangent, before)

Where only the forward reads the input, no copy is made: what was computed from it is saved instead (``legalize.mutation``).
"""

from __future__ import annotations

import torch
from torch.fx import Node

from .joint import JointGraph, decide
from .operators import is_mutating, viewed
from .policy import Action, Decision

RULE = "pin_mutated_inputs"


def pin_mutated_inputs(joint: JointGraph) -> bool:
    """Insert the copies. Returns whether the graph changed, in which case facts about it must be found anew."""
    pinned = [n for n in joint.mutated if _backward_reads(joint, n)]
    for node in sorted(pinned):
        readers = [u for u in node.users if u.op == "call_function" and not (is_mutating(u) and u.args[0] is node)]
        after = list(joint.graph.find_nodes(op="placeholder"))[-1]
        with joint.graph.inserting_after(after):
            clone = joint.graph.call_function(torch.ops.aten.clone.default, (node,))
        clone.meta = {"val": node.meta["val"].clone(), "partitioner_tag": "is_forward"}
        for reader in readers:
            reader.replace_input_with(node, clone)
        reason = f"the backward reads {node.name} as it was before the forward changed it"
        decide(clone, Decision(Action.SAVE, RULE, None, "", reason))
    if pinned:
        joint.graph.lint()
        joint.module.recompile()
    return bool(pinned)


def _backward_reads(joint: JointGraph, placeholder: Node) -> bool:
    aliases = [placeholder]
    for alias in aliases:
        for user in alias.users:
            if user in joint.backward and not is_mutating(user):
                return True
            if viewed(user) is alias:
                aliases.append(user)
    return False
