"""``memopt check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.syntax import Syntax

from ..compiler.config.load import MemoptConfig
from ..compiler.plan.checks import Report, check_no_effect
from ..compiler.plan.resolve import resolve, unmatched
from ..compiler.plan.table import plan_table
from .app import app
from .lock import check_locked
from .options import (
    BackendName,
    ConfigPath,
    DeviceName,
    InputsPath,
    LayerPaths,
    MaybeModelPath,
    Real,
    Stages,
    Strict,
    build,
    check_device,
    layers_of,
    load,
)
from .outcome import fail, finish, or_exit
from .printing import stdout
from .tracing import Tracing


@app.command()
def check(
    config: ConfigPath,
    model: MaybeModelPath = None,
    layers: LayerPaths = None,
    pipeline_parallel_size: Stages = 1,
    strict: Strict = False,
    real: Real = False,
    lock_file: Annotated[
        Path | None, typer.Option("--locked", help="A file of 'memopt lock': fail where a layer saves more than it says.")
    ] = None,
    inputs: InputsPath = None,
    backend: BackendName = "inductor",
    device: DeviceName = "cpu",
) -> None:
    """Validate a configuration; print what it means, and with --model what holds in which layer.

    Whether a pattern names an operator is known only once there is a graph: 'memopt explain' tells. Until then a pattern
    that names no module is a warning. With --locked the model is traced too (--input, --backend and --device are for that), and
    held against a file that 'memopt lock' wrote.
    """
    parsed = load(config)
    if lock_file is not None:
        if model is None:
            fail("--locked: found without --model; allowed: with the model that the lock was written for.")
        check_device(device)
        tracing = Tracing(backend, layers, pipeline_parallel_size, None, device)
        check_locked(lock_file, build(model, inputs, real=real), parsed, tracing, strict=strict)
    elif inputs is not None or backend != "inductor" or device != "cpu":
        fail("--input, --backend, --device: found without --locked, which they are for; allowed: together with it.")
    if model is None:
        report = Report(parsed)
        check_no_effect(parsed, report)
        _print_normal_form(parsed)
        finish(report.warnings, strict)
    built = build(model, None, real=real)
    plan = or_exit(
        lambda: resolve(built.model, parsed, layers=layers_of(layers), pipeline_parallel_size=pipeline_parallel_size)
    )
    stdout().print(plan_table(plan))
    finish((*plan.warnings, *unmatched(plan)), strict)


def _print_normal_form(config: MemoptConfig) -> None:
    text = yaml.safe_dump(config.to_dict(), sort_keys=False, default_flow_style=None, allow_unicode=True, width=120).rstrip()
    console = stdout()
    if console.is_terminal:
        console.print(Syntax(text, "yaml", background_color="default"))
    else:
        print(text)
