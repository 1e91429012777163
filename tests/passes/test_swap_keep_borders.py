from __future__ import annotations

import pytest
import torch
from memopt.passes.joint import JointGraph, decision_of
from memopt.passes.matched import Matched
from memopt.passes.swap.keep_borders import keep_borders
from memopt.passes.swap.mark_offload import mark_offload
from printer import Builder, actions, named, plan, recompute
from swap_graphs import aten, tower


def kept(joint: JointGraph) -> set[str]:
    return {name for name, action in actions(joint).items() if action == "SAVE"}


def test_what_enters_and_what_leaves_a_swapped_layer_is_kept(golden) -> None:
    joint = tower("layers.0", "layers.1.fc1", "layers.1.fc2", "layers.2", "layers.3")
    mark_offload(joint, plan(8, swap=[1]), Matched())
    golden("keep_borders", joint, lambda joint: keep_borders(joint, plan(8, swap=[1])))


def test_the_rule_and_the_place_of_a_border() -> None:
    joint = tower("layers.0.fc", "layers.1")
    keep_borders(joint, plan(8, swap=[1]))
    decision = decision_of(named(joint, "a0"))
    assert (decision.rule, decision.layer, decision.path) == ("swap.borders", 0, "fc")
    assert decision.reason == "it lies between a swapped layer and the next"


@pytest.mark.parametrize(
    "rules",
    [plan(8), plan(8, swap_modules={"mlp": [0, 1]}), plan(8, swap_operators={".*mm": [0, 1]}), plan(8, swap=[5])],
    ids=["nothing swapped", "modules only", "operators only", "other layer"],
)
def test_without_a_swapped_layer_nothing_is_kept(rules, unchanged) -> None:
    unchanged(tower("layers.0.mlp", "layers.1.mlp", "layers.2"), lambda joint: keep_borders(joint, rules))


def test_between_two_calls_of_one_layer_lies_a_border() -> None:
    joint = tower("layers.0.fc1", "layers.0.fc2", "layers.0.fc1", "layers.0.fc2", calls=(0, 0, 1, 1))
    keep_borders(joint, plan(8, swap=[0]))
    assert kept(joint) == {"a1", "a3"}  # a3 is read outside the layers


def outside(*readers: str) -> JointGraph:
    """``table``, computed outside the layers, and the places that read it."""
    b = Builder(8)
    table = b.op("table", aten.exp.default, b.input("x", 4), at="rotary")
    return b.joint([b.op(f"r{i}", aten.neg.default, table, at=place) for i, place in enumerate(readers)])


@pytest.mark.parametrize(
    ("readers", "names"),
    [
        (("layers.0",), {"table"}),
        (("layers.0.fc", "layers.0.act"), {"table"}),
        (("layers.1",), set()),
        (("layers.0", "layers.1"), set()),
        (("layers.0", "head"), set()),
        (("head",), set()),
    ],
    ids=["a swapped layer", "twice by a swapped layer", "another", "two layers", "a layer and the head", "no layer"],
)
def test_from_outside_the_layers_only_what_enters_one_swapped_layer_is_kept(readers, names) -> None:
    joint = outside(*readers)
    keep_borders(joint, plan(8, swap=[0]))
    assert kept(joint) == names


def test_what_the_backward_alone_reads_elsewhere_is_no_border() -> None:
    b = Builder()
    value = b.op("value", aten.exp.default, b.input("x", 4), at="layers.0")
    out = b.op("out", aten.neg.default, value, at="layers.0")
    other = b.op("other", aten.neg.default, b.input("y", 4), at="layers.1")
    joint = b.joint([out, other], [b.back("grad", aten.mul.Tensor, b.tangent(other), value, of=other)])
    keep_borders(joint, plan(swap=[0, 1]))
    assert kept(joint) == set()


def test_a_view_that_crosses_keeps_its_storage() -> None:
    b = Builder()
    value = b.op("value", aten.exp.default, b.input("x", 4, 4), at="layers.0")
    view = b.op("view", aten.view.default, value, [16], at="layers.0")
    joint = b.joint([b.op("out", aten.neg.default, view, at="layers.1")])
    keep_borders(joint, plan(swap=[1]))
    assert actions(joint) == {"value": "SAVE"}


def test_one_output_of_several_keeps_them_all() -> None:
    b = Builder()
    top = b.op("top", aten.topk.default, b.input("x", 8), 2, at="layers.0")
    values, indices = b.item("values", top, 0, at="layers.0"), b.item("indices", top, 1, at="layers.0")
    joint = b.joint([b.op("out", aten.neg.default, values, at="layers.1"), indices])
    keep_borders(joint, plan(swap=[0]))
    assert kept(joint) == {"top", "values", "indices"}


def test_views_of_inputs_and_what_is_recomputed_are_left_alone(unchanged) -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    view = b.op("view", aten.view.default, x, [16], at="layers.0")
    again = b.op("again", aten.exp.default, x, at="layers.0")
    joint = b.joint([b.op(n.name + "_read", torch.ops.aten.neg.default, n, at="layers.1") for n in (view, again)])
    recompute(again)
    unchanged(joint, lambda joint: keep_borders(joint, plan(swap=[1])))
