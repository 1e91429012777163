"""Give the backward a copy of an input that it reads and the forward changes.

    b = placeholder                        b = placeholder
    y = mul(b, x)                          before = clone(b)
    copy_(b, b + 1)                  ->    y = mul(before, x)
    grad_x = mul(tangent, b)               copy_(b, before + 1)
                                           grad_x = mul(tangent, before)

What the forward writes over a part of the input may lie in the input's own memory, and counts as the input. Where only the
forward reads that, no copy is made: what was computed from it is saved instead (``legalize.mutation``).
"""

from __future__ import annotations

import torch
from torch.fx import Node

from .changed_memory import changed_memory
from .joint import JointGraph, decide
from .operators import is_mutating
from .policy import Action, Decision

RULE = "pin_mutated_inputs"


def pin_mutated_inputs(joint: JointGraph) -> bool:
    """Insert the copies. Returns whether the graph changed, in which case facts about it must be found anew."""
    memory = changed_memory(joint, joint.mutated)
    pinned = {owner for value, owners in memory.owners.items() if _backward_reads(joint, value) for owner in owners}
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


def _backward_reads(joint: JointGraph, value: Node) -> bool:
    return any(user in joint.backward and not is_mutating(user) for user in value.users)
