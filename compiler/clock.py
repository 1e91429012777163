"""Where memopt's own time goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Clock:
    """Sums the seconds spent in named parts.

    Attributes:
        seconds: part -> seconds of wall time.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Count the time spent within towards ``part``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start
