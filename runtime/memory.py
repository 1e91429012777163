"""The memory of a CPU tensor, as files are read into and written from it."""

from __future__ import annotations

import ctypes

import torch


def memory_of(flat: torch.Tensor) -> memoryview:
    """The bytes of a flat ``uint8`` tensor in host memory. The view does not keep the tensor alive: its owner must."""
    return memoryview((ctypes.c_ubyte * flat.numel()).from_address(flat.data_ptr()))
