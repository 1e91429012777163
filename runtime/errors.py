"""What users are told when a value cannot be swapped: which value, how many bytes, which field to change."""

from __future__ import annotations

import errno
import os


class SwapError(RuntimeError):
    """A value could not leave the device or come back. Other values, and other settings, stay usable."""


class PinningFailed(RuntimeError):
    """Pinned host memory was asked for and not given."""


class WorkerDied(RuntimeError):
    """The thread that was to copy is gone."""


class Refused(RuntimeError):
    """Values cannot be moved here at all; says why and what to do."""


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR})
_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


def swap_error(cause: BaseException, name: str, nbytes: int, directory: str) -> SwapError:
    """The error to raise for the value ``name`` of ``nbytes`` bytes when moving it failed with ``cause``."""
    if isinstance(cause, Refused):
        return SwapError(f"swap of {name!r} ({nbytes} bytes): {cause}")
    problem, remedy = _problem_and_remedy(cause, os.path.expanduser(directory))
    return SwapError(f"swap of {name!r} ({nbytes} bytes): {problem}. {remedy}")


def _problem_and_remedy(cause: BaseException, directory: str) -> tuple[str, str]:
    code = cause.errno if isinstance(cause, OSError) else None
    if code in _FULL:
        return (
            f"no room in {directory!r} ({cause})",
            "Free some space there, set swap.dir to a directory on a larger disk, or swap fewer layers.",
        )
    if code in _MISSING and os.path.exists(directory):
        return f"no file can be made in {directory!r} ({cause})", "Set swap.dir to a directory in which files can be made."
    if code in _MISSING:
        return f"the directory {directory!r} does not exist ({cause})", "Create it, or set swap.dir to one that exists."
    if code in _FORBIDDEN:
        return f"the directory {directory!r} is not writable ({cause})", "Set swap.dir to a directory that is."
    if code in _DESCRIPTORS:
        return (
            f"the process may open no more files ({cause})",
            "Raise the limit (ulimit -n), set swap.store to host where there is an accelerator, or swap.enable to false.",
        )
    if isinstance(cause, OSError):
        return f"reading or writing in {directory!r} failed ({cause})", "Set swap.dir to a directory on a sound disk."
    if isinstance(cause, PinningFailed):
        return (
            f"no pinned host memory could be had ({cause})",
            "Set swap.host_limit below the free host memory (values above it go to swap.dir), or swap.store to disk.",
        )
    if isinstance(cause, WorkerDied):
        return f"{cause}", "Run the step again; if it comes back, set swap.enable to false and report it."
    return f"the copy failed ({type(cause).__name__}: {cause})", "Set swap.enable to false to run without swap."
