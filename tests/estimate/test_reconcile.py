"""A prediction beside a measurement: rows, reasons, and the table."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest
from memopt.compiler.estimate.reconcile import Reconciliation, reconcile, tables
from rich.console import Console

from memopt import Measurement, Moment


def moment(phase: str, operator: str = "mm", layer: int | None = None, **kinds: int) -> Moment:
    return Moment(phase, operator, "", layer, kinds)


def told(*moments: Moment) -> Any:
    return SimpleNamespace(timeline=moments, at_peak=max(moments, key=lambda m: m.total))


def real(*moments: Moment, scratch: int = 0) -> Measurement:
    return Measurement("cpu", max(m.total for m in moments), moments, 0, scratch)


FORWARD = moment("forward", saved=400, outputs=4)


def test_what_agrees_needs_no_reason() -> None:
    peak = moment("backward", gradients=100, saved=300, temporary=200)
    found = reconcile(told(FORWARD, peak), real(FORWARD, peak))
    assert (found.predicted, found.measured, found.ratio, found.reasons) == (600, 600, 1.0, ())
    assert found.rows == {
        "gradients": (100, 100),
        "saved, and outputs": (300, 300),
        "reloaded": (0, 0),
        "recomputed, and temporary": (200, 200),
    }


def test_what_a_measurement_cannot_tell_apart_is_added_up() -> None:
    ours = moment("backward", recomputed=150, temporary=50, saved=200, outputs=4, leaving=96, reloaded=7)
    theirs = moment("backward", temporary=200, saved=300, reloaded=7)
    found = reconcile(told(FORWARD, ours), real(FORWARD, theirs))
    assert found.reasons == ()
    assert found.rows["recomputed, and temporary"] == (200, 200)
    assert found.rows["saved, and outputs"] == (300, 300)


def test_reasons_come_with_the_largest_part_first() -> None:
    ours = moment("backward", layer=3, gradients=100, saved=300, temporary=200)
    theirs = moment("forward", "native_dropout", gradients=90, saved=350, temporary=900)
    found = reconcile(told(FORWARD, ours), real(moment("forward", saved=500), theirs, scratch=640))
    assert found.reasons == (
        "recomputed, and temporary: 700 B more than predicted",
        "saved, and outputs: 50 B more than predicted",
        "gradients: 10 B less than predicted",
        "640 B of the measured bytes were native_dropout's own, which no graph tells",
        "the peaks are not in the same place: mm in layer 3, backward was predicted, native_dropout, forward measured",
        "when the backward begins, the forward has left 54 B less than predicted",
    )
    assert found.ratio == pytest.approx(600 / 1340)


def test_scratch_of_something_without_a_name() -> None:
    theirs = moment("backward", "", temporary=500)
    found = reconcile(told(FORWARD, moment("backward", temporary=500)), real(FORWARD, theirs, scratch=5))
    assert found.reasons == ("5 B of the measured bytes were an operator's own, which no graph tells",)


def test_a_measurement_of_nothing_has_no_ratio() -> None:
    assert Reconciliation(10, 0, {}, ()).ratio == float("inf")


def test_the_table() -> None:
    ours = moment("backward", gradients=2048, temporary=1024)
    theirs = moment("backward", gradients=2048, temporary=2048)
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(tables(reconcile(told(FORWARD, ours), real(FORWARD, theirs))))
    assert isinstance(console.file, io.StringIO)
    lines = [" ".join(line.split()) for line in console.file.getvalue().replace("│", " ").splitlines()]
    assert "gradients 2.0 KiB 2.0 KiB 0 B" in lines
    assert "recomputed, and temporary 1.0 KiB 2.0 KiB 1.0 KiB" in lines
    assert "all 3.0 KiB 4.0 KiB 1.0 KiB" in lines
    assert not [line for line in lines if line.startswith(("reloaded", "saved"))]
    assert "predicted / measured: 0.750" in lines
    assert "- recomputed, and temporary: 1.0 KiB more than predicted" in lines
