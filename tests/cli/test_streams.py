"""The command line where its output cannot be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _configurations(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("recompute: {mode: full, full_recompute_layer: [0-1]}\n")
    (tmp_path / "bad.yaml").write_text("recompute: {mode: ful}\n")


def python_m(folder: Path, *args: str, **streams: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-m", "memopt", *args], cwd=folder, text=True, **streams)


def test_results_that_nobody_reads_are_no_traceback(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with python_m(tmp_path, "schema", stdout=writer, stderr=subprocess.PIPE) as done:
        os.close(writer)
        assert done.stderr is not None
        assert done.stderr.read() == ""
    assert done.returncode == 1


@pytest.mark.parametrize("command", [("schema",), ("check", "good.yaml")])
def test_results_that_find_no_room_are_an_error(command: tuple[str, ...], tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no device that is always full")
    with open("/dev/full", "w") as full, python_m(tmp_path, *command, stdout=full, stderr=subprocess.PIPE) as done:
        assert done.stderr is not None
        assert done.stderr.read() == "error: writing the result failed: No space left on device.\n"
    assert done.returncode == 1


@pytest.mark.parametrize(("config", "code"), [("good.yaml", 0), ("bad.yaml", 1)])
def test_closed_streams_leave_the_exit_code(config: str, code: int, tmp_path: Path) -> None:
    command = f"{sys.executable} -m memopt check {config} >&- 2>&-"
    assert subprocess.run(command, shell=True, cwd=tmp_path, check=False).returncode == code
