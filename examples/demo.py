"""Train a GPT on the sources of Python's standard library, with a configuration that recomputes half of its layers.

    python examples/demo.py
    python examples/demo.py --config my.yaml --steps 100
    python examples/demo.py --plain              # torch.compile alone, to compare

`memopt demo` runs both and compares them; this is the script to start your own from.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import memopt
from memopt.demo.gpt import GPT, GPTConfig
from memopt.demo.measure import peak_bytes
from memopt.demo.text import batch, read_text

CONFIG = """
recompute:
  mode: full
  full_recompute_layer: [0-{last}]   # the first half of the layers
"""


HEADS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", help="a YAML file; by default the first half of the layers is recomputed")
    parser.add_argument("--plain", action="store_true", help="train without memopt")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    if options.layers < 2:
        parser.error(f"--layers: found {options.layers}; allowed: 2 or more, the first half of which is recomputed.")
    if options.width % HEADS:
        parser.error(f"--width: found {options.width}; allowed: multiples of {HEADS}, the number of heads.")

    # The model: any nn.Module. Nothing in it knows of memopt.
    torch.manual_seed(0)
    sizes = GPTConfig(layers=options.layers, width=options.width, heads=HEADS, context=options.context)
    model = GPT(sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    # The configuration: a path, YAML text, or a mapping. From here on the model is called as before.
    if options.plain:
        model.compile(backend=options.backend)
    else:
        config = options.config or CONFIG.format(last=options.layers // 2 - 1)
        memopt.compile_with_memopt(model, config, backend=options.backend)

    # Training: an ordinary loop.
    text = read_text()

    def forward_backward(number: int) -> float:
        loss = model(*batch(text.training, number, size=options.batch, context=options.context))
        loss.backward()
        return loss.item()

    seconds = []
    for number in range(options.steps):
        start = time.perf_counter()
        loss = forward_backward(number)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
        print(f"step {number:3d}  loss {loss:.4f}  {seconds[-1]:.2f} s{'  (compilation)' if number == 0 else ''}", flush=True)

    # What came of it, and what was decided: one row per value that the backward needs.
    peak = peak_bytes(lambda: forward_backward(options.steps))
    if not options.plain:
        print(memopt.explain(model))
    print(f"peak {peak / 1e6:.1f} MB, step {statistics.median(seconds[1:] or seconds):.3f} s, last loss {loss:.4f}")


if __name__ == "__main__":
    main()
