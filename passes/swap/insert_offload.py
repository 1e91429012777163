"""Send every chosen value away after its last use in the forward; what crosses instead is a ticket of eight bytes.

fc1  = addmm(norm)                     fc1    = addmm(norm)
gelu = gelu(fc1)                       gelu   = gelu(fc1)
fc2  = addmm(gelu)              ->     ticket = memopt.offload(fc1, 'fc1 of layer 0, mlp', 'disk', ...)
return fc2, fc1                        fc2    = addmm(gelu)
                                       return fc2, ticket
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.fx import Node

from ..operators import is_symbolic
from ..policy import SwapPolicy
from .journey import Journey
from .pair import Pair
from .targets import OFFLOAD

IN_FLIGHT_CPU = 16 * 1024**2
IN_FLIGHT_ACCELERATOR = 256 * 1024**2


def insert_offload(pair: Pair, journeys: Sequence[Journey], policy: SwapPolicy, *, asynchronous: bool) -> None:
    """Insert one ``memopt::offload`` for each journey, and return the tickets in place of the values.

    ``asynchronous``: the backend does not reuse a value's memory while something holds the value.
    """
    graph = pair.forward.graph
    forward = {n.name: n for n in graph.nodes}
    instead: dict[Node, Node | None] = {}
    behind: dict[Node, Node] = {}
    for journey in journeys:
        move = journey.move
        value = forward[move.value.name]
        default = IN_FLIGHT_CPU if value.meta["val"].device.type == "cpu" else IN_FLIGHT_ACCELERATOR
        limit = policy.in_flight_bytes or default
        # The caller may change a layer's input when the layer has returned.
        in_background = asynchronous and move.value.op != "placeholder"
        settings = (move.title, move.store, policy.directory, limit, policy.host_limit, in_background)
        with graph.inserting_after(behind.get(journey.last_use, journey.last_use)):
            ticket = graph.call_function(OFFLOAD, (value, *settings), name=ticket_name(journey))
        behind[journey.last_use] = ticket
        ticket.meta = {"val": ticket_value(value), "partitioner_tag": "is_forward"}
        # The strides that the backward expects: inductor may choose others where it is not told.
        ticket.meta["eager_input_vals"] = ((value.meta["val"], *settings), {})
        first, *others = move.crossings
        instead |= {first.saved: ticket, **dict.fromkeys((c.saved for c in others), None)}
    _return_tickets(pair, instead)
    # Views that were only made to cross would hold the values' memory. Sizes stay: the backward may want them.
    graph.eliminate_dead_code(lambda node: node.is_impure() or is_symbolic(node))
    graph.lint()
    pair.forward.recompile()


def ticket_name(journey: Journey) -> str:
    """The name of the ticket in both graphs."""
    return f"{journey.move.value.name}_ticket"


def ticket_value(value: Node) -> torch.Tensor:
    """What stands for a ticket in the graph: one integer in host memory."""
    fake: torch.Tensor = value.meta["val"]
    return fake.new_empty((1,), dtype=torch.int64, device="cpu")


def _return_tickets(pair: Pair, instead: Mapping[Node, Node | None]) -> None:
    """Put each ticket where its value was returned, and return no other view of it."""
    (output,) = pair.forward.graph.find_nodes(op="output")
    returned = list(output.args[0])
    descriptions = output.meta.get("desc")
    first = pair.joint.num_fwd_outputs
    saved = [(i, instead.get(n, n) if isinstance(n, Node) else n) for i, n in enumerate(returned[first:], first)]
    kept = [(i, n) for i, n in saved if n is not None or returned[i] is None]
    output.args = ((*returned[:first], *(n for _, n in kept)),)
    if descriptions is not None:
        output.meta["desc"] = [*descriptions[:first], *(descriptions[i] for i, _ in kept)]
