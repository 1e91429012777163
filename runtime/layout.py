"""Which bytes of a value are stored, and how they become the value again.

::

    dense, transposed, channels_last, expanded   the span from the first to the last element, as it lies
    x[:, 1:3] of 100 columns                     only its elements, packed: the span would be 50 times larger

An expanded dimension (stride 0) repeats what is stored once. Bytes are kept exactly, whatever the type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Layout:
    """The form of a value and of its stored copy.

    Attributes:
        size: the value's size.
        stride: the value's strides, in elements.
        dtype: the value's type.
        elements: how many elements are stored.
        packed: whether they are packed, or lie as in the value.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    elements: int
    packed: bool

    @staticmethod
    def of(value: torch.Tensor) -> Layout:
        """The layout under which ``value`` takes the fewest bytes."""
        size, stride = tuple(value.shape), tuple(value.stride())
        if 0 in size:
            return Layout(size, stride, value.dtype, 0, packed=False)
        span = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        distinct = math.prod(n for n, step in zip(size, stride, strict=True) if step)
        return Layout(size, stride, value.dtype, min(span, distinct), packed=distinct < span)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored copy."""
        return self.elements * self.dtype.itemsize

    def bytes_of(self, value: torch.Tensor) -> torch.Tensor:
        """The bytes of ``value`` that are stored, flat: a view of it where they need not be packed."""
        flat = self._distinct(value).contiguous().view(-1) if self.packed else self._span(value)
        return _as_bytes(flat.resolve_conj().resolve_neg())

    def empty(self, device: torch.device) -> torch.Tensor:
        """A tensor for the stored copy to land in."""
        if self.packed:
            return torch.empty(self.elements, dtype=self.dtype, device=device)
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=device)

    def landing(self, landed: torch.Tensor) -> torch.Tensor:
        """The bytes of what ``empty`` gave, flat: a view."""
        return _as_bytes(landed if self.packed else self._span(landed))

    def restore(self, landed: torch.Tensor) -> torch.Tensor:
        """The value, from what ``empty`` gave and the stored copy was written to."""
        if not self.packed:
            return landed
        value = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=landed.device)
        target = self._distinct(value)
        target.copy_(landed.view(target.shape))
        return value

    def agrees(self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Whether a tensor of this form addresses the same elements; the stride of a dimension of size 1 says nothing."""
        if (size, dtype) != (self.size, self.dtype) or len(stride) != len(size):
            return False
        return 0 in size or all(n == 1 or ours == theirs for n, ours, theirs in zip(size, self.stride, stride, strict=True))

    def converts_to(self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Whether a tensor of this form, in which every element has a place of its own, can take the value."""
        return (size, dtype) == (self.size, self.dtype) and len(stride) == len(size) and _has_own_places(size, stride)

    def _span(self, value: torch.Tensor) -> torch.Tensor:
        return value.as_strided((self.elements,), (1,))

    def _distinct(self, value: torch.Tensor) -> torch.Tensor:
        kept = [(n, step) for n, step in zip(self.size, self.stride, strict=True) if step]
        return value.as_strided([n for n, _ in kept], [step for _, step in kept])


def _as_bytes(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.uint8)


def _has_own_places(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether no two elements of such a tensor share memory, as far as nested strides tell."""
    reach = 0
    for step, n in sorted((step, n) for n, step in zip(size, stride, strict=True) if n > 1):
        if step <= reach:
            return False
        reach += (n - 1) * step
    return True
