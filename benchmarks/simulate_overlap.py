"""Swap on an accelerator that is not there: how much of the copies compute hides, for a model of 8 billion parameters.

    python benchmarks/simulate_overlap.py                          Llama 8B, 4096 positions, three accelerators
    python benchmarks/simulate_overlap.py --layers 8 --positions 512 --accelerator h100

The model lies on the meta device and is traced, not run. What is simulated, and how, is said in ``overlap.py``.
"""

from __future__ import annotations

import argparse
import warnings

import torch
from overlap import Hardware, Timeline, simulate
from overlap_program import program
from report import write_section
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

from memopt import MemoptWarning, trace

# Half of the advertised arithmetic, 85% of the advertised bandwidths.
ACCELERATORS = {
    "a100 (PCIe 4)": Hardware(156e12, 1.7e12, 21e9, 21e9),
    "h100 (PCIe 5)": Hardware(495e12, 2.8e12, 45e9, 45e9),
    "gh200 (NVLink-C2C)": Hardware(495e12, 3.4e12, 300e9, 300e9),
}
IN_FLIGHT = 256 * 1024**2


def llama(layers: int) -> LlamaForCausalLM:
    """A Llama of 8B parameters' width, in bfloat16, without storage."""
    config = LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=layers, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=8192, use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        return LlamaForCausalLM(config).to(torch.bfloat16)


def timelines(layers: int, positions: int, ahead: int | None) -> dict[str, tuple[Timeline, int]]:
    """The simulated step on every accelerator, and the bytes that are swapped; ``ahead`` None: without swap."""
    model = llama(layers)
    swap = {"enable": ahead is not None}
    if ahead is not None:
        swap |= {"default_prefetch": ahead, "layer_swap": [{"layers": [f"0-{layers - 1 - ahead}"]}]}
    ids = torch.empty((1, positions), dtype=torch.int64, device="meta")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoptWarning)
        explanation = trace(model, {"swap": swap}, kwargs={"input_ids": ids, "labels": ids})
    (graph,) = explanation.graphs
    queue = program(graph)
    found = {name: simulate(queue, hardware, IN_FLIGHT) for name, hardware in ACCELERATORS.items()}
    return {name: (timeline, explanation.swapped) for name, timeline in found.items()}


def main(layers: int, positions: int, accelerator: str) -> list[str]:
    """Simulate, print and return the table."""
    console = Console(stderr=True)
    head = [
        "| accelerator | default_prefetch | step | stalled | blocked | peak | swapped |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    rows: dict[str, list[str]] = {name: [] for name in ACCELERATORS if accelerator in name}
    for ahead in (None, 1, 2, 3, 4):
        with console.status(f"tracing {layers} layers, default_prefetch {ahead or 'off'} ..."):
            found = timelines(layers, positions, ahead)
        for name, lines in rows.items():
            t, swapped = found[name]
            lines.append(
                f"| {name} | {ahead or 'no swap'} | {t.seconds * 1e3:.0f} ms | {t.stalled * 1e3:.1f} ms "
                f"| {t.blocked * 1e3:.1f} ms | {t.peak / 1e9:.2f} GB | {swapped / 1e9:.2f} GB |"
            )
    lines = [*head, *(line for own in rows.values() for line in own)]
    print("\n".join(lines))
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--positions", type=int, default=4096)
    parser.add_argument("--accelerator", default="", help="part of a name: a100, h100, gh200")
    options = parser.parse_args()
    if options.layers < 6:
        parser.error(f"--layers: found {options.layers}; allowed: 6 or more, since up to 4 are fetched ahead.")
    if not any(options.accelerator in name for name in ACCELERATORS):
        parser.error(f"--accelerator: found {options.accelerator!r}; allowed: a part of {', '.join(ACCELERATORS)}.")
    table = main(options.layers, options.positions, options.accelerator)
    if (options.layers, options.positions, options.accelerator) == (32, 4096, ""):
        about = (
            "Simulated, not measured: a Llama of 8B parameters in bfloat16, one sequence of 4096 positions. Operators take the"
        )
        how = "longer of their arithmetic and their memory traffic; elementwise ones are taken as fused. Peak: activations."
        write_section("swap, simulated on accelerators", "python benchmarks/simulate_overlap.py", [about, how, "", *table, ""])
