"""A GPT of the usual shape: pre-norm blocks of causal attention and a four times wider MLP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """The sizes of a GPT."""

    vocabulary: int = 256
    context: int = 256
    layers: int = 6
    heads: int = 4
    width: int = 256
    dropout: float = 0.1


class Attention(nn.Module):
    """Causal self-attention over all heads."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, time, width]`` to the same shape."""
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        projected: Tensor = self.out(attended.transpose(1, 2).reshape(batch, time, width))
        return F.dropout(projected, self.dropout, self.training)


class MLP(nn.Module):
    """Two linear maps with a GELU between them."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, 4 * config.width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * config.width, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, time, width]`` to the same shape."""
        y: Tensor = self.dropout(self.fc2(self.act(self.fc1(x))))
        return y


class Block(nn.Module):
    """One layer."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, time, width]`` to the same shape."""
        attended: Tensor = x + self.attention(self.norm1(x))
        mapped: Tensor = self.mlp(self.norm2(attended))
        return attended + mapped


class GPT(nn.Module):
    """A language model over ``config.vocabulary`` symbols."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, symbols: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats; ``symbols`` and ``targets`` are ``[batch, time]`` of int64."""
        x = self.tokens(symbols) + self.positions(torch.arange(symbols.shape[1], device=symbols.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
