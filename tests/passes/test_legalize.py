"""The legalizations together, in their order."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from memopt.passes.joint import JointGraph
from memopt.passes.legalize import legalize
from memopt.passes.mark_exclude import mark_exclude
from memopt.passes.mark_recompute import mark_recompute
from memopt.passes.matched import Matched
from memopt.passes.verify import verify
from printer import Builder, actions, named, plan, split
from small_graphs import aten, mlp_layer


def two_layers() -> JointGraph:
    """Two layers of a product, a random mask and a residual sum."""
    b = Builder()
    x, w = b.input("x", 4, 4), b.parameter("w", 4, 4)
    for i in range(2):
        fc = b.op(f"fc{i}", aten.mm.default, x, w, at=f"layers.{i}.fc", fn=F.linear)
        mask = b.op(f"mask{i}", aten.bernoulli.p, fc, 0.5, at=f"layers.{i}.dropout", fn=F.dropout)
        drop = b.op(f"drop{i}", aten.mul.Tensor, fc, mask, at=f"layers.{i}.dropout", fn=F.dropout)
        x = b.op(f"out{i}", aten.add.Tensor, x, drop, at=f"layers.{i}")
    gradient = b.tangent(x)
    for i in (1, 0):
        gradient = b.back(f"grad{i}", aten.mul.Tensor, gradient, named_node(b, f"mask{i}"), of=named_node(b, f"drop{i}"))
    return b.joint([x], [gradient])


def named_node(b: Builder, name: str):
    return next(n for n in b.graph.nodes if n.name == name)


def test_whole_layers(golden) -> None:
    joint, matched = two_layers(), Matched()
    mark_recompute(joint, plan(full=[0, 1]), matched)
    golden("legalize", joint, lambda joint: legalize(joint, matched, with_rules=True), twice=False)


def test_without_rules_only_what_correctness_asks_for_is_decided(golden, unchanged) -> None:
    golden("legalize_without_rules", two_layers(), lambda joint: legalize(joint, Matched(), with_rules=False))
    unchanged(mlp_layer(), lambda joint: legalize(joint, Matched(), with_rules=False))


@pytest.mark.parametrize(
    "rules",
    [
        plan(),
        plan(full=[0]),
        plan(full=[0, 1]),
        plan(full=[0, 1], exclude=["MatMul"]),
        plan(full=[0], exclude=["dropout", "bernoulli"]),
        plan(select={"fc": [0, 1]}),
        plan(select={"dropout": [1]}),
        plan(operators={r".*\.linear": [0, 1]}),
        plan(select={"dropout": [0]}, operators={r".*\.linear": [0, 1], "add": [0]}, exclude=["mul"]),
    ],
    ids=range(9),
)
@pytest.mark.parametrize("make", [two_layers, mlp_layer])
def test_torchs_partitioner_honours_what_was_decided(make, rules) -> None:
    joint, matched = make(), Matched()
    mark_recompute(joint, rules, matched)
    mark_exclude(joint, rules, matched)
    legalize(joint, matched, with_rules=True)
    verify(joint, *split(joint))


def test_an_excluded_random_value_is_saved_and_not_replayed() -> None:
    joint, rules = two_layers(), plan(full=[0, 1], exclude=["bernoulli"])
    mark_recompute(joint, rules, Matched())
    mark_exclude(joint, rules, Matched())
    legalize(joint, Matched(), with_rules=True)
    assert actions(joint)["mask0"] == actions(joint)["mask1"] == "SAVE"
    assert "fc0" not in actions(joint)  # nothing reads it again
    assert named(joint, "fc0").meta.get("memopt") is None


def test_rules_by_which_nothing_is_recomputed_in_the_end_are_told_from_the_others() -> None:
    """fc2 alone: its product is only added to the residual, so the backward does not need it."""
    joint, matched = mlp_layer(), Matched()
    mark_recompute(joint, plan(select={"mlp.fc1": [0], "mlp.fc2": [0]}), matched)
    legalize(joint, matched, with_rules=True)
    assert matched.effective == set()
    assert set(matched.ineffective) == {"recompute.select_module['.*mlp.fc1']", "recompute.select_module['.*mlp.fc2']"}
    joint, matched = mlp_layer(), Matched()
    mark_recompute(joint, plan(select={"mlp": [0]}), matched)
    legalize(joint, matched, with_rules=True)
    assert (matched.effective, matched.ineffective) == ({"recompute.select_module['.*mlp']"}, {})
