"""What crosses from forward to backward in place of a value: an integer that owns the stored copy.

A ticket is an ``int64`` CPU tensor of shape ``[1]``. Its storage is a Python object (``Handle``) whose eight bytes hold a
key. Autograd, compilers and users pass the tensor around; when the last tensor on that storage is gone, so is the handle,
and the engine gets the stored copy back. A copy of the tensor owns nothing: its key leads nowhere once the handle is gone.
"""

from __future__ import annotations

import itertools
import sys
from typing import Protocol
from weakref import WeakValueDictionary

import torch


class Owned(Protocol):
    """What a handle can own."""

    def let_go(self) -> None:
        """The handle is gone. May be called at any time, in any thread, between any two lines: only take note of it."""


class Handle(bytearray):
    """The storage of a ticket or token."""

    owned: Owned | None = None

    def __del__(self) -> None:
        if self.owned is not None:
            self.owned.let_go()


_keys = itertools.count(1)
_handles: WeakValueDictionary[int, Handle] = WeakValueDictionary()


def issue(owned: Owned) -> torch.Tensor:
    """A new tensor that owns ``owned``."""
    key = next(_keys)
    handle = Handle(key.to_bytes(8, sys.byteorder))
    handle.owned = owned
    _handles[key] = handle
    return torch.frombuffer(handle, dtype=torch.int64)


def handle_of(tensor: torch.Tensor) -> Handle | None:
    """The handle that ``tensor`` stands for; None if it is gone, or never was."""
    return _handles.get(int(tensor.item())) if tensor.numel() == 1 else None


def is_blank(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is as ``blank`` makes them."""
    return tensor.numel() == 1 and int(tensor.item()) == 0


def blank() -> torch.Tensor:
    """A tensor that owns nothing: stands for a value on the meta device."""
    return torch.zeros(1, dtype=torch.int64, device="cpu")
