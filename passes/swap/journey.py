"""When every chosen value leaves and returns: found on the pair of graphs before either is edited.

    fc1 of layer 3, default_prefetch: 1

    forward     ... gelu(fc1)                      leaves after its last use, in layer 3
    backward    a node of layer 4's backward       issue: its reload begins
                gelu_backward(g, fc1)              use: it is waited for, in layer 3

Layers count in the order in which their backwards begin, all of them, swapped or not. ``spread`` says at which node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch.fx import Node

from ..joint import Call
from ..operators import is_view_of, storage_root
from .choose_offload import Move
from .pair import Pair
from .spread import releases, spread


@dataclass(frozen=True, slots=True)
class Journey:
    """The way of one value.

    Attributes:
        move: what moves.
        last_use: the node of the forward graph after which it leaves.
        issue: the node of the backward graph before which its reload is issued.
        first_use: the node of the backward graph before which it is waited for.
        leaves_in: the layer of ``last_use``; None outside the layers.
        issuing: the call of a layer in whose backward its reload is issued.
        returns_in: the layer whose backward first reads it.
    """

    move: Move
    last_use: Node
    issue: Node
    first_use: Node
    leaves_in: int | None
    issuing: Call
    returns_in: int | None

    @property
    def issued_in(self) -> int:
        """The layer in whose backward its reload is issued."""
        return self.issuing[0]


def plan_journeys(pair: Pair, moves: Sequence[Move], ahead: int) -> list[Journey]:
    """Find each move's places.

    Args:
        pair: both graphs, not edited yet.
        moves: what moves.
        ahead: ``default_prefetch``; 0 issues each reload only where it is waited for.

    Returns:
        The journeys in the order of their first use in the backward.
    """
    forward = {n.name: n for n in pair.forward.graph.nodes}
    before = {n: i for i, n in enumerate(pair.forward.graph.nodes)}
    behind = {n: i for i, n in enumerate(pair.backward.graph.nodes)}
    own = {n.name: n for n in pair.joint.graph.nodes}
    calls = list(pair.calls)
    place = {call: i for i, call in enumerate(calls)}

    def journey(move: Move) -> Journey:
        last = max(uses(forward[move.value.name]), key=before.__getitem__)
        first = min((u for c in move.crossings for u in c.loaded.users), key=behind.__getitem__)
        needed = min(place[call] for call in _reading_calls(pair, move))
        issuing = calls[max(needed - ahead, 0)]
        issue = min(pair.calls[issuing], first, key=behind.__getitem__) if ahead else first
        leaving = pair.joint.call_of(own[last.name])
        return Journey(move, last, issue, first, leaving[0] if leaving else None, issuing, calls[needed][0])

    found = sorted(map(journey, moves), key=lambda j: behind[j.first_use])
    return _one_by_one(pair, found, behind) if ahead else found


def _one_by_one(pair: Pair, journeys: Sequence[Journey], position: Mapping[Node, int]) -> list[Journey]:
    """Spread the reloads of each backward over it; in the order of use, and none after its first use."""
    released = releases(pair, [j.move for j in journeys])
    own: dict[Call, list[Journey]] = {}
    for j in journeys:
        # What is used in the backward that issues it, or before, has no time to lose.
        if j.issue is pair.calls[j.issuing] and j.issuing not in _reading_calls(pair, j.move):
            own.setdefault(j.issuing, []).append(j)
    stretches = pair.stretches()
    places: dict[Journey, Node] = {}
    for call, ours in own.items():
        places |= zip(ours, spread(stretches[call], [j.move.size or 0 for j in ours], released), strict=True)
    found = []
    last: dict[Call, Node] = {}
    for j in journeys:
        place = max(places.get(j, j.issue), last.get(j.issuing, j.issue), key=position.__getitem__)
        last[j.issuing] = min(place, j.first_use, key=position.__getitem__)
        found.append(replace(j, issue=last[j.issuing]))
    return found


def uses(value: Node) -> list[Node]:
    """The value, and the operators of its graph that read its storage; a view of it is no use by itself."""
    root = storage_root(value)
    aliases = [root]
    found = [value]
    for alias in aliases:
        for user in alias.users:
            if is_view_of(user, root):
                aliases.append(user)
            elif user.op == "call_function":
                found.append(user)
    return found


def _reading_calls(pair: Pair, move: Move) -> Iterator[Call]:
    for crossing in move.crossings:
        for reader in pair.readers(crossing.loaded):
            call = pair.call_of(reader)
            if call is not None:
                yield call
