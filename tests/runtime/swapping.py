"""Short forms of the operators, for tests."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import memopt.runtime.ops  # noqa: F401
import torch
from memopt.runtime import SwapCounters, swap_counters

OPS = torch.ops.memopt
LARGE = 1 << 40


def offload(
    value: torch.Tensor,
    directory: Path | str | None = None,
    *,
    name: str = "layers.0.mlp",
    store: str = "disk",
    in_flight_bytes: int = LARGE,
    asynchronous: bool = True,
) -> torch.Tensor:
    where = None if directory is None else str(directory)
    return OPS.offload(value, name, store, where, in_flight_bytes, None, asynchronous)


def wait_like(token: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return OPS.wait(token, list(value.shape), list(value.stride()), value.dtype, value.device)


def round_trip(value: torch.Tensor, directory: Path | str | None = None, *, asynchronous: bool = True) -> torch.Tensor:
    ticket = offload(value, directory, asynchronous=asynchronous)
    return wait_like(OPS.prefetch(ticket), value)


def raw(value: torch.Tensor) -> bytes:
    """The elements in order, bit by bit."""
    flat = value.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).view(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def settled() -> SwapCounters:
    """The counters once every copy out has ended."""
    return until(lambda now: not now.in_flight_bytes)


def until(reached: Callable[[SwapCounters], bool]) -> SwapCounters:
    """The counters once ``reached``: by what goes on in other threads."""
    deadline = time.monotonic() + 10
    while not reached(now := swap_counters()):
        assert time.monotonic() < deadline, now
        time.sleep(0.0005)
    return now


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
