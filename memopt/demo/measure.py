"""How one training step is measured: time by the clock, memory by the allocator's own account."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


def step_seconds(step: Callable[[], object], steps: int) -> float:
    """Return the median duration of ``steps`` calls, in seconds."""
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def alternating_seconds(steps: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Return the median duration of each step, in seconds, called in turn: what else the machine does slows all of them."""
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for step, own in zip(steps, times, strict=True):
            own.append(step_seconds(step, 1))
    return [statistics.median(own) for own in times]


def peak_bytes(step: Callable[[], object]) -> int:
    """Return the peak of the bytes that the CPU allocator holds during one call, above what it held before."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with _without_native_messages(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            step()
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    changes = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e.get("name") == "[memory]")
    live = peak = 0
    for _, change in changes:
        live += change
        peak = max(peak, live)
    return peak


def set_threads(count: int) -> None:
    """Use this many threads, in eager and in compiled kernels."""
    torch.set_num_threads(count)


@contextlib.contextmanager
def _without_native_messages() -> Iterator[None]:
    """Drop what is written to standard error below Python: the profiler reports every start and every block it did not see."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
