"""What a step allocates, measured: known allocations, known moments."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from memopt import Measurement, measure

K = 1024
SQUARE = 256 * 256 * 4
SCALARS = 64
"""More than the numbers take that a loss and its gradient are made of."""


@pytest.fixture
def weight() -> torch.Tensor:
    return torch.ones(256, 256, requires_grad=True)


def step_of(weight: torch.Tensor) -> Callable[[], None]:
    x = torch.ones(256, 256)

    def step() -> None:
        y = (x @ weight).sin()
        y.sum().backward()

    return step


def kinds(found: Measurement) -> list[tuple[str, str, dict[str, int]]]:
    """The moments, without what numbers take."""
    large = [
        (m.phase, m.operator, {k: v // SQUARE for k, v in m.bytes.items() if v >= SQUARE})
        for m in found.timeline
        if m.operator != "empty_strided" and m.operator != "sum"
    ]
    assert all(v % SQUARE <= SCALARS for m in found.timeline for v in m.bytes.values())
    return large


def test_a_step_by_hand(weight: torch.Tensor) -> None:
    found = measure(step_of(weight))
    assert kinds(found) == [
        ("forward", "mm", {"saved": 1}),
        ("forward", "sin", {"saved": 2}),
        ("backward", "cos", {"saved": 2, "temporary": 1}),
        ("backward", "mul", {"saved": 2, "temporary": 2}),
        ("backward", "mm", {"saved": 1, "temporary": 1, "gradients": 1}),
    ]
    assert 4 * SQUARE <= found.peak_bytes <= 4 * SQUARE + SCALARS
    assert found.peak_bytes == found.at_peak.total == max(m.total for m in found.timeline)
    assert (found.at_peak.phase, found.at_peak.operator, found.at_peak.layer) == ("backward", "mul", None)
    assert (found.device, found.left_bytes, found.scratch_bytes, found.allocator_peak_bytes) == ("cpu", SQUARE, 0, None)


def test_gradients_that_are_there_already_are_added_to_and_nothing_is_left(weight: torch.Tensor) -> None:
    step = step_of(weight)
    step()
    found = measure(step)
    assert found.left_bytes == 0
    assert all("gradients" not in m.bytes for m in found.timeline)
    assert kinds(found)[-1] == ("backward", "mm", {"saved": 1, "temporary": 2})


def test_warmup_steps_are_not_measured(weight: torch.Tensor) -> None:
    calls = []

    def step() -> None:
        calls.append(torch.ones(10 * K if len(calls) < 2 else K))

    assert measure(step, warmup=2).peak_bytes == 4 * K
    assert len(calls) == 3


def test_what_is_kept_and_what_is_dropped() -> None:
    kept = []

    def step() -> None:
        kept.append(torch.empty(K))
        dropped = torch.empty(2 * K)
        del dropped
        torch.empty(100)

    found = measure(step)
    assert [dict(m.bytes) for m in found.timeline] == [
        {"outputs": 4 * K},
        {"outputs": 4 * K, "temporary": 8 * K},
        {"outputs": 4 * K, "temporary": 400},
    ]
    assert (found.peak_bytes, found.left_bytes) == (12 * K, 4 * K)


def test_what_the_step_frees_of_before_is_not_set_against_it() -> None:
    old = [torch.ones(1 << 20)]

    def step() -> None:
        old.clear()
        torch.empty(K)

    found = measure(step)
    assert [dict(m.bytes) for m in found.timeline] == [{"temporary": 4 * K}]


def test_an_operators_own_memory_is_told_apart() -> None:
    @torch.library.custom_op("memopt_tests::squares", mutates_args=())
    def squares(x: torch.Tensor) -> torch.Tensor:
        return torch.mul(x, x) + torch.empty(3 * K)[:1]

    x = torch.ones(K)
    found = measure(lambda: squares(x))
    # The product and the space behind the slice are freed in the operator; the sum is not.
    assert found.peak_bytes == (1 + 3 + 1) * 4 * K
    assert found.scratch_bytes == (1 + 3) * 4 * K


@pytest.mark.parametrize("wrong", [3, None, "step"])
def test_a_step_that_is_no_function(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"step_fn: found .*; allowed: a function without arguments that runs one step\."):
        measure(wrong)


@pytest.mark.parametrize("wrong", [-1, True, 1.5, None, "2"])
def test_a_count_that_is_none(wrong: Any) -> None:
    calls: list[int] = []
    with pytest.raises(ValueError, match=r"warmup: found .*; allowed: a count of steps, 0 or more\."):
        measure(lambda: calls.append(1), warmup=wrong)
    assert calls == []


def test_a_step_that_allocates_nothing() -> None:
    with pytest.raises(
        ValueError, match="step_fn: the step allocated nothing; allowed: a step that runs a forward and a backward"
    ):
        measure(lambda: None)


def test_a_profiler_that_is_running() -> None:
    calls: list[int] = []
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.raises(ValueError, match="step_fn: found a profiler that is running; allowed: one at a time"),
    ):
        measure(lambda: calls.append(1), warmup=1)
    assert calls == []


def test_an_error_of_the_step_comes_through_and_the_next_measurement_works(weight: torch.Tensor) -> None:
    def fails() -> None:
        raise RuntimeError("out of tune")

    with pytest.raises(RuntimeError, match=r"^out of tune$"):
        measure(fails)
    assert measure(step_of(weight)).left_bytes == SQUARE


def test_the_profiler_says_nothing(weight: torch.Tensor, capfd: pytest.CaptureFixture[str]) -> None:
    old = [torch.ones(K)]

    def step() -> None:
        old.clear()  # a block that the profiler never saw
        step_of(weight)()
        print("said")

    measure(step)
    out, err = capfd.readouterr()
    assert (out, err) == ("said\n", "")


def test_standard_error_is_there_again_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise RuntimeError("out of tune")

    with pytest.raises(RuntimeError):
        measure(fails)
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"
