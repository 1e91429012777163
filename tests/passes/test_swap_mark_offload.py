from __future__ import annotations

from dataclasses import replace

import pytest
from memopt.passes.joint import decision_of
from memopt.passes.mark_recompute import mark_recompute
from memopt.passes.matched import Matched
from memopt.passes.policy import Action
from memopt.passes.swap.mark_offload import mark_offload
from printer import actions, named, plan, recompute, save
from small_graphs import chain, mlp_layer

LAYER, MODULE, GELU = "swap.layer_swap[0]", "swap.op_swap['.*mlp']", r"swap.op_swap['.*\\.gelu']"


def rules_of(matched: Matched) -> dict[str, str]:
    return {name: rule.field for name, rule in matched.swapped.items()}


def test_a_whole_layer_is_marked_and_nothing_else(golden) -> None:
    matched = Matched()
    golden("mark_offload_layer", mlp_layer(), lambda joint: mark_offload(joint, plan(swap=[0]), matched))
    assert matched.met == {(LAYER, 0)}
    assert rules_of(matched) == dict.fromkeys(("fc1", "act", "fc2", "out"), LAYER)


def test_a_module_is_marked_with_what_lies_within(golden) -> None:
    matched = Matched()
    golden("mark_offload_module", mlp_layer(), lambda joint: mark_offload(joint, plan(swap_modules={"mlp": [0]}), matched))
    assert matched.met == {(MODULE, 0)}
    assert rules_of(matched) == dict.fromkeys(("fc1", "act", "fc2"), MODULE)


@pytest.mark.parametrize(
    "nothing",
    [
        plan(),
        plan(full=[0]),
        plan(swap=[1]),
        plan(swap_modules={"mlp": [1]}),
        plan(swap_modules={"ml": [0], "mlp.fc": [0], "act": [0]}),
        plan(swap_operators={"gelu": [0], r".*\.gelu": [1]}),
        replace(plan(swap=[0], swap_operators={".*gelu": [0]}), swap=None),
    ],
    ids=[
        "empty",
        "recompute alone",
        "other layer",
        "other layer's module",
        "part of a name",
        "no such operator",
        "swap disabled",
    ],
)
def test_without_a_rule_for_it_nothing_is_marked(nothing, unchanged) -> None:
    matched = Matched()
    unchanged(mlp_layer(), lambda joint: mark_offload(joint, nothing, matched))
    assert (matched.met, matched.swapped) == (set(), {})


@pytest.mark.parametrize(("path", "marked"), [("mlp.act", {"act"}), ("mlp.fc1", {"fc1"}), ("mlp", {"fc1", "act", "fc2"})])
def test_a_parent_stands_for_its_children_and_not_the_other_way_round(path: str, marked: set[str]) -> None:
    joint, matched = mlp_layer(), Matched()
    mark_offload(joint, plan(swap_modules={path: [0]}), matched)
    assert actions(joint) == dict.fromkeys(marked, "OFFLOAD")
    assert {decision_of(named(joint, n)).reason for n in marked} == {f"module {path} is swapped"}


@pytest.mark.parametrize(
    ("pattern", "marked", "path"),
    [
        (r"mlp\.act\.gelu", {"act"}, "mlp.act.gelu"),
        (r".*\.aten\.gelu\.default", {"act"}, "mlp.act.aten.gelu.default"),
        (r"mlp\.fc1\.(linear|mm)", {"fc1"}, "mlp.fc1.linear"),
        ("add", {"out"}, "add"),
    ],
)
def test_an_operator_is_marked_by_its_function_or_its_aten_name(pattern: str, marked: set[str], path: str) -> None:
    joint, matched = mlp_layer(), Matched()
    mark_offload(joint, plan(swap_operators={pattern: [0]}), matched)
    assert actions(joint) == dict.fromkeys(marked, "OFFLOAD")
    assert {decision_of(named(joint, n)).reason for n in marked} == {f"operator {path} is swapped"}
    assert matched.met == {(f"swap.op_swap[{pattern!r}]", 0)}
    assert set(matched.swapped) == marked
    assert matched.operators == {}


@pytest.mark.parametrize(
    ("rules", "rule", "met"),
    [
        ({"swap": [0], "swap_modules": {"mlp": [0]}, "swap_operators": {r".*\.gelu": [0]}}, LAYER, {LAYER, GELU}),
        ({"swap_modules": {"mlp": [0]}, "swap_operators": {r".*\.gelu": [0]}}, MODULE, {MODULE, GELU}),
        ({"swap_operators": {r".*\.gelu": [0], r"mlp\..*": [0]}}, GELU, {GELU, r"swap.op_swap['mlp\\..*']"}),
    ],
    ids=["layer before module and operator", "module before operator", "first operator rule"],
)
def test_the_first_rule_decides_and_every_operator_rule_has_matched(rules, rule: str, met: set[str]) -> None:
    joint, matched = mlp_layer(), Matched()
    mark_offload(joint, plan(**rules), matched)
    assert decision_of(named(joint, "act")).rule == rule == matched.swapped["act"].field
    assert {field for field, _ in matched.met} == met


def test_what_was_decided_before_stays_and_is_noted_all_the_same() -> None:
    joint, matched = mlp_layer(), Matched()
    recompute(named(joint, "fc1"))
    save(named(joint, "act"))
    mark_offload(joint, plan(swap=[0]), matched)
    assert actions(joint) == {"fc1": "RECOMPUTE", "act": "SAVE", "fc2": "OFFLOAD", "out": "OFFLOAD"}
    assert decision_of(named(joint, "fc1")).rule == "a rule"
    assert set(matched.swapped) == {"fc1", "act", "fc2", "out"}


def test_rules_of_recompute_and_of_swap_do_not_answer_for_each_other() -> None:
    joint, matched = mlp_layer(), Matched()
    rules = plan(operators={r".*\.linear": [0]}, swap_operators={r".*\.gelu": [0]})
    mark_recompute(joint, rules, matched)
    mark_offload(joint, rules, matched)
    assert actions(joint) == {"fc1": "RECOMPUTE", "act": "OFFLOAD", "fc2": "RECOMPUTE"}
    assert rules_of(matched) == {"act": GELU}


def test_nodes_outside_layers_and_of_the_backward_are_never_marked() -> None:
    joint = chain("embedding", "layers.0.mlp", "layers.1.mlp", "head.mlp")
    mark_offload(joint, plan(swap=[0, 1], swap_operators={".*": [0, 1]}), Matched())
    assert actions(joint) == {"a1": "OFFLOAD", "a2": "OFFLOAD"}


def test_place_and_action_are_recorded() -> None:
    joint = chain("layers.0", "layers.1.mlp.act")
    mark_offload(joint, plan(swap=[1]), Matched())
    decision = decision_of(named(joint, "a1"))
    assert (decision.action, decision.layer, decision.path, decision.region) == (Action.OFFLOAD, 1, "mlp.act", None)
    assert decision.reason == "its layer is swapped"
