"""Swap to disk against torch.compile: peak memory, time of a step, time waited; each row in a fresh process.

    python benchmarks/swap.py                 all rows, for 6 and 12 layers; writes docs/benchmarks.md's tables
    python benchmarks/swap.py --row "memopt, swap" --layers 6

The model is a GPT of width 256 with 4 heads, batch 4 x 256, vocabulary 1000 and dropout 0.1, on the CPU with two threads.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import time
import weakref
from collections.abc import Callable
from unittest import mock

import torch
from measure import peak_bytes, set_threads, step_seconds
from memopt.compiler import pipeline
from memopt.runtime.engine import Engine, Reload, Stored
from memopt.runtime.stores.disk import DiskArena
from report import write_section
from rounds import Results, command_line, median_of, ratio_of, rounds_of
from torch import nn

from memopt import compile_with_memopt, explain, swap_counters
from memopt.demo.gpt import GPT, GPTConfig

WARMUP, STEPS = 3, 9
PLAIN, OFF, SWAP, AT_USE = "torch.compile", "memopt, swap off", "memopt, swap", "memopt, swap, fetched at first use"
LARGE = ", batch 16"
"""At the end of the name of a row whose activations weigh four times as much against the gradients of parameters."""
SLOW = ", reads at 1 GB/s"
"""At the end of the name of a row whose reads take as long as from a disk: the system's cache answers them at once."""
BYTES_PER_SECOND = 1e9


def rows(layers: int) -> dict[str, Callable[[GPT], nn.Module]]:
    """Every row of the benchmark, by name."""
    swap = {"enable": True, "layer_swap": [{"layers": [f"0-{layers - 2}"]}]}
    table: dict[str, Callable[[GPT], nn.Module]] = {
        PLAIN: torch.compile,
        OFF: lambda model: compile_with_memopt(model, {"swap": {"enable": False}}),
        SWAP: lambda model: compile_with_memopt(model, {"swap": swap}),
        AT_USE: lambda model: compile_with_memopt(model, {"swap": swap}),
    }
    table |= {SWAP + SLOW: table[SWAP], AT_USE + SLOW: table[AT_USE]}
    for ahead in range(2, 4):
        config = {"swap": {**swap, "default_prefetch": ahead, "layer_swap": [{"layers": [f"0-{layers - 1 - ahead}"]}]}}
        table[f"memopt, swap, default_prefetch: {ahead}"] = functools.partial(compile_with_memopt, cfg=config)
    if layers > 6:
        table |= {PLAIN + LARGE: table[PLAIN], SWAP + LARGE: table[SWAP]}
    return table


def measure(row: str, layers: int) -> dict[str, float]:
    """Measure one row in this process."""
    set_threads(2)
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=1000, layers=layers))
    batch, steps = (16, 3) if row.endswith(LARGE) else (4, STEPS)
    symbols, targets = torch.randint(0, 1000, (2, batch, 256))
    run = rows(layers)[row](model)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        run(symbols, targets).backward()

    # Compile caches know the configuration, and not what is done to it here.
    torch.compiler.config.force_disable_caches = row.startswith(AT_USE)
    plan_journeys = pipeline.plan_journeys
    at_use = mock.patch.object(pipeline, "plan_journeys", lambda pair, moves, *_: plan_journeys(pair, moves, 0))
    if row.endswith(SLOW):
        DiskArena.read = slow(DiskArena.read)  # type: ignore[method-assign]
    with at_use if row.startswith(AT_USE) else contextlib.nullcontext():
        for _ in range(1 + WARMUP):
            step()
    before = swap_counters()
    seconds = step_seconds(step, steps)
    spent = swap_counters() - before
    model.zero_grad(set_to_none=True)
    live = live_layers(model, step) if spent.offloads else 0
    model.zero_grad(set_to_none=True)
    result = {
        "live_layers": live,
        "peak_bytes": peak_bytes(step),
        "step_s": seconds,
        "waited_s": spent.seconds_waited / steps,
        "blocked_s": spent.seconds_blocked / steps,
        "late": spent.late / steps,
        "out_bytes": spent.bytes_out / steps,
    }
    if row.startswith("memopt"):
        totals = explain(model).totals
        result["saved_before"] = sum(t.saved_before for t in totals if t.layer is not None and t.layer <= layers - 2)
    return result


def slow(read: Callable[[DiskArena, int, memoryview], None]) -> Callable[[DiskArena, int, memoryview], None]:
    """A read that takes as long as a disk of ``BYTES_PER_SECOND`` takes; meanwhile the thread sleeps."""

    def slowly(arena: DiskArena, offset: int, memory: memoryview) -> None:
        begin = time.perf_counter()
        read(arena, offset, memory)
        time.sleep(max(memory.nbytes / BYTES_PER_SECOND - (time.perf_counter() - begin), 0))

    return slowly


def live_layers(model: nn.Module, step: Callable[[], object]) -> int:
    """The most layers whose reloaded values are in memory at a time in one step, from the issue of a reload to its release."""
    explain(model)
    captures = model.forward.session.captures
    layer_of = {j.move.title: j.returns_in for c in captures if c.rewritten for j in c.rewritten.journeys}
    live: dict[int, int | None] = {}
    number_of: dict[int, int] = {}
    numbers = itertools.count()
    most = 0
    prefetch, wait = Engine.prefetch, Engine.wait

    def observed_prefetch(engine: Engine, stored: Stored, ticket: object) -> Reload:
        nonlocal most
        made = prefetch(engine, stored, ticket)
        number_of[id(made)] = number = next(numbers)
        live[number] = layer_of[stored.parcel.name]
        most = max(most, len(set(live.values())))
        return made

    def observed_wait(engine: Engine, reload: Reload) -> torch.Tensor:
        value = wait(engine, reload)
        weakref.finalize(value, live.pop, number_of.pop(id(reload)))
        return value

    with mock.patch.object(Engine, "prefetch", observed_prefetch), mock.patch.object(Engine, "wait", observed_wait):
        step()
    return most


def gradients_agree(layers: int, backend: str) -> float:
    """The largest difference between gradients with and without swap, as a part of the largest gradient."""
    set_threads(2)
    swap = {"enable": True, "layer_swap": [{"layers": [f"0-{layers - 2}"]}]}
    torch.manual_seed(0)
    plain = GPT(GPTConfig(vocabulary=1000, layers=layers))
    ours = copy.deepcopy(plain)
    symbols, targets = torch.randint(0, 1000, (2, 4, 256))
    for model in (torch.compile(plain, backend=backend), compile_with_memopt(ours, {"swap": swap}, backend=backend)):
        torch.manual_seed(1)
        model(symbols, targets).backward()
    pairs = [(a.grad, b.grad) for a, b in zip(plain.parameters(), ours.parameters(), strict=True)]
    return max((a - b).abs().max().item() / a.abs().max().item() for a, b in pairs if a is not None and b is not None)


def table_of(results: Results) -> list[str]:
    """Return the rows as a table, and what they are held against."""
    lines = [
        "| row | peak | step time | waited | blocked | fetches late | out per step |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row, found in results.items():
        figures = ("peak_bytes", "step_s", "waited_s", "blocked_s", "late", "out_bytes")
        peak, seconds, waited, blocked, late, out = (median_of(found, figure) for figure in figures)
        lines.append(
            f"| {row} | {peak / 1e6:.1f} MB | {seconds:.3f} s | {waited * 1e3:.1f} ms | {blocked * 1e3:.1f} ms | {late:.1f} "
            f"| {out / 1e6:.1f} MB |"
        )
    lines += ["", "| | is | wanted |", "|---|---:|---:|"]
    saves = "bytes that the swapped layers save for backward"
    pairs = [(SWAP, PLAIN, ">= 0.85"), (AT_USE, PLAIN, "")]
    pairs += [(SWAP + LARGE, PLAIN + LARGE, ">= 0.85")] if SWAP + LARGE in results else []
    for ours, plain, wanted in pairs:
        fall = median_of(results[plain], "peak_bytes") - median_of(results[ours], "peak_bytes")
        lines.append(
            f"| fall of the peak / {saves}: {ours} | {fall / median_of(results[ours], 'saved_before'):.3f} | {wanted} |"
        )
    for speed, wanted in ((SLOW, "< 1"), ("", "")):
        ratio = ratio_of(results[SWAP + speed], results[AT_USE + speed], "step_s")
        lines.append(f"| step time, fetched ahead / fetched at first use{speed} | {ratio:.3f} | {wanted} |")
    live = median_of(results[SWAP], "live_layers")
    lines.append(f"| layers whose reloaded values are alive at a time, default_prefetch: 1 | {live:.0f} | <= 2 |")
    lines.append(f"| fetches late a step, default_prefetch: 1 | {median_of(results[SWAP], 'late'):.1f} | 0 |")
    off = ratio_of(results[OFF], results[PLAIN], "step_s")
    lines.append(f"| step time, swap off / torch.compile | {off:.3f} | = 1 |")
    return lines


def main(depths: list[int], rounds: int) -> None:
    """Measure all rows, and write a section of the report for each depth as soon as it is measured."""
    about = f"{__doc__.strip().splitlines()[-1]} Medians over {rounds} round(s) of the median of {STEPS} steps; ratios are"
    for layers in depths:
        lines = [about, "taken within a round.", "", *table_of(rounds_of(__file__, rows(layers), layers, rounds))]
        for backend, wanted in (("aot_eager", "0"), ("inductor", "<= 1e-6")):
            lines.append(f"| largest difference of gradients, {backend} | {gradients_agree(layers, backend):.1e} | {wanted} |")
        lines.append("")
        print("\n".join(lines))
        command = f"python benchmarks/swap.py --layers {layers} --rounds {rounds}"
        write_section(f"swap, {layers} layers", command, lines)


if __name__ == "__main__":
    command_line(__doc__.splitlines()[0], measure, main)
