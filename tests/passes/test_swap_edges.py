"""What swap does where numbers, views and rules meet in unusual ways, and what its verification refuses besides."""

from __future__ import annotations

import operator

import pytest
import torch
from memopt.passes.joint import JointGraph
from memopt.passes.matched import Matched
from memopt.passes.swap.journey import plan_journeys
from memopt.passes.swap.verify_swap import verify_swap
from memopt.passes.verify import VerificationError
from printer import Builder, plan
from swap_graphs import aten, chosen, moving, node_of, staying, tower, travelled
from test_swap_symbols import Dynamic


def number_shared_with_the_next_layer(at: str, layer: int) -> JointGraph:
    """torch gives what needs no gradient the number of the operator before it: a mask that begins a layer has that of ``v``."""
    b = Builder()
    v = b.op("v", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4), at=at)
    mask = b.op("mask", aten.ge.Scalar, b.input("ids", 4, 4, dtype=torch.long), 1, at=f"layers.{layer}")
    mask.meta["seq_nr"] = v.meta["seq_nr"]
    out = b.op("out", aten.mul.Tensor, v, mask, at=f"layers.{layer}")
    g_out = b.back("g_out", aten.mul.Tensor, b.tangent(out), mask, of=out)
    return b.joint([out], [b.back("g", aten.mul.Tensor, g_out, v, of=v)])


def test_a_layer_that_is_not_swapped_keeps_its_values_whatever_the_next_one_begins_with() -> None:
    assert "v" not in moving(number_shared_with_the_next_layer("layers.0", 1), plan(swap=[1]))


def test_what_lies_before_the_layers_keeps_its_values_whatever_the_first_one_begins_with() -> None:
    pair, moves = chosen(number_shared_with_the_next_layer("embedding", 0), plan(swap=[0]))
    plan_journeys(pair, moves, 1)
    assert [m.value.name for m in moves] == []


def test_every_rule_whose_backward_reads_what_moves_is_effective() -> None:
    b = Builder()
    v = b.op("v", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4), at="layers.0.norm")
    outs = [b.op(n, aten.mul.Tensor, v, v, at=f"layers.0.{n}") for n in "qk"]
    joint = b.joint(outs, [b.back(f"g_{o.name}", aten.mul.Tensor, b.tangent(o), v, of=o) for o in outs])
    matched = Matched()
    assert set(moving(joint, plan(swap_modules={"q": [0], "k": [0]}), matched)) == {"v"}
    assert matched.ineffective == {}
    assert matched.effective == {"swap.op_swap['.*q']", "swap.op_swap['.*k']"}


def test_a_mask_that_the_forward_computes_for_the_backward_moves() -> None:
    b = Builder()
    fc = b.op("fc", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4), at="layers.0")
    act = b.op("act", aten.relu.default, fc, at="layers.0")
    out = b.op("out", aten.neg.default, act, at="layers.1")
    g = b.back("g", aten.neg.default, b.tangent(out), of=out)
    mask = b.back("mask", aten.le.Scalar, fc, 0, of=act)
    joint = b.joint([out], [b.back("g_fc", aten.mul.Tensor, g, mask, of=act)])
    assert (set(moving(joint, plan(swap=[0]))), staying(joint)) == ({"mask"}, {})


def test_a_view_that_was_only_made_to_cross_gets_its_size() -> None:
    b = Dynamic()
    v = b.value("v")
    rows = b.op("rows", operator.mul, b.n, 2, at="layers.0")
    flat = b.op("flat", aten.view.default, v, [rows, 4], at="layers.0")
    verify_swap(*travelled(b.finish(v, reads=[flat]), plan(swap=[0]), views=True))


def refused(break_it) -> None:
    pair, journeys = travelled(tower("layers.0", "layers.1", "layers.2"), plan(3, swap=[0, 1]))
    break_it(pair)
    with pytest.raises(VerificationError):
        verify_swap(pair, journeys)


def test_tickets_that_arrive_in_another_order_are_refused() -> None:
    refused(lambda p: node_of(p.backward, "a1_ticket").append(node_of(p.backward, "a0_ticket")))


def test_a_wait_layers_before_the_first_use_is_refused() -> None:
    refused(lambda p: node_of(p.backward, "a0_prefetch").append(node_of(p.backward, "a0_wait")))


def test_a_wait_for_another_form_is_refused() -> None:
    def another(p) -> None:
        wait = node_of(p.backward, "a0_wait")
        wait.args = (wait.args[0], [2, 8], [8, 1], *wait.args[3:])

    refused(another)


def test_a_ticket_that_crosses_twice_is_refused() -> None:
    def twice(p) -> None:
        (output,) = p.forward.graph.find_nodes(op="output")
        output.args = ((*output.args[0], node_of(p.forward, "a0_ticket")),)

    refused(twice)


def test_one_of_several_readers_that_reads_the_old_placeholder_is_refused() -> None:
    b = Builder()
    v = b.op("v", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4), at="layers.0")
    out = b.op("out", aten.mul.Tensor, v, v, at="layers.0")
    t = b.tangent(out)
    backs = [b.back("g0", aten.mul.Tensor, t, v, of=out), b.back("g1", aten.sub.Tensor, t, v, of=out)]
    pair, journeys = travelled(b.joint([out], backs), plan(swap=[0]))
    with pair.backward.graph.inserting_before(next(iter(pair.backward.graph.nodes))):
        old = pair.backward.graph.placeholder("v")
    node_of(pair.backward, "g1").replace_input_with(node_of(pair.backward, "v_wait"), old)
    with pytest.raises(VerificationError):
        verify_swap(pair, journeys)


def test_a_value_whose_first_use_is_a_view_is_fetched_before_it_is_waited_for() -> None:
    b = Builder()
    v = b.op("v", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4), at="layers.0")
    turned = b.op("turned", aten.t.default, v, at="layers.0")
    out = b.op("out", aten.mul.Tensor, v, turned, at="layers.0")
    joint = b.joint([out], [b.back("g", aten.mul.Tensor, b.tangent(out), turned, of=out)])
    verify_swap(*travelled(joint, plan(swap=[0])))


@pytest.mark.parametrize(
    ("target", "args", "moves"),
    [
        (aten.clone.default, (), False),
        (aten.pow.Tensor_Scalar, (1,), False),
        (aten.constant_pad_nd.default, ([0, 0],), False),
        (aten.pow.Tensor_Scalar, (2,), True),
        (aten.exp.default, (), True),
    ],
)
def test_what_a_backend_may_take_for_an_input_stays(target: object, args: tuple[object, ...], moves: bool) -> None:
    b = Builder()
    value = b.op("value", target, b.input("x", 4, 4), *args, at="layers.0")
    out = b.op("out", aten.mul.Tensor, value, value, at="layers.0")
    joint = b.joint([out], [b.back("g", aten.mul.Tensor, b.tangent(out), value, of=out)])
    assert ("value" in moving(joint, plan(swap=[0]))) == moves
    if not moves:
        assert "a copy of primals_x, which a backend may take for the input itself" in staying(joint)["value"]
