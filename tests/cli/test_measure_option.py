"""``memopt explain --measure``: the prediction beside a real step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from verb_running import TOWER, cells, folder, run, said

from memopt.cli.measuring import loss_of

__all__ = ["folder"]


def test_the_prediction_is_set_against_a_real_step() -> None:
    plain, measured = run("explain", "full.yaml", *TOWER), run("explain", "full.yaml", *TOWER, "--measure")
    assert (measured.exit_code, measured.stderr) == (0, "")
    assert measured.stdout.startswith(plain.stdout)
    more = measured.stdout.removeprefix(plain.stdout)
    assert more.startswith("The peak, predicted and measured")
    rows = {row[0]: row[1:] for row in cells(more)}
    assert rows["gradients"][0] == rows["gradients"][1]
    assert rows["gradients"][2] == "0 B"
    (ratio,) = (line for line in more.splitlines() if line.startswith("predicted / measured: "))
    assert 0.95 <= float(ratio.split()[-1]) <= 1.05


def test_it_does_not_go_with_json() -> None:
    result = run("explain", "full.yaml", *TOWER, "--measure", "--json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert said(result) == "error: --json: found together with --measure, which prints tables; allowed: one or the other."


def test_warnings_are_told_once_and_strict_makes_them_count() -> None:
    result = run("explain", "unused.yaml", *TOWER, "--measure", "--strict")
    assert result.exit_code == 2
    assert result.output.count("has no effect with mode: None") == 1


def test_a_model_that_has_no_values_cannot_be_run(folder: Path) -> None:
    more = "\ndef meta():\n    with torch.device('meta'):\n        return tower()\n"
    (folder / "on_meta.py").write_text((folder / "verb_models.py").read_text() + more)
    assert run("explain", "full.yaml", "--model", "on_meta:meta", *TOWER[2:]).exit_code == 0
    result = run("explain", "full.yaml", "--model", "on_meta:meta", *TOWER[2:], "--measure")
    assert result.exit_code == 1
    assert "error: running the model failed: " in said(result)


class Output:
    """What models of Hugging Face return."""

    def __init__(self, loss: Any) -> None:
        self.loss = loss


ONE = torch.ones((), requires_grad=True)
MANY = torch.full((2, 3), 4.0, requires_grad=True)


@pytest.mark.parametrize(
    ("output", "loss"),
    [
        (ONE, 1.0),
        (MANY, 4.0),
        ((MANY, ONE, 3, torch.zeros(2)), 5.0),
        ({"loss": ONE, "logits": MANY}, 1.0),
        (Output(ONE), 1.0),
        ({"loss": None, "logits": MANY}, 4.0),
        (MANY.to(torch.bfloat16), 4.0),
    ],
)
def test_what_a_step_differentiates(output: Any, loss: float) -> None:
    found = loss_of(output)
    assert (found.item(), found.numel(), found.requires_grad) == (loss, 1, True)


@pytest.mark.parametrize("output", [None, 3, torch.zeros(2), {"loss": None}])
def test_outputs_that_need_no_gradient(output: Any) -> None:
    with pytest.raises(
        ValueError, match="model: found no output that needs a gradient; allowed: a loss, or tensors to make one"
    ):
        loss_of(output)
