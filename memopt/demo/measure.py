"""How one training step is measured: time by the clock, memory by the allocator's own account."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from ..runtime.measure import measure


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
    """Return the peak of the bytes that one call allocates, in bytes."""
    return measure(step).peak_bytes


def set_threads(count: int) -> None:
    """Use this many threads, in eager and in compiled kernels."""
    torch.set_num_threads(count)
