from __future__ import annotations

from memopt.passes.joint import decide
from memopt.passes.legalize.boundaries import keep_what_leaves_a_region, leave_regions_that_recompute_nothing
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
        "a0 SAVE 0 legalize.boundaries — a1 in another region needs it\n"
        "a1 SAVE 1 legalize.boundaries — g2 in the rest of the model needs it\n"
    )


def test_the_result_of_an_operator_that_a_rule_names_is_not_kept(unchanged) -> None:
    joint = chain("layers.0.mlp", "layers.0.mlp")
    recompute(named(joint, "a0"))
    forced = Matched(operators={named(joint, "a0"): rule(RuleKind.RECOMPUTE_SELECT, ".*sin", [0])})
    unchanged(joint, lambda joint: keep_what_leaves_a_region(joint, forced))


def test_what_the_backward_of_another_operator_reads_leaves() -> None:
    """act is read by the backward of fc2; fc1 only by that of act, in the same region."""
    joint = mlp_layer()
    recompute(*(named(joint, n) for n in ("fc1", "act")))
    run(joint)
    assert actions(joint) == {"fc1": "RECOMPUTE", "act": "SAVE"}


def region_and_sum(view: bool = False):
    """A region of ``fc`` and ``out = tanh(fc)``, which only their backward reads; ``total`` lies behind it, in no region."""
    b = Builder()
    x, w = b.input("x", 4, 4), b.parameter("w", 4, 4)
    fc = b.op("fc", aten.mm.default, x, w, at="layers.0.mlp")
    out = b.op("out", aten.tanh.default, fc, at="layers.0.mlp")
    read = b.op("flat", aten.view.default, out, [4, 4]) if view else out
    total = b.op("total", aten.add.Tensor, x, read, at="layers.0")
    last = b.op("last", aten.exp.default, total, at="layers.0")
    gradient = b.back("grad_last", aten.mul.Tensor, b.tangent(last), last, of=last)
    gradient = b.back("grad_out", aten.tanh_backward.default, gradient, out, of=out)
    joint = b.joint([last], [gradient])
    recompute(fc, out)
    return joint


def test_what_reads_a_region_is_kept_where_recomputing_it_would_run_the_region_again(golden) -> None:
    golden("legalize_boundaries_reader", region_and_sum(), run)


def test_behind_a_view_too() -> None:
    joint = region_and_sum(view=True)
    run(joint)
    assert actions(joint) == {"fc": "RECOMPUTE", "out": "RECOMPUTE", "total": "SAVE"}


def test_around_the_users_own_checkpoints_torch_decides(unchanged) -> None:
    joint = region_and_sum()
    recompute(named(joint, "fc"), named(joint, "out"), rule="torch.utils.checkpoint")
    unchanged(joint, run)


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


def leave(joint) -> None:
    leave_regions_that_recompute_nothing(joint, Matched())


def test_a_region_that_recomputes_nothing_in_the_end_leaves_no_trace(golden) -> None:
    """The activation of a gated layer: its value leaves the region, and torch recomputes it by itself if it is not kept."""
    b = Builder()
    gate, up = b.input("gate", 4, 4), b.input("up", 4, 4)
    act = b.op("act", aten.silu.default, gate, at="layers.0.act")
    flat = b.op("flat", aten.view.default, act, [16], at="layers.0.act")
    back = b.op("back", aten.view.default, flat, [4, 4], at="layers.0.act")
    both = b.op("both", aten.mul.Tensor, back, up, at="layers.0")
    joint = b.joint([both], [b.back("grad_up", aten.mul.Tensor, b.tangent(both), back, of=both)])
    recompute(act, flat, back)
    run(joint)
    assert actions(joint) == {"act": "SAVE", "flat": "RECOMPUTE", "back": "SAVE"}
    golden("legalize_boundaries_of_nothing", joint, leave)


def test_what_was_kept_for_a_region_that_is_left_goes_too() -> None:
    joint = region_and_sum()
    run(joint)
    for name in ("fc", "out"):
        decide(named(joint, name), None)
    leave(joint)
    assert actions(joint) == {}


def test_a_region_that_recomputes_something_stays(unchanged) -> None:
    joint = region_and_sum()
    run(joint)
    unchanged(joint, leave)
