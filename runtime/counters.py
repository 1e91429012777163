"""What swapping did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

_GAUGES = frozenset(
    {"host_bytes", "disk_bytes", "host_capacity", "disk_capacity", "in_flight_bytes", "live_tickets", "pinned_allocations"}
)


@dataclass(frozen=True, slots=True)
class SwapCounters:
    """Totals since the process began, and how things stand now. ``after - before`` gives what a step did.

    Attributes:
        bytes_out: bytes that left the device.
        bytes_in: bytes whose reload was started.
        offloads: values that left.
        prefetches: reloads that were started.
        seconds_waited: time that computing stood still for reloads. On an accelerator: the stall of its stream.
        late: reloads that computing stood still for. On an accelerator: for more than 50 microseconds, counted once the
            device has got there.
        seconds_blocked: time in which ``offload`` waited for earlier copies, because too many bytes were on their way.
        host_bytes: now: bytes of values in host memory.
        disk_bytes: now: bytes of values on the disk.
        host_capacity: now: bytes of pinned memory held, used or not.
        disk_capacity: now: bytes of files held, used or not.
        in_flight_bytes: now: bytes on their way out.
        live_tickets: now: values that may still be asked for.
        pinned_allocations: how often pinned memory was asked for, in all.
    """

    bytes_out: int = 0
    bytes_in: int = 0
    offloads: int = 0
    prefetches: int = 0
    seconds_waited: float = 0.0
    late: int = 0
    seconds_blocked: float = 0.0
    host_bytes: int = 0
    disk_bytes: int = 0
    host_capacity: int = 0
    disk_capacity: int = 0
    in_flight_bytes: int = 0
    live_tickets: int = 0
    pinned_allocations: int = 0

    def __add__(self, other: SwapCounters) -> SwapCounters:
        """Of two engines together."""
        return SwapCounters(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __sub__(self, before: SwapCounters) -> SwapCounters:
        """What happened since ``before``; what tells how things stand is kept as it is now."""
        totals = {f.name: getattr(self, f.name) - getattr(before, f.name) for f in fields(self) if f.name not in _GAUGES}
        return replace(self, **totals)
