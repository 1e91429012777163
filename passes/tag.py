"""Write decisions as tags for torch's partitioner: the only writer of them.

A saved view or ``getitem`` gets no tag: its storage, or its operator, carries it (see ``keep``). Nor does what is to be
swapped: it moves if torch saves it, and is not saved in order to move.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from torch.fx import Node

from .joint import JointGraph, decision_of
from .operators import viewed
from .policy import Action


def tag(joint: JointGraph, write: Callable[[Node, bool | None], None]) -> None:
    """Call ``write(node, recompute)`` for every operator of the forward: True, False (save) or None (torch's choice)."""
    for node in joint.forward_operators():
        decision = decision_of(node)
        if decision is None or decision.action is Action.OFFLOAD:
            write(node, None)
        elif decision.action is Action.RECOMPUTE:
            write(node, True)
        else:
            write(node, None if node.target is operator.getitem or viewed(node) is not None else False)
