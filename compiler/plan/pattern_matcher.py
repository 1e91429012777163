"""Which modules a pattern names, within bounds on time; and which paths are near to one that names none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from ...passes.matching import DEFAULT_TIMEOUT, MatchTimeout, fullmatch
from ..errors import show

MAX_TIMEOUTS = 2
"""After so many timeouts a pattern is given up, so that a whole model is a matter of seconds."""

_NEAREST = 3
_CUTOFF = 0.6
_ESCAPED = re.compile(r"\\([^A-Za-z0-9])")
_CLASS = re.compile(r"\\[A-Za-z]|\[[^\]]*\]|\{[^}]*\}|\(\?[a-zA-Z:=!<>]*")
_PUNCTUATION = re.compile(r"[\^$()*+?{}\[\]\\]")


class PatternMatcher:
    """Full matches of patterns against module paths; layers share paths, so each pair is tried once.

    Attributes:
        timed_out: pattern -> the paths whose match took too long. They count as not matched.
    """

    def __init__(self, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.timeout = timeout
        self.timed_out: dict[str, list[str]] = {}
        self._known: dict[tuple[str, str], bool] = {}
        self._matched: dict[tuple[str, tuple[str, ...]], frozenset[str]] = {}
        self._untried: dict[str, set[str]] = {}

    def matched(self, pattern: str, paths: tuple[str, ...]) -> frozenset[str]:
        """Those of ``paths`` that ``pattern`` matches as a whole.

        Short paths come first: time grows with length, and what can be matched is then matched before a pattern is given up.
        """
        key = (pattern, paths)
        if key not in self._matched:
            self._matched[key] = frozenset(path for path in sorted(paths, key=len) if self._matches(pattern, path))
        return self._matched[key]

    def given_up(self, pattern: str) -> bool:
        """Whether the pattern has timed out so often that it is not tried any more."""
        return len(self.timed_out.get(pattern, ())) >= MAX_TIMEOUTS

    def complaint(self, pattern: str) -> str:
        """What to tell about a pattern's timeouts; empty when there was none."""
        paths = self.timed_out.get(pattern)
        if not paths:
            return ""
        slow = " and ".join(map(show, paths))
        text = f"matching the pattern took more than {self.timeout:g} s on {slow}, which counts as no match"
        if self.given_up(pattern):
            untried = len(self._untried.get(pattern, ()))
            rest = f"{untried} more paths and " if untried else ""
            text += f"; it is given up after {len(paths)} timeouts, without trying {rest}any operator"
        return text

    def _matches(self, pattern: str, path: str) -> bool:
        key = (pattern, path)
        if key not in self._known:
            if self.given_up(pattern):
                self._untried.setdefault(pattern, set()).add(path)
                return False
            try:
                self._known[key] = fullmatch(pattern, path, timeout=self.timeout)
            except MatchTimeout:
                self.timed_out.setdefault(pattern, []).append(path)
                self._known[key] = False
        return self._known[key]


def nearest_paths(pattern: str, paths: Sequence[str]) -> tuple[str, ...]:
    """The paths that look most like ``pattern``, best first; the outermost modules when none does.

    Regular-expression punctuation is dropped before they are compared, and a path's last part counts like the whole.
    """
    scores: dict[str, float] = {}
    wanted = _plain_texts(pattern)
    for path in dict.fromkeys(paths):
        seen = {path.casefold(), path.rpartition(".")[2].casefold()}
        near_texts = (weight * SequenceMatcher(None, text, one).ratio() for text, weight in wanted.items() for one in seen)
        scores[path] = max(near_texts, default=0.0)
    near = [path for path, score in scores.items() if score >= _CUTOFF]
    near.sort(key=lambda path: (-scores[path], len(path), path))
    return tuple(near[:_NEAREST]) or tuple(path for path in scores if "." not in path)[:_NEAREST]


def _plain_texts(pattern: str) -> dict[str, float]:
    """The alternatives of a pattern as texts, each with its weight.

    Each also comes without its last part, which may name an operator, and by its last part alone; these weigh less.
    """
    plain = _CLASS.sub("", pattern.replace(r"\.", "\0").replace(".*", "").replace(".+", ""))
    plain = _PUNCTUATION.sub("", _ESCAPED.sub(r"\1", plain))
    texts: dict[str, float] = {}
    for alternative in plain.casefold().split("|"):
        text = alternative.replace("\0", ".").strip(".")
        start, _, end = text.rpartition(".")
        for part, weight in ((text, 1.0), (start, 0.9), (end, 0.9)):
            if part:
                texts.setdefault(part, weight)
    return texts
