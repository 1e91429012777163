"""Sizes and work of the values in a graph, from their shapes."""

from __future__ import annotations

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils.flop_counter import flop_registry

from .torch_bridge import size_hint


def nbytes(value: torch.Tensor) -> int | None:
    """The bytes of a tensor's distinct elements; None where a size is known only at run time.

    An expanded dimension (stride 0) has one element. A dynamic size counts as in the call that was captured.
    """
    total = value.element_size()
    for size, stride in zip(value.shape, value.stride(), strict=True):
        hint = size_hint(size)
        if hint is None:
            return None
        total *= min(hint, 1) if isinstance(stride, int) and stride == 0 else hint
    return total


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
