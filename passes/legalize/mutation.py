"""What is read from an input before the forward changes it is saved: a second read would see the new contents.

    b = placeholder            (changed by copy_ at the end of the forward)
    twice = mul(b, 2)          -  ->  SAVE
    s = sin(twice)

So is what is read from a part-wise changed input, whose value may lie in the input's own memory (``changed_memory``):

    b1 = select_scatter(b, x)  RECOMPUTE  ->  -       a later write would change it: saved, it would be wrong
    s  = sin(b1)               RECOMPUTE  ->  SAVE

What the backward itself reads of such an input is copied before (``pin_mutated_inputs``); what is written over the copy is
recomputed from it, never saved.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Node

from ..changed_memory import changed_memory
from ..joint import JointGraph, decide, decision_of, is_recomputed
from ..keep import keep
from ..matched import Matched
from ..operators import draws_random_numbers, has_effect, is_mutating, is_symbolic
from ..pin_mutated_inputs import RULE as PINNED
from ..policy import Action, Decision

RULE = "legalize.mutation"


def keep_reads_of_mutated_inputs(joint: JointGraph, _matched: Matched) -> None:
    """Save the first value computed from every input that the forward changes, through any chain of views and writes."""
    aliases = changed_memory(joint, joint.mutated).owners
    copies = {n for n in joint.graph.nodes if (d := decision_of(n)) is not None and d.rule == PINNED}
    for node in joint.graph.nodes:
        if node.op != "call_function" or node in joint.backward or is_mutating(node) or is_symbolic(node):
            continue
        read = [i for i in node.all_input_nodes if i in aliases]
        if node in aliases:
            if is_recomputed(node):
                decide(node, None)
        elif read and node not in copies:
            layer, path = _place(joint, node)
            keep(node, RULE, f"it reads {read[0].name}, which the forward changes later", layer=layer, path=path)
    _recompute_what_is_written_over(joint, copies)


def _recompute_what_is_written_over(joint: JointGraph, copies: Iterable[Node]) -> None:
    for node in changed_memory(joint, copies).overwritten:
        if not (draws_random_numbers(node) or has_effect(node)):
            reason = "it may lie in the memory of an input that the forward changes, and the input's copy is saved"
            decide(node, Decision(Action.RECOMPUTE, RULE, *_place(joint, node), reason))


def _place(joint: JointGraph, node: Node) -> tuple[int | None, str]:
    scope = joint.scopes.get(node)
    return (scope.layer, scope.path) if scope is not None else (None, "")
