from __future__ import annotations

import pytest
import torch
from memopt.passes.legalize.tails import recompute_tails
from memopt.passes.matched import Matched
from memopt.passes.policy import RuleKind
from printer import Builder, actions, named, recompute, rule, save
from small_graphs import aten

RULE = rule(RuleKind.RECOMPUTE_SELECT, r".*\.gelu", [0])


def gelu_and_behind():
    """``act`` -> ``flat`` (view) -> ``half`` (cast) -> ``fc2``; ``scaled`` reads act and is no tail."""
    b = Builder()
    x, w = b.input("x", 2, 2, 4), b.parameter("w", 4, 4, dtype=torch.bfloat16)
    act = b.op("act", aten.gelu.default, x, at="layers.0.mlp")
    flat = b.op("flat", aten.view.default, act, [4, 4], at="layers.0.mlp")
    half = b.op("half", aten._to_copy.default, flat, at="layers.0.mlp", dtype=torch.bfloat16)
    fc2 = b.op("fc2", aten.mm.default, half, w, at="layers.0.mlp")
    scaled = b.op("scaled", aten.mul.Tensor, act, 2, at="layers.0.mlp")
    return b.joint([fc2, scaled])


def forced(joint) -> Matched:
    return Matched(operators={named(joint, "act"): RULE})


def test_views_and_casts_behind_a_named_operator_follow_it(golden) -> None:
    joint = gelu_and_behind()
    recompute(named(joint, "act"))
    matched = forced(joint)
    golden("legalize_tails", joint, lambda joint: recompute_tails(joint, matched))
    assert {n.name for n in matched.operators} == {"act", "flat", "half"}


def test_behind_a_region_that_no_operator_rule_made_nothing_follows(unchanged) -> None:
    joint = gelu_and_behind()
    recompute(named(joint, "act"))
    unchanged(joint, lambda joint: recompute_tails(joint, Matched()))


def test_behind_a_saved_operator_nothing_follows(unchanged) -> None:
    joint = gelu_and_behind()
    save(named(joint, "act"))
    unchanged(joint, lambda joint: recompute_tails(joint, forced(joint)))


def test_a_decided_tail_keeps_its_decision(unchanged) -> None:
    joint = gelu_and_behind()
    recompute(named(joint, "act"))
    save(named(joint, "flat"))
    unchanged(joint, lambda joint: recompute_tails(joint, forced(joint)))


@pytest.mark.parametrize("collective", ["all_gather_into_tensor"])
def test_the_wait_behind_a_named_collective_follows(collective: str) -> None:
    b = Builder()
    x = b.input("x", 4)
    raw = b.op("raw", torch.ops._c10d_functional.all_gather_into_tensor.default, x, 2, "0", at="layers.0.tp")
    full = b.op("full", torch.ops._c10d_functional.wait_tensor.default, raw, at="layers.0.tp")
    out = b.op("out", aten.exp.default, full, at="layers.0")
    joint = b.joint([out])
    recompute(raw)
    recompute_tails(joint, Matched(operators={raw: RULE}))
    assert actions(joint) == {"raw": "RECOMPUTE", "full": "RECOMPUTE"}
