"""Whose backward each operator of the backward is a part of: what a backend must not run together.

    backward of layer 1          recomputation of layer 0        backward of layer 0
    rotary_backward(cos, sin)    rotary(cos, sin)                ...

A backend that fuses could run both rotary kernels at once, since they read the same: layer 0 would then be computed again while
all of layer 1 is still alive.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import GraphModule, Node

from .joint import JointGraph, is_recomputed

_KEY = "memopt_turn"


def note_turns(joint: JointGraph, backward: GraphModule) -> None:
    """Note, at every node of the backward, the call of a layer it belongs to, and whether it is recomputed by a rule."""
    own = {n.name: n for n in joint.graph.nodes}
    for node in backward.graph.nodes:
        found = own.get(node.name)
        if found is not None and node.op == "call_function":
            node.meta[_KEY] = joint.call_of(found), is_recomputed(found)


def keep_apart(first: Iterable[Node], second: Iterable[Node]) -> bool:
    """Whether one kernel for both groups of operators would recompute a layer during the backward of another."""
    ours, theirs = ({n.meta[_KEY] for n in nodes if _KEY in n.meta} for nodes in (first, second))
    recomputes = any(recomputed for _, recomputed in ours | theirs)
    return recomputes and {call for call, _ in ours} != {call for call, _ in theirs}
