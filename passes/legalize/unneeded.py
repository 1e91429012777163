"""What the backward does not need is not run again.

    fc1  = addmm(norm)         RECOMPUTE
    gelu = gelu(fc1)           RECOMPUTE          the backward of fc2 reads it
    fc2  = addmm(gelu)         RECOMPUTE  ->  -   only the next layer reads it
"""

from __future__ import annotations

from torch.fx import Node

from ..joint import JointGraph, decide, is_recomputed
from ..matched import Matched


def drop_what_backward_does_not_need(joint: JointGraph, _matched: Matched) -> None:
    """Drop RECOMPUTE from values that neither the backward nor another recomputed value reads."""
    needed: set[Node] = set()
    for node in reversed(joint.graph.nodes):
        if not is_recomputed(node):
            continue
        if joint.read_by_backward(node) or any(u in needed for u in node.users):
            needed.add(node)
        else:
            decide(node, None)
