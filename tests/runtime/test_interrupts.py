"""An interrupt between any two steps of starting a copy: nothing leaks, and no memory is freed that a copy reads or writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from memopt.runtime import callers, registry
from memopt.runtime.carriers.file import FileCarrier
from memopt.runtime.engine import Engine, Reload
from memopt.runtime.settings import Settings
from memopt.runtime.stores.disk import DiskArena
from memopt.runtime.workers import Job, Worker
from swapping import LARGE, OPS, offload, round_trip, settled, until, wait_like

VALUE = torch.arange(50_000.0)


@pytest.fixture(autouse=True)
def _nothing_is_kept(tmp_path: Path) -> Iterator[None]:
    before = settled()
    yield
    until(lambda now: (now.disk_bytes, now.live_tickets) == (before.disk_bytes, before.live_tickets))
    assert settled().in_flight_bytes == 0
    assert torch.equal(round_trip(VALUE, tmp_path), VALUE)


def interrupted(owner: type, name: str, *, behind: bool) -> Callable[[pytest.MonkeyPatch], None]:
    """Have a call of ``owner.name`` interrupted before it begins or after it was made, once."""

    def prepare(patch: pytest.MonkeyPatch) -> None:
        real, due = getattr(owner, name), [True]

        def run(*args: Any, **kwargs: Any) -> Any:
            made = real(*args, **kwargs) if behind or not due else None
            if due:
                due.clear()
                raise KeyboardInterrupt
            return made

        patch.setattr(owner, name, run)

    return prepare


def at(*points: tuple[type, str]) -> dict[str, Callable[[pytest.MonkeyPatch], None]]:
    return {
        f"{'behind' if behind else 'before'} {owner.__name__}.{name}": interrupted(owner, name, behind=behind)
        for owner, name in points
        for behind in (False, True)
    }


# A place that was taken and never reached the caller is the one thing that cannot be noted first.
OUT = at(
    (FileCarrier, "send"), (FileCarrier, "_note"), (Worker, "submit"), (Engine, "_start"), (Engine, "_send"), (Job, "__init__")
)
IN = at((FileCarrier, "fetch"), (Worker, "submit"), (callers.CpuCaller, "stream"), (Job, "__init__"))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that take longer than what comes after their start."""
    write, read = DiskArena.write, DiskArena.read
    monkeypatch.setattr(DiskArena, "write", lambda *args: (time.sleep(0.1), write(*args)))
    monkeypatch.setattr(DiskArena, "read", lambda *args: (time.sleep(0.1), read(*args)))


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("interrupt", OUT.values(), ids=OUT)
def test_out(interrupt: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    round_trip(VALUE, tmp_path)
    source = VALUE.clone()
    with monkeypatch.context() as patch:
        interrupt(patch)
        with pytest.raises(KeyboardInterrupt):
            offload(source, tmp_path)
    engine = registry.engine_for(torch.device("cpu"), Settings("disk", str(tmp_path), LARGE, None))
    reading = [leaving.source.data_ptr() for leaving in engine._leaving if not leaving.parcel.sent.ended()]
    assert engine.counters().in_flight_bytes == len(reading) * VALUE.nbytes
    # A copy that goes on keeps what it reads; none goes on that is not known.
    assert reading in ([], [source.data_ptr()])
    busy = not engine._carriers[0]._out._jobs.empty()  # type: ignore[attr-defined]
    assert not busy or reading


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("interrupt", IN.values(), ids=IN)
def test_in(interrupt: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = offload(VALUE, tmp_path)
    writing: list[int] = []
    read = DiskArena.read

    def observed(self: DiskArena, offset: int, memory: memoryview) -> None:
        writing.append(1)
        read(self, offset, memory)
        writing.pop()

    monkeypatch.setattr(DiskArena, "read", observed)
    with monkeypatch.context() as patch:
        interrupt(patch)
        with pytest.raises(KeyboardInterrupt):
            OPS.prefetch(ticket)
    engine = registry.engine_for(torch.device("cpu"), Settings("disk", str(tmp_path), LARGE, None))
    kept = [owned.landed for owned in (*engine._let_go, *engine._unfinished) if isinstance(owned, Reload)]
    busy = writing or not engine._carriers[0]._in._jobs.empty()  # type: ignore[attr-defined]
    # A copy that goes on keeps what it writes to.
    assert not busy or [landed for landed in kept if landed is not None]
    assert torch.equal(wait_like(OPS.prefetch(ticket), VALUE), VALUE)


def test_several_threads_together_keep_to_the_bytes_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, start = DiskArena.write, threading.Barrier(6)
    engine = registry.engine_for(torch.device("cpu"), Settings("disk", str(tmp_path), 2 * VALUE.nbytes, None))
    seen = []

    def observed(self: DiskArena, offset: int, memory: memoryview) -> None:
        seen.append(sum(leaving.parcel.nbytes for leaving in list(engine._leaving)))
        write(self, offset, memory)

    monkeypatch.setattr(DiskArena, "write", observed)

    def leave(_: int) -> None:
        start.wait()
        for _ in range(10):
            offload(VALUE.clone(), tmp_path, in_flight_bytes=2 * VALUE.nbytes)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(leave, range(6)))
    assert max(seen) <= 2 * VALUE.nbytes


def test_what_is_cancelled_never_runs_and_what_has_begun_is_waited_for() -> None:
    worker, go, ran = Worker("test"), threading.Event(), []
    begun = threading.Event()

    def first() -> None:
        begun.set()
        go.wait()
        ran.append(1)

    jobs = [worker.submit(first), worker.submit(lambda: ran.append(2)), worker.submit(lambda: ran.append(3))]
    begun.wait()
    jobs[1].cancel()
    assert jobs[1].ended()
    threading.Timer(0.05, go.set).start()
    jobs[0].cancel()
    assert ran[:1] == [1]
    jobs[2].wait()
    assert ran == [1, 3]
    worker.stop(1)
