"""How a command ends: an exit code, and a message instead of a traceback."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NoReturn, TypeVar

import typer

from ..compiler.errors import ConfigError, LayersError
from ..factory import FactoryError, what_failed
from ..passes.verify import VerificationError
from .printing import print_error, print_line, print_problems, stderr

T = TypeVar("T")


class Exit(IntEnum):
    """What the shell is told."""

    DONE = 0
    ERROR = 1
    WARNED = 2


_debug: list[bool] = []


def want_debug(*, wanted: bool) -> None:
    """Say whether the traceback of what fails is to be shown."""
    _debug[:] = [True] if wanted else []


def debug_wanted() -> bool:
    """Whether the traceback of what fails is to be shown."""
    return bool(_debug)


def or_exit(work: Callable[[], T], *, runs_the_model: bool = False, doing: str = "tracing the model", hint: str = "") -> T:
    """Do the work; what fails becomes a message and exit code 1, without a traceback unless ``--debug`` asks for it.

    Args:
        work: what to do.
        runs_the_model: the model itself runs in it, so that anything may come out.
        doing: what is being done, for the message about what came out of the model.
        hint: what to do about that.
    """
    try:
        return work()
    except typer.Exit:
        raise
    except (Exception, SystemExit) as error:
        _tell(error, runs_the_model=runs_the_model, doing=doing, hint=hint)
        if debug_wanted():
            stderr().print(traceback.format_exc().rstrip(), markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(Exit.ERROR)


def _tell(error: BaseException, *, runs_the_model: bool, doing: str, hint: str) -> None:
    if isinstance(error, ConfigError):
        print_problems(error)
    elif isinstance(error, FactoryError | LayersError):
        print_error(str(error))
    elif isinstance(error, OSError) and error.filename is not None:
        print_error(f"{error.filename}: {error.strerror}." if error.strerror else str(error))
    elif isinstance(error, ValueError) and _is_ours(error):
        print_error(str(error))
    elif runs_the_model and not isinstance(error, VerificationError):
        print_error(f"{doing} failed: {what_failed(error)}.", hint)
    else:
        print_error(f"this is a fault of memopt: {what_failed(error)}.", "" if debug_wanted() else "--debug shows where.")


def _is_ours(error: BaseException) -> bool:
    """Whether memopt itself raised the error, and so wrote its message for the user."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__")).startswith("memopt.")


def finish(texts: Sequence[str], strict: bool, silent: Sequence[str] = ()) -> NoReturn:
    """Print warnings, and exit with what they mean; ``silent`` ones were printed before."""
    for text in texts:
        print_line("warning", "yellow", text)
    raise typer.Exit(Exit.WARNED if strict and (texts or silent) else Exit.DONE)


def fail(text: str) -> NoReturn:
    """Print an error, and exit with 1."""
    print_error(text)
    raise typer.Exit(Exit.ERROR)
