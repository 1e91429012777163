"""A decoder of the Llama kind: rotary positions, grouped heads, gated MLP, no biases. From torch alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class LlamaLikeConfig:
    """The sizes; by default about a billion parameters."""

    vocabulary: int = 32_000
    layers: int = 16
    width: int = 2048
    heads: int = 32
    kv_heads: int = 8
    inner: int = 5632


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, c: LlamaLikeConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = c.heads, c.kv_heads, c.width // c.heads
        self.q = nn.Linear(c.width, c.width, bias=False)
        self.kv = nn.Linear(c.width, 2 * c.kv_heads * self.size, bias=False)
        self.out = nn.Linear(c.width, c.width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Map ``[batch, time, width]`` to the same shape; ``angles`` is ``[time, size / 2]``."""
        b, t, d = x.shape
        q = _rotate(self.q(x).view(b, t, self.heads, self.size).transpose(1, 2), angles)
        k, v = self.kv(x).view(b, t, 2, self.kv_heads, self.size).permute(2, 0, 3, 1, 4)
        k = _rotate(k, angles)
        repeats = self.heads // self.kv_heads
        k, v = (y.repeat_interleave(repeats, dim=1) for y in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        projected: Tensor = self.out(attended.transpose(1, 2).reshape(b, t, d))
        return projected


class Layer(nn.Module):
    """One layer."""

    def __init__(self, c: LlamaLikeConfig) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(c.width), nn.RMSNorm(c.width)
        self.attention = Attention(c)
        self.gate, self.up = (nn.Linear(c.width, c.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(c.inner, c.width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Map ``[batch, time, width]`` to the same shape."""
        x = x + self.attention(self.norm1(x), angles)
        h = self.norm2(x)
        out: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return out


class LlamaLike(nn.Module):
    """The model; returns the mean cross-entropy of the next symbol."""

    def __init__(self, c: LlamaLikeConfig) -> None:
        super().__init__()
        self.config = c
        self.tokens = nn.Embedding(c.vocabulary, c.width)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.width)
        self.head = nn.Linear(c.width, c.vocabulary, bias=False)

    def forward(self, symbols: Tensor) -> Tensor:
        """Return the loss in nats for ``symbols``, ``[batch, time]`` of int64."""
        c = self.config
        rates = 10_000.0 ** -torch.linspace(0, 1, c.width // c.heads // 2, device=symbols.device)
        angles = torch.outer(torch.arange(symbols.shape[1], device=symbols.device), rates)
        x = self.tokens(symbols)
        for layer in self.layers:
            x = layer(x, angles)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), symbols[:, 1:].flatten())


def _rotate(x: Tensor, angles: Tensor) -> Tensor:
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)
