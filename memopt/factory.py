"""From ``pkg.module:factory`` on the command line to a model and what it is called with."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from .compiler.places import place_in, place_of


class FactoryError(ValueError):
    """A model or its inputs could not be had; the message says why, and what to do."""


@dataclass(frozen=True, eq=False, slots=True)
class Built:
    """A model, and what it is called with; ``args`` is None where the factory gave no inputs."""

    model: nn.Module
    args: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] | None = None


def build_model(path: str, *, real: bool = False) -> Built:
    """Call a factory: a function without arguments, a class, or a module that is there already.

    It returns the model, ``(model, args)`` or ``(model, args, kwargs)``.

    Args:
        path: ``pkg.module:name``; the name may have dots.
        real: build real tensors; by default they are on the meta device, which takes no memory and no time.

    Raises:
        FactoryError: there is no such factory, it fails, or it returns something else.
    """
    factory = find(path, "--model")
    if isinstance(factory, nn.Module):
        return Built(factory)
    hint = "" if real else " It was called on the meta device, where tensors have no values; --real builds real ones."
    made = _call(factory, path, "--model", hint, real=real)
    allowed = "a torch.nn.Module, (model, args) or (model, args, kwargs)"
    parts = made if isinstance(made, tuple) else (made,)
    if not parts or len(parts) > 3 or not isinstance(parts[0], nn.Module):
        raise FactoryError(f"--model {path}: the factory returned {_kind(made)}; allowed: {allowed}.")
    if len(parts) == 1:
        return Built(parts[0])
    args, kwargs = _inputs(parts[1:], f"--model {path}", allowed)
    return Built(parts[0], args, kwargs)


def build_inputs(path: str, *, real: bool = False) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Call a function that returns what the model is called with.

    It returns a tuple or list of arguments, a mapping of keyword arguments, both as ``(args, kwargs)`` with a tuple or list
    first, or one tensor.

    Raises:
        FactoryError: there is no such function, it fails, or it returns something else.
    """
    hint = "" if real else " It was called on the meta device, where tensors have no values; --real makes real ones."
    made = _call(find(path, "--input"), path, "--input", hint, real=real)
    if isinstance(made, torch.Tensor):
        return (made,), {}
    if isinstance(made, Mapping):
        return _inputs(((), made), f"--input {path}", "")
    if isinstance(made, tuple | list):
        both = len(made) == 2 and isinstance(made[0], tuple | list) and isinstance(made[1], Mapping)
        return _inputs(tuple(made) if both else (tuple(made),), f"--input {path}", "")
    allowed = "a tensor, a tuple of arguments, a mapping of keyword arguments, or (args, kwargs)"
    raise FactoryError(f"--input {path}: the function returned {_kind(made)}; allowed: {allowed}.")


def find(path: str, option: str) -> Any:
    """Import ``pkg.module:name``.

    Raises:
        FactoryError: it is written differently, cannot be imported, or has no such name.
    """
    module_name, colon, name = path.partition(":")
    parts = [*module_name.split("."), *name.split(".")]
    if not colon or not all(part.isidentifier() for part in parts):
        raise FactoryError(f"{option}: found {path!r}; allowed: pkg.module:name, such as my_package.models:build_gpt.")
    value: Any = _import(module_name, path, option)
    seen = module_name
    for part in name.split("."):
        if not hasattr(value, part):
            near = get_close_matches(part, [n for n in dir(value) if not n.startswith("_")], 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise FactoryError(f"{option} {path}: {seen} has no {part!r}.{hint}")
        value = getattr(value, part)
        seen = f"{seen}.{part}"
    if not callable(value):
        raise FactoryError(f"{option} {path}: {seen} is {_kind(value)}; allowed: a function.")
    return value


def what_failed(error: BaseException) -> str:
    """An error of other people's code in one line: its type, its message, and where it was raised."""
    place = place_in(str(error)) if _is_of_compiling(error) else ""
    place = place or place_of(error)
    while _is_of_compiling(error) and (error.__cause__ or error.__context__):
        error = error.__cause__ or error.__context__ or error
    message = next((line.strip() for line in str(error).splitlines() if line.strip()), "").removesuffix(".")
    where = f" ({place})" if place else ""
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}:{error.lineno})"
    return f"{type(error).__name__}: {message}{where}" if message else f"{type(error).__name__}{where}"


def _is_of_compiling(error: BaseException) -> bool:
    """Whether torch.compile only wraps what happened, and quotes the user's lines in its text."""
    return type(error).__module__.startswith("torch._dynamo.")


def _import(module_name: str, path: str, option: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise FactoryError(
                f"{option} {path}: there is no module {error.name!r}. It is looked for in the current directory, in "
                "PYTHONPATH and among the installed packages."
            ) from None
        raise FactoryError(f"{option} {path}: importing {module_name} failed: {what_failed(error)}") from error
    except (Exception, SystemExit) as error:
        raise FactoryError(f"{option} {path}: importing {module_name} failed: {what_failed(error)}") from error


def _call(function: Callable[[], Any], path: str, option: str, hint: str, *, real: bool) -> Any:
    _refuse_arguments(function, path, option)
    try:
        # What it prints is not a result of the command.
        with _device(real), contextlib.redirect_stdout(sys.stderr):
            return function()
    except (Exception, SystemExit) as error:
        raise FactoryError(f"{option} {path}: calling it failed: {what_failed(error)}.{hint}") from error


def _refuse_arguments(function: Callable[[], Any], path: str, option: str) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # something built in: calling it will tell
        return
    try:
        signature.bind()
    except TypeError as error:
        raise FactoryError(
            f"{option} {path}: found a function that needs arguments ({error}); allowed: one without. Write one that calls it "
            "with them."
        ) from error


@contextlib.contextmanager
def _device(real: bool) -> Iterator[None]:
    with contextlib.nullcontext() if real else torch.device("meta"):
        yield


def _inputs(parts: Sequence[Any], where: str, allowed: str) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    args, kwargs = parts[0], parts[1] if len(parts) > 1 else {}
    if isinstance(args, torch.Tensor):
        args = (args,)
    elif isinstance(args, Mapping) and len(parts) == 1:
        args, kwargs = (), args
    if not isinstance(args, tuple | list) or not isinstance(kwargs, Mapping):
        found = _kind(args if not isinstance(args, tuple | list) else kwargs)
        raise FactoryError(f"{where}: found {found} among the inputs; allowed: {allowed}, args a tuple, kwargs a mapping.")
    wrong = [key for key in kwargs if not isinstance(key, str)]
    if wrong:
        raise FactoryError(f"{where}: found the keyword {wrong[0]!r}; allowed: names.")
    return tuple(args), dict(kwargs)


def _kind(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in value) or 'nothing'}"
    return f"{'an' if type(value).__name__[0] in 'aeiouAEIOU' else 'a'} {type(value).__name__}"
