"""The caller's side of an engine: where values are allocated and how what follows is made to wait, measured."""

from __future__ import annotations

import threading
from collections import deque
from time import perf_counter
from typing import Protocol

import torch

from .carriers.interface import Copy
from .devices.interface import Device, Event
from .errors import SwapError
from .layout import Layout


class Caller(Protocol):
    """What the engine needs to know of the side that computes.

    Attributes:
        late: how often computing stood still for a reload.
        seconds_waited: for how long, in all.
    """

    late: int
    seconds_waited: float

    def check(self, name: str) -> None:
        """Raise SwapError where the value ``name`` cannot be moved now."""

    def capturing(self) -> bool:
        """Whether what the caller does is being recorded into a graph instead of done."""

    def stream(self) -> object:
        """Where what the caller does next is put: its current stream, if it has any."""

    def empty(self, layout: Layout) -> torch.Tensor:
        """Memory for a reload to land in, allocated on the caller's current stream."""

    def join(self, copy: Copy, landed: torch.Tensor, stream: object) -> None:
        """Have what the caller does next come after ``copy`` into ``landed``, which was allocated on ``stream``."""

    def settle(self) -> None:
        """Bring the attributes up to date as far as that takes no waiting."""


class CpuCaller:
    """The calling thread itself."""

    def __init__(self) -> None:
        self.late = 0
        self.seconds_waited = 0.0
        self._lock = threading.Lock()

    def check(self, name: str) -> None:
        """Nothing stands against it."""

    def capturing(self) -> bool:
        """Never."""
        return False

    def stream(self) -> None:
        """There is none."""

    def empty(self, layout: Layout) -> torch.Tensor:
        """See Caller."""
        return layout.empty(torch.device("cpu"))

    def join(self, copy: Copy, landed: torch.Tensor, stream: object) -> None:  # noqa: ARG002
        """See Caller."""
        if not copy.ended():
            begin = perf_counter()
            copy.join()
            with self._lock:
                self.late += 1
                self.seconds_waited += perf_counter() - begin

    def settle(self) -> None:
        """They always are."""


_NOTICEABLE_SECONDS = 50e-6
"""Two timing events around nothing are a few microseconds apart."""

_UNREAD = 1024
"""The most waits whose length is still to be read; beyond, the oldest is not counted."""


class StreamCaller:
    """A thread that puts work on the current stream of an accelerator, far ahead of it."""

    def __init__(self, device: Device) -> None:
        self.late = 0
        self.seconds_waited = 0.0
        self._device = device
        self._unread: deque[tuple[Event, Event]] = deque(maxlen=_UNREAD)
        self._lock = threading.Lock()

    def check(self, name: str) -> None:
        """See Caller."""
        if self.capturing():
            raise SwapError(
                f"swap of {name!r}: the copies of swap cannot be part of a CUDA graph. Compile without CUDA graphs (mode="
                '"default", not "reduce-overhead" or "max-autotune"), or set swap.enable to false.'
            )

    def capturing(self) -> bool:
        """See Caller."""
        return self._device.capturing()

    def stream(self) -> object:
        """See Caller."""
        return self._device.current_stream()

    def empty(self, layout: Layout) -> torch.Tensor:
        """See Caller."""
        return self._device.empty(layout)

    def join(self, copy: Copy, landed: torch.Tensor, stream: object) -> None:
        """See Caller."""
        current = self._device.current_stream()
        stands = not copy.ended()
        begin = self._device.record(current, timing=True) if stands else None
        copy.join()
        if begin is not None:
            end = self._device.record(current, timing=True)
            with self._lock:
                self._unread.append((begin, end))
        if current != stream:
            self._device.lend(landed, current)

    def settle(self) -> None:
        """See Caller."""
        with self._lock:
            while self._unread and self._unread[0][1].query():
                seconds = self._device.seconds_between(*self._unread.popleft())
                self.seconds_waited += seconds
                self.late += seconds > _NOTICEABLE_SECONDS
