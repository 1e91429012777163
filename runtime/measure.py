"""What one real step allocates: peak and timeline of live bytes, from the allocator's own events."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from .blocks import Block, Spans, blocks_of, moments_of
from .timeline import Moment, peak_of

_BACKWARD = "autograd::engine::evaluate_function"
_CPU = 0  # torch's number for the device type, as its profiler writes it


@dataclass(frozen=True)
class Measurement:
    """One measured step.

    Attributes:
        device: where memory was measured: ``cpu``, or the accelerator with its number.
        peak_bytes: the highest live bytes of what the step itself allocated. Gradients are in, unless they were there before;
            parameters, inputs and optimizer states are not.
        timeline: the live bytes whenever something was allocated, by category, with the operator that ran. Told apart are
            gradients, saved values, outputs, reloaded and temporary values; recomputed ones are temporary here.
        left_bytes: what the step allocated and did not free: gradients, and what the step keeps.
        scratch_bytes: at the peak, what the running operator had allocated for itself and freed before it ended.
        allocator_peak_bytes: on an accelerator, the rise of the allocator's own statistic; None on the CPU.
    """

    device: str
    peak_bytes: int
    timeline: tuple[Moment, ...] = field(repr=False)
    left_bytes: int
    scratch_bytes: int
    allocator_peak_bytes: int | None = None

    def __str__(self) -> str:
        peak = self.at_peak
        parts = ", ".join(f"{kind} {count:,}" for kind, count in peak.bytes.items())
        return f"peak {self.peak_bytes:,} bytes on {self.device}, at {peak.operator or 'an operator'}, {peak.phase}: {parts}"

    @property
    def at_peak(self) -> Moment:
        """The first moment at which most was alive."""
        return peak_of(self.timeline)


def measure(step_fn: Callable[[], object], *, warmup: int = 0) -> Measurement:
    """Run a step, and tell what memory it took.

    Where an accelerator allocates anything, its memory is measured, else the CPU's. What the step frees of what was there
    before (old gradients) is not set against what it allocates.

    Args:
        step_fn: forward and backward, as a function without arguments; ``lambda: model(batch).backward()``.
        warmup: how often it is called before: a first call compiles, and has another peak.

    Raises:
        TypeError: ``step_fn`` is no function; ValueError: ``warmup`` is no count, or the step allocated nothing.
    """
    if not callable(step_fn):
        raise TypeError(f"step_fn: found {step_fn!r}; allowed: a function without arguments that runs one step.")
    if not isinstance(warmup, int) or isinstance(warmup, bool) or warmup < 0:
        raise ValueError(f"warmup: found {warmup!r}; allowed: a count of steps, 0 or more.")
    if torch.autograd.profiler._is_profiler_enabled:
        raise ValueError("step_fn: found a profiler that is running; allowed: one at a time, and measure() profiles the step.")
    for _ in range(warmup):
        step_fn()
    events, allocator_peak = _recorded(step_fn)
    memory = [e for e in events if e.get("name") == "[memory]"]
    kinds = {(e["args"]["Device Type"], e["args"]["Device Id"]) for e in memory}
    if not kinds:
        raise ValueError("step_fn: the step allocated nothing; allowed: a step that runs a forward and a backward.")
    own = max(kinds, key=lambda kind: (kind[0] != _CPU, sum(_kind(e) == kind for e in memory)))
    spans = Spans(e for e in events if e.get("cat") == "cpu_op")
    begin = min((e["ts"] for e in events if str(e.get("name", "")).startswith(_BACKWARD)), default=float("inf"))
    blocks = blocks_of((e for e in memory if _kind(e) == own), spans, begin)
    timeline = moments_of(blocks, begin)
    name = "cpu" if own[0] == _CPU else f"{_accelerator()}:{own[1]}"
    at = max(range(len(timeline)), key=lambda i: timeline[i].total)
    return Measurement(
        name,
        timeline[at].total,
        timeline,
        sum(b.size for b in blocks if b.freed is None),
        _scratch(blocks, at),
        None if own[0] == _CPU else allocator_peak,
    )


def _kind(event: dict[str, Any]) -> tuple[int, int]:
    return event["args"]["Device Type"], event["args"]["Device Id"]


def _scratch(blocks: list[Block], at: int) -> int:
    """The bytes alive at a moment that the operator which allocated them freed again."""
    return sum(b.size for b in blocks if b.within_operator and b.place <= at and (b.end is None or at < b.end))


def _recorded(step_fn: Callable[[], object]) -> tuple[list[dict[str, Any]], int | None]:
    """The profiler's events of one step, and the rise of the accelerator's own peak."""
    accelerated = torch.accelerator.is_available()
    before = 0
    activities = [ProfilerActivity.CPU]
    if accelerated:
        torch.accelerator.synchronize()
        torch.accelerator.reset_peak_memory_stats()
        before = torch.accelerator.memory_allocated()
        activities += [ProfilerActivity.XPU if _accelerator() == "xpu" else ProfilerActivity.CUDA]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with without_messages_of_the_profiler(), profile(activities=activities, profile_memory=True) as profiler:
            step_fn()
            if accelerated:
                torch.accelerator.synchronize()
        peak = torch.accelerator.max_memory_allocated() - before if accelerated else None
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events, peak


def _accelerator() -> str:
    found = torch.accelerator.current_accelerator()
    return found.type if found is not None else "accelerator"


@contextlib.contextmanager
def without_messages_of_the_profiler() -> Iterator[None]:
    """Drop what torch's profiler writes below Python: it reports every start, and every block it did not see allocated.

    Everything else that is written to standard error meanwhile appears afterwards.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as written:
        try:
            os.dup2(written.fileno(), 2)
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            written.seek(0)
            others = [line for line in written if not _OF_THE_PROFILER.search(line)]
            if others:
                os.write(2, b"".join(others))
            os.close(kept)


_OF_THE_PROFILER = re.compile(rb"Memory block of unknown size|STAGE:|ActivityProfiler|profiler_kineto|kineto")
