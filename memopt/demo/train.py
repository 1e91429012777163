"""One training run of the demonstration, and what is measured along the way."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .gpt import GPT, GPTConfig
from .measure import peak_bytes
from .text import Text, batch

Compile = Callable[[GPT], Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Settings:
    """What two runs have in common.

    Attributes:
        model: the sizes of the GPT; 10.9 million parameters by default.
        batch: sequences in a batch.
        steps: how many optimizer steps are made.
        learning_rate: that of AdamW.
        seed: of the weights, the batches and the dropout masks.
    """

    model: GPTConfig = field(default_factory=lambda: GPTConfig(layers=6, heads=6, width=384))
    batch: int = 4
    steps: int = 16
    learning_rate: float = 1e-3
    seed: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class Run:
    """What one training run gave.

    Attributes:
        model: the trained model.
        losses: the loss of every step, in nats a byte.
        held_out_loss: the loss on text that was not trained on, without dropout.
        first_gradients: the gradients of the first step, by parameter.
        first_seconds: the first step, which includes compilation.
        step: makes one more training step: forward, backward and optimizer.
        peak_bytes: the most memory that was live during one forward and backward, above what was there before it:
            activations and gradients.
    """

    model: nn.Module
    losses: tuple[float, ...]
    held_out_loss: float
    first_gradients: dict[str, Tensor]
    first_seconds: float
    step: Callable[[], object]
    peak_bytes: int


def train(compile_model: Compile, settings: Settings, text: Text, progress: Callable[[float], None] | None = None) -> Run:
    """Train a GPT from scratch; only ``compile_model`` makes two runs differ.

    Args:
        compile_model: turns the new model into what is called in training.
        settings: what to train, and how.
        text: what to train on.
        progress: is given the loss after every step.
    """
    torch.manual_seed(settings.seed)
    model = GPT(settings.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate)
    run = compile_model(model)
    context = settings.model.context

    def forward_backward(number: int) -> float:
        symbols, targets = batch(text.training, number, size=settings.batch, context=context, seed=settings.seed)
        loss: Tensor = run(symbols, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def step(number: int = settings.steps) -> float:
        loss = forward_backward(number)
        update()
        return loss

    torch.manual_seed(settings.seed + 1)
    start = time.perf_counter()
    losses = [forward_backward(0)]
    first = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    update()
    first_seconds = time.perf_counter() - start
    report = progress or (lambda _: None)
    report(losses[0])
    for number in range(1, settings.steps):
        losses.append(step(number))
        report(losses[-1])
    held_out_loss = _held_out_loss(model, settings, text)
    peak = peak_bytes(lambda: forward_backward(settings.steps))
    optimizer.zero_grad(set_to_none=True)
    return Run(model, tuple(losses), held_out_loss, first, first_seconds, step, peak)


def gradient_difference(one: Run, other: Run) -> float:
    """Return the largest difference between two runs' first gradients, relative to the largest of those gradients.

    Not a number if one of them is not.
    """
    expected, got = one.first_gradients, other.first_gradients
    largest = torch.stack([g.abs().max() for g in expected.values()]).max()
    difference = torch.stack([(g - got[name]).abs().max() for name, g in expected.items()]).max()
    return (difference / largest).item()


def _held_out_loss(model: nn.Module, settings: Settings, text: Text, batches: int = 4) -> float:
    """Judge a copy that is not compiled, so that both runs are judged by the same kernels."""
    judged = GPT(settings.model)
    judged.load_state_dict(model.state_dict())
    judged.eval()
    with torch.no_grad():
        losses = [
            judged(*batch(text.held_out, number, size=settings.batch, context=settings.model.context)).item()
            for number in range(batches)
        ]
    return statistics.fmean(losses)
