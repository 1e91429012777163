"""What runs inside a training step: values leave for another memory tier and come back.

``ops.py`` holds the operators a compiled graph calls. Behind them stands one engine for each device and settings
(``registry.py``, ``engine.py``), which moves bytes with its carriers: on the CPU worker threads to a file, on an
accelerator copy streams to pinned host memory, and from there to a file where host memory is short.
"""

from __future__ import annotations

from .counters import SwapCounters
from .errors import SwapError
from .registry import swap_counters

__all__ = ["SwapCounters", "SwapError", "swap_counters"]
