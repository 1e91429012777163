"""Whose backward an operator is a part of, and which operators may not run together."""

from __future__ import annotations

import pytest
import torch
from memopt.passes.joint import Call, JointGraph, decide
from memopt.passes.policy import Action, Decision
from memopt.passes.turns import _KEY, keep_apart, note_turns
from printer import Builder
from torch import nn
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten


def two_layers() -> JointGraph:
    """A sine in each of two layers, one before them, and the backward of all three."""
    b = Builder()
    value = b.input("x", 8)
    nodes = []
    for name, place in (("before", ""), ("a", "layers.0.act"), ("b", "layers.1.act")):
        value = b.op(name, aten.sin.default, value, at=place, fn=torch.sin)
        nodes.append(value)
    gradient = b.tangent(value)
    for node in reversed(nodes):
        gradient = b.back(f"back_{node.name}", aten.mul.Tensor, gradient, node.args[0], of=node)
    return b.joint([value], [gradient])


def backward_of(joint: JointGraph, *names: str) -> GraphModule:
    """A graph with nodes of these names, as a split makes one."""
    graph = Graph()
    x = graph.placeholder("before")
    for name in names:
        x = graph.create_node("call_function", aten.sin.default, (x,), name=name)
    graph.output(x)
    return GraphModule(nn.Module(), graph)


def turns(joint: JointGraph, *names: str) -> dict[str, object]:
    backward = backward_of(joint, *names)
    note_turns(joint, backward)
    return {node.name: node.meta[_KEY] for node in backward.graph.nodes if _KEY in node.meta}


def test_each_operator_has_the_call_it_belongs_to_and_whether_it_is_recomputed() -> None:
    joint = two_layers()
    named = {n.name: n for n in joint.graph.nodes}
    decide(named["a"], Decision(Action.RECOMPUTE, "a rule", 0, "act", "a rule says so", 0))
    decide(named["b"], Decision(Action.SAVE, "a rule", 1, "act", "a rule keeps it"))
    call_0, call_1 = joint.call_of(named["a"]), joint.call_of(named["b"])
    assert call_0 is not None
    assert call_1 is not None
    assert (call_0[0], call_1[0]) == (0, 1)
    assert turns(joint, "a", "b", "back_b", "back_a", "back_before") == {
        "a": (call_0, True),
        "b": (call_1, False),
        "back_b": (call_1, False),
        "back_a": (call_0, False),
        "back_before": (None, False),
    }


def test_of_what_the_joint_graph_does_not_know_nothing_is_noted() -> None:
    assert turns(two_layers(), "new") == {}


def test_what_is_given_is_no_operator() -> None:
    assert "before" not in turns(two_layers(), "back_a")


A, B = (1, "first call"), (0, "first call")
AGAIN = (0, "second call")


@pytest.mark.parametrize(
    ("first", "second", "apart"),
    [
        ([(A, False)], [(B, True)], True),  # layer 0 would be recomputed in the backward of layer 1
        ([(B, True)], [(A, False)], True),
        ([(A, True)], [(B, True)], True),  # two layers recomputed at once
        ([(B, True)], [(AGAIN, True)], True),  # the same layer, called twice
        ([(B, True)], [(None, False)], True),  # with what lies outside the layers
        ([(B, True)], [(B, False)], False),  # a layer with its own backward
        ([(B, True), (B, False)], [(B, False)], False),
        ([(A, False), (B, True)], [(A, False)], True),
        ([(A, False), (B, True)], [(B, False), (A, False)], False),  # nothing new comes together
        ([(A, False)], [(B, False)], False),  # nothing is recomputed
        ([(A, False)], [(None, False)], False),
        ([], [], False),
        ([None], [None], False),
        ([None], [(A, False)], False),
    ],
)
def test_what_is_kept_apart(
    first: list[tuple[Call, bool] | None], second: list[tuple[Call, bool] | None], *, apart: bool
) -> None:
    assert keep_apart(nodes(first), nodes(second)) is apart


def nodes(noted: list[tuple[Call, bool] | None]) -> list[Node]:
    graph = Graph()
    x = graph.placeholder("x")
    made = [graph.call_function(aten.sin.default, (x,)) for _ in noted]
    for node, turn in zip(made, noted, strict=True):
        if turn is not None:
            node.meta[_KEY] = turn
    return made
