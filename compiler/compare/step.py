"""One forward and backward, and what it leaves behind for a user to see."""

from __future__ import annotations

import copy
import dataclasses
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[[Any], Tensor]
Key = tuple[str, str]
"""The kind of a tensor, and its name."""


@dataclass
class State:
    """What a step left behind: the tensors by kind and name; None for a parameter without a gradient."""

    tensors: dict[Key, Tensor | None] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Runner:
    """What every copy of the model is called with, in every step.

    Attributes:
        args, kwargs: the inputs; each step gets copies.
        loss: a function of the output; None for :func:`loss_of`.
        seed: that of the first step; each has the next one.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    loss: Loss | None
    seed: int

    def step(self, model: nn.Module, number: int) -> State:
        """Run a model forward and backward once.

        Raises:
            ValueError: the inputs cannot be copied; the loss is not one number, or needs no gradient.
        """
        args, kwargs = self._inputs()
        model.zero_grad(set_to_none=True)
        seed_all(self.seed + number)
        with torch.enable_grad():
            outputs = model(*args, **kwargs)
            # Before the loss and the backward, which may change them.
            state = State({("output", name): value.detach().clone() for name, value in tensors_in(outputs, "output")})
            _checked(self.loss(outputs) if self.loss is not None else loss_of(outputs)).backward()  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters():
            state.tensors["gradient", name] = parameter.grad
        for name, value in (*tensors_in(args, "args"), *tensors_in(kwargs, "kwargs")):
            if value.requires_grad:
                state.tensors["gradient", name] = value.grad
        for name, buffer in model.named_buffers():
            state.tensors["buffer", name] = buffer.detach().clone()
        for device in dict.fromkeys(["cpu", *(p.device.type for p in model.parameters())]):
            state.tensors["random state", device] = torch.rand(4, device=device)
        return state

    def _inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            return copy.deepcopy((self.args, dict(self.kwargs)))
        except Exception as error:
            raise ValueError(f"args: copying the inputs failed: {type(error).__name__}: {error}") from error


def seed_all(seed: int) -> None:
    """Seed every generator that a model may draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def loss_of(outputs: Any) -> Tensor:
    """What is differentiated where nobody says: the output if it is one number, its ``loss`` if it has one.

    Else the sum of the elements of all floating-point outputs, each with a weight of its own between 0.5 and 1.5 so that errors
    do not cancel, divided by the square root of how many an output has so that half precision does not underflow.
    """
    if isinstance(outputs, Tensor) and outputs.numel() == 1:
        return outputs.sum()
    own = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(own, Tensor) and own.numel() == 1:
        return own.sum()
    parts = [_weighted(value) for _, value in tensors_in(outputs, "output") if value.requires_grad and value.numel()]
    if not parts:
        raise ValueError(
            "the model's output needs no gradient: no parameter or input that it uses requires one. Nothing can be compared."
        )
    return torch.stack([part.to(parts[0].device) for part in parts]).sum()


def _weighted(value: Tensor) -> Tensor:
    value = torch.view_as_real(value) if value.is_complex() else value
    exact = torch.float64 if value.dtype == torch.float64 else torch.float32
    weights = torch.linspace(0.5, 1.5, value.numel(), dtype=exact, device=value.device).reshape(value.shape)
    return (value.to(exact) * weights).sum().div(value.numel() ** 0.5).float()


def _checked(loss: object) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"a tensor of {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise ValueError(
            f"loss: found {found}; allowed: a function of the model's output that returns a tensor of one element."
        )
    if not loss.requires_grad:
        raise ValueError("the loss needs no gradient: no parameter or input that the model uses requires one.")
    return loss.sum()


def tensors_in(value: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors in what a model takes or returns, each with where it stands; numbers count as tensors of no dimension."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, bool | int | float | complex):
        yield path, torch.tensor(value)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            name = f"{path}.{key}" if isinstance(key, str) and key.isidentifier() else f"{path}[{key!r}]"
            yield from tensors_in(part, name)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name, part in zip(value._fields, value, strict=True):
            yield from tensors_in(part, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from tensors_in(part, f"{path}[{number}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for entry in dataclasses.fields(value):
            yield from tensors_in(getattr(value, entry.name, None), f"{path}.{entry.name}")
