"""Small models with the shapes of module trees that real ones have."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.core = nn.Linear(2, 2)
        self.out = nn.Linear(2, 2)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(2, 4)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4, 2)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.mlp = Mlp()


BLOCK_PATHS = ("attention", "attention.core", "attention.out", "mlp", "mlp.fc1", "mlp.act", "mlp.fc2")


class OtherBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mamba = nn.Linear(4, 8)
        self.mlp = Mlp()


class MoeBlock(nn.Module):
    def __init__(self, experts: int) -> None:
        super().__init__()
        self.attention = Attention()
        self.experts = nn.ModuleList(Mlp() for _ in range(experts))


class Gpt(nn.Module):
    def __init__(self, layers: int, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 2)
        self.layers = nn.ModuleList(block() for _ in range(layers))
        self.head = nn.Linear(2, 50)


class Nested(nn.Module):
    """As in libraries of pretrained models: the stack lies a few modules deep."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(50, 2), "h": nn.ModuleList(Block() for _ in range(layers))})
        self.lm_head = nn.Sequential(nn.Linear(2, 500), nn.Linear(500, 50))


class Stack(nn.Module):
    def __init__(self, layers: int, block: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.block = nn.ModuleList(block() for _ in range(layers))


class EncoderDecoder(nn.Module):
    def __init__(self, encoder: int, decoder: int) -> None:
        super().__init__()
        self.encoder = Stack(encoder)
        self.decoder = Stack(decoder)
