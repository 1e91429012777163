"""The accelerators of torch, through its device-independent interface."""

from __future__ import annotations

import torch

from ..errors import PinningFailed
from ..layout import Layout
from .interface import Event, Stream


class Accelerator:
    """One device, such as ``cuda:1``. See ``interface.Device`` for what the methods promise."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def new_stream(self) -> Stream:
        """A stream of our own."""
        return torch.Stream(self._device)

    def current_stream(self) -> Stream:
        """The calling thread's current stream on this device."""
        return torch.accelerator.current_stream(self._device)

    def record(self, stream: Stream, timing: bool = False) -> Event:
        """Record a new event on ``stream``."""
        event = torch.Event(self._device, enable_timing=timing)
        event.record(stream)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        """Have ``stream`` wait for ``event``."""
        stream.wait_event(event)

    def copy(self, stream: Stream, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy without the host waiting: one side is pinned."""
        with stream:
            target.copy_(source, non_blocking=True)

    def empty(self, layout: Layout) -> torch.Tensor:
        """From torch's caching allocator, under the current stream."""
        return layout.empty(self._device)

    def lend(self, tensor: torch.Tensor, stream: Stream) -> None:
        """The caching allocator reuses the memory only after what is on ``stream`` when the tensor is freed."""
        tensor.record_stream(stream)

    def pin(self, nbytes: int) -> torch.Tensor:
        """From torch's pinned allocator, which rounds up to a power of two."""
        try:
            return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)
        except RuntimeError as error:
            raise PinningFailed(f"{nbytes} bytes: {str(error).partition(chr(10))[0]}") from error

    def seconds_between(self, begin: Event, end: Event) -> float:
        """Measured by the device."""
        assert isinstance(begin, torch.Event)
        assert isinstance(end, torch.Event)
        return float(begin.elapsed_time(end)) / 1000

    def capturing(self) -> bool:
        """Only CUDA has such graphs."""
        if self._device.type != "cuda":
            return False
        if torch.cuda.is_current_stream_capturing():  # on another device: its capture would end if events of ours were asked
            return True
        with torch.cuda.device(self._device):  # torch asks about the current device's stream
            return torch.cuda.is_current_stream_capturing()
