"""Golden texts: complete graphs before and after a pass, in ``golden/``; ``pytest tests/passes --update-golden`` rewrites."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from memopt.passes.joint import JointGraph
from printer import show

_GOLDEN = Path(__file__).with_name("golden")
Pass = Callable[[JointGraph], object]
Printer = Callable[[Any], str]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/passes/golden/*.txt with what passes do now")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Run a pass and compare the graph before and after with ``golden/<name>.txt``; a second run must change nothing more.

    ``printed``: how to print what the pass edits, where that is not a joint graph.
    """

    def check(name: str, edited: Any, run: Callable[[Any], object], twice: bool = True, printed: Printer = show) -> None:
        before = printed(edited)
        run(edited)
        after = printed(edited)
        assert before != after, "nothing happened: use the fixture unchanged for what is to be left alone"
        if twice:
            run(edited)
            assert printed(edited) == after, "a second run changed the graph again"
        text = f"before\n\n{before}\nafter\n\n{after}"
        file = _GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden", default=False):
            file.write_text(text, encoding="utf-8")
        expected = file.read_text(encoding="utf-8") if file.exists() else ""
        assert text == expected, f"golden/{name}.txt differs; if the new text is right, run pytest tests/passes --update-golden"

    return check


@pytest.fixture
def unchanged() -> Callable[[JointGraph, Pass], None]:
    """Run a pass that must leave the graph alone, to the letter."""

    def check(joint: JointGraph, run: Pass) -> None:
        before = show(joint)
        run(joint)
        assert show(joint) == before

    return check
