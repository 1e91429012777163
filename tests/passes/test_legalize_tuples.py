from __future__ import annotations

from memopt.passes.joint import decision_of
from memopt.passes.legalize.tuples import decide_tuples_as_one
from memopt.passes.matched import Matched
from memopt.passes.policy import RuleKind
from printer import Builder, actions, named, recompute, rule, save
from small_graphs import aten, mlp_layer


def topk():
    b = Builder()
    x = b.input("x", 4, 4)
    top = b.op("top", aten.topk.default, x, 2, at="layers.0")
    values = b.item("values", top, 0, at="layers.0")
    indices = b.item("indices", top, 1, at="layers.0")
    out = b.op("out", aten.gather.default, x, 1, indices, at="layers.0")
    return b.joint([out, values])


def run(joint) -> None:
    decide_tuples_as_one(joint, Matched())


def test_a_saved_operator_saves_its_outputs(golden) -> None:
    joint = topk()
    save(named(joint, "top"), region=0)
    recompute(named(joint, "values"), named(joint, "indices"))
    golden("legalize_tuples_saved_operator", joint, run)


def test_one_saved_output_saves_operator_and_outputs(golden) -> None:
    joint = topk()
    recompute(named(joint, "top"), named(joint, "values"))
    save(named(joint, "indices"), region=0)
    golden("legalize_tuples_saved_output", joint, run)


def test_an_undecided_output_follows_its_operator() -> None:
    joint = topk()
    recompute(named(joint, "top"))
    run(joint)
    assert actions(joint) == {"top": "RECOMPUTE", "values": "RECOMPUTE", "indices": "RECOMPUTE"}


def test_outputs_are_forced_as_their_operator_is() -> None:
    joint, matched = topk(), Matched()
    recompute(named(joint, "top"))
    forced = rule(RuleKind.RECOMPUTE_SELECT, ".*topk", [0])
    matched.operators[named(joint, "top")] = forced
    decide_tuples_as_one(joint, matched)
    assert matched.operators == dict.fromkeys((named(joint, n) for n in ("top", "values", "indices")), forced)


def test_what_is_agreed_or_undecided_is_left_alone(unchanged) -> None:
    unchanged(topk(), run)
    unchanged(mlp_layer(), run)
    joint = topk()
    recompute(*(named(joint, n) for n in ("top", "values", "indices", "out")))
    unchanged(joint, run)


def test_the_reason_of_the_saved_output_counts_for_all() -> None:
    joint = topk()
    recompute(named(joint, "top"), named(joint, "values"))
    save(named(joint, "indices"), rule="exclude")
    run(joint)
    assert {decision_of(named(joint, n)).rule for n in ("top", "values", "indices")} == {"exclude"}
