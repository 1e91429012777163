"""The check for accelerators, at the size it has on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_check.py"


def test_dry_run_passes_and_prints_json(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    command = [sys.executable, str(SCRIPT), "--dry-run", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found == json.loads(out.read_text())
    assert found["failures"] == []
    assert found["gradient_difference"].keys() == {"aot_eager", "aot_eager, scope layer"}
    assert found["gradient_difference"]["aot_eager"] == 0.0
    assert found["spilled_bytes"] > 0
    assert set(found["rows"]) >= {
        "torch.compile",
        "swap",
        "swap, fetched at first use",
        "swap, each layer by itself",
        "recompute",
    }
    assert found["predictions"].keys() == {"recompute", "swap"}
    assert all(0.97 <= row["ratio"] <= 1.03 for row in found["predictions"].values())
    moved = found["rows"]["swap"]["swap_of_5_steps"]
    assert moved["bytes_in"] == moved["bytes_out"] > 0
    assert moved["offloads"] == moved["prefetches"] > 0


@pytest.mark.skipif(torch.accelerator.is_available(), reason="an accelerator is there")
def test_without_an_accelerator_it_says_so() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "--dry-run" in done.stderr
