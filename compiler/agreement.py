"""Ranks agree before they communicate: each graph with collectives is compared across the ranks that take part in them.

Where two ranks decide differently about a collective, one waits in it for ever for the other. So what decides (the plan) and
what follows (the order of the collectives) is compared when a graph is compiled, through the store that the process group was
made with: no collective is needed to find out that collectives would not match.

    rank 0   plan, [all_gather of layer 0, ...]   ->  posts, waits for the others, goes on or raises
    rank 1   plan, [all_gather of layer 0, ...]   ->  posts, waits for the others, goes on or raises
"""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..passes.policy import LayerPlan, Plan
from . import torch_bridge
from .cache_key import source_digest
from .explain.collectives import Step

DEFAULT_TIMEOUT = 300.0
"""Seconds to wait for the other ranks: their compilation may take long, where this one's came from a cache."""

_POLL = 0.02
_rounds: dict[tuple[int, ...], int] = {}
_rounds_of: list[object] = []
"""The process group that the rounds were counted in: a new one starts from nothing, on every rank."""


class RanksDisagreeError(RuntimeError):
    """Ranks that communicate with each other were given different plans, or one of them is missing.

    Raised on every rank that compares, before the graph is lowered.
    """


@dataclass(frozen=True)
class Statement:
    """What one rank says about one graph; equal texts mean equal decisions.

    Attributes:
        memopt: a digest of memopt's version and source, so that ranks run the same passes.
        plan: what holds in each layer, and what is excluded: one line each.
        steps: the collectives over the compared group, in their order.
    """

    memopt: str
    plan: tuple[str, ...]
    steps: tuple[str, ...]

    @property
    def text(self) -> str:
        """The statement as text."""
        return json.dumps([self.memopt, self.plan, self.steps])

    @property
    def digest(self) -> str:
        """A digest of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class Agreement:
    """What the ranks of one compiled model have agreed upon so far.

    A graph that is compiled again for other sizes has the same plan and the same collectives: no rank waits for others then,
    which may not compile it again at all.
    """

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._agreed: set[tuple[tuple[int, ...], str]] = set()

    def reach(self, plan: Plan, steps: Sequence[Step]) -> None:
        """Compare with every rank that takes part in the collectives; return when all are of one mind.

        Raises:
            RanksDisagreeError: some rank has another plan or order of collectives, or has not compiled the graph in time.
        """
        group = torch_bridge.default_group()
        if _rounds_of != [group]:
            _rounds_of[:] = [group]
            _rounds.clear()
            self._agreed.clear()
        for ranks, texts in _by_ranks(steps).items():
            statement = Statement(source_digest(), tuple(described(plan)), tuple(texts))
            key = ranks, statement.digest
            if key not in self._agreed:
                _rounds[ranks] = number = _rounds.get(ranks, -1) + 1
                try:
                    _compare(statement, ranks, number, self.timeout)
                except torch_bridge.StoreError as error:
                    raise RanksDisagreeError(_unreachable(ranks, error)) from error
                self._agreed.add(key)


def described(plan: Plan) -> Iterator[str]:
    """The plan in lines, without what may differ between ranks: where files lie, and how much memory a rank has."""
    for layer in plan.layers:
        yield f"layer {layer.index} ({layer.path}): {_layer(plan, layer)}"
    for rule in plan.exclude:
        yield f"excluded in layers {list(rule.layers)}: {rule.pattern}"


def _layer(plan: Plan, layer: LayerPlan) -> str:
    looked_for = [rule.field for rule in plan.pending if layer.index in rule.layers]
    parts = {
        "recompute": ["everything"] if layer.recompute_full else list(layer.recompute),
        "swap": ["everything"] if layer.swap_full else list(layer.swap),
        "operators looked for": looked_for,
    }
    return "; ".join(f"{name} {', '.join(found)}" for name, found in parts.items() if found) or "nothing"


def _by_ranks(steps: Sequence[Step]) -> Mapping[tuple[int, ...], list[str]]:
    """The collectives of each set of ranks. One rank alone has nobody to wait for."""
    found: dict[tuple[int, ...], list[str]] = {}
    for step in steps:
        ranks = torch_bridge.ranks_of_group(step.group)
        if len(ranks) > 1:
            found.setdefault(ranks, []).append(step.text)
    return found


def _compare(statement: Statement, ranks: tuple[int, ...], number: int, timeout: float) -> None:
    own = torch_bridge.own_rank()
    group = hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]
    board = torch_bridge.store_of_ranks(f"memopt/{group}/{number}")
    board.set(f"statement/{own}", zlib.compress(statement.text.encode()))
    first = board.compare_set("first", "", f"{own} {statement.digest}").decode()
    first_rank, digest = first.split(" ")
    if digest != statement.digest:
        board.set("other", str(own))
    board.add("count", 1)
    deadline = time.monotonic() + timeout
    while True:
        complete = board.add("count", 0) >= len(ranks)  # read first: whoever differs says so before it is counted
        if board.check(["other"]):
            other = int(board.get("other").decode())
            raise RanksDisagreeError(_difference(board, *sorted((int(first_rank), other))))
        if complete:
            return
        if time.monotonic() > deadline:
            missing = [rank for rank in ranks if not board.check([f"statement/{rank}"])]
            raise RanksDisagreeError(_absence(missing, timeout))
        time.sleep(_POLL)


def _difference(board: torch_bridge.Store, one: int, other: int) -> str:
    a, b = (_statement(board.get(f"statement/{rank}")) for rank in (one, other))
    if a.memopt != b.memopt:
        found = "their memopt, which is not of the same version and source"
    elif a.plan != b.plan:
        found = f"their plan: {_first_difference(a.plan, b.plan, one, other)}"
    else:
        found = f"the order of their collectives: {_first_difference(a.steps, b.steps, one, other)}"
    return (
        f"ranks {one} and {other} would wait for each other's collectives for ever. They differ in {found}. Give every rank "
        "the same configuration, model and versions; nothing was run."
    )


def _statement(posted: bytes) -> Statement:
    memopt, plan, steps = json.loads(zlib.decompress(posted))
    return Statement(memopt, tuple(plan), tuple(steps))


def _first_difference(a: Sequence[str], b: Sequence[str], one: int, other: int) -> str:
    for number, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return f"rank {one} has {left!r} where rank {other} has {right!r} (number {number})"
    longer, rest = (one, a[len(b) :]) if len(a) > len(b) else (other, b[len(a) :])
    return f"rank {longer} has {rest[0]!r} where the other has nothing more"


def _absence(missing: Sequence[int], timeout: float) -> str:
    who = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}" if missing else "a rank"
    return (
        f"{who} did not compile the graph whose collectives this rank takes part in, within {timeout:g} s: it died, runs "
        "another model, or does so without memopt. If it only needs longer, raise ranks_timeout; nothing was run."
    )


def _unreachable(ranks: Sequence[int], error: Exception) -> str:
    return (
        f"ranks {', '.join(map(str, ranks))} could not be compared, because the store of their process group does not answer: "
        f"the rank that keeps it died, most likely ({error}). Nothing was run."
    )
