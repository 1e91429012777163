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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...passes.policy import LayerPlan, Plan
from .. import torch_bridge
from ..cache_key import source_digest
from ..explain.collectives import Step
from .rendezvous import meet

DEFAULT_TIMEOUT = 300.0
"""Seconds to wait for the other ranks: their compilation may take long, where this one's came from a cache."""


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
        refusal: why this rank must not go on, found in another group already; None if nothing.
    """

    memopt: str
    plan: tuple[str, ...]
    steps: tuple[str, ...]
    refusal: str | None = None

    @property
    def text(self) -> str:
        """The statement as text."""
        return json.dumps([self.memopt, self.plan, self.steps, self.refusal])

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
        self._agreed: set[tuple[int, tuple[int, ...], str]] = set()

    def reach(self, plan: Plan, steps: Sequence[Step]) -> None:
        """Compare with every rank that takes part in the collectives; return when all are of one mind.

        Raises:
            RanksDisagreeError: some rank has another plan or order of collectives, or has not compiled the graph in time.
        """
        world, refusal = id(torch_bridge.default_group()), None
        # In one order on every rank, so that no two wait for each other in different groups.
        for ranks, texts in sorted(_by_ranks(steps).items()):
            statement = Statement(source_digest(), tuple(described(plan)), tuple(texts))
            key = world, ranks, statement.digest
            if key in self._agreed:
                continue
            # A rank that was refused by one group tells the next: its members would wait for it.
            refusal = (
                _compare(statement if refusal is None else replace(statement, refusal=refusal), ranks, self.timeout) or refusal
            )
            if refusal is None:
                self._agreed.add(key)
        if refusal is not None:
            raise RanksDisagreeError(refusal)


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


def _compare(statement: Statement, ranks: tuple[int, ...], timeout: float) -> str | None:
    """Why the ranks must not go on; None when all of them may."""
    group = hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]
    try:
        board = torch_bridge.store_of_ranks(f"memopt/{group}")
        return meet(board, ranks, statement.text, _judge, timeout)
    except torch_bridge.StoreError as error:
        return _unreachable(ranks, error)


def _judge(said: Mapping[int, str]) -> str | None:
    """What differs between the first rank and the first that says something else."""
    statements = {rank: _statement(text) for rank, text in sorted(said.items())}
    refusal = next((s.refusal for s in statements.values() if s.refusal is not None), None)
    if refusal is not None:
        return refusal
    (one, first), *others = statements.items()
    return next((_difference(first, s, one, rank) for rank, s in others if s != first), None)


def _difference(a: Statement, b: Statement, one: int, other: int) -> str:
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


def _statement(text: str) -> Statement:
    memopt, plan, steps, refusal = json.loads(text)
    return Statement(memopt, tuple(plan), tuple(steps), refusal)


def _first_difference(a: Sequence[str], b: Sequence[str], one: int, other: int) -> str:
    for number, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return f"rank {one} has {left!r} where rank {other} has {right!r} (number {number})"
    longer, rest = (one, a[len(b) :]) if len(a) > len(b) else (other, b[len(a) :])
    return f"rank {longer} has {rest[0]!r} where the other has nothing more"


def _unreachable(ranks: Sequence[int], error: Exception) -> str:
    return (
        f"ranks {', '.join(map(str, ranks))} could not be compared, because the store of their process group does not answer: "
        f"the rank that keeps it died, most likely ({error}). Nothing was run."
    )
