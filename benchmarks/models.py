"""Models that nobody here wrote, under three policies and both scopes: what works, and what it saves.

    python benchmarks/models.py                           all models; writes docs/models.md's tables
    python benchmarks/models.py --backend inductor        with one backend
    python benchmarks/models.py --row Llama --backend aot_eager

Each model is trained for three steps in a fresh process: plainly, under torch.compile, and under memopt.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from measure import peak_bytes, set_threads
from report import write_section
from torch import Tensor, nn
from zoo import BATCH, DEPTH, LENGTH, MODELS, WIDTH, Entry

from memopt import MemoptWarning, compile_with_memopt, explain

DOCUMENT = Path(__file__).parents[1] / "docs" / "models.md"
INTRODUCTION = """# Models that memopt was tried on

`python benchmarks/models.py` trains each of these models for three steps and rewrites this page. All are thin, with random
weights and their usual dropout; what is measured is whether rules hold, whether gradients stay what they are, and how far the
peak of a step falls.

With `scope="layer"`, as with every graph break, what several layers give back to one value (the encoder's states in T5) is
added up layer by layer, which may round otherwise than eager; and a parameter of a layer of which only a part reaches the loss
can get zeros where eager leaves None.

Models of torchvision and timm are left out: torchvision does not load beside this build of torch, and timm stands on it.
"""
STEPS, SCOPES = 3, ("layer", "model")
BACKENDS = {"aot_eager": ("full", "select", "swap"), "inductor": ("full",)}
"""Each backend with the policies that are tried on it: what inductor makes takes long to compile."""

Row = dict[str, Any]


def policies(entry: Entry) -> dict[str, Any]:
    """The configurations, by name."""
    but_last, whole = [f"0-{entry.depth - 2}"], [f"0-{entry.depth - 1}"]
    return {
        "full": {"recompute": {"mode": "full", "full_recompute_layer": but_last}},
        "select": {"recompute": {"mode": "select", "select_module": {entry.mlp: whole}}},
        "swap": {"swap": {"enable": True, "layer_swap": [{"layers": but_last}], "min_bytes": 1024}},
    }


def build(entry: Entry) -> nn.Module:
    """The model, from the same start each time."""
    torch.compiler.reset()
    gc.collect()
    torch.manual_seed(0)
    return entry.build().train()


def train(model: nn.Module) -> list[dict[str, Tensor]]:
    """Return the gradients of each step."""
    found = []
    for seed in range(STEPS):
        torch.manual_seed(seed)
        model.zero_grad(set_to_none=True)
        model(model.batch).backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.01 * parameter.grad
    return found


def difference(ours: list[dict[str, Tensor]], wanted: list[dict[str, Tensor]]) -> float:
    """The largest difference between gradients, as a part of the largest gradient of its step."""
    assert [list(step) for step in ours] == [list(step) for step in wanted]
    largest = (max(float(g.abs().max()) for g in step.values()) for step in wanted)
    apart = (max(float((a[name] - b[name]).abs().max()) for name in b) for a, b in zip(ours, wanted, strict=True))
    return max(a / b for a, b in zip(apart, largest, strict=True))


def peak_of(model: nn.Module) -> int:
    """The peak of one more step, in bytes."""
    model.zero_grad(set_to_none=True)
    gc.collect()
    return peak_bytes(lambda: model(model.batch).backward())


def measure(name: str, backend: str) -> Row:
    """Measure one model in this process."""
    set_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    torch._inductor.config.fallback_random = True
    entry = MODELS[name]
    wanted = train(build(entry))
    plain = build(entry)
    plain.compile(backend=backend)
    row: Row = {"plain": {"difference": difference(train(plain), wanted), "peak": peak_of(plain)}}
    for policy in BACKENDS[backend]:
        for scope in SCOPES:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                row[f"{policy} {scope}"] = _try(entry, policies(entry)[policy], backend, scope, wanted)
            said = [str(w.message) for w in caught if issubclass(w.category, MemoptWarning)]
            row[f"{policy} {scope}"]["warnings"] = said
    return row


def _try(entry: Entry, config: Any, backend: str, scope: str, wanted: list[dict[str, Tensor]]) -> Row:
    model = build(entry)
    try:
        compile_with_memopt(model, config, backend=backend, scope=scope, layers=entry.layers)
        ours = train(model)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"}
    explanation = explain(model)
    ruled = {v.layer for v in explanation.values if v.layer is not None and v.rule.startswith(("recompute", "swap"))}
    return {
        "difference": difference(ours, wanted),
        "layers": len(ruled),
        "compilations": len(model.forward.session.captures),
        "peak": peak_of(model),
    }


def in_fresh_process(name: str, backend: str) -> Row:
    """Measure one model in a process of its own."""
    command = [sys.executable, __file__, "--row", name, "--backend", backend]
    environment = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", **os.environ}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed:\n{done.stderr[-2000:]}")
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def holds(entry: Entry, row: Row, names: tuple[str, ...]) -> str:
    """With which scope every rule reaches every layer that it names, and whether memopt had something to say."""
    found = []
    for scope in SCOPES:
        tries = {policy: row[f"{policy} {scope}"] for policy in names}
        if all(tried.get("layers") == _asked(entry, policy) for policy, tried in tries.items()):
            found.append(f"{scope}, in parts" if any(tried["warnings"] for tried in tries.values()) else scope)
    return "both" if found == list(SCOPES) else " and ".join(found) or "neither"


def table_of(rows: dict[str, Row], backend: str) -> list[str]:
    """Return the rows as a table, and what memopt said below it."""
    names = BACKENDS[backend]
    listed = ", ".join(names)
    lines = [
        f"| model | every rule holds with scope | layers under policy, scope layer: {listed} | the same, scope model "
        "| gradients from eager, layer / model / torch.compile itself "
        f"| peak / torch.compile's, scope layer: {listed} | the same, scope model | compilations, layer / model |",
        "|---|---|---|---|---|---|---|---|",
    ]
    notes: dict[str, list[str]] = {}
    for name, row in rows.items():
        entry = MODELS[name]
        layers, peaks, apart, compiled = {}, {}, {}, {}
        for scope in SCOPES:
            tries = [row[f"{policy} {scope}"] for policy in names]
            layers[scope] = ", ".join(f"{t.get('layers', 0)} of {_asked(entry, p)}" for p, t in zip(names, tries, strict=True))
            peaks[scope] = ", ".join(f"{t['peak'] / row['plain']['peak']:.2f}" if "peak" in t else "-" for t in tries)
            apart[scope] = max((t["difference"] for t in tries if "difference" in t), default=float("nan"))
            compiled[scope] = max((t["compilations"] for t in tries if "compilations" in t), default=0)
            for policy, tried in zip(names, tries, strict=True):
                for text in [*tried["warnings"], *([tried["error"]] if "error" in tried else [])]:
                    notes.setdefault(f"{name}: {_short(text)}", []).append(f"{policy}, {scope}")
        lines.append(
            f"| {name} | {holds(entry, row, names)} | {layers['layer']} | {layers['model']} "
            f"| {apart['layer']:.0e} / {apart['model']:.0e} / {row['plain']['difference']:.0e} "
            f"| {peaks['layer']} | {peaks['model']} | {compiled['layer']} / {compiled['model']} |"
        )
    if notes:
        lines += ["", "What memopt said:", "", *(f"- {text} ({'; '.join(where)})" for text, where in notes.items())]
    return lines


def _asked(entry: Entry, policy: str) -> int:
    return entry.depth if policy == "select" else entry.depth - 1


def _short(text: str) -> str:
    """A warning without the folders in which libraries happen to lie."""
    return re.sub(r"\(/[^ )]*/([^/ )]+)\)", r"(\1)", text)


def main(backends: list[str], names: list[str]) -> None:
    """Measure, and write a section of the page for each backend after every model."""
    about = (
        f"{DEPTH} layers (T5: {DEPTH} and {DEPTH}) of width {WIDTH}, batch {BATCH} x {LENGTH}. The policies: `full` recomputes "
        "all layers but the last, `select` the mlp of every layer, `swap` moves what all layers but the last save, to disk."
    )
    for backend in backends:
        rows: dict[str, Row] = {}
        for name in names:
            rows[name] = in_fresh_process(name, backend)
            lines = [about, "", *table_of(rows, backend)]
            print(f"{backend}: {name}", file=sys.stderr, flush=True)
            if names == list(MODELS):
                command = f"python benchmarks/models.py --backend {backend}"
                write_section(f"backend {backend}", command, lines, DOCUMENT, INTRODUCTION)
        print("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--row", choices=list(MODELS), help="measure one model in this process, and print it as JSON")
    parser.add_argument("--backend", choices=list(BACKENDS), action="append", help="may be repeated (default: all)")
    parser.add_argument("--model", choices=list(MODELS), action="append", help="report on these only, and write nothing")
    options = parser.parse_args()
    if options.row:
        with contextlib.redirect_stdout(sys.stderr):
            result = measure(options.row, (options.backend or list(BACKENDS))[0])
        print(json.dumps(result))
    else:
        main(options.backend or list(BACKENDS), options.model or list(MODELS))
