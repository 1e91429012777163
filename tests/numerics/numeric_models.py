"""Small models, in float64 so that two compilers' roundings stay far apart from a wrong result."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 8


def double(module: nn.Module) -> nn.Module:
    return module.double()


def x(batch: int = 4, *more: int, width: int = WIDTH) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch)
    shape = (batch, *more, width)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


class Stack(nn.Module):
    """Layers one after another: all that most tests need."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.double()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            h = layer(h)
        return h


def stack(layer: Callable[[], nn.Module], depth: int = 2) -> Stack:
    torch.manual_seed(3)
    return Stack([layer() for _ in range(depth)])


class Mlp(nn.Module):
    def __init__(self, width: int = WIDTH, hidden: int = 16, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden, bias=bias)
        self.act = nn.GELU()
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, width, bias=bias)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.drop(self.act(self.fc1(h))))


class Attention(nn.Module):
    def __init__(self, width: int = WIDTH, heads: int = 2, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        b, t, d = h.shape
        q, k, v = self.qkv(h).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return self.out(attended.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    """A transformer block; takes (batch, positions, width)."""

    def __init__(self, width: int = WIDTH, dropout: float = 0.0, bias: bool = True) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, dropout=dropout, bias=bias)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, 2 * width, dropout, bias)
        self.drop = nn.Dropout(dropout)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = h + self.drop(self.attention(self.norm1(h)))
        return h + self.mlp(self.norm2(h))


class Residual(nn.Module):
    """x + f(x), so that a chain of layers stays alive."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.inner(h)
