"""A random value is saved, or recomputed with its own forward's random state; never drawn again.

    mask = bernoulli(p)        -          ->  SAVE        outside regions
    mask = bernoulli(p)        RECOMPUTE  ->  RECOMPUTE   replayed: the partitioner saves the generator's state before it

Inductor draws from a seed that is an ordinary value, so its random operators are not random here, and its seeds are left
to torch, which saves them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.fx import Node

from ..joint import JointGraph, decide, decision_of, is_recomputed
from ..keep import keep
from ..matched import Matched
from ..operators import draws_random_numbers, subgraphs

RULE = "legalize.random"


def keep_or_replay_random(joint: JointGraph, _matched: Matched) -> None:
    """Save random values outside regions; inside, replay those whose generator's state torch can save."""
    for node in joint.forward_operators():
        if not draws_random_numbers(node):
            continue
        decision = decision_of(node)
        scope = joint.scopes.get(node)
        layer, path = (scope.layer, scope.path) if scope is not None else (None, "")
        if decision is None or not is_recomputed(node):
            if decision is None:
                keep(node, RULE, "a second run would draw other numbers", layer=layer, path=path)
        elif subgraphs(node) or _has_own_generator(node) or not _on_replayable_device(node):
            keep(node, RULE, "its generator's state cannot be replayed")
        else:
            decide(node, replace(decision, reason=f"{_REPLAYED}, {decision.reason.removeprefix(_REPLAYED + ', ')}"))


_REPLAYED = "replayed from the forward's random state"


def _has_own_generator(node: Node) -> bool:
    return node.kwargs.get("generator") is not None


def _on_replayable_device(node: Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    devices = {v.device.type for v in values if isinstance(v, torch.Tensor)}
    return devices <= {"cpu", "cuda"}
