"""The caller's side of an engine: where values are allocated and how what follows is made to wait, measured."""

from __future__ import annotations

from time import perf_counter
from typing import Protocol

import torch

from .carriers import Copy
from .layout import Layout


class Caller(Protocol):
    """What the engine needs to know of the side that computes.

    Attributes:
        late: how often computing stood still for a reload.
        seconds_waited: for how long, in all.
    """

    late: int
    seconds_waited: float

    def check(self) -> None:
        """Raise SwapError where values cannot be moved now."""

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

    def check(self) -> None:
        """Nothing stands against it."""

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
            self.late += 1
            self.seconds_waited += perf_counter() - begin

    def settle(self) -> None:
        """They always are."""
