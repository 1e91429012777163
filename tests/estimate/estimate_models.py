"""Small models, what they are called with, and configurations, that tests of estimates share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from memopt.demo.gpt import GPT, GPTConfig

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from llama_like import LlamaLike, LlamaLikeConfig

LAYERS = 2
ALL = [f"0-{LAYERS - 1}"]
CONFIGS: dict[str, dict[str, Any]] = {
    "none": {},
    "full": {"recompute": {"mode": "full", "full_recompute_layer": ALL}},
    "select": {"recompute": {"mode": "select", "select_module": {r".*(mlp|attention|linear1)": ALL}}},
    "exclude_op": {"recompute": {"mode": "full", "full_recompute_layer": ALL, "exclude_op": ["FlashAttention"]}},
    # Hardly anything in flight: a copy out that takes its time would keep memory longer than planned.
    "swap": {"swap": {"enable": True, "layer_swap": [{"layers": [0]}], "min_bytes": 1024, "in_flight_bytes": 1024}},
}

Made = tuple[nn.Module, tuple[Tensor, ...]]


class VitLike(nn.Module):
    """Patches by a convolution, torch's own encoder layers, and a loss."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.places = nn.Parameter(torch.zeros(1, 64, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.places
        for layer in self.layers:
            x = layer(x)
        loss: Tensor = self.head(x.mean(1)).square().mean()
        return loss


def gpt(batch: int = 4, seq: int = 48, width: int = 48, layers: int = LAYERS) -> Made:
    """A small GPT without dropout, and its symbols and targets."""
    model = GPT(GPTConfig(vocabulary=96, context=64, layers=layers, heads=4, width=width, dropout=0.0))
    return model, tuple(torch.randint(0, 96, (2, batch, seq)))


def llama(layers: int = LAYERS) -> Made:
    """A small model of the Llama kind, and its symbols."""
    config = LlamaLikeConfig(vocabulary=96, layers=layers, width=48, heads=4, kv_heads=2, inner=128)
    return LlamaLike(config), (torch.randint(0, 96, (4, 48)),)


def vit() -> Made:
    """A small vision transformer, and its images."""
    return VitLike(), (torch.randn(8, 3, 32, 32),)


MODELS: dict[str, Callable[..., Made]] = {"gpt": gpt, "llama": llama, "vit": vit}
