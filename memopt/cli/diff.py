"""``memopt diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..compiler.estimate.difference import tables
from ..compiler.estimate.estimate import estimate_of
from .app import app
from .options import (
    BackendName,
    DeviceName,
    Dynamic,
    InputsPath,
    LayerPaths,
    ModelPath,
    Real,
    Stages,
    build,
    check_device,
    load,
)
from .outcome import or_exit
from .printing import print_line, stdout
from .tracing import Tracing, traced


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(metavar="A.YAML", help="A configuration.", show_default=False)],
    after: Annotated[Path, typer.Argument(metavar="B.YAML", help="Another one.", show_default=False)],
    model: ModelPath,
    inputs: InputsPath = None,
    backend: BackendName = "inductor",
    device: DeviceName = "cpu",
    layers: LayerPaths = None,
    pipeline_parallel_size: Stages = 1,
    dynamic: Dynamic = None,
    real: Real = False,
) -> None:
    """Show what changes from one configuration to another: values, bytes, FLOPs, estimated peak."""
    configs = load(before), load(after)
    check_device(device)
    built = build(model, inputs, real=real)
    tracing = Tracing(backend, layers, pipeline_parallel_size, dynamic, device)
    names = _names(before, after)
    found = []
    for name, config in zip(names, configs, strict=True):
        explanation = traced(built, config, tracing, doing=f"Tracing the model with {name} ...")
        for text in explanation.warnings:
            print_line("warning", "yellow", f"{name}: {text}")
        estimate = or_exit(lambda explanation=explanation: estimate_of(explanation, built.model, backend=backend))  # type: ignore[misc]
        found.append(estimate)
    stdout().print(tables(found[0], found[1], names), markup=False, highlight=False)


def _names(before: Path, after: Path) -> tuple[str, str]:
    """The files' names; their paths where the names are the same."""
    return (before.name, after.name) if before.name != after.name else (str(before), str(after))
