"""Keep the one value between a swapped layer and what comes next, so that each layer's backward reads its own values.

    h0 = add(x, fc2)           layers.0   OFFLOAD  ->  SAVE     layers.1 starts from it
    n1 = layer_norm(h0)        layers.1

Left to itself, a partitioner may recompute ``h0`` in the backward of layer 1 from what layer 0 saved: layer 0's values would
have to come back a layer early, and stay. SAVE here means: if a backward needs the value at all, it is saved.
"""

from __future__ import annotations

from torch.fx import Node

from ..joint import JointGraph, is_recomputed
from ..keep import keep
from ..operators import is_view_of, storage_root, viewed
from ..policy import Plan

RULE = "swap.borders"


def keep_borders(joint: JointGraph, plan: Plan) -> None:
    """Save what leaves a swapped layer, and what enters one from another layer, or, for it alone, from outside the layers."""
    if not any(layer.swap_full for layer in plan.layers):
        return
    operators = set(joint.forward_operators())
    for node in joint.forward_operators():
        if is_recomputed(node) or viewed(node) is not None or storage_root(node).op == "placeholder":
            continue
        call = joint.call_of(node)
        readers = {joint.call_of(user) for user in _readers(node) if user in operators}
        others = readers - {call}
        swapped = [c for c in ({call} | others) if c is not None and plan.layer(c[0]).swap_full]
        enters_one_layer = call is not None or (len(others) == 1 and readers == others)
        if others and swapped and enters_one_layer:
            scope = joint.scopes.get(node)
            layer, path = (scope.layer, scope.path) if scope is not None else (None, "")
            keep(node, RULE, "it lies between a swapped layer and the next", layer=layer, path=path)


def _readers(node: Node) -> list[Node]:
    """The operators that read the value or a view of it."""
    found: list[Node] = []
    pending = [node]
    for value in pending:
        for user in value.users:
            (pending if is_view_of(user, node) else found).append(user)
    return found
