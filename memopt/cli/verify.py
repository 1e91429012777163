"""``memopt verify``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import torch
import typer

from .app import app
from .options import BackendName, ConfigPath, InputsPath, LayerPaths, ModelPath, Stages, Strict, build, layers_of, load
from .outcome import Exit, finish, or_exit
from .printing import stderr, stdout
from .tracing import hint_about_inputs


class Scope(StrEnum):
    """What is compiled together."""

    MODEL = "model"
    LAYER = "layer"


@app.command()
def verify(
    config: ConfigPath,
    model: ModelPath,
    inputs: InputsPath = None,
    backend: BackendName = "inductor",
    scope: Annotated[Scope, typer.Option("--scope", help="As for compile_with_memopt.")] = Scope.MODEL,
    steps: Annotated[int, typer.Option("--steps", min=1, help="How many forwards and backwards to compare.")] = 1,
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**63 - 1, help="Of the weights, the inputs and the dropout masks.")
    ] = 0,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            min=0,
            metavar="X",
            help="The largest relative difference that counts as the same. By default 0 under aot_eager, else by element type.",
            show_default=False,
        ),
    ] = None,
    layers: LayerPaths = None,
    pipeline_parallel_size: Stages = 1,
    strict: Strict = False,
) -> None:
    """Compare the configured model with plain eager: outputs, gradients, buffers and random states.

    The model is built with real tensors and trained for some steps, once plainly and once as the configuration says, from the
    same seeds. The exit code is 0 if all is the same, else 1.
    """
    from ..compiler.compare.comparison import tables
    from ..compiler.compare.run import compare_with_eager

    parsed = load(config)
    torch.manual_seed(seed)
    with stderr().status("Building the model ...") as status:
        built = build(model, inputs, real=True)
        found = or_exit(
            lambda: compare_with_eager(
                built.model,
                parsed,
                built.args or (),
                built.kwargs,
                backend=backend,
                scope=scope.value,
                layers=layers_of(layers),
                pipeline_parallel_size=pipeline_parallel_size,
                steps=steps,
                seed=seed,
                tolerance=tolerance,
                progress=status.update,
            ),
            runs_the_model=True,
            doing="running the model",
            hint=hint_about_inputs(built),
        )
    console = stdout()
    console.print(tables(found), markup=False, highlight=False, soft_wrap=True)
    if not found.agrees:
        raise typer.Exit(Exit.ERROR)
    finish((), strict, silent=found.warnings)
