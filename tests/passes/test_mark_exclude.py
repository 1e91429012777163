from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from memopt.passes import matched as matched_module
from memopt.passes.mark_exclude import mark_exclude
from memopt.passes.mark_recompute import mark_recompute
from memopt.passes.matched import Matched
from memopt.passes.matching import MatchTimeout
from printer import Builder, actions, decided, named, plan, recompute
from small_graphs import aten, chain, mlp_layer


def saved(joint) -> set[str]:
    return {name for name, action in actions(joint).items() if action == "SAVE"}


def excluded(exclude, joint=None) -> set[str]:
    joint = mlp_layer() if joint is None else joint
    rules = plan(full=[0], exclude=exclude)
    mark_recompute(joint, rules, Matched())
    mark_exclude(joint, rules, Matched())
    return saved(joint)


def test_the_outputs_of_named_operators_are_kept(golden) -> None:
    joint, rules, matched = mlp_layer(), plan(select={"mlp": [0]}, exclude=["MatMul"]), Matched()
    mark_recompute(joint, rules, matched)
    golden("mark_exclude", joint, lambda joint: mark_exclude(joint, rules, matched))
    assert ("recompute.exclude_op['MatMul']", 0) in matched.met


@pytest.mark.parametrize("exclude", [(), ["AllGather"], ["fc1"], {r".*\.linear": [1]}, {"linear": [0]}, {r".*\.Linear": [0]}])
def test_what_is_not_named_stays_recomputed(exclude, unchanged) -> None:
    joint, rules, matched = mlp_layer(), plan(select={"mlp": [0]}, exclude=exclude), Matched()
    mark_recompute(joint, rules, Matched())
    unchanged(joint, lambda joint: mark_exclude(joint, rules, matched))
    assert matched.met == set()


def test_outside_regions_nothing_is_kept(unchanged) -> None:
    rules = plan(exclude=["mm", "gelu", "add"])
    unchanged(mlp_layer(), lambda joint: mark_exclude(joint, rules, Matched()))


def test_only_the_region_is_searched() -> None:
    joint, rules = mlp_layer(), plan(select={"mlp": [0]}, exclude=["add", "gelu"])
    mark_recompute(joint, rules, Matched())
    mark_exclude(joint, rules, Matched())
    assert saved(joint) == {"act"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("MatMul", {"fc1", "fc2"}),
        ("matmul", {"fc1", "fc2"}),
        ("Mat_Mul", {"fc1", "fc2"}),
        ("mat.mul", {"fc1", "fc2"}),
        ("LINEAR", {"fc1", "fc2"}),
        ("mm", {"fc1", "fc2"}),
        ("aten.mm.default", {"fc1", "fc2"}),
        ("aten_mm", {"fc1", "fc2"}),
        ("Gelu", {"act"}),
        ("el", {"act"}),
        ("g.l", set()),
        (".*", set()),
        ("atenadd", {"out"}),
    ],
)
def test_a_list_holds_literal_text_whatever_its_case(text: str, kept: set[str]) -> None:
    assert excluded([text]) == kept


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        ({r".*\.linear": [0]}, {"fc1", "fc2"}),
        ({r"mlp\.fc1\.linear": [0]}, {"fc1"}),
        ({r"mlp\.fc1\.(aten\.)?mm": [0]}, {"fc1"}),
        ({r"mlp\.fc2\.matmul": [0, 1]}, {"fc2"}),
        ({r".*\.gelu": [1]}, set()),
        ({"add": [0]}, {"out"}),
        ({r".*\.gelu": [1], r".*\.fc1\..*": [0]}, {"fc1"}),
    ],
)
def test_a_mapping_holds_patterns_over_operator_paths(patterns: dict[str, list[int]], kept: set[str]) -> None:
    assert excluded(patterns) == kept


@pytest.mark.parametrize("text", ["Attention", "FlashAttention", "scaled_dot_product_attention", "ScaledDotProduct"])
def test_attention_answers_to_its_names(text: str) -> None:
    b = Builder()
    q, k, v = (b.input(n, 1, 2, 4, 4) for n in "qkv")
    place = {"at": "layers.0.attention", "fn": F.scaled_dot_product_attention}
    sdpa = b.op("sdpa", aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v, 0.0, True, **place)
    out = b.item("out", sdpa, 0, **place)
    stats = b.item("stats", sdpa, 1, **place)
    after = b.op("after", aten.exp.default, out, at="layers.0.attention", fn=torch.exp)
    assert excluded([text], b.joint([after, stats])) == {"sdpa", "out", "stats"}


@pytest.mark.parametrize("target", ["mm", "bmm", "addmm", "baddbmm"])
def test_every_matrix_product_answers_to_matmul(target: str) -> None:
    b = Builder()
    shape = (2, 4, 4) if "bmm" in target else (4, 4)
    operands = [b.input(n, *shape) for n in ("a", "b", "c")]
    number = 3 if target.startswith(("add", "badd")) else 2
    product = b.op("product", getattr(aten, target).default, *operands[:number], at="layers.0")
    assert excluded(["MatMul"], b.joint([product])) == {"product"}


def softplus_by_parts():
    b = Builder()
    place = {"at": "layers.0.act", "fn": F.softplus}
    x = b.input("x", 4, 4)
    power = b.op("power", aten.exp.default, x, **place)
    more = b.op("more", aten.add.Tensor, power, 1, **place)
    log = b.op("log", aten.log.default, more, **place)
    after = b.op("after", aten.neg.default, log, at="layers.0")
    gradient = b.tangent(after)
    grad = b.back("grad", aten.mul.Tensor, gradient, power)
    return b.joint([after], [grad])


def test_of_a_function_that_became_several_operators_only_its_output_is_kept() -> None:
    assert excluded(["Softplus"], softplus_by_parts()) == {"log"}
    assert excluded({r"act\.softplus": [0]}, softplus_by_parts()) == {"log"}


def test_operators_within_a_function_still_answer_to_their_own_names() -> None:
    assert excluded(["exp"], softplus_by_parts()) == {"power"}


def test_what_a_function_reads_is_no_output_of_it_even_if_another_call_reads_it_too() -> None:
    """Common subexpressions are one node: q's linear makes the view of the norm that k's and v's linear read as well."""
    b = Builder()
    x, w = b.input("x", 2, 2, 4), b.parameter("w", 4, 4)
    norm = b.op("norm", aten.exp.default, x, at="layers.0.norm", fn=torch.exp)
    flat = b.op("flat", aten.view.default, norm, [4, 4], at="layers.0.q", fn=F.linear)
    q = b.op("q", aten.mm.default, flat, w, at="layers.0.q", fn=F.linear)
    k = b.op("k", aten.mm.default, flat, w, at="layers.0.k", fn=F.linear)
    out = b.op("out", aten.mul.Tensor, q, k, at="layers.0")
    assert excluded(["MatMul"], b.joint([out])) == {"q", "k"}


def test_a_result_that_is_only_returned_is_an_output() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    out = b.op("out", aten.log.default, x, at="layers.0", fn=F.softplus)
    assert excluded(["softplus"], b.joint([out])) == {"out"}


def test_a_kept_view_keeps_its_storage(golden) -> None:
    b = Builder()
    x, w = b.input("x", 2, 2, 4), b.parameter("w", 4, 4)
    flat = b.op("flat", aten.view.default, x, [4, 4], at="layers.0.fc", fn=F.linear)
    product = b.op("product", aten.mm.default, flat, w, at="layers.0.fc", fn=F.linear)
    out = b.op("out", aten.view.default, product, [2, 2, 4], at="layers.0.fc", fn=F.linear)
    after = b.op("after", aten.exp.default, out, at="layers.0", fn=torch.exp)
    joint, rules = b.joint([after]), plan(full=[0], exclude={r"fc\.linear": [0]})
    mark_recompute(joint, rules, Matched())
    golden("mark_exclude_view", joint, lambda joint: mark_exclude(joint, rules, Matched()))


def test_a_pattern_that_takes_too_long_counts_as_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    real = matched_module.fullmatch

    def slow(pattern: str, text: str) -> bool:
        tried.append(pattern)
        if pattern == "slow":
            raise MatchTimeout(pattern, text, 1.0)
        return real(pattern, text)

    monkeypatch.setattr(matched_module, "fullmatch", slow)
    joint, matched = chain("layers.0.mlp", "layers.0.mlp"), Matched()
    rules = plan(full=[0], exclude={"slow": [0], r"mlp\.sin": [0]})
    mark_recompute(joint, rules, Matched())
    mark_exclude(joint, rules, matched)
    assert saved(joint) == {"a0", "a1"}
    assert tried.count("slow") == 1
    assert matched.timed_out == {"slow"}


def test_a_decision_to_save_is_left_alone(unchanged) -> None:
    joint, rules = mlp_layer(), plan(full=[0], exclude=["MatMul"])
    recompute(named(joint, "act"))
    unchanged(joint, lambda joint: mark_exclude(joint, rules, Matched()))


def test_every_rule_that_names_an_operator_has_matched() -> None:
    joint, rules, matched = mlp_layer(), plan(full=[0], exclude=["gelu", "aten.gelu", "tanh"]), Matched()
    mark_recompute(joint, rules, Matched())
    mark_exclude(joint, rules, matched)
    assert matched.met == {("recompute.exclude_op['gelu']", 0), ("recompute.exclude_op['aten.gelu']", 0)}


def test_a_checkpointed_node_without_a_scope_is_passed_over(unchanged) -> None:
    """A rewrite may leave a node without a name inside a checkpoint of the user's own."""
    b = Builder()
    x = b.input("x", 4, 4)
    nameless = b.op("nameless", aten.exp.default, x)
    out = b.op("out", aten.sin.default, nameless, at="head")
    joint = b.joint([out])
    recompute(nameless, layer=None)
    unchanged(joint, lambda joint: mark_exclude(joint, plan(exclude=["exp"]), Matched()))


def test_the_reason_names_the_operator() -> None:
    joint, rules = mlp_layer(), plan(full=[0], exclude=["gelu"])
    mark_recompute(joint, rules, Matched())
    mark_exclude(joint, rules, Matched())
    assert "act SAVE 0 recompute.exclude_op['gelu'] — gelu is excluded from recomputation\n" in decided(joint)
