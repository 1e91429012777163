"""Two states of one step, tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf

import torch
from torch import Tensor

from .comparison import ComparisonRow
from .step import State

TOLERANCES: Mapping[torch.dtype, float] = {
    torch.float64: 1e-11,
    torch.float32: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 2e-2,
}
"""How far rounding takes two orders of the same sums apart, relative to the largest value, by the coarsest type in the sums."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def judge(found: State, wanted: State, step: int, allowed: float) -> Iterator[ComparisonRow]:
    """One row for each tensor of either state.

    Args:
        found: of the configured model.
        wanted: of the plain model.
        step: the number of the step.
        allowed: the largest relative difference of floating-point tensors.
    """
    gradients = [t for (kind, _), t in wanted.tensors.items() if kind == "gradient" and t is not None]
    largest_gradient = max((_largest(t) for t in gradients), default=0.0)
    for key in dict.fromkeys((*wanted.tensors, *found.tensors)):
        kind, name = key
        left, right = found.tensors.get(key), wanted.tensors.get(key)
        if left is None and right is None:
            continue
        if left is None or right is None or (left.shape, left.dtype) != (right.shape, right.dtype):
            yield ComparisonRow(kind, name, step, inf, inf, False, 0.0, is_rounded=False)
            continue
        left, right = _plain(left), _plain(right)
        is_rounded = right.is_floating_point() and kind != "random state"
        most = allowed if is_rounded else 0.0
        if same_bits(left, right):
            yield ComparisonRow(kind, name, step, 0.0, 0.0, True, most, is_rounded)
            continue
        absolute = _difference(left, right)
        scale = largest_gradient if kind == "gradient" else _largest(right)
        relative = 0.0 if absolute == 0 else absolute / scale if scale else inf
        yield ComparisonRow(kind, name, step, absolute, relative, False, most, is_rounded)


def has_finite_gradients(state: State) -> bool:
    """Whether all gradients of a state are numbers."""
    gradients = (t for (kind, _), t in state.tensors.items() if kind == "gradient" and t is not None)
    return all(bool(torch.isfinite(_plain(t)).all()) for t in gradients)


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether two tensors of one type are the same in every bit; all NaN count as one."""
    bits = _BITS[left.element_size()]
    same = left.contiguous().view(bits) == right.contiguous().view(bits)
    if left.is_floating_point():
        same |= torch.isnan(left) & torch.isnan(right)
    return bool(same.all())


def _plain(value: Tensor) -> Tensor:
    """A dense tensor of real numbers."""
    value = value.detach()
    if callable(local := getattr(value, "to_local", None)):  # of a tensor that is spread over ranks, this one's part
        value = local()
    value = value.values() if value.is_nested else value
    value = value.to_dense() if value.layout != torch.strided else value
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    # Types of one byte know no arithmetic.
    return value.float() if value.is_floating_point() and value.element_size() == 1 else value.resolve_neg()


def _difference(left: Tensor, right: Tensor) -> float:
    """The largest difference of two elements; infinite where only one is a number, or they are different infinities."""
    same = (left == right) | (torch.isnan(left) & torch.isnan(right))
    apart = torch.where(same, 0.0, left.double() - right.double()).abs()
    return float(torch.nan_to_num(apart, nan=inf, posinf=inf).max())


def _largest(value: Tensor) -> float:
    """The largest finite magnitude."""
    value = _plain(value)
    finite = value[torch.isfinite(value)]
    return float(finite.double().abs().max()) if finite.numel() else 0.0
