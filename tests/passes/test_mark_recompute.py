from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from memopt.passes import matched as matched_module
from memopt.passes.joint import region_of
from memopt.passes.mark_recompute import mark_recompute
from memopt.passes.matched import Matched
from memopt.passes.matching import MatchTimeout
from printer import Builder, actions, decided, named, plan
from small_graphs import aten, chain, mlp_layer


def test_full_covers_every_operator_of_the_layer(golden) -> None:
    matched = Matched()
    golden("mark_recompute_full", mlp_layer(), lambda joint: mark_recompute(joint, plan(full=[0]), matched))
    assert matched.met == {("recompute.full_recompute_layer", 0)}
    assert matched.operators == {}


def test_select_module_covers_the_module_and_what_lies_within(golden) -> None:
    golden("mark_recompute_module", mlp_layer(), lambda joint: mark_recompute(joint, plan(select={"mlp": [0]}), Matched()))


@pytest.mark.parametrize(
    "nothing",
    [plan(), plan(full=[1]), plan(select={"mlp": [1]}), plan(select={"ml": [0]}), plan(operators={"gelu": [0], ".*tanh": [0]})],
    ids=["empty", "other layer", "other layer's module", "prefix of a name", "no such operator"],
)
def test_without_a_rule_for_it_nothing_is_marked(nothing, unchanged) -> None:
    matched = Matched()
    unchanged(mlp_layer(), lambda joint: mark_recompute(joint, nothing, matched))
    assert matched.met == set()


@pytest.mark.parametrize(
    ("pattern", "marked"),
    [
        (r"mlp\.act\.gelu", {"act"}),
        (r"mlp\.act\.aten\.gelu", {"act"}),
        (r"mlp\.act\.aten\.gelu\.default", {"act"}),
        (r".*\.gelu", {"act"}),
        (r".*\.linear", {"fc1", "fc2"}),
        (r"mlp\.fc1\.linear", {"fc1"}),
        (r".*\.mm", {"fc1", "fc2"}),
        (r".*\.aten\.mm\.default", {"fc1", "fc2"}),
        (r".*\.matmul", {"fc1", "fc2"}),
        (r"add", {"out"}),
        (r"aten\.add\.Tensor", {"out"}),
        (r".*\.(gelu|linear)", {"fc1", "act", "fc2"}),
    ],
)
def test_an_operator_answers_to_its_function_and_to_its_aten_name(pattern: str, marked: set[str]) -> None:
    joint, matched = mlp_layer(), Matched()
    mark_recompute(joint, plan(operators={pattern: [0]}), matched)
    assert actions(joint) == dict.fromkeys(marked, "RECOMPUTE")
    assert {n.name for n in matched.operators} == marked


def test_an_operator_rule_opens_a_region_per_operator(golden) -> None:
    rules = plan(operators={r".*\.linear": [0], r".*\.gelu": [0]})
    golden("mark_recompute_operator", mlp_layer(), lambda joint: mark_recompute(joint, rules, Matched()))


def test_a_module_rule_comes_before_an_operator_rule() -> None:
    joint, matched = mlp_layer(), Matched()
    mark_recompute(joint, plan(select={"mlp": [0]}, operators={r".*\.gelu|add": [0]}), matched)
    assert decided(joint) == (
        "fc1 RECOMPUTE 0 recompute.select_module['.*mlp'] — module mlp is recomputed\n"
        "act RECOMPUTE 0 recompute.select_module['.*mlp'] — module mlp is recomputed\n"
        "fc2 RECOMPUTE 0 recompute.select_module['.*mlp'] — module mlp is recomputed\n"
        "out RECOMPUTE 1 recompute.select_module['.*\\\\.gelu|add'] — operator add is recomputed\n"
    )
    assert {n.name for n in matched.operators} == {"out"}
    assert matched.met == {("recompute.select_module['.*mlp']", 0), ("recompute.select_module['.*\\\\.gelu|add']", 0)}


def test_a_rule_that_another_one_covers_has_matched_all_the_same() -> None:
    joint, matched = mlp_layer(), Matched()
    mark_recompute(joint, plan(select={"mlp": [0]}, operators={r".*\.gelu": [0], r".*\.act\..*": [0], "tanh": [0]}), matched)
    assert matched.met == {
        ("recompute.select_module['.*mlp']", 0),
        ("recompute.select_module['.*\\\\.gelu']", 0),
        ("recompute.select_module['.*\\\\.act\\\\..*']", 0),
    }
    assert matched.operators == {}


def test_a_whole_layer_covers_its_operators() -> None:
    joint, matched = mlp_layer(), Matched()
    mark_recompute(joint, plan(full=[0], operators={r".*\.gelu": [1]}), matched)
    assert {region_of(named(joint, n)) for n in ("fc1", "act", "fc2", "out")} == {0}
    assert matched.operators == {}


def test_operators_are_looked_for_in_their_layers_only() -> None:
    joint = chain("layers.0.mlp", "layers.1.mlp", "layers.1.mlp")
    mark_recompute(joint, plan(operators={r".*\.sin": [1]}), Matched())
    assert actions(joint) == {"a1": "RECOMPUTE", "a2": "RECOMPUTE"}


def test_nodes_outside_layers_and_of_the_backward_are_never_marked() -> None:
    joint = chain("embedding", "layers.0.mlp", "head.mlp")
    mark_recompute(joint, plan(full=[0, 1], operators={".*": [0, 1]}), Matched())
    assert actions(joint) == {"a1": "RECOMPUTE"}


def test_a_container_has_no_call_of_its_own_and_is_one_region() -> None:
    joint = chain("layers.0.experts.0", "layers.0.experts.1", "layers.0.gate", "layers.1.experts.0")
    mark_recompute(joint, plan(select={"experts": [0, 1]}), Matched())
    assert {n: region_of(named(joint, n)) for n in ("a0", "a1", "a2", "a3")} == {"a0": 0, "a1": 0, "a2": None, "a3": 1}


@pytest.mark.parametrize("rules", [plan(full=[0]), plan(select={"mlp": [0]}), plan(operators={r".*\.sin": [0]})])
def test_a_layer_that_runs_twice_has_two_regions(rules) -> None:
    joint = chain("layers.0.mlp", "layers.1.mlp", "layers.0.mlp", calls=(0, 0, 1))
    mark_recompute(joint, rules, Matched())
    assert [region_of(named(joint, n)) for n in ("a0", "a1", "a2")] == [0, None, 1]


def test_two_calls_of_a_function_in_one_module_are_two_regions() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    first = b.op("first", aten.gelu.default, x, at="layers.0.mlp", fn=F.gelu, call_of_function="gelu")
    second = b.op("second", aten.gelu.default, first, at="layers.0.mlp", fn=F.gelu, call_of_function="gelu_1")
    joint = b.joint([second])
    mark_recompute(joint, plan(operators={r"mlp\.gelu": [0]}), Matched())
    assert [region_of(first), region_of(second)] == [0, 1]


def test_one_function_that_became_several_operators_is_one_region() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    power = b.op("power", aten.exp.default, x, at="layers.0.mlp", fn=F.softplus)
    more = b.op("more", aten.add.Tensor, power, 1, at="layers.0.mlp", fn=F.softplus)
    log = b.op("log", aten.log.default, more, at="layers.0.mlp", fn=F.softplus)
    joint = b.joint([log])
    mark_recompute(joint, plan(operators={r"mlp\.softplus": [0]}), Matched())
    assert [region_of(n) for n in (power, more, log)] == [0, 0, 0]
    assert decided(joint).count("operator mlp.softplus is recomputed") == 3


def test_wrappers_are_no_part_of_a_path() -> None:
    joint = chain("layers.0.mlp")
    (node,) = (n for n in joint.graph.nodes if n.name == "a0")
    source = "L['self'].layers.0.__dict__['_modules']['_checkpoint_wrapped_module']"
    node.meta["nn_module_stack"] = {
        "0": ("L['self']", torch.nn.Module),
        "1": ("L['self'].layers.0", torch.nn.Module),
        "2": (source, torch.nn.Module),
        "3": (f"{source}._orig_mod.mlp", torch.nn.Module),
    }
    joint.__post_init__()
    mark_recompute(joint, plan(select={"mlp": [0]}), Matched())
    assert actions(joint) == {"a0": "RECOMPUTE"}


def test_a_pattern_that_takes_too_long_counts_as_no_match_and_hides_no_other_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def slow(pattern: str, text: str) -> bool:
        tried.append(pattern)
        if pattern == "slow":
            raise MatchTimeout(pattern, text, 1.0)
        return real(pattern, text)

    real = matched_module.fullmatch
    monkeypatch.setattr(matched_module, "fullmatch", slow)
    joint, matched = chain("layers.0.mlp", "layers.0.mlp", "layers.0.mlp"), Matched()
    mark_recompute(joint, plan(operators={"slow": [0], r"mlp\.sin": [0]}), matched)
    assert tried.count("slow") == 1
    assert matched.timed_out == {"slow"}
    assert matched.warnings == [
        "recompute.select_module['slow']: matching took too long on the operator path 'mlp.sin', which counts as no match; "
        "the pattern is not tried on further operators."
    ]
    assert actions(joint) == dict.fromkeys(("a0", "a1", "a2"), "RECOMPUTE")
