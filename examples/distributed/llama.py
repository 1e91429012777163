"""A decoder of the Llama kind for the examples beside it: RMSNorm, rotary positions, SwiGLU. From torch alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, INNER, HEADS, VOCABULARY, CONTEXT = 64, 128, 4, 96, 32


class Attention(nn.Module):
    """Causal attention. How many heads it has it sees in its weights: tensor parallelism gives each rank a part."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, time, width]`` to the same shape."""
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, -1, WIDTH // HEADS).transpose(1, 2) for y in (self.q(x), self.k(x), self.v(x)))
        attended = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.o(attended.transpose(1, 2).reshape(b, t, -1))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, time, width]`` to the same shape."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer; ``mlp`` may be another module than the usual one."""

    def __init__(self, mlp: nn.Module | None = None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.mlp = mlp or MLP()

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, time, width]`` to the same shape."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    """The model, from symbols to logits."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, symbols: Tensor) -> Tensor:
        """Map ``[batch, time]`` to logits."""
        x = self.tokens(symbols)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def rotate(x: Tensor) -> Tensor:
    """Rotary positions on ``[batch, heads, time, size]``."""
    rates = 10_000.0 ** -torch.linspace(0, 1, x.shape[-1] // 2, device=x.device)
    angles = torch.outer(torch.arange(x.shape[-2], device=x.device), rates)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1)


def symbols_for(batch: int) -> Tensor:
    """The same symbols on every rank."""
    return torch.randint(0, VOCABULARY, (batch, CONTEXT), generator=torch.Generator().manual_seed(1))


def loss_of(logits: Tensor, symbols: Tensor) -> Tensor:
    """The mean cross-entropy of the next symbol."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), symbols[:, 1:].flatten())
