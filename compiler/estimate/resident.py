"""What is in memory all the time: parameters, buffers, and the optimizer's state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from .. import torch_bridge

OptimizerType = Callable[[Iterable[nn.Parameter]], Optimizer] | Optimizer | None


def resident(model: nn.Module, optimizer: OptimizerType) -> dict[str, int]:
    """The bytes of what outlives a step, each storage once.

    Args:
        model: on any device, also on the meta device.
        optimizer: an optimizer, whose state is counted as after its first step; or what makes one of parameters, such as
            ``torch.optim.AdamW``; None for none.

    Raises:
        ValueError: the optimizer cannot be made or take a step.
    """
    parameters = _bytes(model.parameters())
    found = {"parameters": parameters, "buffers": _bytes(model.buffers())}
    return found if optimizer is None else {**found, "optimizer": _state_bytes(model, optimizer)}


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    """The bytes of this process's part of tensors; memory that several share counts once."""
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    storages = [t.untyped_storage() for t in local]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def _state_bytes(model: nn.Module, optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | Optimizer) -> int:
    """The state after one step, taken on fake tensors by an optimizer of the same kind."""
    make: Any
    if isinstance(optimizer, Optimizer):
        if optimizer.state:
            return _bytes(t for t in tree_leaves(list(optimizer.state.values())) if isinstance(t, torch.Tensor))
        groups, make, options = optimizer.param_groups, type(optimizer), _learning_rate(optimizer)
    else:
        groups, make, options = [{"params": [p for p in model.parameters() if p.requires_grad]}], optimizer, {}
    with torch_bridge.fake_tensors("cpu") as fake:
        own_groups = [{**group, "params": [_stand_in(p, fake) for p in group["params"]]} for group in groups]
        try:
            made = make(own_groups, **options)
            with contextlib.suppress(*torch_bridge.NEEDS_VALUE):  # it asks for a value, after it has made its state
                made.step()
            if made.state and len(made.state) < sum(len(group["params"]) for group in own_groups):
                raise RuntimeError("it asks for values of its parameters")
        except Exception as error:
            raise ValueError(
                f"optimizer: found {make!r}, which cannot take a step on these parameters ({type(error).__name__}: {error}); "
                "allowed: an optimizer, or what makes one of parameters, such as torch.optim.AdamW."
            ) from error
        state = [t for t in tree_leaves(list(made.state.values())) if isinstance(t, torch.Tensor)]
        return sum(t.numel() * t.element_size() for t in state)


def _stand_in(parameter: nn.Parameter, fake: Callable[[torch.Tensor], torch.Tensor]) -> nn.Parameter:
    own = nn.Parameter(fake(parameter.detach()).detach())
    own.grad = torch.empty_like(own)
    return own


def _learning_rate(optimizer: Optimizer) -> Mapping[str, Any]:
    return {"lr": optimizer.defaults["lr"]} if "lr" in optimizer.defaults else {}
