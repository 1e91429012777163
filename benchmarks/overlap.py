"""A model of one training step on an accelerator with three queues: compute, copies out, copies in.

    compute   |f0|f1|f2|........|b2|b1|  |b0|        a wait stalls compute until the reload has ended
    out          |f0...|f1...|                       a value's memory is free when its copy and its last use have ended
    in                     |f1...|f0......|          memory is taken when the reload is issued

Times are in seconds, sizes in bytes. Operators take the longer of their arithmetic and their memory traffic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Hardware:
    """What an accelerator can do.

    Attributes:
        flops: floating-point operations a second, as reached, not as advertised.
        memory: bytes a second between its memory and its cores.
        copy_out: bytes a second to the host.
        copy_in: bytes a second from the host.
    """

    flops: float
    memory: float
    copy_out: float
    copy_in: float


@dataclass(frozen=True)
class Operator:
    """One entry of the compute queue.

    Attributes:
        kind: ``compute``, ``offload``, ``prefetch`` or ``wait``.
        value: what it makes, sends or fetches.
        nbytes: the bytes of that value.
        flops: its arithmetic.
        traffic: bytes that it reads and writes.
        frees: values whose last use it is.
    """

    kind: str
    value: str
    nbytes: int = 0
    flops: int = 0
    traffic: int = 0
    frees: tuple[str, ...] = ()

    def seconds(self, hardware: Hardware) -> float:
        """How long it computes."""
        return max(self.flops / hardware.flops, self.traffic / hardware.memory)


@dataclass
class Timeline:
    """What a step takes.

    Attributes:
        seconds: the whole step.
        computing: seconds in which operators ran.
        stalled: seconds in which waits held compute up.
        blocked: seconds in which compute waited for copies out, above ``in_flight_bytes``.
        late: waits that stalled.
        peak: the most bytes of values alive at a time.
    """

    seconds: float = 0.0
    computing: float = 0.0
    stalled: float = 0.0
    blocked: float = 0.0
    late: int = 0
    peak: int = 0
    _changes: list[tuple[float, int]] = field(default_factory=list, repr=False)


def simulate(operators: Sequence[Operator], hardware: Hardware, in_flight_bytes: float = float("inf")) -> Timeline:
    """Run the operators in their order, and the copies beside them."""
    result = Timeline()
    now = out_free = in_free = 0.0
    size: dict[str, int] = {}
    left: dict[str, float] = {}  # value -> when its copy out has ended
    back: dict[str, float] = {}  # value -> when its copy in has ended
    leaving: deque[tuple[float, int]] = deque()
    for operator in operators:
        if operator.kind == "compute":
            if operator.nbytes:
                size[operator.value] = operator.nbytes
                result._changes.append((now, operator.nbytes))
            now += operator.seconds(hardware)
            result.computing += operator.seconds(hardware)
        elif operator.kind == "offload":
            while leaving and sum(n for _, n in leaving) + operator.nbytes > in_flight_bytes:
                ended, _ = leaving.popleft()
                result.blocked += max(ended - now, 0.0)
                now = max(now, ended)
            out_free = max(now, out_free) + operator.nbytes / hardware.copy_out
            left[operator.value] = out_free
            leaving.append((out_free, operator.nbytes))
        elif operator.kind == "prefetch":
            result._changes.append((now, operator.nbytes))
            in_free = max(now, in_free, left.get(operator.value, 0.0)) + operator.nbytes / hardware.copy_in
            back[operator.value] = in_free
        elif operator.kind == "wait":
            stall = max(back[operator.value] - now, 0.0)
            result.stalled += stall
            result.late += stall > 0
            now += stall
            size[operator.value] = operator.nbytes
        while leaving and leaving[0][0] <= now:
            leaving.popleft()
        for value in operator.frees:
            result._changes.append((max(now, left.get(value, 0.0)), -size.pop(value)))
    result.seconds = now
    alive = 0
    # What is freed at a moment makes room for what is made at that moment.
    for _, change in sorted(result._changes, key=lambda c: (c[0], c[1])):
        alive += change
        result.peak = max(result.peak, alive)
    return result
