"""``memopt estimate``: tables, JSON, sizes, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from verb_running import EAGER, TANH, TOWER, X, cells, folder, run, said

__all__ = ["folder"]

PARAMETERS = 3 * (8 * 16 + 16 + 16 * 8 + 8) * 4
PRODUCT = 2 * 4 * 8 * 16
"""FLOPs of one of a block's two products."""


def as_json(*args: str, config: str = "full.yaml") -> dict[str, Any]:
    result = run("estimate", config, *TOWER, "--json", *args)
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_json_has_what_can_be_counted_by_hand() -> None:
    found = as_json()
    assert found["resident"] == {"parameters": PARAMETERS, "buffers": 0}
    assert found["resident_bytes"] == PARAMETERS
    assert (found["saved_bytes"], found["swapped_bytes"]) == (2 * X + 2 * TANH, 0)
    assert (found["forward_flops"], found["recompute_flops"]) == (6 * PRODUCT, PRODUCT)
    assert found["backward_flops"] == (11 + 1) * PRODUCT
    assert found["sizes"] == {"batch": 4}
    assert found["saved_formula"] == f"{(2 * X + 2 * TANH) // 4}*batch"
    assert found["peak_bytes"] == sum(found["at_peak"]["bytes"].values())
    assert found["at_peak"]["phase"] == "backward"


def test_swap() -> None:
    found = as_json(config="swap.yaml")
    assert found["swapped_bytes"] > 0
    assert found["swapped_bytes"] + found["saved_bytes"] == 2 * X + 3 * TANH


def test_tables() -> None:
    result = run("estimate", "full.yaml", *TOWER, "--optimizer", "AdamW")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("One step with batch 4")
    rows = {row[0]: row[1:] for row in cells(result.stdout)}
    assert rows["saved for backward"] == [f"{2 * X + 2 * TANH} B", "torch.compile alone: 1.0 KiB"]
    assert rows["there all the time"][1] == "parameters 3.3 KiB, buffers 0 B, optimizer 6.6 KiB"
    assert rows["0"] == [f"{(X + TANH) // 4}*batch", f"{X + TANH} B"]
    assert rows["1"] == [f"{X // 4}*batch", f"{X} B"]
    assert rows["FLOPs that run again"] == ["1.0 k", "17% of the forward's"]
    peaks = [row[1] for row in cells(result.stdout) if row[0] in ("peak, above what is there all the time", "all")]
    assert peaks[0] == peaks[1]


def test_other_sizes() -> None:
    small, large = as_json(), as_json("--at", "batch=8")
    assert large["sizes"] == {"batch": 8}
    assert large["saved_bytes"] == 2 * small["saved_bytes"]
    assert large["forward_flops"] == 2 * small["forward_flops"]
    assert large["saved_formula"] == small["saved_formula"]
    assert large["peak_bytes"] > small["peak_bytes"]


def test_a_name_of_ones_own() -> None:
    found = as_json("--dim", "rows=0:0", "--at", "rows=8")
    assert found["sizes"] == {"rows": 8}
    assert found["saved_formula"].endswith("*rows")


def test_static() -> None:
    found = as_json("--static")
    assert (found["sizes"], found["saved_formula"]) == ({}, None)
    assert found["saved_bytes"] == as_json()["saved_bytes"]


@pytest.mark.parametrize("shown", [(), ("--json",)])
def test_what_is_not_counted_is_said(folder: Path, shown: tuple[str, ...]) -> None:
    result = run("estimate", "none.yaml", "--model", "verb_models:stops", *EAGER, *shown)
    text = " ".join(result.stdout.split())
    assert "the trace stopped before the model's end (a warning says where)" in text
    assert ('"is_whole": false' if shown else "peak, above what is there all the time (at least)") in text


def test_without_sizes_that_can_vary_there_is_no_formula_and_it_is_said(folder: Path) -> None:
    text = (folder / "verb_models.py").read_text()
    (folder / "one_row.py").write_text(text.replace("torch.zeros(4, 8)", "torch.zeros(1, 8)"))
    result = run("estimate", "full.yaml", "--model", "one_row:tower", *EAGER, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["saved_formula"] is None
    assert said(result) == (
        "warning: no formula: dims: found no dimension of the inputs that can be varied; allowed: tensors of sizes from 2."
    )


@pytest.mark.parametrize("shown", [(), ("--json",)])
def test_warnings_are_told_once(shown: tuple[str, ...]) -> None:
    text = "warning: recompute.full_recompute_layer: has no effect with mode: None"
    result = run("estimate", "unused.yaml", *TOWER, *shown)
    assert result.exit_code == 0
    assert " ".join(result.output.split()).count(text) == 1
    assert run("estimate", "unused.yaml", *TOWER, *shown, "--strict").exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--at", "batch"), "--at: found 'batch'; allowed: NAME=SIZE, with commas between, such as batch=8,seq=4096."),
        (("--at", "batch=0"), "--at: found 'batch=0'; allowed: NAME=SIZE"),
        (("--at", "batch=x"), "--at: found 'batch=x'; allowed: NAME=SIZE"),
        (("--at", "2=3"), "--at: found '2=3'; allowed: NAME=SIZE"),
        (("--at", "batch=8,batch=9"), "--at: found 'batch' twice; allowed: each name once."),
        (("--at", "bacth=8"), "at: found the name 'bacth'; allowed: batch, and what dims names. Did you mean 'batch'?"),
        (
            ("--dim", "batch=0"),
            "--dim: found 'batch=0'; allowed: NAME=ARGUMENT:DIMENSION, such as batch=0:0 or seq=input_ids:1.",
        ),
        (("--dim", "batch=0:-1"), "--dim: found 'batch=0:-1'"),
        (("--dim", "n=0:2"), "dims['n']: found dimension 2 of argument 0, which is (4, 8); allowed: one it has."),
        (("--dim", "n=x:0"), "dims['n']: found the argument 'x'; allowed: 0."),
        (("--dim", "n=0:1", "--at", "n=9"), "at: found n=9, but the model fixes it at 8 while it is traced;"),
        (("--static", "--at", "batch=8"), "--static: found together with --at or --dim, which ask for sizes that vary;"),
        (("--optimizer", "Adamw"), "--optimizer: found 'Adamw'; allowed: "),
        (("--optimizer", "Optimizer"), "--optimizer: found 'Optimizer'; allowed: "),
        (("--backend", "nope"), "backend: found 'nope'; allowed: "),
        (("--device", "nope"), "--device: found 'nope'"),
        (("--model", "verb_models:alone"), "The model was called without inputs: --input gives them."),
        (("--model", "verb_models:frozen"), "model: it has no graph with a backward"),
        (("--model", "verb_models:raises"), "tracing the model failed: ValueError: out of tune (verb_models.py:"),
        (("--model", "verb_models:nobody"), "verb_models has no 'nobody'."),
    ],
)
def test_refusals(options: tuple[str, ...], message: str) -> None:
    result = run("estimate", "full.yaml", *TOWER, *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert said(result).startswith("error: ")
    assert message in said(result)


def test_a_wrong_configuration() -> None:
    result = run("estimate", "bad.yaml", *TOWER)
    assert result.exit_code == 1
    assert "Did you mean 'full'?" in said(result)
