"""``memopt estimate``."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import torch
import typer

from ..compiler.errors import MemoptWarning
from ..compiler.estimate.estimate import Estimate
from ..compiler.estimate.estimate import estimate as estimate_step
from ..compiler.estimate.named_sizes import Dims, SizesError
from ..compiler.estimate.table import tables
from .app import app
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
from .outcome import fail, finish, or_exit
from .printing import stderr, stdout
from .tracing import hint_about_inputs

OptimizerName = Annotated[
    str | None,
    typer.Option("--optimizer", metavar="NAME", help="Whose state is counted: a class of torch.optim, such as AdamW."),
]


@app.command()
def estimate(
    config: ConfigPath,
    model: ModelPath,
    inputs: InputsPath = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--at", metavar="NAME=SIZE,...", help="Estimate for these sizes instead of those of the inputs: batch=8,seq=4096."
        ),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(
            "--dim",
            metavar="NAME=ARGUMENT:DIMENSION",
            help="What a name of --at stands for, the argument by position or keyword; may be given more than once. By default "
            "batch is the first dimension of every tensor, seq the second one of tensors of integers.",
        ),
    ] = None,
    optimizer: OptimizerName = None,
    backend: BackendName = "inductor",
    device: DeviceName = "cpu",
    layers: LayerPaths = None,
    pipeline_parallel_size: Stages = 1,
    static: Annotated[bool, typer.Option("--static", help="Sizes as in the inputs, and no formula.")] = False,
    strict: Strict = False,
    real: Real = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the estimate as JSON.")] = False,
) -> None:
    """Estimate the memory and the work of one training step, before the first step.

    The model is captured and rewritten without memory; nothing is compiled or run. What is saved for the backward is also
    given as a formula in the batch size and the sequence length, where the inputs have them.
    """
    parsed = load(config)
    check_device(device)
    sizes = or_exit(lambda: _sizes(at))
    dims = or_exit(lambda: _dims(dim))
    if static and (sizes or dims):
        fail("--static: found together with --at or --dim, which ask for sizes that vary; allowed: one or the other.")
    made = optimizer_of(optimizer)
    built = build(model, inputs, real=real)

    def run(*, formula: bool) -> Estimate:
        return estimate_step(
            built.model,
            parsed,
            built.args or (),
            built.kwargs,
            at=sizes,
            dims=dims,
            formula=formula,
            optimizer=made,
            backend=backend,
            layers=layers_of(layers),
            pipeline_parallel_size=pipeline_parallel_size,
            device=device,
        )

    def with_formula_if_possible() -> Estimate:
        try:
            return run(formula=not static)
        except SizesError as error:
            if sizes or dims:
                raise
            no_formula.append(f"no formula: {error}")
            return run(formula=False)

    no_formula: list[str] = []
    with stderr().status("Tracing the model ..."), warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoptWarning)
        found = or_exit(with_formula_if_possible, runs_the_model=True, hint=hint_about_inputs(built))
    if as_json:
        print(json.dumps(as_plain(found), indent=2))
    else:
        stdout().print(tables(found), markup=False, highlight=False)
    finish([*no_formula, *(found.warnings if as_json else ())], strict, silent=found.warnings)


def as_plain(found: Estimate) -> dict[str, Any]:
    """An estimate without its timeline, for JSON."""
    peak = found.at_peak
    return {
        "peak_bytes": found.peak_bytes,
        "at_peak": {"phase": peak.phase, "operator": peak.operator, "layer": peak.layer, "bytes": dict(peak.bytes)},
        "resident_bytes": found.resident_bytes,
        "resident": dict(found.resident),
        "saved_bytes": found.saved_bytes,
        "swapped_bytes": found.swapped_bytes,
        "forward_flops": found.work.forward,
        "backward_flops": found.work.backward,
        "recompute_flops": found.recompute_flops,
        "sizes": dict(found.sizes),
        "is_whole": found.explanation.is_whole,
        "notes": list(found.notes),
        "warnings": list(found.warnings),
        "saved_formula": str(found.saved_formula) if found.formula else None,
    }


def optimizer_of(name: str | None) -> Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None:
    """The class of ``torch.optim`` that the option names; exits if there is none."""
    if name is None:
        return None
    kinds = {k: v for k, v in vars(torch.optim).items() if isinstance(v, type) and issubclass(v, torch.optim.Optimizer)}
    kinds.pop("Optimizer", None)
    if name not in kinds:
        fail(f"--optimizer: found {name!r}; allowed: {', '.join(sorted(kinds))}.")
    kind: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] = kinds[name]
    return kind


def _sizes(text: str | None) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for part in text.split(",") if text is not None else ():
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if not equals or not name.isidentifier() or not size.isdecimal() or int(size) < 1:
            raise ValueError(f"--at: found {part!r}; allowed: NAME=SIZE, with commas between, such as batch=8,seq=4096.")
        if name in sizes:
            raise ValueError(f"--at: found {name!r} twice; allowed: each name once.")
        sizes[name] = int(size)
    return sizes


def _dims(texts: list[str] | None) -> Dims | None:
    dims: dict[str, list[tuple[int | str, int]]] = {}
    for text in texts or ():
        name, _, place = text.partition("=")
        argument, _, number = place.partition(":")
        if not name.isidentifier() or not number.isdecimal() or not (argument.isidentifier() or argument.isdecimal()):
            raise ValueError(f"--dim: found {text!r}; allowed: NAME=ARGUMENT:DIMENSION, such as batch=0:0 or seq=input_ids:1.")
        dims.setdefault(name, []).append((int(argument) if argument.isdecimal() else argument, int(number)))
    return dims or None
