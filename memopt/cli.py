"""The command line: ``memopt check``, ``explain``, ``schema`` and ``demo``.

Exit codes: 0, done; 1, an error; 2, warnings with ``--strict``, or a command that is not written as ``--help`` says.
Results go to standard output; errors, warnings and progress to standard error.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import torch
import typer
import yaml
from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from . import __version__
from .compiler.compile import trace
from .compiler.config.load import MemoptConfig, load_config
from .compiler.errors import ConfigError, LayersError, MemoptWarning, Problem, counted
from .compiler.explain.table import tables
from .compiler.plan.checks import Report, check_no_effect
from .compiler.plan.resolve import resolve, unmatched
from .compiler.plan.table import plan_table
from .factory import Built, FactoryError, build_inputs, build_model, what_failed
from .passes.verify import VerificationError

if TYPE_CHECKING:
    from .compiler.explain.explanation import Explanation

T = TypeVar("T")

app = typer.Typer(
    help="Fit PyTorch training into memory, as a YAML file says.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

ConfigPath = Annotated[Path, typer.Argument(help="The YAML file.", show_default=False)]
ModelPath = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="PKG.MODULE:FACTORY",
        help="A function without arguments that returns the model, (model, args) or (model, args, kwargs).",
    ),
]
LayerPaths = Annotated[
    list[str] | None,
    typer.Option("--layers", metavar="PATH", help="Where the layers are, such as model.layers; may be given more than once."),
]
Stages = Annotated[int, typer.Option("--pipeline-parallel-size", min=1, help="Pipeline stages of the training.")]
Strict = Annotated[bool, typer.Option("--strict", help="Exit with 2 when there are warnings.")]
Real = Annotated[bool, typer.Option("--real", help="Build the model with real tensors, not on the meta device.")]


class Exit(IntEnum):
    """What the shell is told."""

    DONE = 0
    ERROR = 1
    WARNED = 2


def main() -> None:
    """Run the command line. As with ``python -m``, modules in the current directory can be imported."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    with open(os.devnull, "w") as nowhere:
        # Python has no stream where the shell closed it: what is said is for nobody, and the exit code tells.
        sys.stdout, sys.stderr = sys.stdout or nowhere, sys.stderr or nowhere
        try:
            try:
                app()
            finally:
                sys.stdout.flush()
        except BrokenPipeError:  # the reader has gone, as in `| head`
            _drop_output()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or error.filename is not None:
                raise
            _drop_output()
            _print_error(f"writing the result failed: {error.strerror}.")
    sys.exit(Exit.ERROR)  # otherwise the command has exited by itself


def _drop_output() -> None:
    """Let Python write what is left to nowhere when it ends, instead of failing again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version(wanted: bool) -> None:
    if wanted:
        print(f"memopt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def check(
    config: ConfigPath,
    model: ModelPath = None,
    layers: LayerPaths = None,
    pipeline_parallel_size: Stages = 1,
    strict: Strict = False,
    real: Real = False,
) -> None:
    """Validate a configuration; print what it means, and with --model what holds in which layer.

    Whether a pattern names an operator is known only once there is a graph: 'memopt explain' tells. Until then a pattern
    that names no module is a warning.
    """
    parsed = _or_exit(lambda: _load(config))
    if model is None:
        report = Report(parsed)
        check_no_effect(parsed, report)
        _print_normal_form(parsed)
        _finish(report.warnings, strict)
    built = _or_exit(lambda: build_model(model, real=real))
    plan = _or_exit(lambda: resolve(built.model, parsed, layers=_layers(layers), pipeline_parallel_size=pipeline_parallel_size))
    _stdout().print(plan_table(plan))
    _finish((*plan.warnings, *unmatched(plan)), strict)


@app.command()
def explain(
    config: ConfigPath,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            metavar="PKG.MODULE:FACTORY",
            help="A function without arguments that returns the model, (model, args) or (model, args, kwargs).",
            show_default=False,
        ),
    ],
    inputs: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="PKG.MODULE:FUNCTION",
            help="A function without arguments that returns what the model is called with: a tuple of arguments, a mapping "
            "of keyword arguments, or (args, kwargs).",
        ),
    ] = None,
    backend: Annotated[str, typer.Option(help="The backend of torch.compile whose graphs are shown.")] = "inductor",
    device: Annotated[str, typer.Option(help="The device that the meta device stands for.")] = "cpu",
    layers: LayerPaths = None,
    pipeline_parallel_size: Stages = 1,
    dynamic: Annotated[
        bool | None, typer.Option("--dynamic/--static", help="As for torch.compile.", show_default=False)
    ] = None,
    strict: Strict = False,
    real: Real = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Show what a configuration does to a model: every value that the backward needs, and why it is kept or recomputed.

    The model is captured and rewritten without memory for its activations; nothing is compiled or run.
    """
    parsed = _or_exit(lambda: _load(config))
    _check_device(device)
    built = _or_exit(lambda: _build(model, inputs, real=real))
    with _stderr().status("Tracing the model ..."), warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoptWarning)
        explanation = _or_exit(
            lambda: trace(
                built.model,
                parsed,
                built.args or (),
                built.kwargs,
                backend=backend,
                layers=_layers(layers),
                pipeline_parallel_size=pipeline_parallel_size,
                dynamic=dynamic,
                device=device,
            ),
            runs_the_model=True,
            hint="" if built.args is not None or built.kwargs else "The model was called without inputs: --input gives them.",
        )
    if not explanation.graphs:
        for text in explanation.warnings:
            _print_line("warning", "yellow", text)
        _fail("the model has no graph with a backward: no parameter or input that it uses requires a gradient.")
    _print_explanation(explanation, as_json=as_json)
    _finish(explanation.warnings if as_json else (), strict, silent=explanation.warnings)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file, for editors."""
    print(json.dumps(MemoptConfig.json_schema(), indent=2))


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
    from .demo.main import run_demo
    from .demo.train import Settings

    settings = Settings(steps=steps, batch=batch, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("always", MemoptWarning)
        outcome = _or_exit(lambda: run_demo(_stdout(), config, settings, backend=backend))
    if not outcome.gradients_agree:
        _fail("the gradients of the runs differ by more than rounding.")


# ---------------------------------------------------------------- what commands share


def _load(path: Path) -> MemoptConfig:
    """As ``load_config``, but what is given is a path, whatever it looks like."""
    return load_config(path)


def _build(model: str, inputs: str | None, *, real: bool) -> Built:
    built = build_model(model, real=real)
    return built if inputs is None else Built(built.model, *build_inputs(inputs, real=real))


def _layers(paths: Sequence[str] | None) -> Sequence[str] | None:
    return list(paths) if paths else None


def _or_exit(work: Callable[[], T], *, runs_the_model: bool = False, hint: str = "") -> T:
    """Do the work; what the user can get wrong becomes a message and exit code 1, without a traceback.

    Where the model itself runs, anything may come out of it.
    """
    try:
        return work()
    except ConfigError as error:
        _print_problems(error)
    except (FactoryError, LayersError, FileNotFoundError) as error:
        _print_error(str(error))
    except VerificationError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ValueError) and _is_ours(error):
            _print_error(str(error))
        elif runs_the_model:
            _print_error(f"tracing the model failed: {what_failed(error)}.", hint)
        else:
            raise
    raise typer.Exit(Exit.ERROR)


def _is_ours(error: BaseException) -> bool:
    """Whether memopt itself raised the error, and so wrote its message for the user."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and str(frames[-1].f_globals.get("__name__")).startswith("memopt.")


def _check_device(device: str) -> None:
    """Refuse a device that torch does not have here: some of its kernels end the process."""
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        _fail(f"--device: found {device!r}: {what_failed(error)}.")
    accelerator = torch.accelerator.current_accelerator()
    known = ["cpu", *([accelerator.type] if accelerator is not None else [])]
    if kind not in known:
        _fail(f"--device: found {device!r}; allowed on this machine: {' or '.join(known)}.")


def _finish(texts: Sequence[str], strict: bool, silent: Sequence[str] = ()) -> NoReturn:
    """Print warnings, and exit with what they mean; ``silent`` ones were printed before."""
    for text in texts:
        _print_line("warning", "yellow", text)
    raise typer.Exit(Exit.WARNED if strict and (texts or silent) else Exit.DONE)


def _fail(text: str) -> NoReturn:
    _print_error(text)
    raise typer.Exit(Exit.ERROR)


# ---------------------------------------------------------------- printing


def _console(*, stderr: bool) -> Console:
    """Wide where nobody looks at a terminal: folded tables are hard to read, and to search."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else 150
    return Console(stderr=stderr, width=width)


def _stdout() -> Console:
    return _console(stderr=False)


def _stderr() -> Console:
    return _console(stderr=True)


def _print_line(kind: str, style: str, text: str) -> None:
    _stderr().print(Text.assemble((f"{kind}: ", f"bold {style}"), text), soft_wrap=True)


def _print_error(text: str, hint: str = "") -> None:
    _print_line("error", "red", f"{text} {hint}".strip())


def _print_problems(error: ConfigError) -> None:
    count = counted(len(error.problems), "problem")
    _print_error(f"{count} in {error.source or 'the configuration'}")
    for problem in error.problems:
        _stderr().print(_problem(problem), soft_wrap=True)


def _problem(problem: Problem) -> Text:
    line = f" (line {problem.line})" if problem.line is not None else ""
    text = Text.assemble("  ", (problem.field, "bold"), (line, "dim"))
    if not problem.allowed:
        text.append(f": {problem.found}")
    else:
        text.append("\n    found:   ").append(problem.found, "red").append("\n    allowed: ").append(problem.allowed, "green")
    return text.append(f"\n    {problem.hint}" if problem.hint else "")


def _print_normal_form(config: MemoptConfig) -> None:
    text = yaml.safe_dump(config.to_dict(), sort_keys=False, default_flow_style=None, allow_unicode=True, width=120).rstrip()
    console = _stdout()
    if console.is_terminal:
        console.print(Syntax(text, "yaml", background_color="default"))
    else:
        print(text)


def _print_explanation(explanation: Explanation, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([dataclasses.asdict(row) for row in explanation.values], indent=2))
    else:
        console = _stdout()
        console.print(tables(explanation, console.width), markup=False, highlight=False)
