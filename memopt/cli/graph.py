"""``memopt graph``."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ..compiler.config.layer_specs import parse_item
from ..compiler.errors import Findings
from .app import app
from .files import check_place, write_file
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
from .outcome import fail, finish, or_exit
from .printing import stdout
from .tracing import Tracing, traced


class Which(StrEnum):
    """The graphs that can be drawn."""

    JOINT = "joint"
    FORWARD = "forward"
    BACKWARD = "backward"


class Format(StrEnum):
    """How a graph can be written."""

    TEXT = "text"
    DOT = "dot"
    SVG = "svg"


_SUFFIXES = {".txt": Format.TEXT, ".text": Format.TEXT, ".dot": Format.DOT, ".gv": Format.DOT, ".svg": Format.SVG}


@app.command()
def graph(
    config: ConfigPath,
    model: ModelPath,
    inputs: InputsPath = None,
    which: Annotated[Which, typer.Option("--which", help="The graph: before the split, or one of its halves.")] = Which.JOINT,
    layer: Annotated[
        list[str] | None,
        typer.Option(
            "--layer", metavar="N|N-M", help="A layer to draw, or a range; may be given more than once; by default all."
        ),
    ] = None,
    outside: Annotated[bool, typer.Option("--outside", help="Draw what lies outside the layers too.")] = False,
    form: Annotated[
        Format | None,
        typer.Option("--format", help="By default as the file's suffix says, else text.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write; by default to standard output.", show_default=False
        ),
    ] = None,
    backend: BackendName = "inductor",
    device: DeviceName = "cpu",
    layers: LayerPaths = None,
    pipeline_parallel_size: Stages = 1,
    dynamic: Dynamic = None,
    strict: Strict = False,
    real: Real = False,
) -> None:
    """Write the joint, forward or backward graph of some layers, coloured by what was decided about each value, and why.

    The model is captured and rewritten without memory for its activations; nothing is compiled or run.
    """
    chosen = _layers(layer or ())
    written_as = form or _format_of(output)
    if output is not None:
        or_exit(lambda: check_place(output))
    parsed = load(config)
    check_device(device)
    built = build(model, inputs, real=real)
    explanation = traced(built, parsed, Tracing(backend, layers, pipeline_parallel_size, dynamic, device))

    from ..compiler.draw.dot import to_dot
    from ..compiler.draw.select import select
    from ..compiler.draw.svg import to_svg
    from ..compiler.draw.text import styled, to_text

    drawing = or_exit(lambda: select(explanation, which.value, chosen, outside=outside))
    writers = {Format.TEXT: to_text, Format.DOT: to_dot, Format.SVG: to_svg}
    if output is None and written_as is Format.TEXT and stdout().is_terminal:
        stdout().print(styled(drawing), highlight=False, soft_wrap=True)
    else:
        text = or_exit(lambda: writers[written_as](drawing))
        if output is None:
            print(text, end="")
        else:
            or_exit(lambda: write_file(output, text))
    finish(explanation.warnings, strict)


def _layers(texts: Sequence[str]) -> tuple[int, ...]:
    """The layer numbers that the options name."""
    found: set[int] = set()
    for text in texts:
        try:
            first, last = parse_item(text)
        except Findings as error:
            (finding,) = error.items
            fail(f"--layer: found {finding.found}; allowed: {finding.allowed}. {finding.hint}".rstrip())
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def _format_of(output: Path | None) -> Format:
    if output is None:
        return Format.TEXT
    found = _SUFFIXES.get(output.suffix.lower())
    if found is None:
        fail(f"--output: found {str(output)!r}, whose suffix tells no format; allowed: .txt, .dot, .gv or .svg, or --format.")
    return found
