"""``memopt lock`` and ``memopt check --locked``: what holds, what breaks, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from verb_running import EAGER, TANH, TOWER, X, folder, new_files, run, said

__all__ = ["folder"]

CHECK = ("check", "full.yaml", "--locked", "memopt.lock.json")
SAVED = 2 * X + 2 * TANH


@pytest.fixture
def locked(folder: Path) -> Path:
    result = run("lock", "full.yaml", *TOWER)
    assert (result.exit_code, result.stdout) == (0, "")
    assert said(result) == f"memopt.lock.json: {SAVED} B saved for backward"
    return folder / "memopt.lock.json"


def model(name: str, backend: tuple[str, ...] = EAGER) -> tuple[str, ...]:
    return ("--model", f"verb_models:{name}", *backend)


def test_what_was_locked_holds(locked: Path) -> None:
    layers = json.loads(locked.read_text())["layers"]
    assert {n: layer["saved_bytes"] for n, layer in layers.items() if layer["path"]} == {"0": X + TANH, "1": X, "2": TANH}
    result = run(*CHECK, *TOWER)
    assert result.exit_code == 0
    assert said(result) == f"memopt.lock.json: as locked, {SAVED} B saved for backward"
    assert run("lock", "full.yaml", *TOWER, "-o", "again.json").exit_code == 0
    assert locked.with_name("again.json").read_text() == locked.read_text()


def test_a_layer_that_saves_more_is_named_with_its_bytes(locked: Path) -> None:
    before = locked.read_text()
    result = run(*CHECK, *model("wide"))
    assert result.exit_code == 1
    grown = 2 * TANH
    assert (
        f"error: layer 0: {X + grown} B ({X + grown} B) saved for backward, {X + TANH} B ({X + TANH} B) were locked."
        in said(result)
    )
    assert f"error: layer 2: {grown} B ({grown} B) saved for backward, {TANH} B ({TANH} B) were locked." in said(result)
    assert "layer 1" not in said(result)
    assert "as locked" not in said(result)
    assert locked.read_text() == before


def test_a_layer_that_saves_less_is_a_note(locked: Path) -> None:
    result = run(*CHECK, *model("narrow"), "--strict")
    assert result.exit_code == 0
    told = f"note: layer 2: {TANH // 2} B saved for backward, {TANH} B were locked. 'memopt lock' would hold it."
    assert told in said(result)
    assert "error" not in said(result)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ((*CHECK, *model("other")), "a lock for the model verb_models.Tower, and here it is verb_models.Other;"),
        ((*CHECK, *model("deep")), "its layers are layers.0 ... layers.2 (3), and here they are layers.0 ... layers.3 (4)."),
        ((*CHECK, *model("tower", ())), "a lock for the backend aot_eager, and here it is inductor;"),
        (("check", "none.yaml", *CHECK[2:], *TOWER), "a lock for another configuration (recompute differ);"),
        ((*CHECK, *TOWER, "--input", "verb_models:other_inputs"), "the inputs [4, 8] float32, and here it is [5, 8] float32;"),
        (
            (*CHECK, *TOWER[2:]),
            "error: --locked: found without --model; allowed: with the model that the lock was written for.",
        ),
        ((*CHECK, *model("frozen")), "error: the model has no graph with a backward"),
        ((*CHECK, *model("raises")), "error: tracing the model failed: ValueError: out of tune (verb_models.py:"),
        ((*CHECK, *TOWER, "--device", "nope"), "error: --device: found 'nope'"),
        (("check", "full.yaml", "--locked", "nowhere.json", *TOWER), "error: nowhere.json: No such file or directory."),
        (("check", "full.yaml", "--locked", ".", *TOWER), "error: .: Is a directory."),
        (("check", "full.yaml", "--locked", "full.yaml", *TOWER), "error: full.yaml: found text that is not JSON"),
        (("check", "bad.yaml", "--locked", "memopt.lock.json", *TOWER), "Did you mean 'full'?"),
    ],
)
def test_refusals(locked: Path, command: tuple[str, ...], message: str) -> None:
    result = run(*command)
    assert result.exit_code == 1
    assert message in said(result)
    assert "as locked" not in said(result)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(torch="1.0"), "a lock for the torch version 1.0, and here it is "),
        (lambda d: d.update(memopt_lock=7), "a lock of another format; allowed: 1."),
        (lambda d: d["layers"]["1"].update(saved_bytes=-1), "a lock file that was changed (bytes that are no count)."),
        (lambda d: d.update(config=3), "a lock file that was changed (a configuration that is no mapping)."),
        (lambda d: d["layers"]["1"].update(recompute=[]), "layer 1: no rule was locked, and now it is recompute *."),
        (
            lambda d: d["layers"]["0"].update(saved_bytes=0),
            f"layer 0: {X + TANH} B ({X + TANH} B) saved for backward, 0 B (0 B) were",
        ),
    ],
)
def test_a_lock_that_was_changed(locked: Path, change: Callable[[Any], None], message: str) -> None:
    data = json.loads(locked.read_text())
    change(data)
    locked.write_text(json.dumps(data))
    result = run(*CHECK, *TOWER)
    assert result.exit_code == 1
    assert message in said(result)


def test_warnings_are_told_and_strict_makes_them_count(folder: Path) -> None:
    result = run("lock", "unused.yaml", *TOWER, "--strict")
    assert result.exit_code == 2
    assert "warning: recompute.full_recompute_layer: has no effect with mode: None" in said(result)
    command = ("check", "unused.yaml", "--locked", "memopt.lock.json", *TOWER)
    assert run(*command).exit_code == 0
    assert run(*command, "--strict").exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-o", "nowhere/x.json"), "error: nowhere/x.json: there is no directory "),
        (("-o", "."), "error: .: is a directory; a file is to be written."),
        (("--model", "verb_models:fails"), "calling it failed: RuntimeError: the weights are lost (verb_models.py:"),
        (("--model", "verb_models:alone"), "The model was called without inputs: --input gives them."),
        (("--model", "verb_models:stops"), "error: the trace stopped before the model's end, so its bytes are not known;"),
        (("--layers", "blocks"), "blocks"),
    ],
)
def test_nothing_is_written_where_it_fails(folder: Path, options: tuple[str, ...], message: str) -> None:
    result = run("lock", "full.yaml", *TOWER, *options)
    assert result.exit_code == 1
    assert message in said(result)
    assert new_files(folder) == []
