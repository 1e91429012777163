from __future__ import annotations

import pytest
import torch
from memopt.passes.operators import (
    draws_random_numbers,
    function_names,
    has_effect,
    is_mutating,
    is_seed,
    is_symbolic,
    producer,
    simplified,
    storage_root,
    target_names,
    viewed,
)
from memopt.passes.scopes import Scope
from printer import Builder
from small_graphs import aten

c10d = torch.ops._c10d_functional


def node(target, *arguments, shape=(4, 4)):
    b = Builder()
    return b.op("node", target, b.input("x", *shape), *arguments)


@pytest.mark.parametrize(
    ("target", "arguments", "names"),
    [
        (aten.exp.default, (), ("exp", "aten.exp", "aten.exp.default")),
        (aten.split.Tensor, (2,), ("split", "aten.split", "aten.split.Tensor")),
        (
            c10d.all_reduce.default,
            ("sum", "0"),
            ("all_reduce", "_c10d_functional.all_reduce", "_c10d_functional.all_reduce.default"),
        ),
        (
            c10d.reduce_scatter_tensor.default,
            ("sum", 2, "0"),
            (
                "reduce_scatter_tensor",
                "_c10d_functional.reduce_scatter_tensor",
                "_c10d_functional.reduce_scatter_tensor.default",
                "reduce_scatter",
            ),
        ),
    ],
)
def test_a_node_answers_to_these_names(target, arguments, names) -> None:
    assert target_names(node(target, *arguments)) == names


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("AllGather", "gather"),
        ("ReduceScatter", "scatter"),
        ("AllToAll", "exchange"),
        ("AllReduce", "reduce"),
        ("MatMul", "product"),
        ("FlashAttention", "sdpa"),
    ],
)
def test_the_names_of_the_specification_find_torchs_operators(name: str, operator: str) -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    made = [
        b.op("gather", c10d.all_gather_into_tensor.default, x, 2, "0"),
        b.op("scatter", c10d.reduce_scatter_tensor.default, x, "sum", 2, "0"),
        b.op("exchange", c10d.all_to_all_single.default, x, [2, 2], [2, 2], "0"),
        b.op("reduce", c10d.all_reduce.default, x, "sum", "0"),
        b.op("product", aten.mm.default, x, x),
    ]
    q = b.input("q", 1, 2, 4, 4)
    made.append(b.op("sdpa", aten._scaled_dot_product_flash_attention_for_cpu.default, q, q, q))
    found = [n.name for n in made if any(simplified(name) in simplified(own) for own in target_names(n))]
    assert found == [operator]


@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("", ()),
        ("gelu", ("gelu",)),
        ("linear", ("linear", "matmul")),
        ("scaled_dot_product_attention", ("scaled_dot_product_attention", "attention", "flash_attention")),
    ],
)
def test_a_called_function_answers_to_these_names(function: str, names: tuple[str, ...]) -> None:
    assert function_names(Scope(0, "", (), function, "")) == names


def test_views_lead_to_the_node_that_made_the_storage() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    base = b.op("base", aten.exp.default, x)
    turned = b.op("turned", aten.t.default, base)
    parts = b.op("parts", aten.split.Tensor, turned, 2)
    part = b.item("part", parts, 1)
    copy = b.op("copy", aten.clone.default, part)
    assert [n and n.name for n in map(viewed, (base, turned, parts, part, copy))] == [None, "base", "turned", "turned", None]
    assert {storage_root(n).name for n in (base, turned, part)} == {"base"}
    assert storage_root(copy) is copy


def test_outputs_of_a_tuple_have_storage_of_their_own_and_one_producer() -> None:
    b = Builder()
    top = b.op("top", aten.topk.default, b.input("x", 4, 4), 2)
    values = b.item("values", top, 0)
    assert viewed(values) is None
    assert storage_root(values) is values
    assert producer(values) is top
    assert producer(top) is top


@pytest.mark.parametrize("target", ["view", "reshape", "_unsafe_view"])
def test_a_view_is_what_the_schema_says_returns_an_alias(target: str) -> None:
    made = node(getattr(aten, target).default, [16])
    assert (viewed(made) is not None) == (target != "_unsafe_view")


def test_properties_are_read_off_the_schema_and_the_value() -> None:
    assert is_symbolic(node(aten.sym_size.int, 0))
    assert not is_symbolic(node(aten.exp.default))
    assert is_mutating(node(aten.add_.Tensor, 1))
    assert not is_mutating(node(aten.add.Tensor, 1))
    assert has_effect(node(aten._assert_async.msg, "no", shape=(1,)))
    assert not has_effect(node(aten.exp.default))
    assert draws_random_numbers(node(aten.bernoulli.default))
    assert not draws_random_numbers(node(aten.exp.default))
    assert not is_seed(node(aten.exp.default))
