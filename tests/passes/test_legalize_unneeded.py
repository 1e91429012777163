from __future__ import annotations

from memopt.passes.legalize.unneeded import drop_what_backward_does_not_need
from memopt.passes.matched import Matched
from memopt.passes.policy import RuleKind
from printer import Builder, actions, named, recompute, rule, save
from small_graphs import aten, mlp_layer


def run(joint) -> None:
    drop_what_backward_does_not_need(joint, Matched())


def test_the_last_operators_of_a_region_are_not_run_again(golden) -> None:
    joint = mlp_layer()
    recompute(*(named(joint, n) for n in ("fc1", "act", "fc2")))
    golden("legalize_unneeded", joint, run)


def test_what_leads_to_a_needed_value_stays_recomputed(unchanged) -> None:
    unchanged(mlp_layer(), run)
    joint = mlp_layer()
    recompute(named(joint, "fc1"), named(joint, "act"))
    unchanged(joint, run)


def test_what_leads_to_a_saved_value_only_is_dropped() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    first = b.op("first", aten.exp.default, x, at="layers.0")
    second = b.op("second", aten.exp.default, first, at="layers.0")
    third = b.op("third", aten.exp.default, second, at="layers.0")
    gradient = b.tangent(third)
    joint = b.joint([third], [b.back("grad", aten.mul.Tensor, gradient, third)])
    recompute(first, second)
    save(third, region=0)
    run(joint)
    assert actions(joint) == {"third": "SAVE"}


def test_an_operator_that_a_rule_names_is_held_while_torch_could_save_it() -> None:
    """Its value is read by an undecided node alone: left to torch, the very value the rule names could be saved."""
    b = Builder()
    x, w = b.input("x", 4, 4), b.parameter("w", 4, 4)
    fc = b.op("fc", aten.mm.default, x, w, at="layers.0.fc")
    act = b.op("act", aten.sigmoid.default, fc, at="layers.0")
    gradient = b.tangent(act)
    joint = b.joint([act], [b.back("grad", aten.sigmoid_backward.default, gradient, act)])
    recompute(fc)
    drop_what_backward_does_not_need(joint, Matched(operators={fc: rule(RuleKind.RECOMPUTE_SELECT, ".*mm", [0])}))
    assert actions(joint) == {"fc": "RECOMPUTE"}
