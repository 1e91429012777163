"""Recompute against its peers: peak memory and time of a training step, each row in a fresh process.

    python benchmarks/recompute.py                 all rows, for 6 and 12 layers; writes docs/benchmarks.md's tables
    python benchmarks/recompute.py --row full --layers 6

The model is a GPT of width 256 with 4 heads, batch 4 x 256, vocabulary 1000 and dropout 0.1, on the CPU with two threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from measure import peak_bytes, set_threads, step_seconds
from report import write_section
from rounds import Results, command_line, median_of, ratio_of, rounds_of
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from memopt import compile_with_memopt
from memopt.demo.gpt import GPT, GPTConfig

WARMUP, STEPS = 3, 9
MATMULS_AND_ATTENTION = ["MatMul", "Attention"]
EXCLUDE = "memopt, full, exclude_op matmuls and attention"
# Ours, its peer, and what the ratios of peak and step time must not exceed.
COMPARISONS = (
    ("memopt, empty", "torch.compile", 1.00, 1.02),
    ("memopt, full", "torch.compile + checkpoint per layer", 1.00, 1.02),
    (EXCLUDE, "torch.compile + selective checkpoint", 1.00, 1.03),
    ("memopt, select .*mlp", "torch.compile", 1.00, 1.30),
)


def _saves_matmuls_and_attention(_context: object, op: object, *_: object, **__: object) -> CheckpointPolicy:
    aten = torch.ops.aten
    saved = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten._scaled_dot_product_flash_attention_for_cpu.default)
    return CheckpointPolicy.MUST_SAVE if op in saved else CheckpointPolicy.PREFER_RECOMPUTE


class _Checkpointed(nn.Module):
    def __init__(self, layer: nn.Module, selective: bool) -> None:
        super().__init__()
        self.layer = layer
        self.context = {}
        if selective:
            self.context = {"context_fn": partial(create_selective_checkpoint_contexts, _saves_matmuls_and_attention)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layer, x, use_reentrant=False, **self.context)


def _eager(model: GPT) -> nn.Module:
    return model


def _compiled(model: GPT) -> nn.Module:
    return torch.compile(model)


def _checkpointed(model: GPT, *, selective: bool) -> nn.Module:
    model.layers = nn.ModuleList(_Checkpointed(layer, selective) for layer in model.layers)
    return torch.compile(model)


def _budget(model: GPT, *, budget: float) -> nn.Module:
    torch._functorch.config.activation_memory_budget = budget
    return torch.compile(model)


def _memopt(model: GPT, *, recompute: dict[str, object] | None = None) -> nn.Module:
    return compile_with_memopt(model, {"recompute": recompute} if recompute else {})


def rows(layers: int) -> dict[str, Callable[[GPT], nn.Module]]:
    """Every row of the benchmark, by name."""
    whole = f"0-{layers - 1}"
    full = {"mode": "full", "full_recompute_layer": [whole]}
    table: dict[str, Callable[[GPT], nn.Module]] = {
        "eager": _eager,
        "torch.compile": _compiled,
        "torch.compile + checkpoint per layer": partial(_checkpointed, selective=False),
        "torch.compile + selective checkpoint": partial(_checkpointed, selective=True),
        "torch.compile, activation_memory_budget 0.5": partial(_budget, budget=0.5),
        "torch.compile, activation_memory_budget 0": partial(_budget, budget=0.0),
        "memopt, empty": _memopt,
        "memopt, full": partial(_memopt, recompute=full),
        EXCLUDE: partial(_memopt, recompute={**full, "exclude_op": MATMULS_AND_ATTENTION}),
        "memopt, select .*mlp": partial(_memopt, recompute={"mode": "select", "select_module": {".*mlp": [whole]}}),
    }
    for k in range(layers if layers <= 6 else 0):
        table[f"memopt, full on layers 0-{k}"] = partial(
            _memopt, recompute={"mode": "full", "full_recompute_layer": [f"0-{k}"]}
        )
    return table


def measure(row: str, layers: int) -> dict[str, float]:
    """Measure one row in this process: peak bytes, seconds a step, seconds to compile."""
    set_threads(2)
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=1000, layers=layers))
    symbols, targets = torch.randint(0, 1000, (2, 4, 256))
    run = rows(layers)[row](model)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        run(symbols, targets).backward()

    start = time.perf_counter()
    step()
    compiling = time.perf_counter() - start
    for _ in range(WARMUP):
        step()
    seconds = step_seconds(step, STEPS)
    model.zero_grad(set_to_none=True)
    return {"peak_bytes": peak_bytes(step), "step_s": seconds, "compile_s": compiling}


def table_of(results: Results) -> list[str]:
    """Return the rows as a table, and the comparisons with the peers."""
    lines = ["| row | peak | step time | first step, with compilation |", "|---|---:|---:|---:|"]
    for row, found in results.items():
        peak, seconds, compiling = (median_of(found, figure) for figure in ("peak_bytes", "step_s", "compile_s"))
        lines.append(f"| {row} | {peak / 1e6:.1f} MB | {seconds:.3f} s | {compiling:.1f} s |")
    lines += ["", "| memopt against its peer | peak | wanted | step time | wanted |", "|---|---:|---:|---:|---:|"]
    for ours, peer, peak_limit, time_limit in COMPARISONS:
        peak, seconds = (ratio_of(results[ours], results[peer], figure) for figure in ("peak_bytes", "step_s"))
        lines.append(f"| {ours} / {peer} | {peak:.3f} | <= {peak_limit:.2f} | {seconds:.3f} | <= {time_limit:.2f} |")
    return [*lines, ""]


def main(depths: list[int], rounds: int) -> None:
    """Measure all rows, and write a section of the report for each depth as soon as it is measured."""
    about = f"{__doc__.strip().splitlines()[-1]} Medians over {rounds} round(s) of the median of {STEPS} steps; ratios are"
    for layers in depths:
        lines = [about, "taken within a round.", "", *table_of(rounds_of(__file__, rows(layers), layers, rounds))]
        print("\n".join(lines))
        command = f"python benchmarks/recompute.py --layers {layers} --rounds {rounds}"
        write_section(f"recompute, {layers} layers", command, lines)


if __name__ == "__main__":
    command_line(__doc__.splitlines()[0], measure, main)
