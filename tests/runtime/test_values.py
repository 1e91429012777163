"""Every type and every arrangement of a value comes back as it was, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memopt.runtime.layout import Layout
from swapping import OPS, offload, raw, round_trip, wait_like

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda base: base.view(2, 3, 4, 100),
    "transposed": lambda base: base.view(24, 100).t(),
    "permuted": lambda base: base.view(2, 3, 4, 100).permute(2, 0, 3, 1),
    "channels_last": lambda base: base.view(2, 3, 4, 100).contiguous(memory_format=torch.channels_last),
    "expanded": lambda base: base.view(24, 1, 100).expand(24, 7, 100),
    "expanded from one": lambda base: base[:1].expand(50),
    "slice of columns": lambda base: base.view(24, 100)[:, 3:5],
    "slice with an offset": lambda base: base.view(24, 100)[5:9],
    "every third": lambda base: base[1::3],
    "narrow and expanded": lambda base: base.view(24, 100)[:, 3:5].unsqueeze(1).expand(24, 6, 2),
    "overlapping": lambda base: base.as_strided((20, 5), (1, 1), 7),
    "as_strided with gaps": lambda base: base.as_strided((3, 4, 2), (200, 7, 3), 11),
    "0-d": lambda base: base[17],
    "empty": lambda base: base[:0].view(0, 5),
    "size one": lambda base: base[:6].view(1, 6, 1),
    "one element of many": lambda base: base.view(24, 100)[3:4, 5:6],
}


def base_of(dtype: torch.dtype) -> torch.Tensor:
    """2,400 elements of random bits; a bool may only be 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 2 if dtype == torch.bool else 256, (2400 * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return bits.view(dtype)


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("arrange", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_arrangements(arrange: Callable[[torch.Tensor], torch.Tensor], asynchronous: bool, tmp_path: Path) -> None:
    for dtype in DTYPES:
        if dtype.is_floating_point and dtype.itemsize == 1 and arrange is LAYOUTS["channels_last"]:
            continue  # torch itself cannot arrange these so
        value = arrange(base_of(dtype))
        back = round_trip(value, tmp_path, asynchronous=asynchronous)
        assert (back.shape, back.stride(), back.dtype, back.device) == (value.shape, value.stride(), dtype, value.device)
        assert raw(back) == raw(value)
        assert back.untyped_storage().data_ptr() != value.untyped_storage().data_ptr() or not value.numel()


@pytest.mark.parametrize(
    ("arrangement", "elements"),
    [
        ("transposed", 2400),
        ("expanded", 2400),
        ("expanded from one", 1),
        ("slice of columns", 48),
        ("slice with an offset", 400),
        ("narrow and expanded", 48),
        ("overlapping", 24),
        ("as_strided with gaps", 24),
        ("0-d", 1),
        ("empty", 0),
    ],
)
def test_no_more_is_stored_than_needed(arrangement: str, elements: int) -> None:
    assert Layout.of(LAYOUTS[arrangement](base_of(torch.float32))).nbytes == 4 * elements


@settings(max_examples=100)
@given(
    size=st.lists(st.integers(0, 5), max_size=4),
    steps=st.lists(st.sampled_from((0, 1, 2, 3, 7, 40)), min_size=4, max_size=4),
    offset=st.integers(0, 20),
    dtype=st.sampled_from(DTYPES),
)
def test_any_strides(size: list[int], steps: list[int], offset: int, dtype: torch.dtype) -> None:
    value = base_of(dtype).as_strided(size, steps[: len(size)], offset)
    distinct = {sum(i * s for i, s in zip(index, steps, strict=False)) for index in _indices(size)}
    back = round_trip(value)
    assert back.stride() == value.stride()
    assert raw(back) == raw(value)
    assert Layout.of(value).elements >= len(distinct)


def _indices(size: list[int]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for n in size:
        found = [(*index, i) for index in found for i in range(n)]
    return found


@pytest.mark.parametrize(
    "lazy",
    [
        lambda z: z.conj(),
        lambda z: z.conj().imag,
        lambda z: z.view(4, 6)[:, 1:2].conj(),
        lambda z: z.view(4, 6).t().conj(),
        lambda z: z[:1].expand(5).conj(),
        lambda z: torch._neg_view(z.view(4, 6)[:, ::2]),
    ],
)
def test_conjugate_and_negative_views_come_back_resolved(lazy: Callable[[torch.Tensor], torch.Tensor]) -> None:
    value = lazy(torch.randn(24, dtype=torch.complex64))
    back = round_trip(value)
    assert not back.is_conj()
    assert not back.is_neg()
    assert back.stride() == value.stride()
    assert raw(back) == raw(value)


def test_a_value_that_requires_grad_comes_back_without() -> None:
    value = torch.randn(5, requires_grad=True)
    ticket = offload(value * 2)
    back = wait_like(OPS.prefetch(ticket), value)
    assert not ticket.requires_grad
    assert not back.requires_grad
    assert back.is_leaf
    assert torch.equal(back, value * 2)


def test_the_value_may_be_dropped_and_its_memory_reused_at_once() -> None:
    for _ in range(20):
        ticket = offload(torch.full((100_000,), 7.0))
        torch.full((100_000,), 8.0)
        assert torch.equal(round_trip(torch.ones(3)), torch.ones(3))
        assert wait_like(OPS.prefetch(ticket), torch.empty(100_000)).eq(7).all()


def test_with_asynchronous_off_the_value_may_be_overwritten_at_once() -> None:
    for _ in range(20):
        value = torch.full((200_000,), 7.0)
        ticket = offload(value, asynchronous=False)
        value.zero_()
        assert wait_like(OPS.prefetch(ticket), value).eq(7).all()


def test_in_inference_mode() -> None:
    with torch.inference_mode():
        value = torch.randn(10)
        assert torch.equal(round_trip(value), value)


def test_under_a_default_device() -> None:
    value = torch.randn(10)
    with torch.device("meta"):
        back = round_trip(value)
    assert torch.equal(back, value)


def test_sparse_values_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"swap of 'layers.0.mlp'.*torch.sparse_coo cannot be swapped. Set swap.enable"):
        offload(torch.eye(3).to_sparse())
