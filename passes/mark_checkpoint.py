"""Read what ``torch.utils.checkpoint`` in the user's own model asks for, so that it is honoured and explained too.

memopt's rules are marked after it, and add what it does not recompute.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.fx import Node

from .joint import JointGraph, decide
from .policy import Action, Decision

RULE = "torch.utils.checkpoint"
# Regions of the user's checkpoints are numbered far above memopt's own, which count from zero.
_FIRST_REGION = 1 << 32


def mark_checkpoint(joint: JointGraph, tag_of: Callable[[Node], tuple[bool, int] | None]) -> None:
    """Turn the tags that ``torch.utils.checkpoint`` left on forward nodes into decisions.

    ``tag_of`` gives a node's tag: (recompute?, region number), or None.
    """
    for node in joint.forward_operators():
        tag = tag_of(node)
        if tag is None:
            continue
        recompute, region = tag
        scope = joint.scopes.get(node)
        layer, path = (scope.layer, scope.path) if scope is not None else (None, "")
        if recompute:
            decision = Decision(Action.RECOMPUTE, RULE, layer, path, "the model checkpoints it", _FIRST_REGION + region)
        else:
            reason = "the model's checkpoint policy saves it"
            decision = Decision(Action.SAVE, RULE, layer, path, reason, _FIRST_REGION + region)
        decide(node, decision)
