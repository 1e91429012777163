"""Where the benchmarks write what they found: one section each of docs/benchmarks.md."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import torch

DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_INTRODUCTION = """# Benchmarks

`make bench` measures everything here again and rewrites this page. Machines differ and are noisy: look at ratios, not at
single times.
"""


def write_section(
    name: str, command: str, lines: list[str], document: Path = DOCUMENT, introduction: str = _INTRODUCTION
) -> None:
    """Replace the section called ``name`` by ``lines``, under the command that makes them; begin a new document."""
    text = document.read_text() if document.exists() else introduction
    where = f"torch {torch.__version__}, Python {platform.python_version()}, {torch.get_num_threads()} threads"
    section = "\n".join([f"## {name.capitalize()}", "", f"`{command}` ({where})", "", *lines, ""])
    pattern = re.compile(rf"## {re.escape(name.capitalize())}\n.*?(?=\n## |\Z)", re.DOTALL)
    text = pattern.sub(lambda _: section, text) if pattern.search(text) else f"{text.rstrip()}\n\n{section}"
    document.parent.mkdir(exist_ok=True)
    document.write_text(text.rstrip() + "\n")
