"""Bring every value back: its reload is issued layers ahead, and waited for right before its first use.

    ticket = placeholder                            fc1 of layer 3, default_prefetch: 1
    token  = memopt.prefetch(ticket)                from the backward of layer 4 on, when there is room (``spread``)
    ...                                             the backward of layer 4
    fc1    = memopt.wait(token, [1024, 1024], ...)  before the first use in the backward of layer 3
    grad   = gelu_backward(g, fc1)

Every edge is one of data: the reload needs the ticket, the wait needs the reload, and every use needs what the wait returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.fx import Node

from ..operators import is_symbolic
from .insert_offload import ticket_name, ticket_value
from .journey import Journey
from .pair import Pair
from .symbols import Symbols
from .targets import PREFETCH, WAIT


def schedule_prefetch(pair: Pair, journeys: Sequence[Journey]) -> None:
    """Insert ``memopt::prefetch`` and ``memopt::wait`` for each journey, given in the order of their first use."""
    graph = pair.backward.graph
    symbols = Symbols(pair)
    tokens = {}
    # All reloads first: where one is issued at the node that waits for another, it does not wait too.
    for journey in journeys:
        loaded = _receive_ticket(pair, journey)
        with graph.inserting_before(journey.issue):
            token = graph.call_function(PREFETCH, (loaded,), name=f"{journey.move.value.name}_prefetch")
        token.meta = {"val": ticket_value(journey.move.value), "partitioner_tag": "is_backward"}
        tokens[journey] = token
    forward = {n.name: n for n in pair.forward.graph.nodes}
    for journey, token in tokens.items():
        own = forward[journey.move.value.name]
        tensor: torch.Tensor = own.meta["val"]
        sizes = symbols.sizes(own), symbols.strides(own)
        with graph.inserting_before(journey.first_use):
            value = graph.call_function(
                WAIT, (token, *sizes, tensor.dtype, tensor.device), name=f"{journey.move.value.name}_wait"
            )
            value.meta = {**journey.move.value.meta, "partitioner_tag": "is_backward"}
            value.meta.pop("eager_input_vals", None)  # what a custom operator was given, by which its arguments are laid out
            _replace_crossings(pair, journey, value, forward, symbols)
    for module in (pair.backward, pair.forward):
        module.graph.lint()
        module.recompile()


def _receive_ticket(pair: Pair, journey: Journey) -> Node:
    first = journey.move.crossings[0].loaded
    with pair.backward.graph.inserting_before(first):
        loaded = pair.backward.graph.placeholder(ticket_name(journey))
    loaded.meta = {**{k: v for k, v in first.meta.items() if k == "desc"}, "val": ticket_value(first)}
    return loaded


def _replace_crossings(pair: Pair, journey: Journey, value: Node, forward: Mapping[str, Node], symbols: Symbols) -> None:
    """Make the views again that crossed, each from what came back."""
    made: dict[Node, Node] = {journey.move.value: value}

    def again(node: Node) -> Node:
        if node not in made:
            if is_symbolic(node):
                return symbols.argument(forward[node.name])
            made[node] = pair.backward.graph.node_copy(node, again)
            made[node].meta = {**node.meta, "partitioner_tag": "is_backward"}
        return made[node]

    for crossing in journey.move.crossings:
        crossing.loaded.replace_all_uses_with(again(crossing.own))
        pair.backward.graph.erase_node(crossing.loaded)
