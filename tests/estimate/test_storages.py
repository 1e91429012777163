"""Which values share memory, and its bytes, in graphs made by hand."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from hand_graphs import Hand, aten, size_of
from memopt.passes.liveness.storages import Storages
from memopt.passes.swap.targets import OFFLOAD, PREFETCH, WAIT


def keeps_state(*args: Any) -> Any:
    """Stands for a higher-order operator, of whose own value nothing is recorded."""


def of(storages: Storages) -> dict[str, str]:
    return {node.name: name for node, name in storages.of.items()}


def made(storages: Storages) -> dict[str, tuple[str, ...]]:
    return {node.name: names for node, names in storages.made.items()}


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (aten.view.default, ([8, 4],)),
        (aten._unsafe_view.default, ([8, 4],)),
        (aten.t.default, ()),
        (aten.slice.Tensor, (0, 0, 2)),
        (aten.expand.default, ([2, 4, 8],)),
        (aten.detach.default, ()),
    ],
    ids=str,
)
def test_a_view_has_its_base_memory(target: Any, args: tuple[Any, ...]) -> None:
    h = Hand()
    x = h.input("x", 4, 8)
    made_here = h.op("relu", aten.relu.default, x)
    view = h.op("v", target, made_here, *args)
    again = h.op("w", aten.detach.default, view)
    found = h.storages(again)
    assert of(found) == {"x": "x", "relu": "relu", "v": "relu", "w": "relu"}
    assert made(found) == {"relu": ("relu",)}
    assert found.size == {"x": 128, "relu": 128}


def test_a_copy_has_its_own_memory() -> None:
    h = Hand()
    x = h.input("x", 4, 8)
    found = h.storages(h.op("c", aten.clone.default, h.op("v", aten.t.default, x)))
    assert of(found) == {"x": "x", "v": "x", "c": "c"}
    assert found.size == {"x": 128, "c": 128}


def test_a_prefix_goes_before_every_name() -> None:
    h = Hand()
    found = h.storages(h.op("r", aten.relu.default, h.input("x", 4)), prefix="0f.")
    assert found.size == {"0f.x": 16, "0f.r": 16}


def test_an_expanded_tensor_has_the_bytes_of_its_distinct_elements() -> None:
    h = Hand()
    x = h.input("x", 4, 1)
    with h.mode:
        x.meta["val"] = torch.empty(4, 1).expand(4, 1000)
    found = h.storages(h.op("c", aten.clone.default, x))
    assert found.size == {"x": 16, "c": 16_000}


def test_each_output_of_a_tuple_has_its_own_memory_read_or_not() -> None:
    h = Hand()
    x = h.input("x", 4, 8)
    top = h.op("top", aten.topk.default, x, 2)
    values = h.op("values", operator.getitem, top, 0)
    found = h.storages(values)
    assert of(found) == {"x": "x", "values": "values"}
    assert made(found) == {"top": ("values", "top[1]")}
    assert found.size == {"x": 128, "values": 4 * 2 * 4, "top[1]": 4 * 2 * 8}
    assert {name: node.name for name, node in found.held.items()} == {"values": "values", "top[1]": "values"}


def test_two_that_take_the_same_output_share_it() -> None:
    h = Hand()
    top = h.op("top", aten.topk.default, h.input("x", 4, 8), 2)
    first, second = h.op("a", operator.getitem, top, 1), h.op("b", operator.getitem, top, 1)
    found = h.storages(first, second)
    assert of(found) == {"x": "x", "a": "a", "b": "a"}
    assert made(found) == {"top": ("top[0]", "a")}
    assert found.held["a"].name == "b"


def test_parts_of_a_split_are_views() -> None:
    h = Hand()
    relu = h.op("relu", aten.relu.default, h.input("x", 4, 8))
    split = h.op("split", aten.split.Tensor, relu, 2)
    parts = [h.op(f"part{i}", operator.getitem, split, i) for i in range(2)]
    found = h.storages(*parts)
    assert of(found) == {"x": "x", "relu": "relu", "split": "relu", "part0": "relu", "part1": "relu"}
    assert found.size == {"x": 128, "relu": 128}


def test_what_is_changed_in_place_stays_where_it_was() -> None:
    h = Hand()
    p, new = h.input("p", 4), h.input("new", 4)
    copied = h.op("copied", aten.copy_.default, p, new)
    added = h.op("added", aten.add_.Tensor, copied, 1)
    found = h.storages(added)
    assert of(found) == {"p": "p", "new": "new", "copied": "p", "added": "p"}
    assert made(found) == {}


def test_of_a_wrapper_without_a_value_what_is_taken_is_known() -> None:
    h = Hand()
    x = h.input("x", 4, 8)
    wrapper = h.bare("wrapper", keeps_state, x)
    state, inner = h.bare("state", operator.getitem, wrapper, 0), h.bare("inner", operator.getitem, wrapper, 1)
    value = h.bare("value", operator.getitem, inner, 0)
    with h.mode:
        state.meta["val"], value.meta["val"] = torch.empty(5, dtype=torch.uint8), torch.empty(4, 8)
    found = h.storages(state, value)
    assert of(found) == {"x": "x", "state": "state", "value": "value"}
    assert made(found) == {"wrapper": ("state", "value")}
    assert found.size == {"x": 128, "state": 5, "value": 128}
    assert {node.name for node in found.held.values()} == {"value"}


def test_a_wrapper_whose_value_is_another_than_what_is_taken() -> None:
    h = Hand()
    wrapper = h.bare("wrapper", keeps_state, h.input("x", 4))
    taken = h.bare("taken", operator.getitem, wrapper, 1)
    with h.mode:
        wrapper.meta["val"], taken.meta["val"] = torch.empty(4), torch.empty(6)
    found = h.storages(taken)
    assert of(found) == {"x": "x", "taken": "taken"}
    assert found.size == {"x": 16, "taken": 24}


def test_a_swapped_value_leaves_nothing_and_returns_where_it_is_fetched() -> None:
    h = Hand()
    relu = h.op("relu", aten.relu.default, h.input("x", 4, 8))
    ticket = h.bare("ticket", OFFLOAD, relu, "relu", "host", "", 0, 0, True)
    token = h.bare("token", PREFETCH, ticket)
    back = h.bare("back", WAIT, token, [4, 8], [8, 1], torch.float32, "cpu")
    with h.mode:
        ticket.meta["val"], token.meta["val"], back.meta["val"] = torch.empty(()), torch.empty(()), torch.empty(4, 8)
    found = h.storages(back)
    assert of(found) == {"x": "x", "relu": "relu", "token": "token", "back": "token"}
    assert made(found) == {"relu": ("relu",), "token": ("token",)}
    assert found.size["token"] == 128


def test_numbers_and_constants_without_values_have_no_memory() -> None:
    h = Hand()
    x = h.input("x", 4)
    size = h.bare("size", aten.sym_size.int, x, 0)
    size.meta["val"] = 4
    assert of(h.storages(size)) == {"x": "x"}


@pytest.mark.parametrize(("make", "count"), [(lambda h, x: x, 32), (lambda h, x: h.op("top", aten.topk.default, x, 2), 8)])
def test_elements_are_those_of_the_largest_output(make: Any, count: int) -> None:
    h = Hand()
    node = make(h, h.input("x", 4, 8))
    h.op("user", operator.getitem, node, 0) if node.name == "top" else None
    storages = Storages(h.returns(node), size_of)
    assert storages.elements(node) == count
