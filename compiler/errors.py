"""What users are told: warnings, and errors that list every problem at once."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

Loc = tuple[str | int, ...]
"""Where something stands in a configuration: ``("recompute", "select_module", ".*mlp", 1)``."""

_KEYED_BY_PATTERN = frozenset({"select_module", "exclude_op"})

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlevel = 3


class MemoptWarning(UserWarning):
    """Something in the configuration has no effect, or not the effect it seems to have."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration.

    Attributes:
        field: the place, as ``recompute.select_module['.*mlp'][1]``; ``configuration`` when it is the whole.
        line: the line in the YAML file, from 1; None where there is none.
        found: what stands there, or a sentence.
        allowed: what may stand there; empty where ``found`` says all.
        hint: what to do about it; empty when there is nothing to suggest.
    """

    field: str
    line: int | None
    found: str
    allowed: str = ""
    hint: str = ""

    def __str__(self) -> str:
        where = self.field if self.line is None else f"{self.field} (line {self.line})"
        text = f"{where}: found {self.found}; allowed: {self.allowed}" if self.allowed else f"{where}: {self.found}"
        return f"{text}. {self.hint}" if self.hint else text


class ConfigError(ValueError):
    """A configuration is wrong, by itself or for this model.

    Attributes:
        problems: everything that is wrong, in the order in which it was found.
        source: the file the configuration came from, if it came from one.
    """

    def __init__(self, problems: Iterable[Problem], source: str | None = None) -> None:
        self.problems = tuple(problems)
        self.source = source
        super().__init__(self.problems, source)

    def __str__(self) -> str:
        count = len(self.problems)
        lines = [f"{count} problem{'s' if count != 1 else ''} in {self.source or 'the configuration'}:"]
        return "\n".join([*lines, *(f"  {problem}" for problem in self.problems)])


class LayersError(ValueError):
    """The layer stacks of a model cannot be told, or are not where the caller said; the message lists the candidates."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem whose place is relative to the value that is being read; see `Problem` for the rest."""

    loc: Loc
    found: str
    allowed: str = ""
    hint: str = ""

    def under(self, loc: Loc) -> Finding:
        """The same finding, seen from further out."""
        return Finding((*loc, *self.loc), self.found, self.allowed, self.hint)

    def problem(self, lines: Mapping[Loc, int]) -> Problem:
        """The problem for the user; ``lines`` gives the line of each place, or of what holds it."""
        return Problem(field_name(self.loc), line_of(self.loc, lines), self.found, self.allowed, self.hint)


class Findings(ValueError):
    """Raised by a validator that found one problem or several."""

    def __init__(self, *items: Finding) -> None:
        super().__init__(*items)
        self.items = items


def field_name(loc: Loc) -> str:
    """The place as users write it: names with dots, patterns and numbers in brackets."""
    text = ""
    for position, part in enumerate(loc):
        keyed = position > 0 and loc[position - 1] in _KEYED_BY_PATTERN
        if isinstance(part, str) and part.isidentifier() and not keyed:
            text += f".{part}" if text else part
        else:
            # Rules are told apart by their names, so a pattern is never shortened.
            text += f"[{quoted(part)}]" if isinstance(part, str) else f"[{show(part)}]"
    return text or "configuration"


def line_of(loc: Loc, lines: Mapping[Loc, int]) -> int | None:
    """The line of ``loc``, or of the nearest place around it that has one."""
    return next((lines[loc[:end]] for end in range(len(loc), -1, -1) if loc[:end] in lines), None)


def quoted(text: str) -> str:
    """``text`` in quotation marks as YAML has it, with backslashes as they are; as Python has it where that is not enough."""
    return f"'{text}'" if text.isprintable() and "'" not in text else repr(text)


def show(value: object) -> str:
    """``value`` as users write it, shortened: a configuration may hold anything, of any size."""
    if isinstance(value, str):
        half = _SHORT.maxstring // 2
        return quoted(value if len(value) <= 2 * half else f"{value[:half]}...{value[-half:]}")
    try:
        return _SHORT.repr(value)
    except ValueError:
        return f"a value of {type(value).__name__} that is too long to print"


def did_you_mean(name: object, known: Sequence[str]) -> str:
    """``Did you mean 'full'?`` when ``name`` is near a known one, else an empty text."""
    if not isinstance(name, str):
        return ""
    folded = {item.casefold(): item for item in known}
    near = get_close_matches(name[:200].casefold(), list(folded), n=1, cutoff=0.6)
    return f"Did you mean {folded[near[0]]!r}?" if near else ""


def one_of(names: Sequence[str]) -> str:
    """``a, b or c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def counted(number: int, noun: str) -> str:
    """``1 layer``, ``2 layers``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
