"""Train a Hugging Face GPT-2 with each level of the recompute configuration, and compare it with plain eager.

    python examples/huggingface_gpt2.py
    python examples/huggingface_gpt2.py --layers 8 --backend inductor

The weights are random and nothing is downloaded. The levels are the files in examples/configs, made for 32 layers: the
model is thin, but has as many. With --layers the layer numbers in the files are changed to fit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import memopt
from memopt.demo.text import batch, read_text

CONFIGS = Path(__file__).parent / "configs"
LEVELS = ("level1_select_mlp", "level2_full_first_half", "level3_full_all", "level3_recompute_and_swap")
ROW = "{:<28}{:>20}{:>10}{:>11}{:>21}"


def build(layers: int) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"n_embd": 64, "n_layer": layers, "n_head": 4, "n_positions": 256}
    config = GPT2Config(vocab_size=256, **sizes, use_cache=False, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # otherwise it is guessed with a message, at which the graph would break
    return model


def level(name: str, layers: int) -> str:
    """The text of a level's file, for a model of this depth."""
    text = (CONFIGS / f"{name}.yaml").read_text()
    half = layers // 2
    for written, ours in (("0-31", f"0-{layers - 1}"), ("0-15", f"0-{half - 1}"), ("16-30", f"{half}-{layers - 2}")):
        text = text.replace(written, ours)
    return text


def train(model: nn.Module, batches: list[Tensor]) -> tuple[dict[str, Tensor], float, float]:
    """Return the gradients of the first step, the median step time in seconds, and the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gradients: dict[str, Tensor] = {}
    seconds = []
    for symbols in batches:
        start = time.perf_counter()
        loss = model(input_ids=symbols, labels=symbols).loss
        loss.backward()
        gradients = gradients or {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    return gradients, statistics.median(seconds[1:] or seconds), loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--backend", default="aot_eager", help="inductor is faster in training, and slower to compile")
    options = parser.parse_args()
    if options.layers < 4:
        parser.error(
            f"--layers: found {options.layers}; allowed: 4 or more, so that there are layers to recompute and to swap."
        )
    text = read_text()
    batches = [batch(text.training, n, size=options.batch, context=options.context)[0] for n in range(options.steps)]

    expected, seconds, loss = train(build(options.layers), batches)
    largest = max(g.abs().max().item() for g in expected.values())
    heading = ("configuration", "saved for backward", "step", "last loss", "gradient difference")
    print(ROW.format(*heading))
    print(ROW.format("none: plain eager", "", f"{seconds:.3f} s", f"{loss:.5f}", ""), flush=True)
    for name in LEVELS:
        model = memopt.compile_with_memopt(build(options.layers), level(name, options.layers), backend=options.backend)
        gradients, seconds, loss = train(model, batches)
        difference = max((gradients[name] - g).abs().max().item() for name, g in expected.items()) / largest
        decided = memopt.explain(model)
        saved = f"{decided.saved_before / 1e6:.1f} -> {decided.saved_after / 1e6:.1f} MB"
        print(ROW.format(name, saved, f"{seconds:.3f} s", f"{loss:.5f}", f"{difference:.0e}"), flush=True)


if __name__ == "__main__":
    main()
