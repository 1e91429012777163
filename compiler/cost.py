"""Shapes and work of the values in a graph."""

from __future__ import annotations

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils.flop_counter import flop_registry


def shape_of(value: torch.Tensor) -> tuple[int | str, ...]:
    """The sizes of a tensor; a dynamic one by its symbol."""
    return tuple(s if isinstance(s, int) else str(s) for s in value.shape)


def flops(node: Node) -> int:
    """Floating-point operations of a matrix product, convolution or attention; 0 for what torch does not count.

    Source: ``torch.utils.flop_counter``, which counts a multiply-add as two.
    """
    packet = getattr(node.target, "overloadpacket", None)
    count = flop_registry.get(packet)
    if count is None:
        return 0
    args = map_arg(node.args, lambda n: n.meta["val"])
    kwargs = map_arg(node.kwargs, lambda n: n.meta["val"])
    return int(count(*args, **kwargs, out_val=node.meta["val"]))
