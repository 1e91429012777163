"""How much arithmetic an operator has."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from .sizes import Known, size_hint


def flops(node: Node, known: Known = size_hint) -> int | None:
    """Floating-point operations of a matrix product, convolution or attention; 0 for what torch does not count.

    None where a size is known only at run time. A dynamic size counts as in the call that was captured.

    Source: ``torch.utils.flop_counter``, which counts a multiply-add as two.
    """
    target, own = _inner(node)
    packet = getattr(target, "overloadpacket", None)
    count: Any = flop_registry.get(packet) or _NOT_REGISTERED.get(str(packet))
    if count is None:
        return 0
    args, kwargs = map_arg((own, node.kwargs), lambda n: n.meta["val"])
    given = (args, kwargs, node.meta.get("val"))
    sizes = [size for leaf in tree_leaves(given) for size in (leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,))]
    if any(isinstance(size, torch.SymInt) and known(size) is None for size in sizes):
        return None
    args, kwargs, value = tree_map_only(
        torch.SymInt, known, tree_map_only(torch.Tensor, functools.partial(_with_known_sizes, known=known), given)
    )
    return int(count(*args, **kwargs, out_val=value))


def _inner(node: Node) -> tuple[object, tuple[Any, ...]]:
    """An operator and its arguments; of one that is run with a random state kept for it, the operator within."""
    for place, given in enumerate(node.args[:2]):
        if isinstance(given, torch._ops.OpOverload) and "rng_state" in str(node.target):
            return given, node.args[place + 1 :]
    return node.target, node.args


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


def _attention_backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> int:
    shapes = (gradient.shape, query.shape, key.shape, value.shape)
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


# Attention on the CPU: torch counts only the accelerators'.
_NOT_REGISTERED = {
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}


def _with_known_sizes(value: torch.Tensor, known: Known) -> torch.Tensor:
    """A tensor of the sizes of the captured call, without values: torch counts ragged attention by its values where it can.

    Reading a symbol as a number would add a guard to a finished graph.
    """
    return torch.empty([known(size) or 0 for size in value.shape], dtype=value.dtype, device="meta")
