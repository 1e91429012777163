"""The sizes of a value of a graph, and how many bytes it has."""

from __future__ import annotations

from collections.abc import Callable

import torch

Known = Callable[[int | torch.SymInt], int | None]
"""What tells a size, as in the captured call or as somebody asks about; None where only a run can tell."""


def size_hint(size: int | torch.SymInt) -> int | None:
    """A size as it was in the call that was captured; None where only a run can tell."""
    if isinstance(size, int):
        return size
    node = size.node
    return int(node.hint) if node.has_hint() else None


def nbytes(value: torch.Tensor, known: Known = size_hint) -> int | None:
    """The bytes of a tensor's distinct elements; None where a size is known only at run time.

    An expanded dimension (stride 0) has one element. A dynamic size counts as in the call that was captured.
    """
    total = value.element_size()
    for size, stride in zip(value.shape, value.stride(), strict=True):
        hint = known(size)
        if hint is None:
            return None
        total *= min(hint, 1) if isinstance(stride, int) and stride == 0 else hint
    return total


def shape_of(value: torch.Tensor) -> tuple[int | str, ...]:
    """The sizes of a tensor; a dynamic one by its symbol."""
    return tuple(s if isinstance(s, int) else str(s) for s in value.shape)
