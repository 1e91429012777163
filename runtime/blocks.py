"""From a profiler's events to blocks of memory, each with what it was for, and from those to a timeline."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .timeline import Moment

_RELOADS = ("memopt::prefetch", "memopt::wait")


@dataclass
class Block:
    """A piece of memory that a step allocated.

    Attributes:
        size: bytes.
        made: when, in the profiler's microseconds.
        freed: when; None if the step did not.
        place: which allocation of the step it was.
        end: how many allocations the step had made when it was freed; None if it did not.
        operator: what ran when it was made.
        within_operator: the same run of that operator freed it.
        category: as in ``timeline``.
    """

    size: int
    made: float
    place: int
    operator: str
    category: str = "temporary"
    freed: float | None = None
    end: int | None = None
    within_operator: bool = False


class Spans:
    """The operators that ran, by thread and time: which was running when something happened."""

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        self._of: dict[Any, tuple[list[float], list[tuple[float, str, int]]]] = {}
        for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
            starts, spans = self._of.setdefault(event["tid"], ([], []))
            # The operator around the one before it in time may be around this one too.
            parent = len(spans) - 1
            while parent >= 0 and spans[parent][0] < event["ts"] + event["dur"]:
                parent = spans[parent][2]
            starts.append(event["ts"])
            spans.append((event["ts"] + event["dur"], str(event["name"]), parent))

    def around(self, thread: Any, when: float) -> list[tuple[int, str]]:
        """The operators that were running, the innermost first: a number for the run, and the name."""
        starts, spans = self._of.get(thread, ([], []))
        at = bisect_right(starts, when) - 1
        found = []
        while at >= 0:
            if spans[at][0] >= when:
                found.append((at, spans[at][1]))
            at = spans[at][2]
        return found


def blocks_of(events: Iterable[Mapping[str, Any]], spans: Spans, backward: float) -> list[Block]:
    """The blocks that were allocated, in order.

    Args:
        events: allocations (bytes above 0) and frees (below 0), with their addresses.
        spans: the operators that ran.
        backward: when the backward began.
    """
    blocks: list[Block] = []
    alive: dict[int, tuple[Block, set[int]]] = {}
    for event in sorted(events, key=lambda e: e["ts"]):
        size, address, when = event["args"]["Bytes"], event["args"]["Addr"], event["ts"]
        running = spans.around(event["tid"], when)
        if size > 0:
            name = next((name for _, name in running if name in _RELOADS), running[0][1] if running else "")
            block = Block(size, when, len(blocks), name)
            blocks.append(block)
            alive[address] = block, {number for number, name in running if not _is_autograd(name)}
        elif address in alive:
            block, runs = alive.pop(address)
            block.freed, block.end = when, len(blocks)
            block.within_operator = bool(runs & {number for number, _ in running})
    for block in blocks:
        block.category = _category(block, backward)
    return blocks


def _is_autograd(name: str) -> bool:
    """Whether an event is not an operator, but what autograd or a compiled graph runs operators in."""
    return "::" not in name or name.startswith("autograd::")


def _category(block: Block, backward: float) -> str:
    if block.operator in _RELOADS:
        return "reloaded"
    if block.made >= backward:
        return "gradients" if block.freed is None else "temporary"
    if block.freed is None:
        return "outputs"
    return "saved" if block.freed >= backward else "temporary"


def moments_of(blocks: list[Block], backward: float) -> tuple[Moment, ...]:
    """The live bytes at every allocation; ``backward`` is when the backward began."""
    ending: dict[int, list[Block]] = {}
    for block in blocks:
        if block.end is not None:
            ending.setdefault(block.end, []).append(block)
    live: Counter[str] = Counter()
    moments = []
    for place, block in enumerate(blocks):
        for gone in ending.get(place, ()):
            live[gone.category] -= gone.size
        live[block.category] += block.size
        phase = "backward" if block.made >= backward else "forward"
        known = {category: count for category, count in live.items() if count}
        moments.append(Moment(phase, block.operator.removeprefix("aten::"), "", None, known))
    return tuple(moments)
