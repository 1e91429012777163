"""What swap needs of an accelerator: streams, events, copies, and memory that is allocated under a stream.

Written so that a simulated device can take the accelerator's place: what orders copies runs unchanged on it.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import torch

from ..layout import Layout

Stream: TypeAlias = Any
"""A queue of work on the device; each device has its own type. Equal streams are the same queue."""


class Event(Protocol):
    """A point on a stream."""

    def query(self) -> bool:
        """Whether the device has got there."""

    def synchronize(self) -> None:
        """Have the calling thread wait until it has."""


class Device(Protocol):
    """One accelerator."""

    def new_stream(self) -> Stream:
        """A stream of our own."""

    def current_stream(self) -> Stream:
        """Where the calling thread's work is put."""

    def record(self, stream: Stream, timing: bool = False) -> Event:
        """The point that ``stream`` has been filled up to; with ``timing`` one that knows when it was passed."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Have what is put on ``stream`` from now on come after ``event``. The calling thread does not wait."""

    def copy(self, stream: Stream, target: torch.Tensor, source: torch.Tensor) -> None:
        """Put a copy of flat bytes on ``stream``, between pinned host memory and the device. The caller keeps both alive."""

    def empty(self, layout: Layout) -> torch.Tensor:
        """Device memory for a value, allocated under the current stream: earlier work there may have used it."""

    def lend(self, tensor: torch.Tensor, stream: Stream) -> None:
        """``tensor``, allocated under another stream, is going to be used on ``stream``: free it only after that."""

    def pin(self, nbytes: int) -> torch.Tensor:
        """Pinned host memory. Raises PinningFailed."""

    def seconds_between(self, begin: Event, end: Event) -> float:
        """Time between two events recorded with ``timing`` that the device has passed."""

    def capturing(self) -> bool:
        """Whether the current stream's work is being recorded into a graph instead of done."""
