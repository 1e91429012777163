"""What is read from an input before the forward changes it is saved: a second read would see the new contents.

    b = placeholder            (changed by copy_ at the end of the forward)
    twice = mul(b, 2)          -  ->  SAVE
    s = sin(twice)

What the backward itself reads of such an input is copied before (``pin_mutated_inputs``).
"""

from __future__ import annotations

from torch.fx import Node

from ..joint import JointGraph, decide, is_recomputed
from ..keep import keep
from ..matched import Matched
from ..operators import is_mutating, is_symbolic, viewed

RULE = "legalize.mutation"


def keep_reads_of_mutated_inputs(joint: JointGraph, _matched: Matched) -> None:
    """Save the first value computed from every input that the forward changes, through any chain of views."""
    aliases: set[Node] = set(joint.mutated)
    for node in joint.graph.nodes:
        if node.op != "call_function" or node in joint.backward or is_mutating(node) or is_symbolic(node):
            continue
        read = [i for i in node.all_input_nodes if i in aliases]
        if not read:
            continue
        if viewed(node) in aliases:
            aliases.add(node)
            if is_recomputed(node):
                decide(node, None)
            continue
        scope = joint.scopes.get(node)
        layer, path = (scope.layer, scope.path) if scope is not None else (None, "")
        keep(node, RULE, f"it reads {read[0].name}, which the forward changes later", layer=layer, path=path)
