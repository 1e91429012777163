"""``memopt diff``: what changes from one configuration to another."""

from __future__ import annotations

from pathlib import Path

import pytest
from verb_running import TANH, TOWER, X, cells, folder, run, said

__all__ = ["folder"]

RULE = "recompute.full_recompute_layer"


def test_what_changes() -> None:
    result = run("diff", "none.yaml", "full.yaml", *TOWER)
    assert (result.exit_code, result.stderr) == (0, "")
    rows = cells(result.stdout)
    assert ["", "none.yaml", "full.yaml", "difference"] in rows
    assert ["saved for backward", "1.0 KiB", f"{2 * X + 2 * TANH} B", f"-{TANH} B"] in rows
    assert ["FLOPs that run again", "0", "1.0 k", "+1.0 k"] in rows
    assert ["1", f"{X + TANH} B", f"{X} B", "0 B", "0 B", "0", "1.0 k"] in rows
    assert [row[0] for row in rows if len(row) == 7] == ["layers", "1"]
    values = [row for row in rows if len(row) == 6]
    assert ["1", "", "tanh", f"{TANH} B", "save", f"recompute ({RULE})"] in values
    assert {row[0] for row in values} == {"layers", "1"}


def test_the_other_way_round() -> None:
    rows = cells(run("diff", "full.yaml", "none.yaml", *TOWER).stdout)
    assert ["saved for backward", f"{2 * X + 2 * TANH} B", "1.0 KiB", f"+{TANH} B"] in rows
    assert ["1", "", "tanh", f"{TANH} B", f"recompute ({RULE})", "save"] in rows


def test_layers_that_change_alike_are_one_line() -> None:
    rows = cells(run("diff", "none.yaml", "swap.yaml", *TOWER).stdout)
    assert ["0-1", "", "tanh", f"{TANH} B x 2", "save", "offload to disk (swap.layer_swap[0])"] in rows


@pytest.mark.parametrize("folded", [("full.yaml", "full.yaml"), ("none.yaml", "unused.yaml")])
def test_nothing_changes(folded: tuple[str, str]) -> None:
    result = run("diff", *folded, *TOWER)
    assert result.exit_code == 0
    assert "To every value the same happens." in result.stdout
    assert "Layers that differ" not in result.stdout
    assert [row[3] for row in cells(result.stdout)] == ["difference", "0 B", "0 B", "0 B", "0", ""]


def test_a_warning_says_of_which(folder: Path) -> None:
    (folder / "more").mkdir()
    (folder / "more" / "unused.yaml").write_text((folder / "unused.yaml").read_text())
    result = run("diff", "none.yaml", "unused.yaml", *TOWER)
    assert said(result) == "warning: unused.yaml: recompute.full_recompute_layer: has no effect with mode: None"
    result = run("diff", "unused.yaml", "more/unused.yaml", *TOWER)
    assert said(result).count("warning: ") == 2
    assert "warning: more/unused.yaml: recompute.full_recompute_layer" in said(result)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("none.yaml", "bad.yaml", *TOWER), "Did you mean 'full'?"),
        (("none.yaml", "nowhere.yaml", *TOWER), "no file at 'nowhere.yaml'"),
        (("none.yaml", "full.yaml", "--model", "verb_models:fails"), "RuntimeError: the weights are lost"),
        (("none.yaml", "full.yaml", "--model", "verb_models:frozen"), "error: the model has no graph with a backward"),
        (("none.yaml", "full.yaml", *TOWER, "--backend", "nope"), "error: backend: found 'nope'; allowed: "),
        (("none.yaml", "full.yaml", *TOWER, "--device", "nope"), "error: --device: found 'nope'"),
        (("none.yaml", "full.yaml", *TOWER, "--layers", "blocks"), "blocks"),
    ],
)
def test_refusals(command: tuple[str, ...], message: str) -> None:
    result = run("diff", *command)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in said(result)


def test_two_configurations_are_needed() -> None:
    assert run("diff", "none.yaml", *TOWER).exit_code == 2
