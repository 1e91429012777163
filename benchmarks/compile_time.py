"""Compile time by scope and depth, with caches off and with a warm cache, and what a step then takes.

    python benchmarks/compile_time.py                         all rows; writes its section of docs/benchmarks.md
    python benchmarks/compile_time.py --row "layer, one policy" --layers 32

The model is the GPT of benchmarks/recompute.py. Compile time is the first step less a later one, in a fresh process with an
empty cache folder, after a small function was compiled (what torch prepares once for all compilations is not of interest here).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import peak_bytes, set_threads, step_seconds
from report import write_section
from rounds import command_line, in_fresh_process
from torch import nn

from memopt import compile_with_memopt
from memopt.demo.gpt import GPT, GPTConfig

SHALLOW, DEEP, WARMUP, STEPS = 4, 32, 2, 5
CACHED = "layer, three policies, cached"
CACHE = "MEMOPT_BENCHMARK_CACHE"
"""The folder that the cold and the warm process of a row share."""


def one_policy(layers: int) -> dict[str, Any]:
    """Recompute every layer."""
    return {"recompute": {"mode": "full", "full_recompute_layer": [f"0-{layers - 1}"]}}


def three_policies(layers: int) -> dict[str, Any]:
    """Recompute a third of the layers, the MLPs of another third, and nothing of the last."""
    third = layers // 3
    select = {".*mlp": [f"{third}-{2 * third - 1}"]}
    return {"recompute": {"mode": "select", "full_recompute_layer": [f"0-{third - 1}"], "select_module": select}}


ROWS: dict[str, Callable[[GPT, int], nn.Module]] = {
    "torch.compile": lambda model, _: torch.compile(model),
    "layer, one policy": lambda model, n: compile_with_memopt(model, one_policy(n), scope="layer"),
    "layer, three policies": lambda model, n: compile_with_memopt(model, three_policies(n), scope="layer"),
    "model, one policy": lambda model, n: compile_with_memopt(model, one_policy(n)),
    "model, three policies": lambda model, n: compile_with_memopt(model, three_policies(n)),
    CACHED: lambda model, n: compile_with_memopt(model, three_policies(n), scope="layer"),
}


def measure(row: str, layers: int) -> dict[str, float]:
    """Measure one row in this process: seconds to compile, seconds a step, peak bytes."""
    set_threads(2)
    with tempfile.TemporaryDirectory() as own:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.environ.get(CACHE, own)
        torch.compiler.config.force_disable_caches = row != CACHED
        warm_up = torch.nn.Linear(8, 8)
        torch.compile(warm_up)(torch.randn(4, 8)).sum().backward()
        torch.manual_seed(0)
        model = GPT(GPTConfig(vocabulary=1000, layers=layers))
        symbols, targets = torch.randint(0, 1000, (2, 4, 256))
        run = ROWS[row](model, layers)

        def step() -> None:
            model.zero_grad(set_to_none=True)
            run(symbols, targets).backward()

        start = time.perf_counter()
        step()
        first = time.perf_counter() - start
        for _ in range(WARMUP):
            step()
        seconds = step_seconds(step, STEPS)
        model.zero_grad(set_to_none=True)
        return {"compile_s": first - seconds, "step_s": seconds, "peak_bytes": peak_bytes(step)}


def cold_and_warm() -> tuple[float, float]:
    """Compile twice in two processes that share a cache folder: seconds of each."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for _ in range(2):
            command = [sys.executable, __file__, "--row", CACHED, "--layers", str(DEEP)]
            environment = {**os.environ, "OMP_NUM_THREADS": "2", CACHE: folder}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
            found.append(float(done.stdout.split('"compile_s": ')[1].split(",")[0]))
    return found[0], found[1]


def main(_depths: list[int], rounds: int) -> None:
    """Measure all rows, and write their section of the report."""
    wanted = [
        ("torch.compile", DEEP),
        *((row, n) for row in ("layer, one policy",) for n in (SHALLOW, DEEP)),
        ("layer, three policies", DEEP),
        ("model, three policies", DEEP),
    ]
    results: dict[tuple[str, int], list[dict[str, float]]] = {key: [] for key in wanted}
    warm: list[float] = []
    for _ in range(rounds):
        for row, layers in wanted:
            results[row, layers].append(in_fresh_process(__file__, row, layers))
            print(row, layers, results[row, layers][-1], file=sys.stderr, flush=True)
        cold, cached = cold_and_warm()
        warm.append(cached / cold)

    def ratio(ours: tuple[str, int], peer: tuple[str, int], figure: str) -> float:
        return statistics.median(a[figure] / b[figure] for a, b in zip(results[ours], results[peer], strict=True))

    lines = [
        f"Medians of {rounds} round(s).",
        "",
        "| scope | layers | compile time | step | peak |",
        "|---|---:|---:|---:|---:|",
    ]
    for (row, layers), found in results.items():
        compiling, seconds, peak = (statistics.median(r[f] for r in found) for f in ("compile_s", "step_s", "peak_bytes"))
        lines.append(f"| {row} | {layers} | {compiling:.1f} s | {seconds:.3f} s | {peak / 1e6:.1f} MB |")
    alone, three = ("layer, one policy", DEEP), ("layer, three policies", DEEP)
    shallow, whole = ("layer, one policy", SHALLOW), ("model, three policies", DEEP)
    lines += [
        "",
        "| what | ratio | wanted |",
        "|---|---:|---:|",
        f"| scope layer, one policy: {DEEP} layers / {SHALLOW} | {ratio(alone, shallow, 'compile_s'):.2f} | <= 1.15 |",
        f"| scope layer, {DEEP} layers: three policies / one | {ratio(three, alone, 'compile_s'):.2f} | <= 3.30 |",
        f"| {DEEP} layers, three policies: scope layer / scope model | {ratio(three, whole, 'compile_s'):.2f} | <= 0.50 |",
        f"| step time: scope layer / scope model | {ratio(three, whole, 'step_s'):.2f} | <= 1.10 |",
        f"| peak: scope layer / scope model | {ratio(three, whole, 'peak_bytes'):.3f} | <= 1.03 |",
        f"| warm cache in a new process / cold | {statistics.median(warm):.2f} | <= 0.35 |",
        "",
    ]
    print("\n".join(lines))
    write_section("compile time", f"python benchmarks/compile_time.py --rounds {rounds}", lines)


if __name__ == "__main__":
    command_line(__doc__.splitlines()[0], measure, main)
