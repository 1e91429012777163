"""Swap on a real accelerator: correctness and timings, as JSON, in under eight minutes.

    python benchmarks/gpu_check.py                 on the accelerator: a model of about a billion parameters, 4096 positions
    python benchmarks/gpu_check.py --dry-run       on the CPU: everything at a size that takes seconds
    python benchmarks/gpu_check.py --out check.json

Exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from llama_like import LlamaLike, LlamaLikeConfig
from memopt.compiler import pipeline
from torch import nn

from memopt import compile_with_memopt, estimate, explain, measure, swap_counters

BIG = LlamaLikeConfig()
SMALL = LlamaLikeConfig(vocabulary=1024, layers=4, width=256, heads=4, kv_heads=2, inner=512)


class Check:
    """The device, the sizes, and what was found."""

    def __init__(self, dry_run: bool) -> None:
        self.dry_run = dry_run
        self.device = torch.device("cpu") if dry_run else torch.device(torch.accelerator.current_accelerator() or "cpu")
        self.big, self.positions, self.batch = (SMALL, 64, 1) if dry_run else (BIG, 4096, 4)
        self.steps = 20 if dry_run else 200
        self.backend = "aot_eager" if dry_run else "inductor"
        self.results: dict[str, Any] = {}
        self.failures: list[str] = []

    def expect(self, holds: bool, what: str) -> None:
        """Note a check that failed."""
        if not holds:
            self.failures.append(what)

    def model(self, config: LlamaLikeConfig, dtype: torch.dtype) -> LlamaLike:
        """A model on the device, the same every time."""
        torch.manual_seed(0)
        with self.device:
            return LlamaLike(config).to(dtype)

    def symbols(self, config: LlamaLikeConfig, positions: int, batch: int = 1) -> torch.Tensor:
        """Random symbols, the same every time."""
        torch.manual_seed(1)
        return torch.randint(0, config.vocabulary, (batch, positions), device=self.device)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def peak(self, step: Callable[[], object]) -> int:
        """The most bytes allocated during a step above what there was before it; 0 on the CPU."""
        if self.device.type != "cuda":
            step()
            return 0
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


def swap(layers: int, **more: Any) -> dict[str, Any]:
    """A configuration that swaps all layers but the last."""
    return {"swap": {"enable": True, "layer_swap": [{"layers": [f"0-{layers - 2}"]}], **more}}


def gradients(check: Check) -> None:
    """Gradients with and without swap: equal when the operators run one by one, equal but for rounding under inductor."""
    found = {}
    for scope, backend in (("model", "aot_eager"), ("model", check.backend), ("layer", "aot_eager")):
        plain = check.model(SMALL, torch.float32)
        ours = copy.deepcopy(plain)
        symbols = check.symbols(SMALL, 128)
        compile_with_memopt(ours, swap(SMALL.layers), backend=backend, scope=scope)
        reference = torch.compile(plain, backend=backend)
        for _ in range(3):
            for model in (plain, ours):
                model.zero_grad()
            reference(symbols).backward()
            ours(symbols).backward()
        worst = _difference(plain, ours)
        found[backend if scope == "model" else f"{backend}, scope {scope}"] = worst
        exact = backend == "aot_eager" and scope == "model"
        check.expect(worst == 0 if exact else worst <= 1e-6, f"gradients differ by {worst:.2g} ({backend}, scope {scope})")
    check.results["gradient_difference"] = found


def long_run(check: Check) -> None:
    """Many steps, some without a backward: no memory, host memory or pinned allocation more than after the second."""
    model = check.model(SMALL, torch.float32)
    compile_with_memopt(model, swap(SMALL.layers), backend="aot_eager")
    symbols = check.symbols(SMALL, 128)
    marks = []
    for step in range(check.steps):
        model.zero_grad()
        loss = model(symbols)
        if step % 5 != 4:
            loss.backward()
        del loss
        if step in (1, check.steps - 1):
            check.synchronize()
            gc.collect()
            now = swap_counters()
            allocated = torch.accelerator.memory_allocated() if check.device.type != "cpu" else 0
            marks.append((allocated, now.host_bytes, now.host_capacity, now.pinned_allocations, now.live_tickets))
    check.results["after_second_step"], check.results[f"after_{check.steps}_steps"] = marks
    check.expect(marks[0] == marks[1], f"held after step 2 and after step {check.steps}: {marks}")


def streams(check: Check) -> None:
    """A current stream that is not the default one."""
    if check.device.type == "cpu":
        return
    model = check.model(SMALL, torch.float32)
    plain = copy.deepcopy(model)
    symbols = check.symbols(SMALL, 128)
    compile_with_memopt(model, swap(SMALL.layers), backend="aot_eager")
    plain(symbols).backward()
    stream = torch.Stream(check.device)
    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        model(symbols).backward()
    check.synchronize()
    worst = _difference(plain, model)
    check.results["other_stream_difference"] = worst
    check.expect(worst <= 1e-5, f"gradients on another stream differ by {worst:.2g}")


def spill(check: Check) -> None:
    """A small host limit: the rest goes to disk, and the numbers stay."""
    model = check.model(SMALL, torch.float32)
    plain = copy.deepcopy(model)
    symbols = check.symbols(SMALL, 512)
    with tempfile.TemporaryDirectory() as folder:
        store = "disk" if check.device.type == "cpu" else "host"
        limit = {} if store == "disk" else {"host_limit": "1MiB"}
        compile_with_memopt(model, swap(SMALL.layers, store=store, dir=folder, **limit), backend="aot_eager")
        loss = model(symbols)
        check.results["spilled_bytes"] = swap_counters().disk_bytes
        loss.backward()
    plain(symbols).backward()
    worst = _difference(plain, model)
    check.expect(check.results["spilled_bytes"] > 0, "nothing went to disk above host_limit")
    check.expect(worst <= 1e-5, f"gradients after spilling differ by {worst:.2g}")


LAYER_BY_LAYER = "swap, each layer by itself"


def timings(check: Check) -> None:
    """A large model in bfloat16: peak and step time without swap, with it, fetched at first use, and recomputed instead."""
    layers = check.big.layers
    rows: dict[str, Any] = {
        "torch.compile": None,
        "swap": swap(layers),
        LAYER_BY_LAYER: swap(layers),
        "swap, two ahead": swap(layers, default_prefetch=2, layer_swap=[{"layers": [f"0-{layers - 3}"]}]),
        "swap, fetched at first use": swap(layers),
        "swap of every other layer": swap(layers, layer_swap=[{"layers": list(range(0, layers - 1, 2))}]),
        "recompute": {"recompute": {"mode": "full", "full_recompute_layer": [f"0-{layers - 1}"]}},
    }
    found: dict[str, Any] = {}
    for name, config in rows.items():
        found[name] = _row(check, name, config)
        gc.collect()
        if check.device.type == "cuda":
            torch.cuda.empty_cache()
    check.results["rows"] = found
    if not check.dry_run:
        less = found["swap"]["peak_bytes"] / found["torch.compile"]["peak_bytes"]
        check.expect(less < 1, f"swap's peak is {less:.2f} of torch.compile's")


def _row(check: Check, name: str, config: dict[str, Any] | None) -> dict[str, Any]:
    torch._dynamo.reset()
    model = check.model(check.big, torch.bfloat16)
    symbols = check.symbols(check.big, check.positions, check.batch)
    run = torch.compile(model, backend=check.backend) if config is None else model
    if config is not None:
        compile_with_memopt(model, config, backend=check.backend, scope="layer" if name == LAYER_BY_LAYER else "model")

    def step() -> None:
        model.zero_grad(set_to_none=True)
        run(symbols).backward()

    planned = pipeline.plan_journeys
    # Compile caches know the configuration, and not what is done to it here.
    torch.compiler.config.force_disable_caches = name.endswith("first use")
    if name.endswith("first use"):
        pipeline.plan_journeys = lambda pair, moves, *_: planned(pair, moves, 0)
    try:
        start = time.perf_counter()
        step()
        check.synchronize()
        compiling = time.perf_counter() - start
        step()
    finally:
        pipeline.plan_journeys = planned
    before = swap_counters()
    times = []
    for _ in range(5):
        check.synchronize()
        start = time.perf_counter()
        step()
        check.synchronize()
        times.append(time.perf_counter() - start)
    spent = swap_counters() - before
    check.expect(
        spent.pinned_allocations == before.pinned_allocations, f"{name}: pinned memory was allocated after the second step"
    )
    return {
        "step_s": statistics.median(times),
        "peak_bytes": check.peak(step),
        "compile_s": compiling,
        "saved_after": explain(model).saved_after if config is not None else None,
        "swap_of_5_steps": asdict(spent),
    }


def predictions(check: Check) -> None:
    """The estimated peak against the measured one, with recomputation and with swap; the measured against the allocator's."""
    check.results["predictions"] = {}
    symbols = check.symbols(check.big, check.positions, check.batch)
    recompute = {"recompute": {"mode": "full", "full_recompute_layer": [f"0-{check.big.layers - 1}"]}}
    for name, config in (("recompute", recompute), ("swap", swap(check.big.layers))):
        model = check.model(check.big, torch.bfloat16)
        told = estimate(model, config, (symbols,), backend=check.backend).peak_bytes
        compile_with_memopt(model, config, backend=check.backend)

        def step(model: nn.Module = model) -> None:
            model.zero_grad(set_to_none=True)
            model(symbols).backward()

        step()
        step()
        model.zero_grad(set_to_none=True)
        found = measure(step)
        check.results["predictions"][name] = {
            "predicted_bytes": told,
            "measured_bytes": found.peak_bytes,
            "allocator_peak_bytes": found.allocator_peak_bytes,
            "ratio": told / found.peak_bytes,
        }
        check.expect(0.9 <= told / found.peak_bytes <= 1.15, f"predictions: {name}: predicted / measured is not near 1")


def _difference(one: nn.Module, other: nn.Module) -> float:
    """The largest difference between gradients, as a part of the largest gradient."""
    pairs = [(a.grad, b.grad) for a, b in zip(one.parameters(), other.parameters(), strict=True)]
    largest = max(float(a.abs().max()) for a, _ in pairs if a is not None)
    return max(float((a - b).abs().max()) for a, b in pairs if a is not None and b is not None) / largest


def main(dry_run: bool, out: str | None) -> int:
    """Run every check; one that raises does not stop the others."""
    if not dry_run and not torch.accelerator.is_available():
        print("No accelerator here: use --dry-run.", file=sys.stderr)
        return 1
    warnings.simplefilter("ignore")
    torch.use_deterministic_algorithms(True, warn_only=True)
    check = Check(dry_run)
    check.results["device"] = torch.cuda.get_device_name() if check.device.type == "cuda" else check.device.type
    check.results["torch"] = torch.__version__
    for part in (gradients, streams, long_run, spill, timings, predictions):
        start = time.perf_counter()
        try:
            part(check)
        except Exception as error:
            check.failures.append(f"{part.__name__}: {type(error).__name__}: {error}")
            traceback.print_exc()
        check.results[f"{part.__name__}_took_s"] = round(time.perf_counter() - start, 1)
        print(f"{part.__name__}: {check.results[f'{part.__name__}_took_s']} s", file=sys.stderr)
    text = json.dumps({**check.results, "failures": check.failures}, indent=1)
    print(text)
    if out:
        Path(out).write_text(text)
    return 1 if check.failures else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="on the CPU, small")
    parser.add_argument("--out", help="also write the JSON to this file")
    options = parser.parse_args()
    sys.exit(main(options.dry_run, options.out))
