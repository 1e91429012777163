"""The arithmetic of the simulated step, held against small cases worked out by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from overlap import Hardware, Operator, simulate
from overlap_program import program
from torch import nn

from memopt import trace

SLOW = Hardware(flops=10, memory=100, copy_out=1, copy_in=2)
"""Ten operations, a hundred bytes of traffic, one byte out and two bytes in a second."""


def compute(value: str, nbytes: int = 0, flops: int = 0, frees: tuple[str, ...] = ()) -> Operator:
    return Operator("compute", value, nbytes, flops, 0, frees)


def test_an_operator_takes_the_longer_of_arithmetic_and_traffic() -> None:
    assert Operator("compute", "a", flops=20, traffic=100).seconds(SLOW) == 2.0
    assert Operator("compute", "a", flops=20, traffic=500).seconds(SLOW) == 5.0


def test_without_copies_times_add_up_and_the_peak_is_what_is_alive() -> None:
    t = simulate([compute("a", 4, 10), compute("b", 2, 30, ("a",)), compute("c", 3, 10, ("b",))], SLOW)
    assert (t.seconds, t.computing, t.stalled, t.late) == (5.0, 5.0, 0.0, 0)
    assert t.peak == 6  # a and b; a goes before c comes


def leaving(value: str) -> list[Operator]:
    """Four bytes that take a second to make, and leave at once."""
    return [compute(value, 4, 10), Operator("offload", value, 4, frees=(value,))]


def swapped(ahead_of: str, between: int) -> list[Operator]:
    """``a`` (4 bytes) leaves after it was made, and is fetched before or after ``between`` operations of others."""
    fetch, wait = Operator("prefetch", "a", 4), Operator("wait", "a", 4)
    other = compute("g", 0, between)
    middle = [fetch, other, wait] if ahead_of == "others" else [other, fetch, wait]
    return [*leaving("a"), compute("f", 0, 100), *middle, compute("h", 0, 10, ("a",))]


@pytest.mark.parametrize(
    ("ahead_of", "between", "stalled", "seconds"),
    [
        ("others", 30, 0.0, 1 + 10 + 3 + 1),  # 2 s of reload behind 3 s of compute
        ("others", 10, 1.0, 1 + 10 + 1 + 1 + 1),  # 2 s behind 1 s: one second of stall
        ("use", 30, 2.0, 1 + 10 + 3 + 2 + 1),  # not ahead at all: the whole reload
    ],
)
def test_a_reload_is_hidden_as_far_as_there_is_compute_before_its_use(
    ahead_of: str, between: int, stalled: float, seconds: float
) -> None:
    t = simulate(swapped(ahead_of, between), SLOW)
    assert (t.stalled, t.seconds, t.late) == (stalled, seconds, int(stalled > 0))


def test_a_reload_waits_for_its_copy_out() -> None:
    steps = [*leaving("a"), Operator("prefetch", "a", 4), Operator("wait", "a", 4)]
    t = simulate([*steps, compute("h", 0, 10, ("a",))], SLOW)
    assert t.stalled == 4.0 + 2.0
    assert t.seconds == 1.0 + 6.0 + 1.0


def test_memory_is_free_when_copy_and_last_use_have_ended() -> None:
    # The copy out takes 4 s: after 1 s `a` is still there when `b` comes, after 5 s it is not.
    assert simulate([*leaving("a"), compute("f", 0, 10), compute("b", 3, 10)], SLOW).peak == 7
    assert simulate([*leaving("a"), compute("f", 0, 50), compute("b", 3, 10)], SLOW).peak == 4


def test_above_the_bytes_in_flight_compute_waits() -> None:
    steps = [*leaving("a"), *leaving("b")]
    free = simulate(steps, SLOW)
    bound = simulate(steps, SLOW, in_flight_bytes=4)
    assert (free.blocked, free.seconds) == (0.0, 2.0)
    assert (bound.blocked, bound.seconds) == (3.0, 5.0)  # `a` has left at 1 + 4


def test_a_traced_model_gives_a_queue_that_swap_makes_smaller() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return h + self.fc2(torch.relu(self.fc1(h)))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(6))

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                h = layer(h)
            return h

    fast = Hardware(1e12, 1e12, 1e12, 1e12)
    peaks = []
    for config in ({}, {"swap": {"enable": True, "layer_swap": [{"layers": ["0-4"]}]}}):
        explanation = trace(Model(), config, [torch.randn(512, 64)], backend="aot_eager")
        queue = program(explanation.graphs[0])
        peaks.append(simulate(queue, fast).peak)
        sent = sum(op.nbytes for op in queue if op.kind == "offload")
        assert sent == explanation.swapped
        assert sum(op.flops for op in queue) == (6 * 6 - 1) * 2 * 512 * 64 * 256
    layer = 512 * 256 * 4 + 512 * 64 * 4  # what a layer saves at least: the inner value and its input
    assert peaks[0] - peaks[1] >= 2 * layer
