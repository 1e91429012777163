"""Options that several verbs have, and what they are turned into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from ..compiler.config.load import MemoptConfig, load_config
from ..factory import Built, build_inputs, build_model, what_failed
from .outcome import fail, or_exit

_FACTORY = "A function without arguments that returns the model, (model, args) or (model, args, kwargs)."

ConfigPath = Annotated[Path, typer.Argument(help="The YAML file.", show_default=False)]
ModelPath = Annotated[str, typer.Option("--model", metavar="PKG.MODULE:FACTORY", help=_FACTORY, show_default=False)]
MaybeModelPath = Annotated[str | None, typer.Option("--model", metavar="PKG.MODULE:FACTORY", help=_FACTORY)]
InputsPath = Annotated[
    str | None,
    typer.Option(
        "--input",
        "--inputs",
        metavar="PKG.MODULE:FUNCTION",
        help="A function without arguments that returns what the model is called with: a tuple of arguments, a mapping "
        "of keyword arguments, or (args, kwargs).",
    ),
]
BackendName = Annotated[str, typer.Option("--backend", help="The backend of torch.compile.")]
DeviceName = Annotated[str, typer.Option("--device", help="The device that the meta device stands for.")]
LayerPaths = Annotated[
    list[str] | None,
    typer.Option("--layers", metavar="PATH", help="Where the layers are, such as model.layers; may be given more than once."),
]
Stages = Annotated[int, typer.Option("--pipeline-parallel-size", min=1, help="Pipeline stages of the training.")]
Dynamic = Annotated[bool | None, typer.Option("--dynamic/--static", help="As for torch.compile.", show_default=False)]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 2 when there are warnings.")]
Real = Annotated[bool, typer.Option("--real", help="Build the model with real tensors, not on the meta device.")]


def load(path: Path) -> MemoptConfig:
    """As ``load_config``, but what is given is a path, whatever it looks like; or exit with a message."""
    return or_exit(lambda: load_config(path))


def build(model: str, inputs: str | None, *, real: bool) -> Built:
    """The model and what it is called with; or exit with a message."""
    return or_exit(lambda: _build(model, inputs, real=real))


def _build(model: str, inputs: str | None, *, real: bool) -> Built:
    built = build_model(model, real=real)
    return built if inputs is None else Built(built.model, *build_inputs(inputs, real=real))


def layers_of(paths: Sequence[str] | None) -> Sequence[str] | None:
    """What ``--layers`` says, as functions take it."""
    return list(paths) if paths else None


def check_device(device: str) -> None:
    """Refuse a device that torch does not have here: some of its kernels end the process."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        fail(f"--device: found {device!r}: {what_failed(error)}.")
    accelerator = torch.accelerator.current_accelerator()
    known = ["cpu", *([accelerator.type] if accelerator is not None else [])]
    if kind not in known:
        fail(f"--device: found {device!r}; allowed on this machine: {' or '.join(known)}.")
