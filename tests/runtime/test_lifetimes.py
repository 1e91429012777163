"""Who drops a ticket gives the stored copy back; nothing is kept, nothing is shared, and nothing is waited for in vain."""

from __future__ import annotations

import copy
import gc
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from memopt.runtime import SwapError, calls, swap_counters
from memopt.runtime import tickets as issued
from memopt.runtime.engine import Reload, Stored
from memopt.runtime.stores.disk import DiskArena
from swapping import OPS, offload, open_files, round_trip, settled, until, wait_like


def test_a_thousand_steps_hold_what_two_do(tmp_path: Path) -> None:
    def step(number: int) -> None:
        values = [torch.full((3000 + 1000 * i,), float(number)) for i in range(4)]
        tickets = [offload(v, tmp_path, in_flight_bytes=20_000) for v in values]
        if number % 5 == 0:
            return  # a forward without backward
        try:
            for i in (3, 2, 1, 0):
                back = wait_like(OPS.prefetch(tickets[i]), values[i])
                assert torch.equal(back, values[i])
                if number % 7 == 0 and i == 2:
                    OPS.prefetch(tickets[1])
                    raise KeyError
        except KeyError:
            pass

    for number in (1, 7, 5):
        step(number)
    before, files = settled(), open_files()
    for number in range(1000):
        step(number)
    after = until(lambda now: (now.disk_bytes, now.live_tickets) == (before.disk_bytes, before.live_tickets))
    assert after.in_flight_bytes == 0
    # What was dropped while it was still being written or read goes a little later: never more than a step's bytes.
    assert after.disk_capacity <= before.disk_capacity + 4 * (3000 + 4000 + 5000 + 6000)
    assert open_files() == files
    assert os.listdir(tmp_path) == []


def test_equal_steps_need_no_more_than_the_second(tmp_path: Path) -> None:
    values = [torch.zeros(3000 + 1000 * i) for i in range(4)]
    capacities = []
    for _ in range(200):
        tickets = [offload(v, tmp_path) for v in values]
        tokens = [OPS.prefetch(ticket) for ticket in reversed(tickets)]
        for token, value in zip(tokens, reversed(values), strict=True):
            wait_like(token, value)
        del tickets, tokens, token
        capacities.append(swap_counters().disk_capacity)
    assert capacities[-1] == capacities[1]


def test_sizes_that_change_need_no_more_than_the_largest_step(tmp_path: Path) -> None:
    def step(scale: int) -> None:
        tickets = [offload(torch.zeros(1024 * scale * (i + 1)), tmp_path, asynchronous=False) for i in range(4)]
        for i, ticket in enumerate(tickets):
            wait_like(OPS.prefetch(ticket), torch.zeros(1024 * scale * (i + 1)))

    before = settled().disk_capacity
    step(9)
    grown = settled().disk_capacity - before
    for scale in (1, 5, 2, 8, 3, 7, 9, 4, 6) * 5:
        step(scale)
    assert settled().disk_capacity - before == grown


def test_a_dropped_ticket_gives_its_copy_back() -> None:
    before = settled()
    ticket = offload(torch.zeros(1000))
    alias = ticket.detach()
    del ticket
    assert swap_counters().live_tickets == before.live_tickets + 1
    assert swap_counters().disk_bytes == before.disk_bytes + 4000
    del alias
    after = settled()
    assert (after.live_tickets, after.disk_bytes) == (before.live_tickets, before.disk_bytes)


def test_the_source_is_free_once_it_is_written() -> None:
    class Memory(bytearray):
        pass

    memory = Memory(4000)
    alive = weakref.ref(memory)
    value = torch.frombuffer(memory, dtype=torch.float32)
    del memory
    gc.disable()
    try:
        ticket = offload(value, asynchronous=False)
        del value
        assert alive() is None
    finally:
        gc.enable()
    assert torch.equal(wait_like(OPS.prefetch(ticket), torch.zeros(1000)), torch.zeros(1000))


def test_the_engine_keeps_nothing_of_what_it_handed_over() -> None:
    value = torch.randn(1000)
    back = round_trip(value)
    alive = weakref.ref(back)
    gc.disable()
    try:
        del back
        assert alive() is None
    finally:
        gc.enable()


def test_a_token_keeps_the_copy_when_the_ticket_is_gone() -> None:
    before = settled()
    value = torch.randn(1000)
    token = OPS.prefetch(offload(value))
    round_trip(torch.ones(1000))
    assert torch.equal(wait_like(token, value), value)
    assert settled().live_tickets == before.live_tickets


def test_a_token_that_nobody_waits_for() -> None:
    before = settled()
    for _ in range(10):
        OPS.prefetch(offload(torch.zeros(100_000)))
    after = until(lambda now: now.live_tickets == before.live_tickets)
    assert after.disk_bytes == before.disk_bytes


@pytest.mark.parametrize("way", ["write", "read"])
def test_a_place_is_kept_while_it_is_written_or_read(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, real = threading.Event(), getattr(DiskArena, way)

    def held_up(arena: DiskArena, offset: int, memory: memoryview) -> None:
        assert go_on.wait(10)
        real(arena, offset, memory)

    before, value = settled(), torch.randn(1000)
    monkeypatch.setattr(DiskArena, way, held_up)
    ticket = offload(value, tmp_path)
    if way == "read":
        settled()
        OPS.prefetch(ticket)
    del ticket
    assert swap_counters().disk_bytes == before.disk_bytes + 4000
    go_on.set()
    until(lambda now: now.disk_bytes == before.disk_bytes)


def test_a_ticket_can_be_reloaded_several_times() -> None:
    value = torch.randn(1000)
    ticket = offload(value)
    first, second = OPS.prefetch(ticket), OPS.prefetch(ticket)
    a, b = wait_like(second, value), wait_like(first, value)
    a.zero_()
    assert torch.equal(b, value)
    assert torch.equal(wait_like(OPS.prefetch(ticket), value), value)


def test_a_token_is_waited_for_once() -> None:
    value = torch.randn(1000)
    token = OPS.prefetch(offload(value))
    wait_like(token, value)
    with pytest.raises(SwapError, match=r"swap of 'layers.0.mlp': this reload was waited for before; prefetch"):
        wait_like(token, value)


@pytest.mark.parametrize("copied", [torch.clone, copy.deepcopy, lambda ticket: ticket + 0])
def test_a_copied_ticket_leads_nowhere(copied: Callable[[torch.Tensor], torch.Tensor]) -> None:
    ticket = offload(torch.zeros(10))
    other = copied(ticket)
    del ticket
    with pytest.raises(SwapError, match=r"is gone. A ticket must be kept as it is.*save_on_cpu.*swap.enable to false"):
        OPS.prefetch(other)


def test_saved_tensor_hooks_that_copy_are_told() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(offload(x))
            return x * 2

        @staticmethod
        def backward(ctx: torch.autograd.function.FunctionCtx, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            wait_like(OPS.prefetch(ctx.saved_tensors[0]), torch.empty(5))  # type: ignore[attr-defined]
            return grad * 2

    x = torch.randn(5, requires_grad=True)
    Twice.apply(x).sum().backward()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        y = Twice.apply(x)
    with pytest.raises(SwapError, match="saved-tensor hooks"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("size", "stride", "dtype", "device"),
    [
        ([3, 4], [4, 1], torch.float32, "cpu"),
        ([4, 3], [0, 1], torch.float32, "cpu"),
        ([4, 3], [1, 4], torch.int32, "cpu"),
        ([4, 3], [1, 4], torch.float32, "meta"),
    ],
)
def test_another_form_than_stored_is_refused(size: list[int], stride: list[int], dtype: torch.dtype, device: str) -> None:
    value = torch.randn(3, 4).t()
    token = OPS.prefetch(offload(value))
    with pytest.raises(SwapError, match=r"swap of 'layers.0.mlp': stored with size \(4, 3\), stride \(1, 4\).*but asked for"):
        OPS.wait(token, size, stride, dtype, torch.device(device))
    assert torch.equal(wait_like(token, value), value)


def test_a_value_whose_strides_were_told_wrong_comes_back_with_those_told() -> None:
    value = torch.randn(3, 4).t()
    back = OPS.wait(OPS.prefetch(offload(value)), [4, 3], [3, 1], value.dtype, value.device)
    assert back.stride() == (3, 1)
    assert torch.equal(back, value)


def test_the_stride_of_a_dimension_of_one_is_what_was_asked_for() -> None:
    value = torch.randn(1, 5)
    token = OPS.prefetch(offload(value))
    back = OPS.wait(token, [1, 5], [77, 1], value.dtype, value.device)
    assert back.stride() == (77, 1)
    assert torch.equal(back, value)


def test_tickets_and_tokens_are_not_taken_for_each_other() -> None:
    value = torch.randn(3)
    ticket = offload(value)
    with pytest.raises(SwapError, match="brings nothing back"):
        wait_like(ticket, value)
    with pytest.raises(SwapError, match="is gone"):
        OPS.prefetch(OPS.prefetch(ticket))
    with pytest.raises(SwapError, match="is gone"):
        OPS.prefetch(torch.tensor([10**15]))
    with pytest.raises(SwapError, match="is gone"):
        OPS.prefetch(torch.tensor([1, 2]))


def test_several_forwards_in_flight_in_any_order() -> None:
    values = [torch.randn(100 + i) for i in range(12)]
    tickets = [offload(v) for v in values]
    for i in (5, 11, 0, 7, 1, 10, 2, 3, 9, 4, 8, 6):
        assert torch.equal(wait_like(OPS.prefetch(tickets[i]), values[i]), values[i])


def test_a_reload_that_was_issued_early_is_for_one_token_and_only_once_it_has_begun(tmp_path: Path) -> None:
    value = torch.arange(100.0)
    ticket = offload(value, tmp_path)
    handle = issued.handle_of(ticket)
    assert handle is not None
    stored = handle.owned
    assert isinstance(stored, Stored)
    stored.early = Reload(stored)  # by another thread, which has not come to the copy yet
    assert torch.equal(wait_like(OPS.prefetch(ticket), value), value)
    stored.early = None
    calls._prefetch_early(stored)
    early = stored.early
    tokens = [OPS.prefetch(ticket), OPS.prefetch(ticket)]
    owners = [found.owned for token in tokens if (found := issued.handle_of(token)) is not None]
    assert owners[0] is early
    assert owners[1] is not early
    assert stored.early is None
    for token in tokens:
        assert torch.equal(wait_like(token, value), value)
