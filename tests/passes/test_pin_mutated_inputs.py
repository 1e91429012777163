from __future__ import annotations

import torch
from memopt.passes.joint import JointGraph, decision_of
from memopt.passes.pin_mutated_inputs import pin_mutated_inputs
from memopt.passes.policy import Action
from printer import Builder, named, show
from small_graphs import aten, mlp_layer


def counter(through_view: bool = False, backward_reads: bool = True) -> JointGraph:
    b = Builder()
    x, buffer = b.input("x", 4), b.parameter("b", 4, mutated=True)
    read = b.op("read", aten.view.default, buffer, [4], at="layers.0") if through_view else buffer
    out = b.op("out", aten.mul.Tensor, read, x, at="layers.0")
    more = b.op("more", aten.add.Tensor, buffer, 1, at="layers.0")
    b.op("write", aten.copy_.default, buffer, more, at="layers.0")
    gradient = b.tangent(out)
    grad = b.back("grad", aten.mul.Tensor, gradient, read if backward_reads else x)
    return b.joint([out], [grad])


def test_the_backward_gets_a_copy_from_before_the_change(golden) -> None:
    golden("pin_mutated_inputs", counter(), pin_mutated_inputs)


def test_through_a_view_too(golden) -> None:
    golden("pin_mutated_inputs_view", counter(through_view=True), pin_mutated_inputs)


def test_where_only_the_forward_reads_it_no_copy_is_made(unchanged) -> None:
    unchanged(counter(backward_reads=False), pin_mutated_inputs)


def test_an_input_that_stays_as_it_is_needs_no_copy(unchanged) -> None:
    unchanged(mlp_layer(), pin_mutated_inputs)
    assert pin_mutated_inputs(mlp_layer()) is False


def test_it_says_whether_the_graph_changed_and_a_second_run_does_nothing() -> None:
    joint = counter()
    assert pin_mutated_inputs(joint) is True
    once = show(joint)
    assert pin_mutated_inputs(joint) is False
    assert show(joint) == once


def test_the_copy_is_saved_and_says_why() -> None:
    joint = counter()
    pin_mutated_inputs(joint)
    decision = decision_of(named(joint, "clone_default"))
    assert decision is not None
    assert (decision.action, decision.rule) == (Action.SAVE, "pin_mutated_inputs")
    assert decision.reason == "the backward reads primals_b as it was before the forward changed it"


def test_the_write_still_goes_to_the_input() -> None:
    joint = counter()
    pin_mutated_inputs(joint)
    write = named(joint, "write")
    assert [a.name for a in write.args] == ["primals_b", "more"]
    assert [a.name for a in named(joint, "more").all_input_nodes] == ["clone_default"]


def test_the_numbers_are_those_from_before_the_change() -> None:
    joint = counter()
    pin_mutated_inputs(joint)
    x, buffer, tangent = torch.full((4,), 3.0), torch.full((4,), 5.0), torch.ones(4)
    out, grad = joint.module(x, buffer, tangent)
    assert out.tolist() == [15.0] * 4
    assert grad.tolist() == [5.0] * 4
    assert buffer.tolist() == [6.0] * 4


def test_two_inputs_are_pinned_each() -> None:
    b = Builder()
    x = b.input("x", 4)
    buffers = [b.parameter(n, 4, mutated=True) for n in ("b", "c")]
    out = x
    for i, buffer in enumerate(buffers):
        out = b.op(f"out{i}", aten.mul.Tensor, buffer, out, at="layers.0")
    for i, buffer in enumerate(buffers):
        b.op(f"write{i}", aten.copy_.default, buffer, out, at="layers.0")
    gradient = b.tangent(out)
    grads = [b.back(f"grad{i}", aten.mul.Tensor, gradient, buffer) for i, buffer in enumerate(buffers)]
    joint = b.joint([out], grads)
    pin_mutated_inputs(joint)
    sources = {named(joint, f"grad{i}").args[1].args[0].name for i in range(2)}
    assert sources == {"primals_b", "primals_c"}
