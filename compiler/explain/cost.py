"""Shapes and work of the values in a graph."""

from __future__ import annotations

import functools

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from ...passes.sizes import Known, size_hint


def shape_of(value: torch.Tensor) -> tuple[int | str, ...]:
    """The sizes of a tensor; a dynamic one by its symbol."""
    return tuple(s if isinstance(s, int) else str(s) for s in value.shape)


def flops(node: Node, known: Known = size_hint) -> int | None:
    """Floating-point operations of a matrix product, convolution or attention; 0 for what torch does not count.

    None where a size is known only at run time. A dynamic size counts as in the call that was captured.

    Source: ``torch.utils.flop_counter``, which counts a multiply-add as two.
    """
    packet = getattr(node.target, "overloadpacket", None)
    count = flop_registry.get(packet)
    if count is None:
        return 0
    args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    given = (args, kwargs, node.meta["val"])
    sizes = [size for leaf in tree_leaves(given) for size in (leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,))]
    if any(isinstance(size, torch.SymInt) and known(size) is None for size in sizes):
        return None
    args, kwargs, value = tree_map_only(
        torch.SymInt, known, tree_map_only(torch.Tensor, functools.partial(_with_known_sizes, known=known), given)
    )
    return int(count(*args, **kwargs, out_val=value))


def _with_known_sizes(value: torch.Tensor, known: Known) -> torch.Tensor:
    """A tensor of the sizes of the captured call, without values: torch counts ragged attention by its values where it can.

    Reading a symbol as a number would add a guard to a finished graph.
    """
    return torch.empty([known(size) or 0 for size in value.shape], dtype=value.dtype, device="meta")
