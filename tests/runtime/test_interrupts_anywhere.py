"""An interrupt wherever Python can have one, in everything that swap runs in the program's thread.

CPython looks for signals behind every call, where a function begins, and where a loop turns: a tracer finds those points, and
each one is tried. Whatever it hits: no memory is freed that a copy reads or writes, nothing is left behind, what comes next
works. Only a place in the store that was just taken, and has not reached its owner, is lost.
"""

from __future__ import annotations

import ctypes
import dis
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import memopt.runtime
import pytest
import torch
from memopt.runtime import registry, swap_counters
from memopt.runtime.callers import CpuCaller
from memopt.runtime.carriers.file import FileCarrier
from memopt.runtime.carriers.interface import Parcel
from memopt.runtime.layout import Layout
from memopt.runtime.settings import Settings
from memopt.runtime.stores.disk import DiskArena
from swapping import LARGE, OPS, offload, raw, round_trip, until, wait_like

RUNTIME = str(Path(memopt.runtime.__file__).parent)
ELEMENTS = 5000


class Interrupter:
    """Raises KeyboardInterrupt at the ``due``-th point; ``where`` is the function it was in."""

    def __init__(self, due: int) -> None:
        self.left = due
        self.where = ""
        self._before: dict[FrameType, str] = {}

    def __enter__(self) -> Interrupter:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        self._before.clear()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(RUNTIME):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = self._before.get(frame, "RESUME")
            self._before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before.startswith(("CALL", "JUMP_BACKWARD", "RESUME")):
                self.left -= 1
                if self.left == 0:
                    self.where = frame.f_code.co_name
                    raise KeyboardInterrupt
        return self._trace


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was freed while a copy was still at it."""
    owners: dict[int, weakref.ref[torch.Tensor]] = {}
    found: list[str] = []
    write, read, send, empty = DiskArena.write, DiskArena.read, FileCarrier.send, CpuCaller.empty

    def check(memory: memoryview, what: str) -> None:
        owner = owners.get(ctypes.addressof(ctypes.c_ubyte.from_buffer(memory)))
        if owner is None or owner() is None:
            found.append(what)

    def noted_send(self: FileCarrier, parcel: Parcel, source: torch.Tensor) -> bool:
        owners[source.data_ptr()] = weakref.ref(source)
        return send(self, parcel, source)

    def noted_empty(self: CpuCaller, layout: Layout) -> torch.Tensor:
        landed = empty(self, layout)
        owners[landed.data_ptr()] = weakref.ref(landed)
        return landed

    def slow_write(self: DiskArena, offset: int, memory: memoryview) -> None:
        time.sleep(0.002)
        check(memory, "what a copy out reads")
        write(self, offset, memory)

    def slow_read(self: DiskArena, offset: int, memory: memoryview) -> None:
        time.sleep(0.002)
        check(memory, "what a copy back writes")
        read(self, offset, memory)

    monkeypatch.setattr(FileCarrier, "send", noted_send)
    monkeypatch.setattr(CpuCaller, "empty", noted_empty)
    monkeypatch.setattr(DiskArena, "write", slow_write)
    monkeypatch.setattr(DiskArena, "read", slow_read)
    return found


def leave_and_return(directory: Path, seed: int) -> None:
    """What a step does with two values, of which one is dropped on its way; each must come back as it was."""
    tickets = [offload(torch.full((ELEMENTS,), float(seed + i)), directory) for i in range(2)]
    del tickets[1]
    like = torch.empty(ELEMENTS)
    value = wait_like(OPS.prefetch(tickets[0]), like)
    assert raw(value) == raw(torch.full((ELEMENTS,), float(seed)))
    del tickets, value
    registry.tidy()


def let_everything_end() -> None:
    until(lambda now: (now.in_flight_bytes, now.live_tickets, now.disk_bytes) == (0, 0, 0))


def points(directory: Path, freed: list[str]) -> Iterator[tuple[int, str, int]]:
    """Interrupt each point in turn: which, in what function, and the bytes in the store that were lost."""
    engine = registry.engine_for(torch.device("cpu"), Settings("disk", str(directory), LARGE, None))
    extents = engine._carriers[0]._arena._extents  # type: ignore[attr-defined]
    number = 0
    while True:
        number += 1
        before = extents.taken
        interrupter = Interrupter(number)
        try:
            with interrupter:
                leave_and_return(directory, number)
        except KeyboardInterrupt:
            pass
        else:
            return
        let_everything_end()
        assert extents.taken + extents.free == extents.capacity
        yield number, interrupter.where, extents.taken - before


def test_wherever_it_is_interrupted(tmp_path: Path, freed: list[str]) -> None:
    round_trip(torch.zeros(ELEMENTS), tmp_path)
    let_everything_end()
    lost = []
    for number, where, nbytes in points(tmp_path, freed):
        assert freed == [], (number, where)
        assert nbytes >= 0, (number, where)
        assert nbytes == 0 or where in ("take", "send", "__exit__"), (number, where)
        lost.append(nbytes)
        if number % 10 == 0:
            leave_and_return(tmp_path, 10 * number)
            let_everything_end()
    leave_and_return(tmp_path, 7)
    assert len(lost) > 300
    assert sum(nbytes > 0 for nbytes in lost) <= 3
    assert swap_counters().live_tickets == 0
