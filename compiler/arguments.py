"""What may be given to ``compile_with_memopt`` and ``trace``; everything else is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from . import torch_bridge
from .errors import show
from .lowering import Backend, check_backend


def check_arguments(model: nn.Module, backend: Backend, options: Mapping[str, Any] | None, **switches: bool | None) -> None:
    """Refuse a model or settings that could not be honoured.

    Raises:
        TypeError: the model is none, or one that torch.compile does not compile; a switch is no truth value.
        ValueError: no such backend, or an unknown option.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: found {type(model).__name__}; allowed: a torch.nn.Module.")
    if isinstance(model, torch_bridge.OptimizedModule):
        raise TypeError(
            "model: found the result of torch.compile(model); allowed: the module itself. Pass model._orig_mod: "
            "compile_with_memopt compiles it."
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise TypeError(
            f"model: found {type(model).__name__}, a module of torch.jit; allowed: the torch.nn.Module that it was made of, "
            "since torch.compile does not look into torch.jit."
        )
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(f"options: found {show(options)}; allowed: a mapping of inductor's options, or None.")
    check_backend(backend, options)
    for name, value in switches.items():
        if not isinstance(value, bool) and not (name == "dynamic" and value is None):
            raise TypeError(
                f"{name}: found {show(value)}; allowed: True{', False or None' if name == 'dynamic' else ' or False'}."
            )


def check_call(args: Any, kwargs: Any) -> None:
    """Refuse what a model cannot be called with: one tensor in place of a tuple would be taken apart by its rows.

    Raises:
        TypeError: ``args`` is no tuple or list, or ``kwargs`` no mapping of names.
    """
    if not isinstance(args, tuple | list):
        found = "a tensor" if isinstance(args, torch.Tensor) else show(args)
        raise TypeError(f"args: found {found}; allowed: a tuple or list of arguments, as (x,) for one.")
    if kwargs is not None and not (isinstance(kwargs, Mapping) and all(isinstance(name, str) for name in kwargs)):
        raise TypeError(f"kwargs: found {show(kwargs)}; allowed: a mapping of names to values, or None.")


def check_number(name: str, value: object, *, least: int) -> None:
    """Refuse what is no whole number of at least ``least``.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is less.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: found {show(value)}; allowed: an integer of at least {least}.")
    if value < least:
        raise ValueError(f"{name}: found {value}; allowed: an integer of at least {least}.")


_LONGEST = 100_000_000
"""Seconds: three years. What is longer waits for ever, and may not fit a clock."""


def check_seconds(name: str, value: object) -> None:
    """Refuse what is no positive number of seconds.

    Raises:
        TypeError: it is no number.
        ValueError: it is not above zero.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: found {show(value)}; allowed: a number of seconds above 0.")
    if not 0 < value < _LONGEST:
        raise ValueError(f"{name}: found {show(value)}; allowed: a number of seconds above 0, and below {_LONGEST:,}.")
