"""A model as it was before, whatever its forward did to itself: for a look that must change nothing."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

Undo = Callable[[], None]

_OPAQUE = (torch.Tensor, type, types.ModuleType, types.FunctionType, types.MethodType)


@contextlib.contextmanager
def untouched(*roots: Any) -> Iterator[None]:
    """Afterwards, also after an exception, everything the roots hold is what it was, and so are the random states.

    Restored are the attributes of every module, its parameters and buffers among them, and of the objects they lead to; what
    lists, dictionaries, sets and deques contain; which parameters need a gradient, and have one. Not restored are elements of
    tensors, class attributes and global variables.
    """
    undo = [*_undo_changes(roots), *_undo_draws()]
    try:
        yield
    finally:
        for restore in undo:
            restore()


def _undo_changes(roots: tuple[Any, ...]) -> Iterator[Undo]:
    seen: dict[int, Any] = {}  # keeps what was seen alive, so that no id comes twice
    waiting = list(roots)
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, nn.Parameter):
            yield functools.partial(_restore_parameter, value, value.requires_grad, value.grad)
        elif isinstance(value, dict):
            yield functools.partial(_restore_items, value, dict(value))
            waiting += value.values()
        elif isinstance(value, list | set | deque):
            yield functools.partial(_restore_members, value, list(value))
            waiting += value
        elif isinstance(value, tuple):
            waiting += value
        if _has_attributes(value):
            waiting.append(value.__dict__)


def _has_attributes(value: Any) -> bool:
    """Whether an object's attributes are the model's own: those of torch and the standard library (loggers) lead everywhere."""
    if isinstance(value, nn.Module):
        return True
    if isinstance(value, _OPAQUE) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    package = type(value).__module__.partition(".")[0]
    return package != "torch" and package not in sys.stdlib_module_names


def _restore_parameter(parameter: nn.Parameter, requires_grad: bool, grad: torch.Tensor | None) -> None:
    if parameter.requires_grad != requires_grad:
        parameter.requires_grad_(requires_grad)
    if parameter.grad is not grad:
        parameter.grad = grad


def _restore_items(container: dict[Any, Any], items: dict[Any, Any]) -> None:
    if _same(container, items) and _same(container.values(), items.values()):
        return
    kind = OrderedDict if isinstance(container, OrderedDict) else dict  # subclasses may refuse to be changed
    kind.clear(container)
    for key, value in items.items():
        kind.__setitem__(container, key, value)


def _restore_members(container: list[Any] | set[Any] | deque[Any], members: list[Any]) -> None:
    if not _same(container, members):
        container.clear()
        (container.update if isinstance(container, set) else container.extend)(members)


def _same(found: Any, wanted: Any) -> bool:
    return [id(v) for v in found] == [id(v) for v in wanted]


def _undo_draws() -> Iterator[Undo]:
    yield functools.partial(random.setstate, random.getstate())
    yield functools.partial(torch.set_rng_state, torch.get_rng_state())
    if "numpy" in sys.modules:
        generator = sys.modules["numpy"].random
        yield functools.partial(generator.set_state, generator.get_state())
    if torch.accelerator.is_available():
        device = torch.get_device_module()
        if device.is_initialized():  # else nothing was drawn, and asking would take memory on every device
            yield functools.partial(device.set_rng_state_all, device.get_rng_state_all())
