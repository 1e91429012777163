"""The demonstration: one GPT, trained on real text without and with a configuration, and what that made of memory and time."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

from ..compiler.compile import compile_with_memopt, explain
from ..compiler.config import MemoptConfig, load_config
from ..compiler.errors import MemoptWarning
from ..compiler.explain import Explanation
from .gpt import GPT
from .measure import alternating_seconds
from .report import EQUAL, print_report
from .text import Text, read_text
from .train import Compile, Run, Settings, gradient_difference, train

CONFIG = Path(__file__).with_name("level2.yaml")
TIMED_STEPS = 5


@dataclass(frozen=True, eq=False, slots=True)
class Outcome:
    """Both runs of a demonstration, the median seconds of a training step in each, and what was decided in the second."""

    plain: Run
    ours: Run
    seconds: tuple[float, float]
    explanation: Explanation

    @property
    def gradients_agree(self) -> bool:
        """Whether the first gradients are equal but for rounding."""
        return gradient_difference(self.plain, self.ours) <= EQUAL


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
    """Train twice and print what was measured.

    Args:
        console: where to print.
        config: a configuration for the demonstration's model; by default its first half is recomputed.
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
    memopt_config = load_config(config or CONFIG)
    _check(settings, memopt_config, backend)
    text = text or read_text()
    _print_task(console, settings, memopt_config, backend, text)
    chosen = backend

    def compile_plain(model: GPT) -> Callable[..., Any]:
        return torch.compile(model, backend=chosen)

    def compile_ours(model: GPT) -> nn.Module:
        return compile_with_memopt(model, memopt_config, backend=chosen)

    plain = _with_bar(console, "plain torch.compile", compile_plain, settings, text)
    ours = _with_bar(console, "memopt", compile_ours, settings, text)
    with console.status("Timing both in turn ..."):
        seconds = alternating_seconds([plain.step, ours.step], TIMED_STEPS)
    outcome = Outcome(plain, ours, (seconds[0], seconds[1]), explain(ours.model))
    console.print()
    print_report(console, plain, ours, outcome.seconds, outcome.explanation)
    return outcome


def _check(settings: Settings, config: MemoptConfig, backend: str) -> None:
    """Refuse now what the second run would refuse after the first one."""
    if settings.steps < 1:
        raise ValueError(f"steps: found {settings.steps}; allowed: 1 or more.")
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore", MemoptWarning)
        compile_with_memopt(GPT(settings.model), config, backend=backend)


def _print_task(console: Console, settings: Settings, config: MemoptConfig, backend: str, text: Text) -> None:
    with torch.device("meta"):
        parameters = sum(p.numel() for p in GPT(settings.model).parameters())
    sizes = settings.model
    console.print(
        f"A GPT of {parameters / 1e6:.1f} M parameters ({sizes.layers} layers, width {sizes.width}) learns "
        f"{len(text.training) / 1e6:.1f} MB of Python's standard library: {settings.steps} steps of {settings.batch} x "
        f"{sizes.context} bytes, backend {backend}, {torch.get_num_threads()} threads.",
        highlight=False,
    )
    console.print(f"Configuration ({config.origin.source}):", highlight=False)
    if config.origin.source is not None:
        lines = Path(config.origin.source).read_text(encoding="utf-8-sig").splitlines()
        kept = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
        console.print("\n".join(f"  {line}" for line in kept), style="cyan", highlight=False, markup=False)
    console.print()


def _with_bar(console: Console, name: str, compile_model: Compile, settings: Settings, text: Text) -> Run:
    columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=console) as bar:
        task = bar.add_task(name, total=settings.steps, note="compiling")

        def advance(loss: float) -> None:
            bar.update(task, advance=1, note=f"loss {loss:.3f}")

        return train(compile_model, settings, text, advance)
