"""What commands print, and where: results to standard output, all else to standard error."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.text import Text

from ..compiler.errors import ConfigError, Problem, counted


def stdout() -> Console:
    """Where results go."""
    return _console(stderr=False)


def stderr() -> Console:
    """Where errors, warnings and progress go."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    """Wide where nobody looks at a terminal: folded tables are hard to read, and to search."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else 150
    return Console(stderr=stderr, width=width)


def print_line(kind: str, style: str, text: str) -> None:
    """Print ``kind: text`` to standard error, in one line."""
    stderr().print(Text.assemble((f"{kind}: ", f"bold {style}"), text), soft_wrap=True)


def print_error(text: str, hint: str = "") -> None:
    """Print an error, and what to do about it."""
    print_line("error", "red", f"{text} {hint}".strip())


def print_problems(error: ConfigError) -> None:
    """Print everything that is wrong with a configuration."""
    count = counted(len(error.problems), "problem")
    print_error(f"{count} in {error.source or 'the configuration'}")
    for problem in error.problems:
        stderr().print(_problem(problem), soft_wrap=True)


def _problem(problem: Problem) -> Text:
    line = f" (line {problem.line})" if problem.line is not None else ""
    text = Text.assemble("  ", (problem.field, "bold"), (line, "dim"))
    if not problem.allowed:
        text.append(f": {problem.found}")
    else:
        text.append("\n    found:   ").append(problem.found, "red").append("\n    allowed: ").append(problem.allowed, "green")
    return text.append(f"\n    {problem.hint}" if problem.hint else "")
