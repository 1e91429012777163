"""``memopt demo``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from ..compiler.errors import MemoptWarning
from .app import app
from .outcome import fail, or_exit
from .printing import stdout


@app.command()
def demo(
    config: Annotated[
        Path | None, typer.Option(help="A configuration for the demonstration's 6 layers.", show_default=False)
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each run.")] = 16,
    batch: Annotated[int, typer.Option(min=1, help="Sequences of 256 bytes in a batch.")] = 4,
    backend: Annotated[
        str | None, typer.Option(help="inductor, or aot_eager where there is no C++ compiler.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the weights, the batches and the dropout masks.")] = 0,
) -> None:
    """Train a GPT on Python's standard library, plainly and with configurations, and compare memory, time and gradients."""
    from ..demo.main import run_demo
    from ..demo.train import Settings

    settings = Settings(steps=steps, batch=batch, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("always", MemoptWarning)
        outcome = or_exit(lambda: run_demo(stdout(), config, settings, backend=backend))
    if not outcome.gradients_agree:
        fail("the gradients of the runs differ by more than rounding.")
