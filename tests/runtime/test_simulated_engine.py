"""The engine on an accelerator, as the simulated device shows it: what waits for what, what is reused, what is refused."""

from __future__ import annotations

import errno
import random
from contextlib import suppress

import pytest
import torch
from memopt.runtime import SwapError
from memopt.runtime.ops import prefetch
from simulated_device import SimulatedEvent
from simulated_program import SLAB, Program


def program(store: str = "host", seed: int = 0, **settings: object) -> Program:
    return Program(random.Random(seed), store, **settings)  # type: ignore[arg-type]


def end(run: Program) -> None:
    run.finish()
    run.assert_sound()
    run.assert_nothing_held()


def train(run: Program, sizes: tuple[int, ...] = (600, 3000, 1500, 64)) -> None:
    """Forward and backward; each reload begins one value before it is needed."""
    left = [run.leave(nbytes) for nbytes in sizes]
    token = prefetch(left[-1][0])
    while left:
        seed = left.pop()[1]
        now, token = token, prefetch(left[-1][0]) if left else token
        run.come(now, seed)


@pytest.mark.parametrize("host_limit", [None, SLAB, 0])
@pytest.mark.parametrize("store", ["host", "disk"])
def test_equal_steps_pin_nothing_and_grow_nothing_after_the_second(store: str, host_limit: int | None) -> None:
    run = program(store, host_limit=host_limit)
    for _ in range(2):
        train(run)
    before = run.engine.counters()
    for _ in range(30):
        train(run)
    after = run.engine.counters()
    assert after.pinned_allocations == before.pinned_allocations
    assert after.host_capacity == before.host_capacity
    assert after.disk_capacity == before.disk_capacity
    end(run)


def test_above_the_limit_values_go_to_the_disk() -> None:
    run = program(host_limit=SLAB, chunk_bytes=256)
    left = [run.leave(1500) for _ in range(4)]
    now = run.engine.counters()
    assert (now.host_bytes, now.disk_bytes) == (3000, 3000)
    assert now.host_capacity == SLAB + 4 * 256
    for ticket, seed in left:
        run.come(prefetch(ticket), seed)
    del ticket
    left.clear()
    end(run)


def test_the_host_waits_for_nothing_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    run = program()

    def refuse(event: SimulatedEvent) -> None:
        raise AssertionError("the host waited")

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedEvent, "synchronize", refuse)
        for _ in range(5):
            train(run)
    end(run)


def test_bytes_in_flight_are_bounded_by_waiting_for_the_oldest() -> None:
    run = program(in_flight_bytes=4000)
    kept = []
    for nbytes in (1500, 1500, 1500, 3000, 9000, 1500):
        kept.append(run.leave(nbytes))
        assert run.engine.counters().in_flight_bytes <= max(4000, nbytes)
    # The device holds what is in flight, the value at hand and what the allocator rounds up to, not all of them.
    assert run.device.peak < sum((1500, 1500, 1500, 3000, 9000, 1500))
    kept.clear()
    end(run)


@pytest.mark.parametrize("store", ["host", "disk"])
def test_with_asynchronous_off_the_value_may_be_overwritten_at_once(store: str) -> None:
    for asynchronous in (False, True):
        run = program(store)
        value = run.device.make(3000, 1)
        run.sizes[1] = 3000
        ticket = run.engine.offload(value, "x", asynchronous)
        run.device.make_again(value, 2)
        run.come(prefetch(ticket), 1)
        run.finish()
        assert (run.world.races == []) is not asynchronous


def test_the_stall_of_the_stream_is_measured() -> None:
    run = program()
    ticket, seed = run.leave(3000)
    run.world.advance(1e6)
    token = prefetch(ticket)
    run.come(token, seed)
    run.world.advance(2e6)
    late = run.engine.counters()
    assert late.late == 1
    assert 0 < late.seconds_waited < 3000 * 0.01 + 1
    token = prefetch(ticket)
    run.world.advance(3e6)
    run.come(token, seed)
    run.world.advance(4e6)
    in_time = run.engine.counters() - late
    assert (in_time.late, in_time.seconds_waited, in_time.prefetches) == (0, 0, 1)
    del ticket, token
    end(run)


def test_cuda_graphs_are_refused() -> None:
    run = program()
    ticket, seed = run.leave(600)
    token = prefetch(ticket)
    run.device.captures = True
    with pytest.raises(SwapError, match=r"swap of 'value 2': .*CUDA graph.*swap.enable"):
        run.leave(600)
    with pytest.raises(SwapError, match=r"swap of 'value 1': .*CUDA graph"):
        prefetch(ticket)
    with pytest.raises(SwapError, match=r"swap of 'value 1': .*CUDA graph"):
        run.come(token, seed)
    with pytest.MonkeyPatch.context() as patch:  # nor may events be asked: torch would end the capture
        patch.delattr(SimulatedEvent, "query")
        run.engine.tidy()
        run.engine.counters()
    run.device.captures = False
    run.come(token, seed)
    del ticket, token
    end(run)


@pytest.mark.parametrize("store", ["host", "disk"])
def test_pinning_that_fails(store: str) -> None:
    run = program(store)
    run.device.pinning_fails = True
    said = r"swap of 'value 1' \(600 bytes\): no pinned host memory could be had.*Set swap.host_limit.*swap.store to disk"
    with pytest.raises(SwapError, match=said):
        run.leave(600)
    assert run.engine.counters().live_tickets == 0
    run.device.pinning_fails = False
    run.round_trip(600)
    end(run)


def test_a_full_disk_behind_the_host_limit() -> None:
    run = program(host_limit=0, disk_limit=1024)
    kept = run.leave(900)
    with pytest.raises(SwapError, match=r"swap of 'value 2' \(900 bytes\): no room in '/disk'.*swap.dir"):
        run.leave(900)
    run.come(prefetch(kept[0]), kept[1])
    del kept
    run.round_trip(900)
    end(run)


@pytest.mark.parametrize("chunk", [0, 1, 5])
@pytest.mark.parametrize("way", ["write", "read"])
def test_a_disk_that_fails_in_the_middle_of_a_value(way: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run = program("disk", chunk_bytes=100)
    real, calls = getattr(run.arena, way), []

    def fail(offset: int, memory: memoryview) -> None:
        calls.append(offset)
        if len(calls) == chunk + 1:
            raise OSError(errno.EIO, "Input/output error")
        real(offset, memory)

    monkeypatch.setattr(run.arena, way, fail)
    ticket, seed = run.leave(1000)
    run.compute(1000)
    for _ in range(2 if way == "write" else 1):
        with pytest.raises(SwapError, match=r"swap of 'value 1' \(1000 bytes\): reading or writing in '/disk' failed"):
            run.come(prefetch(ticket), seed)
        run.compute(1000)
    if way == "read":
        run.come(prefetch(ticket), seed)
    run.round_trip(1000)
    del ticket
    end(run)


def test_a_token_and_its_ticket_outlive_each_other() -> None:
    for store in ("host", "disk"):
        run = program(store)
        ticket, seed = run.leave(600)
        token = prefetch(ticket)
        del ticket
        run.round_trip(600)
        run.come(token, seed)
        del token
        end(run)


def test_values_of_no_bytes() -> None:
    run = program()
    ticket = run.engine.offload(torch.empty(0, dtype=torch.uint8), "empty", asynchronous=False)
    assert run.pool.allocations == 0
    del ticket
    end(run)


@pytest.mark.parametrize("store", ["host", "disk"])
@pytest.mark.parametrize("point", ["record", "copy", "wait", "current_stream"])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize("moment", ["out", "in"])
def test_an_interrupt_while_a_copy_is_started(
    store: str, point: str, behind: bool, call: int, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = program(store)
    train(run)
    kept = run.leave(3000)
    real, due = getattr(type(run.device), point), [call]

    def interrupted(*args: object, **kwargs: object) -> object:
        now = due[0] == 0
        due[0] -= 1
        if now and not behind:
            raise KeyboardInterrupt
        made = real(*args, **kwargs)
        if now:
            raise KeyboardInterrupt
        return made

    with monkeypatch.context() as patch:
        patch.setattr(type(run.device), point, interrupted)
        with suppress(KeyboardInterrupt):
            if moment == "out":
                run.leave(1500)
            else:
                prefetch(kept[0])
    train(run)
    run.come(prefetch(kept[0]), kept[1])
    del kept
    end(run)
