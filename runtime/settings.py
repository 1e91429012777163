"""How values are swapped: the part of the configuration that reaches a training step."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """One engine is made for each device and each of these.

    Attributes:
        store: ``host`` (pinned host memory) or ``disk`` (a file).
        directory: where the file lies; None: the directory for temporary files.
        in_flight_bytes: the most bytes that may be on their way out at once; a larger value travels alone.
        host_limit: the most bytes of pinned memory for values; what does not fit goes to the disk. None: no limit.
    """

    store: str
    directory: str | None
    in_flight_bytes: int
    host_limit: int | None

    @property
    def where(self) -> str:
        """The directory that is really used."""
        return self.directory or tempfile.gettempdir()
