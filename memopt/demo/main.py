"""The demonstration: one GPT, trained on real text without and with configurations, and what they made of memory and time."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

from ..compiler.compile import compile_with_memopt, explain
from ..compiler.config.load import MemoptConfig, load_config
from ..compiler.errors import MemoptWarning
from ..compiler.explain.explanation import Explanation
from .gpt import GPT
from .measure import alternating_seconds
from .report import EQUAL, print_decisions, print_report
from .text import Text, read_text
from .train import Compile, Run, Settings, gradient_difference, train

CONFIGS = tuple(Path(__file__).with_name(name) for name in ("level2.yaml", "level3.yaml"))
TIMED_STEPS = 5


@dataclass(frozen=True, eq=False, slots=True)
class Configured:
    """A run under a configuration.

    Attributes:
        name: what the tables call it.
        run: the run.
        explanation: what was decided in it.
    """

    name: str
    run: Run
    explanation: Explanation


@dataclass(frozen=True, eq=False, slots=True)
class Outcome:
    """The runs of a demonstration, and the median seconds of a training step in each: the plain run's first."""

    plain: Run
    configured: tuple[Configured, ...]
    seconds: tuple[float, ...]

    @property
    def gradients_agree(self) -> bool:
        """Whether all first gradients are equal but for rounding."""
        return all(gradient_difference(self.plain, c.run) <= EQUAL for c in self.configured)


def has_cpp_compiler() -> bool:
    """Whether there is the C++ compiler that inductor needs on the CPU."""
    return shutil.which(os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")) is not None


def run_demo(
    console: Console,
    config: str | Path | None = None,
    settings: Settings | None = None,
    *,
    backend: str | None = None,
    text: Text | None = None,
) -> Outcome:
    """Train without a configuration and with each, and print what was measured.

    Args:
        console: where to print.
        config: a configuration for the demonstration's model; by default there are two: the first half of the layers is
            recomputed, and then the others, but for the last, are swapped as well.
        settings: what to train.
        backend: as for ``compile_with_memopt``; by default ``"inductor"``, or ``"aot_eager"`` where there is no C++ compiler.
        text: what to train on; by default the standard library's sources.

    Raises:
        ConfigError, LayersError, ValueError: what ``compile_with_memopt`` raises, before anything is trained.
    """
    settings = settings or Settings()
    if backend is None:
        backend = "inductor" if has_cpp_compiler() else "aot_eager"
        if backend == "aot_eager":
            console.print("No C++ compiler was found, so the graphs run as they are (backend aot_eager): slower, same memory.")
    configs = [load_config(config)] if config is not None else [load_config(path) for path in CONFIGS]
    for each in configs:
        _check(settings, each, backend)
    text = text or read_text()
    _print_task(console, settings, configs, backend, text)
    chosen = backend

    def compile_plain(model: GPT) -> Callable[..., Any]:
        return torch.compile(model, backend=chosen)

    plain = _with_bar(console, "plain torch.compile", compile_plain, settings, text)
    configured = []
    for each in configs:

        def compile_ours(model: GPT, each: MemoptConfig = each) -> nn.Module:
            return compile_with_memopt(model, each, backend=chosen)

        name = _name(each)
        run = _with_bar(console, f"memopt, {name}", compile_ours, settings, text)
        configured.append(Configured(name, run, explain(run.model)))
    with console.status("Timing all in turn ..."):
        seconds = alternating_seconds([plain.step, *(c.run.step for c in configured)], TIMED_STEPS)
    outcome = Outcome(plain, tuple(configured), tuple(seconds))
    console.print()
    for each_run in configured:
        print_decisions(console, each_run.name, each_run.explanation)
    print_report(console, plain, {c.name: c.run for c in configured}, outcome.seconds)
    return outcome


def _name(config: MemoptConfig) -> str:
    """What a configuration does, in two words."""
    recomputes, swaps = config.recompute.mode != "None", config.swap.enable
    return "recompute and swap" if recomputes and swaps else "swap" if swaps else "recompute" if recomputes else "nothing asked"


def _check(settings: Settings, config: MemoptConfig, backend: str) -> None:
    """Refuse now what a later run would refuse after the first one."""
    if settings.steps < 1:
        raise ValueError(f"steps: found {settings.steps}; allowed: 1 or more.")
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore", MemoptWarning)
        compile_with_memopt(GPT(settings.model), config, backend=backend)


def _print_task(console: Console, settings: Settings, configs: Sequence[MemoptConfig], backend: str, text: Text) -> None:
    with torch.device("meta"):
        parameters = sum(p.numel() for p in GPT(settings.model).parameters())
    sizes = settings.model
    console.print(
        f"A GPT of {parameters / 1e6:.1f} M parameters ({sizes.layers} layers, width {sizes.width}) learns "
        f"{len(text.training) / 1e6:.1f} MB of Python's standard library: {settings.steps} steps of {settings.batch} x "
        f"{sizes.context} bytes, backend {backend}, {torch.get_num_threads()} threads.",
        highlight=False,
    )
    for config in configs:
        console.print(f"Configuration ({config.origin.source}):", highlight=False)
        if config.origin.source is not None:
            lines = Path(config.origin.source).read_text(encoding="utf-8-sig").splitlines()
            kept = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
            console.print("\n".join(f"  {line}" for line in kept), style="cyan", highlight=False, markup=False)
    console.print()


def _with_bar(console: Console, name: str, compile_model: Compile, settings: Settings, text: Text) -> Run:
    columns = (TextColumn("{task.description:<26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=console) as bar:
        task = bar.add_task(name, total=settings.steps, note="compiling")

        def advance(loss: float) -> None:
            bar.update(task, advance=1, note=f"loss {loss:.3f}")

        return train(compile_model, settings, text, advance)
