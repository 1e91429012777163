from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import torch
from memopt.runtime import SwapCounters, swap_counters
from memopt.runtime.stores.disk import DiskArena
from swapping import OPS, offload, round_trip, settled, wait_like


def test_a_difference_keeps_how_things_stand() -> None:
    before = SwapCounters(bytes_out=10, offloads=1, seconds_waited=0.5, disk_bytes=100, live_tickets=3, pinned_allocations=2)
    after = SwapCounters(bytes_out=25, offloads=3, seconds_waited=2.0, disk_bytes=70, live_tickets=1, pinned_allocations=5)
    assert after - before == SwapCounters(
        bytes_out=15, offloads=2, seconds_waited=1.5, disk_bytes=70, live_tickets=1, pinned_allocations=5
    )


def test_what_a_step_did(tmp_path: Path) -> None:
    before = settled()
    values = [torch.zeros(1000), torch.zeros(24, 100)[:, :2], torch.zeros(0)]
    tickets = [offload(v, tmp_path) for v in values]
    during = settled() - before
    assert (during.bytes_out, during.bytes_in, during.offloads, during.prefetches) == (4192, 0, 3, 0)
    assert during.disk_bytes - before.disk_bytes == 4192
    assert during.live_tickets - before.live_tickets == 3
    tokens = [OPS.prefetch(t) for t in (*tickets, tickets[0])]
    for token, value in zip(tokens, (*values, values[0]), strict=True):
        wait_like(token, value)
    after = settled() - before
    assert (after.bytes_out, after.bytes_in, after.offloads, after.prefetches) == (4192, 8192, 3, 4)
    assert after.seconds_blocked == 0


def test_engines_are_added_up(tmp_path: Path) -> None:
    before = settled()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        round_trip(torch.zeros(10), tmp_path / name)
    assert (settled() - before).bytes_out == 80


def test_a_late_reload_is_counted_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = DiskArena.read

    def slow(self: DiskArena, offset: int, memory: memoryview) -> None:
        time.sleep(0.5)  # longer than a busy machine keeps this thread from asking
        read(self, offset, memory)
        has_read.set()

    has_read = threading.Event()
    monkeypatch.setattr(DiskArena, "read", slow)
    value = torch.zeros(10)
    ticket = offload(value, tmp_path, asynchronous=False)
    before = swap_counters()
    wait_like(OPS.prefetch(ticket), value)
    late = swap_counters() - before
    assert late.late == 1
    assert 0.02 < late.seconds_waited < 5
    has_read.clear()
    token = OPS.prefetch(ticket)
    assert has_read.wait(10)
    time.sleep(0.5)  # until the thread that has read says so
    before = swap_counters()
    wait_like(token, value)
    in_time = swap_counters() - before
    assert (in_time.late, in_time.seconds_waited) == (0, 0)


def test_a_slice_keeps_what_it_is_a_slice_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, go = DiskArena.write, threading.Event()
    monkeypatch.setattr(DiskArena, "write", lambda *given: (go.wait(10), write(*given)))
    before = settled()
    base = torch.zeros(1000)
    tickets = [offload(base[:10], tmp_path), offload(base[10:20], tmp_path), offload(torch.zeros(5), tmp_path)]
    assert swap_counters().in_flight_bytes == 4000 + 20
    go.set()
    assert (settled() - before).disk_bytes - before.disk_bytes == 40 + 40 + 20
    del tickets


def test_bytes_in_flight_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = DiskArena.write

    def slow(self: DiskArena, offset: int, memory: memoryview) -> None:
        time.sleep(0.01)
        write(self, offset, memory)

    monkeypatch.setattr(DiskArena, "write", slow)
    before = swap_counters()
    tickets = []
    for nbytes in (4000, 4000, 4000, 4000, 40_000, 4000, 4000):
        tickets.append(offload(torch.zeros(nbytes // 4), tmp_path, in_flight_bytes=9000))
        assert swap_counters().in_flight_bytes - before.in_flight_bytes <= (40_000 if nbytes == 40_000 else 8000)
    assert (swap_counters() - before).seconds_blocked > 0.02
