"""Prove, on the final pair of graphs, that every chosen value leaves once, comes back once, and in time.

What holds afterwards, for each value that moves:
- one ``memopt::offload`` in the forward, after every use of the value's storage there, and none in the backward;
- its ticket crosses, once and in its place, and neither the value nor a view of it does;
- one ``memopt::prefetch`` of that ticket, not before the backward of the earliest layer it may be issued in, unless its first
  use comes earlier, and none before that of a value that is used earlier;
- one ``memopt::wait`` for it, of the value's form, right before the first use; nothing reads what crossed before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch.fx import Graph, Node

from ..operators import is_symbolic, storage_root, viewed
from ..verify import VerificationError, saved_values
from .insert_offload import ticket_name
from .journey import Journey
from .pair import Pair
from .targets import OFFLOAD, PREFETCH, WAIT


def verify_swap(pair: Pair, journeys: Sequence[Journey]) -> None:
    """Raise VerificationError for the first value that does not travel as planned."""
    count = len(journeys)
    _expect(_count(pair.forward.graph, OFFLOAD) == count, "the forward has another number of offloads than values move")
    _expect(_count(pair.backward.graph, OFFLOAD) == 0, "the backward would offload again")
    for target in (PREFETCH, WAIT):
        _expect(_count(pair.backward.graph, target) == count, f"the backward has another number of {target} than values move")
    crossing = {storage_root(own) for _, own in saved_values(pair.joint, pair.forward) if own is not None}
    position = {n: i for i, n in enumerate(pair.forward.graph.nodes)}
    last_use = _last_uses(pair.forward.graph)
    forward = {n.name: n for n in position}
    (output,) = pair.forward.graph.find_nodes(op="output")
    loaded = {n.name: n for n in pair.backward.graph.find_nodes(op="placeholder")}
    returned = [n.name for n in output.args[0][pair.joint.num_fwd_outputs :] if isinstance(n, Node) and not is_symbolic(n)]
    received = [name for name, n in loaded.items() if not is_symbolic(n)]
    own = {ticket_name(journey) for journey in journeys}
    times = Counter(returned)
    following = _next_original(pair)
    behind = {n: i for i, n in enumerate(pair.backward.graph.nodes)}
    issued = -1
    for journey in journeys:
        title, ticket = journey.move.title, forward.get(ticket_name(journey))
        if ticket is None or ticket.target is not OFFLOAD or ticket.args[0] is not forward[journey.move.value.name]:
            raise VerificationError(f"{title} does not leave")
        last = last_use.get(storage_root(forward[journey.move.value.name]))
        _expect(last is None or position[last] < position[ticket], f"{title} leaves before its last use")
        _expect(storage_root(journey.move.value) not in crossing, f"{title} moves, and crosses on the device too")
        receiver = loaded.get(ticket.name)
        if receiver is None or times[ticket.name] != 1:
            raise VerificationError(f"the ticket of {title} does not cross")
        _expect(not any(c.own.name in loaded for c in journey.move.crossings), f"the backward still receives {title} itself")
        token = _verify_return(journey, receiver, following)
        begin = min(behind[pair.calls[journey.earliest]], behind[journey.first_use])
        _expect(begin <= behind[following[token]], f"{title} is fetched before the backward of layer {journey.earliest[0]}")
        _expect(issued < behind[token], f"{title} is fetched before what is used earlier")
        issued = behind[token]
        _expect(following[token] is journey.issue, f"{title} is not fetched at its place")
    # By place, not by name: a partitioner may rename what it saves of its own, such as random states.
    places = [[(i, name) for i, name in enumerate(names) if name in own] for names in (returned, received)]
    _expect(places[0] == places[1], "what the forward returns for the backward arrives there in another order")


def _verify_return(journey: Journey, receiver: Node, following: dict[Node, Node]) -> Node:
    """Check the way back but for the place of the reload, which is returned."""
    title = journey.move.title
    tokens = [u for u in receiver.users if u.target is PREFETCH]
    _expect(len(tokens) == 1 == len(receiver.users), f"{title} is not fetched exactly once")
    waits = [u for u in tokens[0].users if u.target is WAIT]
    _expect(len(waits) == 1 == len(tokens[0].users), f"{title} is not waited for exactly once")
    _expect(following[waits[0]] is journey.first_use, f"{title} is not waited for right before its first use")
    _expect(_has_form_of(waits[0], journey.move.value), f"{title} is waited for in another form")
    _expect(bool(waits[0].users), f"{title} comes back, and nothing reads it")
    return tokens[0]


def _has_form_of(wait: Node, value: Node) -> bool:
    """Whether a wait asks for the sizes, strides and type of a value, as far as they are known now."""
    tensor = value.meta["val"]
    _, sizes, strides, dtype, device = wait.args
    wanted = [*tensor.shape, *tensor.stride()]
    asked = [*sizes, *strides]  # type: ignore[misc]
    alike = all(a == b for a, b in zip(asked, wanted, strict=True) if isinstance(a, int) and isinstance(b, int))
    return alike and (dtype, device) == (tensor.dtype, tensor.device)


def _last_uses(graph: Graph) -> dict[Node, Node]:
    """For every storage the last operator that reads it, views and offloads apart."""
    found: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target is not OFFLOAD and viewed(node) is None:
            found |= dict.fromkeys(map(storage_root, node.all_input_nodes), node)
    return found


def _next_original(pair: Pair) -> dict[Node, Node]:
    """For every node of the backward the next one that swap did not insert."""
    found: dict[Node, Node] = {}
    following: Node | None = None
    for node in reversed(pair.backward.graph.nodes):
        if following is not None:
            found[node] = following
        if node in pair.original:
            following = node
    return found


def _count(graph: Graph, target: object) -> int:
    return sum(n.target is target for n in graph.nodes)


def _expect(holds: bool, fault: str) -> None:
    if not holds:
        raise VerificationError(fault)
