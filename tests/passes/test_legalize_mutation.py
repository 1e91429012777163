from __future__ import annotations

from memopt.passes.legalize.mutation import keep_reads_of_mutated_inputs
from memopt.passes.matched import Matched
from memopt.passes.pin_mutated_inputs import RULE as PINNED
from memopt.passes.pin_mutated_inputs import pin_mutated_inputs
from printer import Builder, actions, named, recompute, save
from small_graphs import aten, mlp_layer


def run(joint) -> None:
    keep_reads_of_mutated_inputs(joint, Matched())


def counter(decide: bool = True):
    """``b`` is read through two views, and then changed."""
    b = Builder()
    x, buffer = b.input("x", 4), b.parameter("b", 2, 2, mutated=True)
    view = b.op("view", aten.view.default, buffer, [4], at="layers.0")
    alias = b.op("alias", aten.slice.Tensor, view, 0, 0, 4, at="layers.0")
    twice = b.op("twice", aten.mul.Tensor, alias, 2, at="layers.0.gate")
    sine = b.op("sine", aten.sin.default, twice, at="layers.0.gate")
    out = b.op("out", aten.mul.Tensor, x, sine, at="layers.0")
    more = b.op("more", aten.add.Tensor, buffer, 1, at="layers.0")
    b.op("write", aten.copy_.default, buffer, more, at="layers.0")
    joint = b.joint([out])
    if decide:
        recompute(view, alias, twice, sine, out)
    return joint


def test_the_first_value_computed_from_a_mutated_input_is_saved(golden) -> None:
    golden("legalize_mutation", counter(), run)


def test_without_any_rule_too(golden) -> None:
    golden("legalize_mutation_without_rules", counter(decide=False), run)


def test_inputs_that_stay_as_they_are_are_left_alone(unchanged) -> None:
    unchanged(mlp_layer(), run)
    joint = mlp_layer()
    recompute(*(named(joint, n) for n in ("fc1", "act", "fc2", "out")))
    unchanged(joint, run)


def test_what_the_backward_computes_is_not_looked_at(unchanged) -> None:
    b = Builder()
    buffer = b.parameter("b", 4, mutated=True)
    x = b.input("x", 4)
    out = b.op("out", aten.exp.default, x, at="layers.0")
    b.back("grad", aten.mul.Tensor, b.tangent(out), buffer)
    unchanged(b.joint([out]), run)


def test_a_tuple_of_views_of_a_mutated_input_is_an_alias_of_it() -> None:
    b = Builder()
    buffer = b.parameter("b", 4, mutated=True)
    parts = b.op("parts", aten.split.Tensor, buffer, 2, at="layers.0")
    left = b.item("left", parts, 0, at="layers.0")
    out = b.op("out", aten.exp.default, left, at="layers.0")
    joint = b.joint([out])
    recompute(parts, left, out)
    run(joint)
    assert actions(joint) == {"out": "SAVE"}


def changed_in_parts(pinned: bool = False):
    """``b[0] += 1``, then sin(b) and a copy of it, then ``b[1:3] = x``; with ``pinned``, of a saved copy of b."""
    b = Builder()
    x, buffer = b.input("x", 2), b.parameter("b", 4, mutated=True)
    base = b.op("before", aten.clone.default, buffer) if pinned else buffer
    part = b.op("part", aten.select.int, base, 0, 0, at="layers.0")
    more = b.op("more", aten.add.Tensor, part, 1, at="layers.0")
    first = b.op("first", aten.select_scatter.default, base, more, 0, 0, at="layers.0")
    copied = b.op("copied", aten.clone.default, first, at="layers.0")
    sine = b.op("sine", aten.sin.default, copied, at="layers.0")
    out = b.op("out", aten.exp.default, sine, at="layers.0")
    last = b.op("last", aten.slice_scatter.default, first, x, 0, 1, 3, at="layers.0")
    b.op("write", aten.copy_.default, buffer, last, at="layers.0")
    gradient = b.back("grad", aten.mul.Tensor, b.tangent(out), copied if pinned else sine)
    joint = b.joint([out], [gradient])
    recompute(part, more, first, copied, sine, out, last)
    if pinned:
        save(base, layer=None, rule=PINNED)
    return joint


def test_what_reads_a_part_wise_changed_input_is_saved_and_what_lies_in_its_memory_never(golden) -> None:
    golden("legalize_mutation_of_parts", changed_in_parts(), run)


def test_what_is_written_over_a_saved_copy_is_recomputed_from_it(golden) -> None:
    golden("legalize_mutation_of_a_copy", changed_in_parts(pinned=True), run)


def test_a_backward_that_reads_what_lies_in_the_memory_of_an_input_pins_the_input() -> None:
    b = Builder()
    x, buffer = b.input("x", 2), b.parameter("b", 4, mutated=True)
    last = b.op("last", aten.slice_scatter.default, buffer, x, 0, 1, 3, at="layers.0")
    out = b.op("out", aten.exp.default, last, at="layers.0")
    b.op("write", aten.copy_.default, buffer, last, at="layers.0")
    joint = b.joint([out], [b.back("grad", aten.mul.Tensor, b.tangent(out), last)])
    assert pin_mutated_inputs(joint)
    assert [n.name for n in last.all_input_nodes] == ["clone_default", "primals_x"]
    run(joint)
    assert actions(joint) == {"clone_default": "SAVE", "last": "RECOMPUTE"}
