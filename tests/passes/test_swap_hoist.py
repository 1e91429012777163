from __future__ import annotations

import pytest
from memopt.passes.joint import JointGraph
from memopt.passes.swap.hoist import hoist
from memopt.passes.swap.verify_swap import verify_swap
from printer import Builder, plan
from swap_graphs import aten, chosen, show_pair, tower, travelled
from torch.fx import GraphModule, Node


def late(*reads: str, layer: int = 0) -> JointGraph:
    """``late``, of a layer's backward, depends on no gradient: torch lets the forward compute it, at its end.

    ``reads``: what it is computed from, each through ``scaled``: ``fc``, which the forward computes, or ``x``, an input.
    """
    b = Builder(3)
    x, w = b.input("x", 4, 4), b.parameter("w", 4, 4)
    fc = b.op("fc", aten.mm.default, x, w, at=f"layers.{layer}")
    act = b.op("act", aten.gelu.default, fc, at=f"layers.{layer}")
    out = b.op("out", aten.mm.default, act, w, at="layers.2")
    g_out = b.back("g_out", aten.mm.default, b.tangent(out), w, of=out)
    scaled = [b.back(f"scaled_{n}", aten.mul.Tensor, {"x": x, "fc": fc}[n], 0.5, of=act) for n in reads]
    made = b.back("late", aten.sum.dim_IntList, total(b, scaled, act), [1], of=act)
    return b.joint([out], [b.back("g_act", aten.mul.Tensor, g_out, made, of=act)])


def total(b: Builder, values: list[Node], of: Node) -> Node:
    found, *others = values
    for i, value in enumerate(others):
        found = b.back(f"total{i}", aten.add.Tensor, found, value, of=of)
    return found


def order(module: GraphModule) -> list[str]:
    return [n.name for n in module.graph.nodes if n.op == "call_function"]


def test_what_a_moving_value_is_computed_from_comes_right_behind_its_last_input(golden) -> None:
    pair, moves = chosen(late("fc"), plan(3, swap=[0]))
    golden("swap_hoist", pair, lambda pair: hoist(pair, moves), printed=show_pair)


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        (("fc",), ["fc", "scaled_fc", "late", "act", "out"]),
        (("x", "fc"), ["scaled_x", "fc", "scaled_fc", "total0", "late", "act", "out"]),
        (("x",), ["scaled_x", "late", "fc", "act", "out"]),
        (("fc", "x"), ["scaled_x", "fc", "scaled_fc", "total0", "late", "act", "out"]),
    ],
)
def test_each_node_comes_behind_its_own_inputs_in_the_order_they_had(reads: tuple[str, ...], expected: list[str]) -> None:
    pair, moves = chosen(late(*reads), plan(3, swap=[0]))
    before = order(pair.forward)
    hoist(pair, moves)
    assert before == ["fc", "act", "out", *before[3:]]
    assert order(pair.forward) == expected
    assert [n.op for n in pair.forward.graph.nodes][:2] == ["placeholder", "placeholder"]
    pair.forward.graph.lint()


@pytest.mark.parametrize(
    ("joint", "moves"),
    [(late("fc", layer=1), []), (tower("layers.0", "layers.1"), ["a0"])],
    ids=["late values that do not move", "no late values"],
)
def test_nothing_else_is_moved(joint: JointGraph, moves: list[str]) -> None:
    pair, found = chosen(joint, plan(8, swap=[0]))
    before = show_pair(pair)
    hoist(pair, found)
    assert show_pair(pair) == before
    assert [move.value.name for move in found] == moves


def test_what_is_late_leaves_in_its_layer() -> None:
    pair, journeys = travelled(late("fc"), plan(3, swap=[0]))
    verify_swap(pair, journeys)
    assert order(pair.forward) == ["fc", "scaled_fc", "late", "late_ticket", "act", "out"]
    assert [(j.leaves_in, j.issued_in, j.returns_in) for j in journeys] == [(0, 2, 0)]
