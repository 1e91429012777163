"""``memopt report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..compiler.estimate.estimate import estimate_of
from ..page.data import page_data
from ..page.render import page
from .app import app
from .estimate import OptimizerName, optimizer_of
from .files import check_place, write_file
from .measuring import Measure, measured_step
from .options import (
    BackendName,
    ConfigPath,
    DeviceName,
    Dynamic,
    InputsPath,
    LayerPaths,
    ModelPath,
    Real,
    Stages,
    Strict,
    build,
    check_device,
    load,
)
from .outcome import finish, or_exit
from .printing import stderr
from .tracing import Tracing, traced


@app.command()
def report(
    config: ConfigPath,
    model: ModelPath,
    output: Annotated[Path, typer.Option("-o", "--output", help="The HTML file to write.")] = Path("memopt-report.html"),
    inputs: InputsPath = None,
    optimizer: OptimizerName = None,
    measure: Measure = False,
    backend: BackendName = "inductor",
    device: DeviceName = "cpu",
    layers: LayerPaths = None,
    pipeline_parallel_size: Stages = 1,
    dynamic: Dynamic = None,
    strict: Strict = False,
    real: Real = False,
) -> None:
    """Write one HTML page: memory over the step, layers, swap traffic, every value with its rule, and the configuration.

    The page holds everything itself, and loads nothing.
    """
    parsed = load(config)
    check_device(device)
    made = optimizer_of(optimizer)
    or_exit(lambda: check_place(output))
    tracing = Tracing(backend, layers, pipeline_parallel_size, dynamic, device)
    built = build(model, inputs, real=real or measure)
    explanation = traced(built, parsed, tracing)
    estimate = or_exit(lambda: estimate_of(explanation, built.model, backend=backend, optimizer=made))
    measured = measured_step(built, parsed, tracing) if measure else None
    facts = {"model": f"{type(built.model).__name__} ({model})", "backend": backend, "device": device}
    with stderr().status("Writing the page ..."):
        text = or_exit(lambda: page(page_data(estimate, parsed, facts, measured)))
        or_exit(lambda: write_file(output, text))
    stderr().print(f"{output}: {len(text.encode()) / 1e6:.2f} MB", highlight=False, markup=False)
    finish(explanation.warnings, strict)
