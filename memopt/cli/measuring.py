"""What verbs that run a real step share."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import torch
import typer

from ..compiler.compile import compile_with_memopt
from ..compiler.config.load import MemoptConfig
from ..compiler.errors import MemoptWarning
from ..factory import Built
from ..runtime.measure import Measurement, measure
from .options import layers_of
from .outcome import or_exit
from .printing import stderr
from .tracing import Tracing, hint_about_inputs

Measure = Annotated[
    bool, typer.Option("--measure", help="Also build the model with real tensors, compile it, and measure a real step.")
]


def measured_step(built: Built, config: MemoptConfig, tracing: Tracing) -> Measurement:
    """Compile the model, run some steps, and measure the last one; exits where that fails."""

    def run() -> Measurement:
        model = built.model.to(tracing.device)
        args, kwargs = torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda t: t.to(tracing.device), (tuple(built.args or ()), dict(built.kwargs or {}))
        )
        compile_with_memopt(
            model,
            config,
            backend=tracing.backend,
            layers=layers_of(tracing.layers),
            pipeline_parallel_size=tracing.pipeline_parallel_size,
            dynamic=tracing.dynamic,
        )

        def step() -> None:
            model.zero_grad(set_to_none=True)
            output = model(*args, **kwargs)  # held until the backward has ended, as in most training loops
            torch.autograd.backward(loss_of(output))

        return measure(step, warmup=2)

    with stderr().status("Compiling the model, and measuring a step ..."), warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoptWarning)
        return or_exit(run, runs_the_model=True, doing="running the model", hint=hint_about_inputs(built))


def loss_of(output: Any) -> torch.Tensor:
    """What a step differentiates: the output if it is a number, its ``loss`` if it has one, else the sum of its means."""
    found = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(found, torch.Tensor) and found.numel() == 1:
        return found
    tensors = [t for t in torch.utils._pytree.tree_leaves(output) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not tensors:
        raise ValueError("model: found no output that needs a gradient; allowed: a loss, or tensors to make one of.")
    return (
        tensors[0] if len(tensors) == 1 and tensors[0].numel() == 1 else torch.stack([t.float().mean() for t in tensors]).sum()
    )
