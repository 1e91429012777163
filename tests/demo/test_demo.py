"""The demonstration, at a size that takes seconds."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from memopt import ConfigError, compile_with_memopt
from memopt.demo import main, report
from memopt.demo.gpt import GPT, GPTConfig
from memopt.demo.main import Outcome, run_demo
from memopt.demo.measure import alternating_seconds, peak_bytes
from memopt.demo.text import Text, batch, read_text
from memopt.demo.train import Run, Settings, gradient_difference, train

TINY = Settings(model=GPTConfig(context=16, layers=6, heads=2, width=32), batch=2, steps=3)
SHORT = Text(torch.arange(256, dtype=torch.uint8).repeat(4), torch.arange(256, dtype=torch.uint8))


# ---------------------------------------------------------------- text


def test_standard_library_is_read() -> None:
    text = read_text()
    assert len(text.training) > 5 * len(text.held_out) > 100_000  # every tenth file, whatever its size
    assert b"import " in bytes(text.held_out[:100_000].tolist())


def test_files_in_order_and_every_tenth_held_out(tmp_path: Path) -> None:
    for number in reversed(range(20)):
        (tmp_path / f"m{number:02d}.py").write_text(f"{number:02d}")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "a.py").write_text("no")
    (tmp_path / "notes.txt").write_text("no")
    text = read_text(tmp_path)
    expected = "\n".join(f"{n:02d}" for n in range(20) if n % 10 != 9)
    assert bytes(text.training.tolist()).decode() == expected
    assert bytes(text.held_out.tolist()).decode() == "09\n19"


def test_no_sources(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="found 0 Python source files"):
        read_text(tmp_path)


def test_batches_are_deterministic_and_leave_the_random_state_alone() -> None:
    state = torch.get_rng_state()
    first = batch(SHORT.training, 7, size=3, context=5, seed=1)
    torch.rand(1)
    torch.set_rng_state(state)
    again = batch(SHORT.training, 7, size=3, context=5, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    other = batch(SHORT.training, 8, size=3, context=5, seed=1)
    assert not torch.equal(first[0], other[0])


def test_targets_follow_symbols() -> None:
    symbols, targets = batch(SHORT.training, 0, size=4, context=9)
    assert symbols.shape == targets.shape == (4, 9)
    assert torch.equal((symbols + 1) % 256, targets)


def test_a_text_that_is_too_short() -> None:
    with pytest.raises(ValueError, match="needed: more than context, which is 256"):
        batch(SHORT.held_out, 0, size=1, context=256)


# ---------------------------------------------------------------- measuring


def test_peak_counts_what_is_live() -> None:
    def step() -> None:
        for _ in range(3):
            one = torch.empty(1_000_000)
            two = torch.empty(500_000)
            del one, two

    assert peak_bytes(step) == 6_000_000


def test_steps_are_timed_in_turn() -> None:
    order: list[str] = []
    seconds = alternating_seconds([lambda: order.append("a"), lambda: order.append("b")], 3)
    assert order == ["a", "b"] * 3
    assert all(s >= 0 for s in seconds)


# ---------------------------------------------------------------- training


def tiny_run(recompute: dict[str, object] | None, settings: Settings = TINY) -> Run:
    config = {"recompute": recompute} if recompute else {}
    return train(lambda model: compile_with_memopt(model, config, backend="aot_eager"), settings, SHORT)


@pytest.fixture(scope="module")
def outcome() -> tuple[Outcome, str]:
    console = Console(file=io.StringIO(), width=150)
    made = run_demo(console, None, TINY, backend="aot_eager", text=SHORT)
    assert isinstance(console.file, io.StringIO)
    return made, console.file.getvalue()


def test_all_runs_agree(outcome: tuple[Outcome, str]) -> None:
    plain, configured = outcome[0].plain, outcome[0].configured
    assert [c.name for c in configured] == ["recompute", "recompute and swap"]
    assert len(outcome[0].seconds) == 3
    assert len(plain.losses) == TINY.steps
    for each in configured:
        assert plain.losses == each.run.losses
        assert plain.held_out_loss == each.run.held_out_loss
        assert gradient_difference(plain, each.run) <= 1e-7
    assert outcome[0].gradients_agree


def test_less_is_saved(outcome: tuple[Outcome, str]) -> None:
    recompute, both = (c.explanation for c in outcome[0].configured)
    assert recompute.saved_after < 0.7 * recompute.saved_before
    assert (recompute.swapped, both.swapped > 0) == (0, True)
    assert both.saved_after < recompute.saved_after
    for explanation in (recompute, both):
        recomputed = {row.layer for row in explanation.values if row.rule and row.action == "recompute"}
        assert recomputed == {0, 1, 2}
    assert {row.returns for row in both.values if row.action == "offload"} == {3, 4}


def test_everything_is_printed(outcome: tuple[Outcome, str]) -> None:
    printed = outcome[1]
    for part in (
        "full_recompute_layer: [0-2]",
        "recompute.full_recompute_layer",
        "loss on held-out text",
        "plain torch.compile",
        "layers: [3-4]",
        "swapped",
    ):
        assert part in printed
    for name, line in zip(("recompute", "recompute and swap"), printed.rstrip().splitlines()[-2:], strict=True):
        assert line.startswith(f"{name}: peak ")
        assert line.endswith("gradients identical") or "gradients equal to" in line


def test_another_seed_is_another_run() -> None:
    one, other = (tiny_run(None, replace(TINY, steps=1, seed=seed)) for seed in (0, 1))
    assert one.losses != other.losses


def test_a_gradient_that_differs_is_seen(outcome: tuple[Outcome, str]) -> None:
    plain, (first, *others) = outcome[0].plain, outcome[0].configured
    ours = first.run
    name = next(iter(ours.first_gradients))
    for value in (1.0, math.nan):
        wrong = {**ours.first_gradients, name: ours.first_gradients[name] + value}
        changed = replace(ours, first_gradients=wrong)
        assert not replace(outcome[0], configured=(replace(first, run=changed), *others)).gradients_agree
        assert "gradients DIFFER" in report.conclusion("ours", plain, changed, (1.0, 1.0))


def test_wrong_configuration_is_refused_before_training() -> None:
    console = Console(file=io.StringIO())
    with pytest.raises(ConfigError, match="the model has 6 layers"):
        run_demo(console, "recompute: {mode: full, full_recompute_layer: [0-9]}\n", TINY, backend="aot_eager", text=SHORT)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""


def test_without_a_cpp_compiler_graphs_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    assert not main.has_cpp_compiler()
    console = Console(file=io.StringIO(), width=150)
    run_demo(console, None, replace(TINY, steps=1), text=SHORT)
    assert isinstance(console.file, io.StringIO)
    assert "No C++ compiler was found" in console.file.getvalue()
    assert "backend aot_eager" in console.file.getvalue()


def test_default_size_is_about_ten_million_parameters() -> None:
    with torch.device("meta"):
        model = GPT(Settings().model)
    assert 9e6 < sum(p.numel() for p in model.parameters()) < 12e6


@pytest.mark.parametrize(
    ("values", "line"),
    [((), ""), ((1.0,), "▁"), ((2.0, 2.0), "▁▁"), ((0.0, 7.0), "▁█"), (tuple(map(float, range(8))), "▁▂▃▄▅▆▇█")],
)
def test_sparkline(values: tuple[float, ...], line: str) -> None:
    assert report.sparkline(values) == line


def test_sparkline_is_no_wider_than_asked() -> None:
    line = report.sparkline([float(n) for n in range(100)], 10)
    assert len(line) == 10
    assert (line[0], line[-1]) == ("▁", "█")
