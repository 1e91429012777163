"""Stand-ins for a model's tensors, so that it can be captured without memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import nn


@contextlib.contextmanager
def replaced_meta_tensors(model: nn.Module, stand_in: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Within, the model's parameters and buffers on the meta device are ``stand_in(tensor)``; tied ones stay tied.

    Torch can neither capture autograd on meta tensors faithfully nor choose the kernels of the device that is meant.
    """
    made: dict[int, torch.Tensor] = {}
    replaced: list[tuple[dict[str, torch.Tensor | None], str, torch.Tensor]] = []
    try:
        for module in model.modules():
            for tensors in (module._parameters, module._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None and tensor.device.type == "meta":
                        replaced.append((tensors, name, tensor))  # type: ignore[arg-type]
                        tensors[name] = made.setdefault(id(tensor), stand_in(tensor))  # type: ignore[assignment]
        yield
    finally:
        for tensors, name, tensor in replaced:
            tensors[name] = tensor
