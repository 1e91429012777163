"""Compute early what leaves: a value must not keep others in memory until the end of the forward before it goes.

    fc1   = addmm(norm)                            fc1   = addmm(norm)
    ...   all other layers                  ->     erf   = erf(fc1)         both can leave now
    erf   = erf(fc1)                               ...

Values of the backward that depend on no gradient may be computed in the forward; a partitioner puts them last.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import Node

from .choose_offload import Move
from .pair import Pair


def hoist(pair: Pair, moves: Sequence[Move]) -> None:
    """Move what the moving values are computed from, as far as it is of the backward, to right behind its last input."""
    graph = pair.forward.graph
    late = {n.name for n in pair.joint.backward}
    nodes = {n.name: n for n in graph.nodes}
    wanted = {nodes[move.value.name] for move in moves}
    for node in reversed(graph.nodes):
        if node in wanted and node.name in late:
            wanted.update(node.all_input_nodes)
    *_, last_placeholder = graph.find_nodes(op="placeholder")
    position = {n: i for i, n in enumerate(graph.nodes)}
    first = position[last_placeholder]
    order = list(graph.nodes)
    behind: dict[int, Node] = {}
    for node in order:
        if node.op == "call_function" and node in wanted and node.name in late:
            place = max((position[i] for i in node.all_input_nodes), default=first)
            place = max(place, first)
            behind.get(place, order[place]).append(node)
            behind[place] = node
            position[node] = place
    graph.lint()
