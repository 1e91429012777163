"""When memory is free again, node by node, and what a step of a forward and a backward is made of, by hand."""

from __future__ import annotations

import operator
from typing import Any

import torch
from hand_graphs import Hand, aten, explained, size_of, told
from memopt.compiler.estimate.step import simulate
from memopt.passes.liveness.kernels import last_readers, node_by_node
from memopt.passes.liveness.storages import Storages
from memopt.passes.swap.targets import OFFLOAD, PREFETCH, WAIT
from torch.fx import GraphModule, Node


def kernels(hand: Hand, *returned: Node, kept: frozenset[str] = frozenset()) -> Any:
    storages = hand.storages(*returned)
    return told(list(node_by_node(hand.graph, storages, kept)))


def test_a_value_is_free_after_its_last_reader() -> None:
    h = Hand()
    x = h.input("x", 4, 4)
    a = h.op("a", aten.relu.default, x)
    b = h.op("b", aten.neg.default, a)
    c = h.op("c", aten.add.Tensor, b, a)
    assert kernels(h, c, kept=frozenset({"x", "c"})) == [("a", ("a",), ()), ("b", ("b",), ()), ("c", ("c",), ("a", "b"))]


def test_a_reader_of_a_view_reads_the_memory() -> None:
    h = Hand()
    a = h.op("a", aten.relu.default, h.input("x", 4, 4))
    view = h.op("v", aten._unsafe_view.default, a, [16])
    b = h.op("b", aten.neg.default, h.input("y", 4))
    c = h.op("c", aten.neg.default, view)
    assert kernels(h, c, b, kept=frozenset({"x", "y", "b", "c"})) == [
        ("a", ("a",), ()),
        ("b", ("b",), ()),
        ("c", ("c",), ("a",)),
    ]


def test_what_nothing_reads_is_free_at_once() -> None:
    h = Hand()
    x = h.input("x", 4)
    h.op("a", aten.relu.default, x)
    assert kernels(h, x, kept=frozenset({"x"})) == [("a", ("a",), ("a",))]


def test_an_unread_output_lives_until_the_tuple_is_taken_apart() -> None:
    h = Hand()
    top = h.op("top", aten.topk.default, h.input("x", 4, 8), 2)
    other = h.op("other", aten.relu.default, h.input("y", 4))
    values = h.op("values", operator.getitem, top, 0)
    last = h.op("last", aten.neg.default, values)
    assert kernels(h, last, other, kept=frozenset({"x", "y", "last", "other"})) == [
        ("top", ("values", "top[1]"), ()),
        ("other", ("other",), ()),
        ("values", (), ("top[1]",)),
        ("last", ("last",), ("values",)),
    ]


def test_numbers_read_no_memory() -> None:
    h = Hand()
    a = h.op("a", aten.relu.default, h.input("x", 4))
    size = h.bare("size", aten.sym_size.int, a, 0)
    size.meta["val"] = 4
    storages = h.storages(a)
    assert {name: node.name for name, node in last_readers(h.graph, storages).items()} == {"a": "a", "x": "a"}


def test_what_leaves_is_there_until_the_copy_is_asked_for() -> None:
    h = Hand()
    a = h.op("a", aten.relu.default, h.input("x", 4))
    ticket = h.bare("ticket", OFFLOAD, a, "a", "host", "", 0, 0, True)
    ticket.meta["val"] = a.meta["val"]
    assert kernels(h, ticket, kept=frozenset({"x"})) == [("a", ("a",), ()), ("ticket", (), ("a",))]


# ---------------------------------------------------------------- a step


def joint() -> GraphModule:
    """``sin(x @ w)``, differentiated for ``w`` and ``x``: 4 x 8 by 8 x 16 in float32."""
    h = Hand()
    w, x, tangent = h.input("primals_w", 8, 16), h.input("primals_x", 4, 8), h.input("tangents_1", 4, 16)
    mm = h.op("mm", aten.mm.default, x, w)
    sin = h.op("sin", aten.sin.default, mm)
    cos = h.op("cos", aten.cos.default, mm)
    grad = h.op("grad", aten.mul.Tensor, tangent, cos)
    to_w = h.op("to_w", aten.mm.default, h.op("x_t", aten.t.default, x), grad)
    to_x = h.op("to_x", aten.mm.default, grad, h.op("w_t", aten.t.default, w))
    return h.module(sin, to_w, to_x)


def forward(*saved: str) -> GraphModule:
    h = Hand()
    w, x = h.input("primals_w", 8, 16), h.input("primals_x", 4, 8)
    mm = h.op("mm", aten.mm.default, x, w)
    sin = h.op("sin", aten.sin.default, mm)
    nodes = {"w": w, "x": x, "mm": mm}
    return h.module(sin, *(nodes[name] for name in saved))


def backward(*, again: bool) -> GraphModule:
    """The backward; ``again``: it makes ``mm`` itself, before all else."""
    h = Hand()
    w, x = h.input("primals_w", 8, 16), h.input("primals_x", 4, 8)
    mm = None if again else h.input("mm", 4, 16)
    tangent = h.input("tangents_1", 4, 16)
    if mm is None:
        mm = h.op("mm", aten.mm.default, x, w)
    cos = h.op("cos", aten.cos.default, mm)
    grad = h.op("grad", aten.mul.Tensor, tangent, cos)
    to_w = h.op("to_w", aten.mm.default, h.op("x_t", aten.t.default, x), grad)
    to_x = h.op("to_x", aten.mm.default, grad, h.op("w_t", aten.t.default, w))
    return h.module(to_w, to_x)


MM, W, X = 4 * 16 * 4, 8 * 16 * 4, 4 * 8 * 4
"""Bytes of the product (and of all of its shape), of the weight, of the input."""


def moments(graph: Any) -> list[tuple[str, str, dict[str, int]]]:
    return [(m.phase, m.node, dict(m.bytes)) for m in simulate([graph], size_of)]


def test_a_step_with_a_saved_value() -> None:
    graph = explained(joint(), forward("w", "x", "mm"), backward(again=False), 1, ["primals_w"])
    assert moments(graph) == [
        ("forward", "mm", {"saved": MM}),
        ("forward", "sin", {"saved": MM, "outputs": MM}),
        ("backward", "cos", {"saved": MM, "outputs": MM, "temporary": 2 * MM}),  # the tangent, and what it makes
        ("backward", "grad", {"outputs": MM, "temporary": 3 * MM}),
        ("backward", "to_w", {"outputs": MM, "temporary": MM, "gradients": W}),
        ("backward", "to_x", {"outputs": MM, "temporary": MM + X, "gradients": W}),
    ]


def test_a_step_in_which_it_is_recomputed() -> None:
    graph = explained(joint(), forward("w", "x"), backward(again=True), 1, ["primals_w"])
    assert moments(graph) == [
        ("forward", "mm", {"temporary": MM}),
        ("forward", "sin", {"temporary": MM, "outputs": MM}),
        ("backward", "mm", {"recomputed": MM, "outputs": MM, "temporary": MM}),
        ("backward", "cos", {"recomputed": 2 * MM, "outputs": MM, "temporary": MM} | {"recomputed": MM, "temporary": 2 * MM}),
        ("backward", "grad", {"outputs": MM, "temporary": 3 * MM}),
        ("backward", "to_w", {"outputs": MM, "temporary": MM, "gradients": W}),
        ("backward", "to_x", {"outputs": MM, "temporary": MM + X, "gradients": W}),
    ]


def test_gradients_of_inputs_are_gradients_where_no_parameter_is_known() -> None:
    graph = explained(joint(), forward("w", "x", "mm"), backward(again=False), 1)
    assert moments(graph)[-1][2] == {"outputs": MM, "temporary": MM, "gradients": W + X}


def test_what_is_given_is_not_of_the_step_and_what_is_returned_as_given_neither() -> None:
    h = Hand()
    x = h.input("primals_x", 4, 8)
    h.op("a", aten.sin.default, x)
    wide = h.module(x)
    back = Hand()
    tangent = back.input("tangents_1", 4, 8)
    graph = explained(wide, wide, back.module(tangent), 1)
    assert moments(graph) == [("forward", "a", {"temporary": X})]


def test_a_swapped_value_is_leaving_then_away_then_reloaded() -> None:
    h = Hand()
    w, x = h.input("primals_w", 8, 16), h.input("primals_x", 4, 8)
    mm = h.op("mm", aten.mm.default, x, w)
    sin = h.op("sin", aten.sin.default, mm)
    ticket = h.bare("mm_ticket", OFFLOAD, mm, "mm", "host", "", 0, 0, True)
    ticket.meta["val"] = _number()
    last = h.op("out", aten.neg.default, sin)
    front = h.module(last, w, x, ticket)
    b = Hand()
    w, x = b.input("primals_w", 8, 16), b.input("primals_x", 4, 8)
    given, tangent = b.input("mm_ticket"), b.input("tangents_1", 4, 16)
    token = b.bare("mm_prefetch", PREFETCH, given)
    grad = b.op("grad", aten.neg.default, tangent)
    back = b.bare("mm_wait", WAIT, token, [4, 16], [16, 1], torch.float32, "cpu")
    with b.mode:
        token.meta["val"], back.meta["val"] = torch.empty(()), torch.empty(4, 16)
    rest = b.op("rest", aten.mul.Tensor, grad, b.op("cos", aten.cos.default, back))
    to_w = b.op("to_w", aten.mm.default, b.op("x_t", aten.t.default, x), rest)
    found = moments(explained(joint(), front, b.module(to_w, rest), 1, ["primals_w"]))
    assert found[:4] == [
        ("forward", "mm", {"leaving": MM}),
        ("forward", "sin", {"leaving": MM, "temporary": MM}),
        ("forward", "mm_ticket", {"leaving": MM, "temporary": MM}),
        ("forward", "out", {"temporary": MM, "outputs": MM}),
    ]
    assert found[4] == ("backward", "mm_prefetch", {"reloaded": MM, "outputs": MM, "temporary": MM})
    by_node = {node: kinds for phase, node, kinds in found if phase == "backward"}
    assert by_node["cos"]["reloaded"] == MM
    assert "reloaded" not in by_node["rest"]


def test_graphs_run_forward_in_order_and_backward_in_reverse() -> None:
    graphs = [
        explained(joint(), forward("w", "x", "mm"), backward(again=False), 1, ["primals_w"], number) for number in range(2)
    ]
    found = simulate(graphs, size_of)
    assert [m.phase for m in found] == ["forward"] * 4 + ["backward"] * 8
    assert found[3].bytes == {"saved": 2 * MM, "outputs": 2 * MM}
    assert found[4].bytes["saved"] == 2 * MM  # the second graph's backward begins
    assert found[8].bytes["saved"] == MM  # then the first's
    assert found[-1].bytes["gradients"] == 2 * W
    assert (
        Storages(graphs[0].forward.graph, size_of, "0f.")
        .size.keys()
        .isdisjoint(Storages(graphs[1].forward.graph, size_of, "1f.").size)
    )


def _number() -> torch.Tensor:
    with Hand().mode:
        return torch.empty(())
