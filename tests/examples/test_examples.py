"""Every example runs, at a size that takes seconds, and comes to the same gradients."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    path = str(EXAMPLES / f"{name}.py")
    monkeypatch.setattr(sys, "argv", [path, *arguments.split()])
    runpy.run_path(path, run_name="__main__")
    return capsys.readouterr().out


def check_rows(output: str, rows: int) -> None:
    """Each row: less is saved, and gradients are those of the reference."""
    found = re.findall(r"([\d.]+) -> ([\d.]+) MB .* (\d+e[+-]\d+)$", output, re.MULTILINE)
    assert len(found) == rows
    for before, after, difference in found:
        assert float(after) <= float(before)
        assert float(difference) < 1e-5
    assert min(float(after) / float(before) for before, after, _ in found) < 0.5


def test_every_example_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in [*EXAMPLES.glob("*.py"), *EXAMPLES.glob("configs/*.yaml"), *EXAMPLES.glob("distributed/*.py")]:
        assert path.name in listed


@pytest.mark.parametrize("extra", ["", "--plain"])
def test_demo(extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--layers 2 --width 48 --context 16 --batch 2 --steps 3 --backend aot_eager"
    output = run("demo", f"{sizes} {extra}", monkeypatch, capsys)
    assert re.search(r"^peak [\d.]+ MB, step [\d.]+ s, last loss [\d.]+$", output, re.MULTILINE)
    assert ("recompute.full_recomp" in output) == (not extra)


@pytest.mark.parametrize("name", ["huggingface_llama", "huggingface_gpt2"])
def test_huggingface(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    check_rows(run(name, "--layers 4 --steps 2 --context 32", monkeypatch, capsys), rows=4)


def test_vision_transformer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    output = run("vision_transformer", "--layers 2 --batch 2 --steps 2 --backend aot_eager", monkeypatch, capsys)
    check_rows(output, rows=3)
