"""When every chosen value leaves and returns: found on the pair of graphs before either is edited.

    fc1 of layer 3, default_prefetch: 1

    forward     ... gelu(fc1)                      leaves after its last use, in layer 3
    backward    a node of layer 4's backward       issue: its reload begins (in layer 3's own, if memory is full)
                gelu_backward(g, fc1)              use: it is waited for, in layer 3

Layers count in the order in which their backwards begin, all of them, swapped or not. ``spread`` says at which node.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch.fx import Node

from ..joint import Call
from ..liveness.kernels import node_by_node
from ..operators import is_view_of, storage_root
from .choose_offload import Move
from .course import Kernels, course_of
from .pair import Pair
from .spread import Reload, spread


@dataclass(frozen=True, slots=True)
class Journey:
    """The way of one value.

    Attributes:
        move: what moves.
        last_use: the node of the forward graph after which it leaves.
        issue: the node of the backward graph before which its reload is issued.
        first_use: the node of the backward graph before which it is waited for.
        leaves_in: the layer of ``last_use``; None outside the layers.
        earliest: the call of a layer before whose backward its reload must not be issued.
        issued_in: the layer in whose backward its reload is issued.
        returning: the call of a layer whose backward first reads it.
    """

    move: Move
    last_use: Node
    issue: Node
    first_use: Node
    leaves_in: int | None
    earliest: Call
    issued_in: int
    returning: Call

    @property
    def returns_in(self) -> int:
        """The layer whose backward first reads it."""
        return self.returning[0]


def plan_journeys(pair: Pair, moves: Sequence[Move], ahead: int, kernels_of: Kernels = node_by_node) -> list[Journey]:
    """Find each move's places.

    Args:
        pair: both graphs, not edited yet.
        moves: what moves.
        ahead: ``default_prefetch``; 0 issues each reload only where it is waited for.
        kernels_of: what the backend makes of a graph.

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
        leaving = pair.joint.call_of(own[last.name])
        earliest, returning = calls[max(needed - ahead, 0)], calls[needed]
        return Journey(move, last, first, first, leaving[0] if leaving else None, earliest, returning[0], returning)

    found = sorted(map(journey, moves), key=lambda j: behind[j.first_use])
    return _ahead(pair, found, ahead, kernels_of) if ahead and found else found


def _ahead(pair: Pair, journeys: Sequence[Journey], ahead: int, kernels_of: Kernels) -> list[Journey]:
    """Issue each reload before its first use; in that order."""
    course = course_of(pair, [j.move for j in journeys], kernels_of)
    calls = list(pair.calls)
    number = {call: i for i, call in enumerate(calls)}
    reloads = []
    for j in journeys:
        use = course.at(j.first_use)
        gone = max(course.gone.get(j.move.value, len(course.begins)), use)
        reloads.append(Reload(j.move.size or 0, use, gone, number[j.returning]))
    places = spread(reloads, course.held, course.released, course.time, course.layers(pair), ahead)
    position = course.position
    begins = [position[first] for first in pair.calls.values()]
    found = []
    last = pair.calls[journeys[0].earliest]
    for j, place in zip(journeys, places, strict=True):
        # A kernel may begin before the layer does in which most of its operators lie.
        after = max(course.begins[place], pair.calls[j.earliest], last, key=position.__getitem__)
        last = min(after, j.first_use, key=position.__getitem__)
        running = bisect_right(begins, position[last]) - 1
        found.append(replace(j, issue=last, issued_in=calls[max(running, 0)][0]))
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
