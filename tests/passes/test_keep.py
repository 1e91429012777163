from __future__ import annotations

import pytest
from memopt.passes.joint import decision_of
from memopt.passes.keep import keep
from memopt.passes.policy import Action, Decision
from printer import Builder, actions, named, recompute
from small_graphs import aten, mlp_layer


def attention():
    """``sdpa`` -> ``out`` (and ``stats``) -> ``heads`` -> ``flat`` -> ``after``."""
    b = Builder()
    q, k, v = (b.input(n, 1, 2, 4, 4) for n in "qkv")
    sdpa = b.op("sdpa", aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v, at="layers.0.attention")
    out = b.item("out", sdpa, 0, at="layers.0.attention")
    stats = b.item("stats", sdpa, 1, at="layers.0.attention")
    heads = b.op("heads", aten.transpose.int, out, 1, 2, at="layers.0.attention")
    after = b.op("after", aten.exp.default, heads, at="layers.0")
    return b.joint([after, stats])


def test_a_kept_view_keeps_its_storage_and_the_tuple_it_comes_from(golden) -> None:
    joint = attention()
    recompute(*(named(joint, n) for n in ("sdpa", "out", "stats", "heads", "after")))
    golden("keep", joint, lambda joint: keep(named(joint, "heads"), "a rule", "it is kept"))


def test_one_output_keeps_the_operator_with_all_outputs() -> None:
    joint = attention()
    recompute(*(named(joint, n) for n in ("sdpa", "out", "stats", "heads", "after")))
    keep(named(joint, "stats"), "a rule", "it is kept")
    assert actions(joint) == {"sdpa": "SAVE", "out": "SAVE", "stats": "SAVE", "heads": "RECOMPUTE", "after": "RECOMPUTE"}


def test_of_two_outputs_that_are_views_of_one_input_the_input_is_kept() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    base = b.op("base", aten.exp.default, x, at="layers.0")
    parts = b.op("parts", aten.split.Tensor, base, 2, at="layers.0")
    left = b.item("left", parts, 0, at="layers.0")
    right = b.item("right", parts, 1, at="layers.0")
    out = b.op("out", aten.mul.Tensor, left, right, at="layers.0")
    joint = b.joint([out])
    recompute(base, parts, left, right, out)
    keep(left, "a rule", "it is kept")
    assert actions(joint) == {
        "base": "SAVE",
        "parts": "RECOMPUTE",
        "left": "SAVE",
        "right": "RECOMPUTE",
        "out": "RECOMPUTE",
    }


def test_a_view_of_an_input_needs_no_storage_kept() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    view = b.op("view", aten.view.default, x, [16], at="layers.0")
    joint = b.joint([view])
    recompute(view)
    keep(view, "a rule", "it is kept")
    assert actions(joint) == {"view": "SAVE"}


def test_layer_path_and_region_stay() -> None:
    joint = mlp_layer()
    node = named(joint, "act")
    recompute(node, region=3, layer=0, path="mlp.act")
    keep(node, "another rule", "it is kept", layer=9, path="ignored")
    assert decision_of(node) == Decision(Action.SAVE, "another rule", 0, "mlp.act", "it is kept", 3)


def test_a_node_without_a_decision_gets_the_place_that_is_given() -> None:
    joint = mlp_layer()
    keep(named(joint, "act"), "a rule", "it is kept", layer=0, path="mlp.act")
    assert decision_of(named(joint, "act")) == Decision(Action.SAVE, "a rule", 0, "mlp.act", "it is kept", None)


def test_a_storage_about_which_nothing_was_decided_is_left_to_torch() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    before = b.op("before", aten.exp.default, x, at="layers.0")
    view = b.op("view", aten.view.default, before, [16], at="layers.1")
    after = b.op("after", aten.exp.default, view, at="layers.1")
    joint = b.joint([after])
    recompute(view, after, region=7, layer=1)
    keep(view, "a rule", "it is kept")
    assert actions(joint) == {"view": "SAVE", "after": "RECOMPUTE"}
    assert decision_of(before) is None


@pytest.mark.parametrize("name", ["sdpa", "out", "heads"])
def test_keeping_twice_changes_nothing_more(name: str) -> None:
    joint = attention()
    keep(named(joint, name), "a rule", "it is kept", layer=0)
    once = {n.name: decision_of(n) for n in joint.graph.nodes}
    keep(named(joint, name), "a rule", "it is kept", layer=0)
    assert {n.name: decision_of(n) for n in joint.graph.nodes} == once
