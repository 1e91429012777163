"""``memopt lock``, and what ``memopt check --locked`` shares with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..compiler.config.load import MemoptConfig
from ..compiler.explain.table import human_bytes
from ..compiler.lock.compare import check_same, compare
from ..compiler.lock.lock import Lock, lock_of, read_lock, to_text
from ..compiler.plan.resolve import resolve
from ..factory import Built
from .app import app
from .files import check_place, write_file
from .options import (
    BackendName,
    ConfigPath,
    DeviceName,
    InputsPath,
    LayerPaths,
    ModelPath,
    Real,
    Stages,
    Strict,
    build,
    check_device,
    layers_of,
    load,
)
from .outcome import Exit, fail, finish, or_exit
from .printing import print_error, print_line, stderr
from .tracing import Tracing, traced


@app.command()
def lock(
    config: ConfigPath,
    model: ModelPath,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")] = Path("memopt.lock.json"),
    inputs: InputsPath = None,
    backend: BackendName = "inductor",
    device: DeviceName = "cpu",
    layers: LayerPaths = None,
    pipeline_parallel_size: Stages = 1,
    strict: Strict = False,
    real: Real = False,
) -> None:
    """Write down what the configuration resolves to and what each layer saves.

    'memopt check --locked' fails when a later change of the code makes a layer save more.
    """
    parsed = load(config)
    check_device(device)
    or_exit(lambda: check_place(output))
    built = build(model, inputs, real=real)
    found, warnings = locked(built, parsed, Tracing(backend, layers, pipeline_parallel_size, None, device))
    or_exit(lambda: write_file(output, to_text(found)))
    stderr().print(f"{output}: {human_bytes(found.saved_bytes)} saved for backward", highlight=False, markup=False)
    finish(warnings, strict)


def locked(built: Built, config: MemoptConfig, tracing: Tracing) -> tuple[Lock, tuple[str, ...]]:
    """What a lock of the model would say now, and the warnings."""
    stages = tracing.pipeline_parallel_size
    plan = or_exit(lambda: resolve(built.model, config, layers=layers_of(tracing.layers), pipeline_parallel_size=stages))
    explanation = traced(built, config, tracing)
    if not explanation.is_whole:
        for text in explanation.warnings:
            print_line("warning", "yellow", text)
        fail("the trace stopped before the model's end, so its bytes are not known; allowed: a model that is traced whole.")
    inputs = (built.args or (), dict(built.kwargs or {}))
    return lock_of(built.model, config, plan, explanation, tracing.backend, inputs), explanation.warnings


def check_locked(path: Path, built: Built, config: MemoptConfig, tracing: Tracing, *, strict: bool) -> None:
    """Hold a model against a lock file; exits with 1 where it is broken."""
    allowed = or_exit(lambda: read_lock(path))
    found, warnings = locked(built, config, tracing)
    or_exit(lambda: check_same(allowed, found, path))
    verdict = compare(allowed, found)
    for text in verdict.better:
        print_line("note", "green", f"{text}. 'memopt lock' would hold it.")
    for text in verdict.broken:
        print_error(text)
    if verdict.broken:
        raise typer.Exit(Exit.ERROR)
    stderr().print(f"{path}: as locked, {human_bytes(found.saved_bytes)} saved for backward", highlight=False, markup=False)
    finish(warnings, strict)
