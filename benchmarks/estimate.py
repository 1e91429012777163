"""Predicted against measured: the peak of a step, for three models, five configurations and two backends.

    python benchmarks/estimate.py                                  all rows; writes the table in docs/benchmarks.md
    python benchmarks/estimate.py --row "llama, full, inductor"

A GPT, a Llama-like and a vision transformer of 6 layers and width 256, batch 4, on the CPU; each row in a fresh process.
"""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from llama_like import LlamaLike, LlamaLikeConfig
from measure import set_threads
from report import write_section
from rounds import Results, command_line, median_of, rounds_of
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

import memopt
from memopt.demo.gpt import GPT, GPTConfig
from memopt.page.data import page_data
from memopt.page.render import page

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
BACKENDS = ("aot_eager", "inductor")
LARGE, PAGE = "70B, meta device", "report page, 32 layers"


def gpt(layers: int) -> Built:
    """The demonstration's GPT."""
    return GPT(GPTConfig(vocabulary=1000, layers=layers)), tuple(torch.randint(0, 1000, (2, 4, 256))), {}


def llama(layers: int) -> Built:
    """A small model of the Llama kind."""
    config = LlamaLikeConfig(vocabulary=1000, layers=layers, width=256, heads=4, kv_heads=2, inner=704)
    return LlamaLike(config), (torch.randint(0, 1000, (4, 256)),), {}


def vit(layers: int) -> Built:
    """A small vision transformer of transformers'."""
    config = ViTConfig(
        hidden_size=256, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=1024, image_size=128, patch_size=8,
        num_labels=10,
    )  # fmt: skip
    call = {"pixel_values": torch.randn(4, 3, 128, 128), "labels": torch.randint(0, 10, (4,))}
    return ViTForImageClassification(config), (), call


MODELS: dict[str, Callable[[int], Built]] = {"gpt": gpt, "llama": llama, "vit": vit}


def configs(layers: int) -> dict[str, dict[str, Any]]:
    """The configurations, by name."""
    full = {"mode": "full", "full_recompute_layer": [f"0-{layers - 1}"]}
    return {
        "none": {},
        "full": {"recompute": full},
        "select": {"recompute": {"mode": "select", "select_module": {".*(mlp|attention)": [f"0-{layers - 1}"]}}},
        "exclude_op": {"recompute": {**full, "exclude_op": ["MatMul", "attention"]}},
        "swap": {"swap": {"enable": True, "layer_swap": [{"layers": [f"0-{layers - 2}"]}]}},
    }


def measure(row: str, layers: int) -> dict[str, float]:
    """Measure one row in this process."""
    set_threads(2)
    torch.manual_seed(0)
    warnings.simplefilter("ignore", memopt.MemoptWarning)
    if row == LARGE:
        return _large()
    if row == PAGE:
        return _page()
    name, policy, backend = row.split(", ")
    model, args, kwargs = MODELS[name](layers)
    cfg = configs(layers)[policy]
    predicted = memopt.estimate(model, cfg, args, kwargs, backend=backend)
    memopt.compile_with_memopt(model, cfg, backend=backend)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        out = model(*args, **kwargs)
        (out if isinstance(out, torch.Tensor) else out.loss).backward()

    step()
    step()
    model.zero_grad(set_to_none=True)
    return {"predicted": predicted.peak_bytes, "measured": memopt.measure(step).peak_bytes}


def _large() -> dict[str, float]:
    begin = time.perf_counter()
    with torch.device("meta"):
        config = LlamaLikeConfig(vocabulary=128256, layers=80, width=8192, heads=64, kv_heads=8, inner=28672)
        model, ids = LlamaLike(config).to(torch.bfloat16), torch.empty(1, 4096, dtype=torch.int64)
    cfg = {"recompute": {"mode": "full", "full_recompute_layer": ["0-39"]}}
    found = memopt.estimate(model, cfg, (ids,), optimizer=torch.optim.AdamW)
    seconds = time.perf_counter() - begin
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"seconds": seconds, "process_bytes": most, "peak_bytes": found.peak_bytes, "resident_bytes": found.resident_bytes}


def _page() -> dict[str, float]:
    model, args, kwargs = gpt(32)
    cfg = memopt.load_config(configs(32)["swap"])
    text = page(page_data(memopt.estimate(model, cfg, args, kwargs), cfg, {}))
    return {"page_bytes": len(text.encode())}


def table_of(results: Results) -> list[str]:
    """The rows as a table."""
    lines = ["| model | configuration | backend | predicted | measured | predicted / measured | wanted |"]
    lines.append("|---|---|---|---:|---:|---:|---:|")
    for row, found in results.items():
        if row in (LARGE, PAGE):
            continue
        told, real = median_of(found, "predicted"), median_of(found, "measured")
        wanted = "0.97 to 1.03" if row.endswith("aot_eager") else "0.95 to 1.10"
        cells = row.replace(", ", " | ")
        lines.append(f"| {cells} | {told / 1e6:.1f} MB | {real / 1e6:.1f} MB | {told / real:.3f} | {wanted} |")
    large, written = results[LARGE], results[PAGE]
    seconds, held = median_of(large, "seconds"), median_of(large, "process_bytes")
    peak, there = median_of(large, "peak_bytes"), median_of(large, "resident_bytes")
    lines += ["", "| | is | wanted |", "|---|---:|---:|"]
    lines.append(f"| estimate of a Llama-like model of 70B, 80 layers, 4096 positions: time | {seconds:.0f} s | < 60 s |")
    lines.append(f"| memory of the process that estimates it | {held / 1e9:.2f} GB | < 4 GB |")
    lines.append(f"| its estimated peak, half of the layers recomputed | {peak / 1e9:.1f} GB |  |")
    lines.append(f"| its parameters and AdamW's state, in bfloat16 | {there / 1e9:.1f} GB |  |")
    lines.append(f"| report page of a GPT of 32 layers | {median_of(written, 'page_bytes') / 1e6:.2f} MB | < 3 MB |")
    return lines


def main(depths: list[int], rounds: int) -> None:
    """Measure all rows, and write the section of the report."""
    for layers in depths:
        rows = [f"{model}, {policy}, {backend}" for backend in BACKENDS for model in MODELS for policy in configs(layers)]
        lines = [__doc__.strip().splitlines()[-1], "", *table_of(rounds_of(__file__, [*rows, LARGE, PAGE], layers, rounds)), ""]
        print("\n".join(lines))
        write_section("estimate", f"python benchmarks/estimate.py --rounds {rounds}", lines)


if __name__ == "__main__":
    command_line(__doc__.splitlines()[0], measure, main, depths=(6,))
