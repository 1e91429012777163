"""Full matches of a user's pattern, with a limit on time and on size.

A pattern comes from a configuration file: it may be wrong, or take exponentially long. Neither may hang a compilation.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache

import regex

MAX_PATTERN_LENGTH = 2_000
MAX_REPEATS = 1_000_000
DEFAULT_TIMEOUT = 1.0

_COUNTED = re.compile(r"\{\s*(\d*)\s*,?\s*(\d*)\s*\}", re.ASCII)


class MatchTimeout(Exception):
    """A match took longer than its time limit (seconds).

    Attributes:
        pattern: the regular expression.
        text: what it was matched against.
        timeout: the limit in seconds.
    """

    def __init__(self, pattern: str, text: str, timeout: float) -> None:
        super().__init__(pattern, text, timeout)
        self.pattern = pattern
        self.text = text
        self.timeout = timeout

    def __str__(self) -> str:
        return f"matching {self.pattern!r} against {self.text!r} took more than {self.timeout:g} s"


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> regex.Pattern[str]:
    """Compile ``pattern`` with the ``regex`` library.

    Raises:
        ValueError: the pattern is not a valid regular expression, or is too large to compile; the message says why.
    """
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise ValueError(f"longer than {MAX_PATTERN_LENGTH} characters")
    # Nested counted repeats are expanded when they are compiled: a few characters can ask for all memory.
    repeats = 1
    for low, high in _COUNTED.findall(pattern):
        digits = max(low, high, key=len)
        repeats *= max(int(low[:9] or 0), int(high[:9] or 0), 1) if len(digits) <= 9 else MAX_REPEATS + 1
    if repeats > MAX_REPEATS:
        raise ValueError(f"counted repeats of more than {MAX_REPEATS} in all")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return regex.compile(pattern)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (regex.error, ValueError, KeyError, OverflowError) as error:
        raise ValueError(str(error)) from None


def fullmatch(pattern: str, text: str, *, timeout: float = DEFAULT_TIMEOUT) -> bool:
    """Whether ``pattern`` matches the whole of ``text``; ``timeout`` is in seconds.

    Raises:
        MatchTimeout: the match took longer than ``timeout``.
        ValueError: the pattern is not a valid regular expression.
    """
    compiled = compile_pattern(pattern)
    try:
        return compiled.fullmatch(text, timeout=timeout) is not None
    except TimeoutError:
        raise MatchTimeout(pattern, text, timeout) from None
