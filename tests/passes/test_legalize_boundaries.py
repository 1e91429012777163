from __future__ import annotations

from memopt.passes.legalize.boundaries import keep_what_leaves_a_region
from memopt.passes.mark_recompute import mark_recompute
from memopt.passes.matched import Matched
from memopt.passes.policy import RuleKind
from printer import Builder, actions, decided, named, plan, recompute, rule, save
from small_graphs import aten, chain, mlp_layer


def run(joint) -> None:
    keep_what_leaves_a_region(joint, Matched())


def test_two_regions_in_a_row_keep_the_value_between_them(golden) -> None:
    joint = chain("layers.0.norm", "layers.0.mlp", "layers.1.norm", "layers.1.mlp", "head")
    mark_recompute(joint, plan(full=[0, 1]), Matched())
    golden("legalize_boundaries", joint, run)


def test_within_a_region_and_without_any_nothing_is_kept(unchanged) -> None:
    unchanged(mlp_layer(), run)
    joint = mlp_layer()
    recompute(*(named(joint, n) for n in ("fc1", "act", "fc2")))
    save(named(joint, "out"), region=0)
    unchanged(joint, run)


def test_the_rest_of_the_model_is_told_from_another_region() -> None:
    joint = chain("layers.0.a", "layers.0.b", "layers.0.c")
    recompute(named(joint, "a0"), region=0)
    recompute(named(joint, "a1"), region=1)
    run(joint)
    assert decided(joint) == (
        "a0 SAVE 0 legalize.boundaries — a1 in another region reads it\n"
        "a1 SAVE 1 legalize.boundaries — a2 in the rest of the model reads it\n"
    )


def test_the_result_of_an_operator_that_a_rule_names_is_not_kept(unchanged) -> None:
    joint = chain("layers.0.mlp", "layers.0.mlp")
    recompute(named(joint, "a0"))
    forced = Matched(operators={named(joint, "a0"): rule(RuleKind.RECOMPUTE_SELECT, ".*sin", [0])})
    unchanged(joint, lambda joint: keep_what_leaves_a_region(joint, forced))


def test_what_only_the_backward_reads_does_not_leave() -> None:
    joint = mlp_layer()
    recompute(*(named(joint, n) for n in ("fc1", "act")))
    run(joint)
    assert actions(joint) == {"fc1": "RECOMPUTE", "act": "SAVE"}


def test_a_value_without_a_region_is_left_alone(unchanged) -> None:
    joint = chain("layers.0.mlp", "layers.1.mlp")
    recompute(named(joint, "a0"), region=None)
    unchanged(joint, run)


def test_what_the_forward_returns_is_recomputed_all_the_same(unchanged) -> None:
    """The caller may have dropped it before the backward."""
    joint = chain("layers.0.mlp", "layers.0.mlp")
    mark_recompute(joint, plan(full=[0]), Matched())
    unchanged(joint, run)


def test_a_write_into_an_input_does_not_keep_what_it_writes() -> None:
    b = Builder()
    buffer = b.parameter("b", 4, mutated=True)
    more = b.op("more", aten.add.Tensor, b.input("x", 4), 1, at="layers.0")
    out = b.op("out", aten.exp.default, more, at="layers.0")
    b.op("write", aten.copy_.default, buffer, more)
    joint = b.joint([out])
    recompute(more)
    save(out, region=0)
    run(joint)
    assert actions(joint) == {"more": "RECOMPUTE", "out": "SAVE"}
