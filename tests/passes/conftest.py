"""Golden texts: complete graphs before and after a pass, in ``golden/``. ``pytest tests/passes --update-golden`` rewrites them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

_GOLDEN = Path(__file__).with_name("golden")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/passes/golden/*.txt with what passes do now")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with ``golden/<name>.txt``; with --update-golden, write it."""

    def check(name: str, text: str) -> None:
        file = _GOLDEN / f"{name}.txt"
        if request.config.getoption("--update-golden", default=False):
            file.write_text(text)
        expected = file.read_text() if file.exists() else ""
        assert text == expected, f"golden/{name}.txt differs; if the new text is right, run pytest with --update-golden"

    return check
