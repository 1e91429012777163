"""What verbs that look at a model's graphs share: build it, trace it, or exit with a message."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..compiler.compile import trace
from ..compiler.config.load import MemoptConfig
from ..compiler.errors import MemoptWarning
from ..compiler.estimate.notes import NO_BACKWARD
from .options import layers_of
from .outcome import fail, or_exit
from .printing import print_line, stderr

if TYPE_CHECKING:
    from ..compiler.explain.explanation import Explanation
    from ..factory import Built

WITHOUT_INPUTS = "The model was called without inputs: --input gives them."


@dataclass(frozen=True)
class Tracing:
    """How a model is traced, as the options say."""

    backend: str = "inductor"
    layers: Sequence[str] | None = None
    pipeline_parallel_size: int = 1
    dynamic: bool | None = None
    device: str = "cpu"


def hint_about_inputs(built: Built) -> str:
    """What to say where calling the model fails and nothing was given to call it with."""
    return "" if built.args is not None or built.kwargs else WITHOUT_INPUTS


def traced(built: Built, config: MemoptConfig, tracing: Tracing, *, doing: str = "Tracing the model ...") -> Explanation:
    """What a configuration does to a model; exits where the model has no graph with a backward."""
    with stderr().status(doing), warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoptWarning)
        explanation = or_exit(
            lambda: trace(
                built.model,
                config,
                built.args or (),
                built.kwargs,
                backend=tracing.backend,
                layers=layers_of(tracing.layers),
                pipeline_parallel_size=tracing.pipeline_parallel_size,
                dynamic=tracing.dynamic,
                device=tracing.device,
            ),
            runs_the_model=True,
            hint=hint_about_inputs(built),
        )
    if not explanation.graphs:
        for text in explanation.warnings:
            print_line("warning", "yellow", text)
        fail(f"the model has no graph with a backward: {NO_BACKWARD}")
    return explanation
