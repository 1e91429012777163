"""Prove, on the final pair of graphs, that every decision was honoured.

What holds afterwards:
- a value decided RECOMPUTE does not cross from forward to backward;
- a value decided SAVE is not computed again in the backward;
- no random operator runs in the backward as it ran in the forward, unless wrapped with the forward's random state;
- no operator with an effect runs in both;
- the backward does not read an input that the forward changes.
"""

from __future__ import annotations

import operator

from torch.fx import GraphModule, Node

from .joint import JointGraph, decision_of
from .operators import draws_random_numbers, has_effect, storage_root, viewed
from .policy import Action, Decision
from .swap.targets import WAIT


class VerificationError(AssertionError):
    """A decision was not honoured: a fault of memopt or of the partitioner, never of the user."""


def saved_values(joint: JointGraph, forward: GraphModule) -> list[tuple[Node, Node | None]]:
    """What the forward graph returns for the backward, each with the node of the joint graph that it is.

    The partitioner adds values of its own, such as random states, which are no node of the joint graph; their names may be
    the names of other nodes there. And it lets the forward compute values of the backward that depend on no gradient.
    """
    (output,) = forward.graph.find_nodes(op="output")
    returned = output.args[0]
    assert isinstance(returned, list | tuple)
    nodes = {n.name: n for n in joint.graph.nodes}
    saved = [n for n in returned[joint.num_fwd_outputs :] if isinstance(n, Node)]
    return [(n, found if (found := nodes.get(n.name)) is not None and _same(n, found) else None) for n in saved]


def computed_again(joint: JointGraph, backward: GraphModule) -> set[Node]:
    """The operators of the joint graph's forward that the backward graph runs."""
    again = {n.name: n for n in backward.graph.nodes if n.op == "call_function"}
    return {
        node
        for node in joint.graph.nodes
        if node.op == "call_function" and node not in joint.backward and node.name in again and _same(again[node.name], node)
    }


def verify(joint: JointGraph, forward: GraphModule, backward: GraphModule) -> None:
    """Raise VerificationError for the first decision that the final pair of graphs does not honour."""
    crossing = {own for _, own in saved_values(joint, forward) if own is not None}
    # What nothing of the forward reads, the partitioner may leave to the backward alone: that is not again.
    ran = {n.name for n in forward.graph.nodes}
    again = {n for n in computed_again(joint, backward) if n.name in ran or draws_random_numbers(n)}
    for node in joint.graph.nodes:
        if node in joint.backward or node.op != "call_function":
            continue
        decision = decision_of(node)
        if decision is not None:
            _verify_decision(node, decision, crossing, again)
        if node in again and draws_random_numbers(node):
            raise VerificationError(f"{_named(node)} would draw other random numbers in the backward than in the forward")
        if node in again and has_effect(node):
            raise VerificationError(f"{_named(node)} has an effect and would run in the backward too")
    for node in joint.mutated & crossing:
        if _is_read(backward, node.name):
            raise VerificationError(f"the backward reads {node.name}, which the forward changes in place")


def _verify_decision(node: Node, decision: Decision, crossing: set[Node], again: set[Node]) -> None:
    if decision.action is Action.RECOMPUTE and node in crossing:
        raise VerificationError(f"{_named(node)} was to be recomputed by {decision.rule}, and is saved")
    is_free = node.target is operator.getitem or viewed(node) is not None
    if decision.action is Action.SAVE and node in again and not is_free:
        raise VerificationError(f"{_named(node)} was to be saved ({decision.rule}: {decision.reason}), and is recomputed")


def _same(copy: Node, node: Node) -> bool:
    """Whether a node of a split graph is the joint graph's; what it reads may have come back by another name."""
    mine, own = copy.all_input_nodes, node.all_input_nodes
    return (
        copy.op == node.op
        and copy.target == node.target
        and len(mine) == len(own)
        and all(a.name == b.name or storage_root(a).target is WAIT for a, b in zip(mine, own, strict=True))
    )


def _is_read(backward: GraphModule, name: str) -> bool:
    return any(n.name == name and n.users for n in backward.graph.find_nodes(op="placeholder"))


def _named(node: Node) -> str:
    decision = decision_of(node)
    where = f" in layer {decision.layer}" if decision is not None and decision.layer is not None else ""
    return f"{node.name} ({node.target}){where}"
