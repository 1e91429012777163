"""``memopt explain``."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from ..compiler.estimate.estimate import estimate_of
from ..compiler.estimate.reconcile import reconcile
from ..compiler.estimate.reconcile import tables as reconciliation
from ..compiler.explain.table import tables
from .app import app
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
from .outcome import fail, finish
from .printing import stdout
from .tracing import Tracing, traced


@app.command()
def explain(
    config: ConfigPath,
    model: ModelPath,
    inputs: InputsPath = None,
    backend: BackendName = "inductor",
    device: DeviceName = "cpu",
    layers: LayerPaths = None,
    pipeline_parallel_size: Stages = 1,
    dynamic: Dynamic = None,
    strict: Strict = False,
    real: Real = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    measure: Measure = False,
) -> None:
    """Show what a configuration does to a model: every value that the backward needs, and why it is kept or recomputed.

    The model is captured and rewritten without memory for its activations; nothing is compiled or run, unless --measure asks
    for a real step: then the predicted peak is set against the measured one.
    """
    if measure and as_json:
        fail("--json: found together with --measure, which prints tables; allowed: one or the other.")
    parsed = load(config)
    check_device(device)
    built = build(model, inputs, real=real or measure)
    tracing = Tracing(backend, layers, pipeline_parallel_size, dynamic, device)
    explanation = traced(built, parsed, tracing)
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in explanation.values], indent=2))
    else:
        console = stdout()
        console.print(tables(explanation, console.width), markup=False, highlight=False)
    if measure:
        estimate = estimate_of(explanation, built.model, backend=backend)
        found = reconcile(estimate, measured_step(built, parsed, tracing))
        stdout().print(reconciliation(found), markup=False, highlight=False)
    finish(explanation.warnings if as_json else (), strict, silent=explanation.warnings)
