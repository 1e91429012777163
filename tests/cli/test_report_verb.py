"""``memopt report``: a page or nothing, and a message where it fails."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner
from verb_running import TANH, TOWER, X, folder, new_files, run, said

from memopt.cli import app
from memopt.cli.outcome import want_debug

__all__ = ["folder"]

REPORT = ("report", "full.yaml", *TOWER)


def test_a_page_is_written(folder: Path) -> None:
    result = run(*REPORT, "-o", "page.html", "--optimizer", "SGD")
    assert (result.exit_code, result.stdout) == (0, "")
    assert re.fullmatch(r"page\.html: \d+\.\d\d MB", said(result))
    assert new_files(folder) == ["page.html"]
    text = (folder / "page.html").read_text()
    assert text.lower().startswith("<!doctype html>")
    assert text.rstrip().endswith("</html>")
    assert "Tower (verb_models:tower)" in text
    assert f"<td>recompute</td><td>{X + TANH} B</td><td>{X} B</td>" in text
    assert "full_recompute_layer: [1]" in text  # the configuration itself
    assert not re.findall(r'(?:src|href)="http', text)


def test_the_page_has_a_usual_name(folder: Path) -> None:
    assert run(*REPORT).exit_code == 0
    assert new_files(folder) == ["memopt-report.html"]


def test_a_measured_step_is_laid_over(folder: Path) -> None:
    assert run(*REPORT, "-o", "told.html").exit_code == 0
    assert run(*REPORT, "-o", "measured.html", "--measure").exit_code == 0
    told, measured = ((folder / name).read_text() for name in ("told.html", "measured.html"))
    assert '"measured":null' in told
    assert '"measured":{' in measured
    assert re.search(r'"measured_peak_bytes":\d{3,}', measured)


def test_the_page_of_a_swapping_model(folder: Path) -> None:
    assert run("report", "swap.yaml", *TOWER[:-2], "--backend", "aot_eager", "-o", "p.html").exit_code == 0
    assert '"swaps":[{' in (folder / "p.html").read_text()


def test_warnings_are_on_the_page_and_told(folder: Path) -> None:
    result = run("report", "unused.yaml", *TOWER, "-o", "p.html", "--strict")
    assert result.exit_code == 2
    text = "recompute.full_recompute_layer: has no effect with mode: None"
    assert f"warning: {text}" in said(result)
    assert text in (folder / "p.html").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "nowhere/p.html"), "error: nowhere/p.html: there is no directory "),
        (("-o", "."), "error: .: is a directory; a file is to be written."),
        (("--model", "verb_models:fails"), "calling it failed: RuntimeError: the weights are lost (verb_models.py:"),
        (
            ("--model", "verb_models:needs"),
            "found a function that needs arguments (missing a required argument: 'size'); allowed: one without.",
        ),
        (("--model", "verb_models:no_module"), "the factory returned a str; allowed: a torch.nn.Module, (model, args) or"),
        (("--model", "verb_models:nobody"), "verb_models has no 'nobody'."),
        (("--model", "no_such_file:tower"), "there is no module 'no_such_file'."),
        (("--model", "verb_models:alone"), "The model was called without inputs: --input gives them."),
        (("--model", "verb_models:frozen"), "error: the model has no graph with a backward"),
        (("--model", "verb_models:raises"), "error: tracing the model failed: ValueError: out of tune (verb_models.py:"),
        (
            ("--input", "verb_models:wrong_inputs"),
            "error: tracing the model failed: TypeError: Tower.forward() takes 2 positional",
        ),
        (("--optimizer", "Adamm"), "error: --optimizer: found 'Adamm'; allowed: "),
    ],
)
def test_refusals_write_nothing(folder: Path, options: tuple[str, ...], message: str) -> None:
    result = run(*REPORT, *(() if "-o" in options else ("-o", "p.html")), *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in said(result)
    assert new_files(folder) == []


def test_a_path_is_refused_before_the_work(folder: Path) -> None:
    result = run("report", "full.yaml", "--model", "verb_models:fails", "-o", "nowhere/p.html")
    assert said(result).startswith("error: nowhere/p.html: there is no directory")


def test_a_page_that_cannot_be_finished_leaves_the_old_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "p.html").write_text("old")

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    result = run(*REPORT, "-o", "p.html")
    assert result.exit_code == 1
    assert said(result) == "error: p.html: No space left on device."
    assert (folder / "p.html").read_text() == "old"
    assert new_files(folder) == ["p.html"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(folder: Path) -> None:
    (folder / "shut").mkdir(mode=0o500)
    result = run(*REPORT, "-o", "shut/p.html")
    assert result.exit_code == 1
    assert said(result) == "error: shut/p.html: Permission denied."


def test_a_model_that_cannot_be_run_leaves_no_page(folder: Path) -> None:
    more = "\ndef meta():\n    with torch.device('meta'):\n        return tower()\n"
    (folder / "on_meta.py").write_text((folder / "verb_models.py").read_text() + more)
    command = ("report", "full.yaml", "--model", "on_meta:meta", "--backend", "aot_eager")
    result = run(*command, "-o", "q.html", "--measure")
    assert result.exit_code == 1
    assert said(result).startswith("error: running the model failed: NotImplementedError: ")
    assert new_files(folder) == ["on_meta.py"]
    assert run(*command, "-o", "p.html").exit_code == 0


def in_process_of_its_own(*args: str) -> subprocess.CompletedProcess[str]:
    given = [sys.executable, "-m", "memopt", *args, "--model", "verb_models:raises", "-o", "p.html"]
    return subprocess.run(given, capture_output=True, text=True, check=False)


def test_a_traceback_is_shown_to_whom_asks_for_it(folder: Path) -> None:
    quiet, loud = in_process_of_its_own(*REPORT), in_process_of_its_own(*REPORT, "--debug")
    assert (quiet.returncode, loud.returncode) == (1, 1)
    told, _, traceback = loud.stderr.partition("\n")
    assert told.startswith("error: tracing the model failed: ValueError: out of tune (")
    assert quiet.stderr == f"{told}\n"
    assert traceback.startswith("Traceback (most recent call last):\n")
    assert traceback.rstrip().endswith("ValueError: out of tune")
    assert new_files(folder) == []


def test_debug_of_one_run_is_forgotten_in_the_next() -> None:
    loud = CliRunner().invoke(app, ["--debug", *REPORT, "--model", "verb_models:raises"])
    assert "Traceback (most recent call last):" in loud.stderr
    want_debug(wanted=False)
    run(*REPORT, "--model", "verb_models:raises")
