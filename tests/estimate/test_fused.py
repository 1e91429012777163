"""Which values a fusing backend keeps in memory, and when, in graphs made by hand."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from hand_graphs import Hand, aten, told
from memopt.passes import turns
from memopt.passes.liveness.fused import fused, is_fused
from memopt.passes.liveness.kernels import Kernel
from torch.fx import Node

"""Of every square matrix here."""


def kernels(hand: Hand, *returned: Node, in_place: bool = True, given: tuple[str, ...] = ("x", "w", "y")) -> list[Kernel]:
    storages = hand.storages(*returned)
    kept = frozenset({*given, *(storages.of[n] for n in returned)})
    return list(fused(hand.graph, storages, kept, in_place=in_place))


def squares(*names: str) -> tuple[Hand, list[Node]]:
    h = Hand()
    return h, [h.input(name, 8, 8) for name in names]


def test_between_matrix_products_only_the_last_elementwise_value_is_written() -> None:
    h, (x, w) = squares("x", "w")
    mm = h.op("mm", aten.mm.default, x, w)
    add = h.op("add", aten.add.Tensor, mm, x)
    gelu = h.op("gelu", aten.gelu.default, add)
    mul = h.op("mul", aten.mul.Tensor, gelu, 2)
    last = h.op("last", aten.mm.default, mul, w)
    found = kernels(h, last)
    assert told(found) == [("mm", ("mm",), ()), ("mul", ("mul",), ("mm",)), ("last", ("last",), ("mul",))]
    assert [set(k.reads) for k in found] == [{"x", "w"}, {"mm", "x"}, {"mul", "w"}]


def test_a_result_lies_where_an_input_lay_that_nothing_else_reads() -> None:
    def made(*, in_place: bool, read_again: bool) -> list[tuple[str, ...]]:
        h, (x, w) = squares("x", "w")
        mm = h.op("mm", aten.mm.default, x, w)
        mul = h.op("mul", aten.mul.Tensor, mm, 2)
        more = [h.op("more", aten.mm.default, mm, w)] if read_again else []
        return [k.over for k in kernels(h, h.op("last", aten.mm.default, mul, w), *more, in_place=in_place)]

    assert made(in_place=True, read_again=False) == [(), ("mm",), ()]
    assert made(in_place=False, read_again=False) == [()] * 3
    assert made(in_place=True, read_again=True) == [()] * 4


@pytest.mark.parametrize(
    ("target", "args", "over"),
    [
        (aten.view.default, ([8, 8],), ("mm",)),  # the same elements in the same order
        (aten.t.default, (), ()),
        (aten.slice.Tensor, (0, 0, 4), ()),
    ],
    ids=["view", "t", "slice"],
)
def test_only_what_is_read_in_its_own_order_is_written_over(target: Any, args: tuple[Any, ...], over: tuple[str, ...]) -> None:
    h, (x, w) = squares("x", "w")
    mm = h.op("mm", aten.mm.default, x, w)
    read = h.op("read", target, mm, *args)
    mul = h.op("mul", aten.mul.Tensor, read, 2)
    last = h.op("last", aten.relu.default, h.op("other", aten.mm.default, mul, h.input("y", 8, 8)))
    found = {k.node.name: k for k in kernels(h, last)}
    assert found["mul"].over == over
    assert found["mul"].frees == ("mm",)


def test_what_is_given_is_never_written_over() -> None:
    h, (x,) = squares("x")
    (kernel,) = kernels(h, h.op("mul", aten.mul.Tensor, x, 2))
    assert (kernel.makes, kernel.frees, kernel.over) == (("mul",), (), ())


def test_a_smaller_input_is_not_written_over() -> None:
    h, (x, w) = squares("x", "w")
    row = h.op("row", aten.mm.default, h.op("part", aten.slice.Tensor, x, 0, 0, 1), w)
    mul = h.op("mul", aten.mul.Tensor, row, h.input("y", 8, 8))
    found = {k.node.name: k for k in kernels(h, h.op("last", aten.mm.default, mul, w))}
    assert found["mul"].frees == ("row",)
    assert found["mul"].over == ()


def test_two_kernels_that_read_a_cheap_value_compute_it_each() -> None:
    h, (x, w) = squares("x", "w")
    mm = h.op("mm", aten.mm.default, x, w)
    relu = h.op("relu", aten.relu.default, mm)
    a, b = h.op("a", aten.mul.Tensor, relu, 2), h.op("b", aten.mul.Tensor, relu, 3)
    one, two = h.op("one", aten.mm.default, a, w), h.op("two", aten.mm.default, b, w)
    found = kernels(h, one, two)
    assert "relu" not in {s for k in found for s in k.makes}
    assert told(found) == [
        ("mm", ("mm",), ()),
        ("b", ("a", "b"), ("mm",)),  # they read the same: one kernel for both
        ("one", ("one",), ("a",)),
        ("two", ("two",), ("b",)),
    ]


@pytest.mark.parametrize(("target", "written"), [(aten.exp.default, True), (aten.relu.default, False)], ids=str)
def test_a_costly_value_that_two_read_is_written(target: Any, *, written: bool) -> None:
    h, (x, w) = squares("x", "w")
    exp = h.op("exp", target, h.op("mm", aten.mm.default, x, w))
    one = h.op("one", aten.mm.default, h.op("a", aten.mul.Tensor, exp, 2), w)
    b = h.op("b", aten.mul.Tensor, exp, one)
    found = [s for k in kernels(h, b) for s in k.makes]
    assert found == (["mm", "exp", "a", "one", "b"] if written else ["mm", "a", "one", "b"])


def test_what_a_matrix_product_reads_is_written_though_a_kernel_reads_it_too() -> None:
    h, (x, w) = squares("x", "w")
    relu = h.op("relu", aten.relu.default, h.op("mm", aten.mm.default, x, w))
    one, two = h.op("one", aten.mm.default, relu, w), h.op("two", aten.mul.Tensor, relu, 2)
    found = told(kernels(h, one, two))
    assert found[0] == ("mm", ("mm",), ())
    assert {s for _, makes, _ in found for s in makes} == {"mm", "relu", "one", "two"}


def written_over(hand: Hand, *returned: Node) -> dict[str, tuple[str, ...]]:
    return {k.node.name: k.over for k in kernels(hand, *returned) if k.over}


def test_a_result_lies_where_the_first_value_lay_that_it_reads() -> None:
    h, (x, w) = squares("x", "w")
    one, two = (h.op(name, aten.mm.default, x, w) for name in ("one", "two"))
    out = h.op("out", aten.sub.Tensor, h.op("twice", aten.mul.Tensor, two, 2), one)
    assert written_over(h, h.op("last", aten.mm.default, out, w)) == {"out": ("two",)}


def test_a_result_does_not_lie_where_another_of_its_kernel_reads() -> None:
    h, (x, w) = squares("x", "w")
    one, two = (h.op(name, aten.mm.default, x, w) for name in ("one", "two"))
    relu, out = h.op("relu", aten.relu.default, one), h.op("out", aten.mul.Tensor, one, two)
    lasts = [h.op(f"last_{n.name}", aten.mm.default, n, w) for n in (relu, out)]
    assert written_over(h, *lasts) == {"out": ("two",)}


@pytest.mark.parametrize(("device", "over"), [("cpu", ("mm",)), ("meta", ())])
def test_a_kernel_that_loops_again_keeps_its_own_values_in_small_buffers_on_the_cpu(device: str, over: tuple[str, ...]) -> None:
    """As the backward of softmax; elsewhere the result would lie where the exponential is, which is not there either way."""
    h = Hand()
    x, w, y = (h.input(name, 8, 8, device=device) for name in ("x", "w", "y"))
    mm, exp = h.op("mm", aten.mm.default, x, w), h.op("exp", aten.exp.default, y)
    scaled = h.op("scaled", aten.mul.Tensor, mm, exp)
    total = h.op("total", aten.sum.dim_IntList, scaled, [1], True)
    out = h.op("out", aten.sub.Tensor, h.op("part", aten.mul.Tensor, exp, total), scaled)
    found = kernels(h, h.op("last", aten.mm.default, out, w))
    assert [(k.node.name, k.over) for k in found] == [("mm", ()), ("out", over), ("last", ())]


def test_kernels_that_end_in_several_results_or_none() -> None:
    h, (x, w) = squares("x", "w")
    mm = h.op("mm", aten.mm.default, x, w)
    both = h.op("both", aten.var_mean.correction, mm, [1], correction=0, keepdim=True)
    most = h.op("most", aten.max.dim, mm, 1)
    parts = [h.op(f"part{i}{n.name}", operator.getitem, n, i) for n in (both, most) for i in (0, 1)]
    h.op("sound", aten._assert_async.msg, h.op("any", aten.any.default, mm), "no")
    found = kernels(h, *parts)
    assert found[0].node.name == "mm"
    assert {s for k in found for s in k.makes} >= {p.name for p in parts}


def test_a_reduction_is_written_and_what_it_reduces_is_not() -> None:
    h, (x, w) = squares("x", "w")
    square = h.op("square", aten.mul.Tensor, h.op("mm", aten.mm.default, x, w), 2)
    total = h.op("total", aten.sum.dim_IntList, square, [1])
    assert told(kernels(h, total)) == [("mm", ("mm",), ()), ("total", ("total",), ("mm",))]


def test_what_only_its_own_kernel_reads_is_not_in_memory() -> None:
    h, (x, w) = squares("x", "w")
    mm = h.op("mm", aten.mm.default, x, w)
    total = h.op("total", aten.sum.dim_IntList, mm, [1], True)
    out = h.op("out", aten.div.Tensor, mm, total)
    last = h.op("last", aten.mm.default, out, w)
    found = told(kernels(h, last))
    assert [(name, set(makes), set(frees)) for name, makes, frees in found] == [
        ("mm", {"mm"}, set()),
        ("out", {"out"}, {"mm"}),  # the sum is made and read inside
        ("last", {"last"}, {"out"}),
    ]


def test_a_view_costs_nothing_and_its_reader_reads_the_memory() -> None:
    h, (x, w) = squares("x", "w")
    mm = h.op("mm", aten.mm.default, x, w)
    last = h.op("last", aten.mm.default, h.op("t", aten.t.default, mm), w)
    assert told(kernels(h, last)) == [("mm", ("mm",), ()), ("last", ("last",), ("mm",))]


# ---------------------------------------------------------------- turns


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (((1, "a"), False), ((0, "a"), True), False),  # layer 0 recomputed in the backward of layer 1
        (((1, "a"), False), ((0, "a"), False), True),
        (((0, "a"), False), ((0, "a"), True), True),
        (None, None, True),
    ],
)
def test_a_layer_is_not_recomputed_in_the_kernel_of_another(first: Any, second: Any, *, together: bool) -> None:
    h, (x, w, y) = squares("x", "w", "y")
    a = h.op("a", aten.mul.Tensor, x, 2)
    one = h.op("one", aten.mm.default, a, w)
    b = h.op("b", aten.mul.Tensor, x, 3)
    two = h.op("two", aten.mm.default, b, y)
    for node, turn in ((a, first), (b, second)):
        if turn is not None:
            node.meta[turns._KEY] = turn
    found = told(kernels(h, one, two))
    makers = [makes for _, makes, _ in found if {"a", "b"}.intersection(makes)]
    assert makers == ([("a", "b")] if together else [("a",), ("b",)])


@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [
        (aten.add.Tensor, 2, True),
        (aten.sum.default, 1, True),
        (aten.gelu.default, 1, True),
        (aten.clone.default, 1, True),
        (aten.mm.default, 2, False),
        (aten.topk.default, 1, False),
    ],
    ids=str,
)
def test_what_is_fused(target: Any, args: int, *, expected: bool) -> None:
    h, given = squares("x", "w")
    assert is_fused(h.bare("n", target, *given[:args])) is expected
