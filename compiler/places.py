"""Lines of the user's own code: where an error came from, where a graph broke."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable
from pathlib import Path

import torch

_MACHINERY = frozenset({"importlib", "memopt", "torch"})
_FOLDERS = (str(Path(torch.__file__).parent), str(Path(__file__).parent))


def place_of(error: BaseException) -> str:
    """``file:line`` of the last line of the user's own code that an error came through; empty when there is none."""
    return last_place(
        (frame.f_code.co_filename, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _MACHINERY
    )


def place_in(text: str) -> str:
    """The same for a traceback that torch wrote into a text."""
    return last_place((file, int(line)) for file, line in re.findall(r'File "(.+?)", line (\d+)', text))


def last_place(lines: Iterable[tuple[str, int | None]]) -> str:
    """``file:line`` of the last line that is in a file, and not in torch's or memopt's own."""
    own = [f"{file}:{line}" for file, line in lines if not file.startswith(("<", *_FOLDERS))]
    return own[-1] if own else ""
