"""Layers as libraries write them, for ``scope="layer"``: what they take, return, change and hand on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from harness import full, select
from numeric_models import WIDTH, Block, Mlp
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memopt import explain

DEPTH = 4


def swap(*layers: int | str) -> dict[str, Any]:
    return {"swap": {"enable": True, "layer_swap": [{"layers": list(layers)}], "min_bytes": 1}}


POLICIES = {"full": full("0-2"), "select": select({"mlp": ["0-2"]}), "swap": swap("0-2")}


class Layer(nn.Module):
    """A layer that knows its number, as many do."""

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.layer_idx = index
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = Mlp()

    def forward(self, h: Tensor) -> Any:
        return h + self.mlp(self.norm(h))


class Model(nn.Module):
    """Layers with numbers."""

    def __init__(self, layer: Callable[[int], nn.Module], depth: int = DEPTH) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(layer(index) for index in range(depth))
        self.double()

    def forward(self, h: Tensor) -> Any:
        for layer in self.layers:
            h = layer(h)
        return h


class Cache:
    """What layers write to, under their number."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}

    def update(self, key: Tensor, index: int) -> Tensor:
        self.keys[index] = torch.cat([self.keys[index], key]) if index in self.keys else key
        return self.keys[index]


class Caching(Layer):
    def forward(self, h: Tensor, cache: Cache | None = None) -> Tensor:
        key = torch.sin(self.norm(h))
        if cache is not None:
            key = cache.update(key, self.layer_idx)
        return h + self.mlp(key)[-len(h) :]


class WithCache(Model):
    def __init__(self, used: bool) -> None:
        super().__init__(Caching)
        self.used = used

    def forward(self, h: Tensor) -> Any:
        cache = Cache() if self.used else None
        for layer in self.layers:
            h = layer(h, cache=cache)
        return (h, list(cache.keys.values())) if cache else h


class ReturnsTuple(Layer):
    def forward(self, h: Tensor) -> Any:
        return h + self.mlp(self.norm(h)), None, self.layer_idx


class TakesFirst(Model):
    def forward(self, h: Tensor) -> Any:
        for layer in self.layers:
            h = layer(h)[0]
        return h


@dataclass
class Output:
    hidden: Tensor
    extra: Tensor | None = None


class ReturnsDataclass(Layer):
    def forward(self, h: Tensor) -> Any:
        return Output(h + self.mlp(self.norm(h)), h.mean())


class TakesHidden(Model):
    def forward(self, h: Tensor) -> Any:
        extras = []
        for layer in self.layers:
            output = layer(h)
            h = output.hidden
            extras.append(output.extra)
        return h, extras


class ReturnsDict(Layer):
    def forward(self, state: dict[str, Any]) -> Any:
        return {**state, "hidden": state["hidden"] + self.mlp(self.norm(state["hidden"])), "count": state["count"] + 1}


class TakesDict(Model):
    def forward(self, h: Tensor) -> Any:
        state = {"hidden": h, "count": 0, "nothing": None}
        for layer in self.layers:
            state = layer(state)
        return state


class Decoder(Layer):
    """Takes everything by keyword: encoded states, rotary tables, a bias that is passed on as it is."""

    def forward(
        self,
        *,
        hidden: Tensor,
        encoded: Tensor | None = None,
        rotary: tuple[Tensor, Tensor],
        bias: Tensor | None = None,
        **more: Any,
    ) -> Any:
        cos, sin = rotary
        if bias is None:
            bias = self.norm.weight * 2
        hidden = hidden * cos + hidden.roll(1, -1) * sin + bias
        if encoded is not None:
            hidden = hidden + torch.tanh(hidden @ encoded.mT) @ encoded
        return hidden + self.mlp(self.norm(hidden)), bias, encoded


class Decodes(Model):
    def __init__(self) -> None:
        super().__init__(Decoder)
        self.encoder = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, h: Tensor) -> Any:
        encoded, bias = self.encoder(h), None
        rotary = h.detach().cos(), h.detach().sin()
        for layer in self.layers:
            h, bias, _ = layer(hidden=h, encoded=encoded, rotary=rotary, bias=bias, mask=None, use_cache=True)
        return h


def instance_forwards(depth: int = DEPTH) -> nn.Module:
    """Layers whose ``forward`` lies on the instance, as some libraries wrap it."""
    model = Model(Layer, depth)
    for layer in model.layers:
        own = layer.forward

        def wrapped(h: Tensor, own: Callable[..., Any] = own) -> Any:
            return own(h) * 2

        layer.forward = wrapped
    return model


class Checkpoints(Model):
    """Layers that the model checkpoints by itself."""

    reentrant = False

    def forward(self, h: Tensor) -> Any:
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=self.reentrant)
        return h


class CheckpointsReentrant(Checkpoints):
    reentrant = True


class Twice(Model):
    """Every layer runs twice, one after the other."""

    def forward(self, h: Tensor) -> Any:
        for layer in self.layers:
            h = layer(layer(h).tanh())
        return h


class Drops(Model):
    """Layers that are left out by chance; the first always runs."""

    def forward(self, h: Tensor) -> Any:
        for layer in self.layers:
            if layer.layer_idx == 0 or torch.rand(()) > 0.1:
                h = layer(h)
        return h


def hooked() -> nn.Module:
    model = Model(Layer)
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _module, args: (args[0] * 1.5,))
        layer.register_forward_hook(lambda _module, _args, result: result.tanh())
        layer.mlp.register_forward_hook(lambda _module, _args, result: result * 0.5)
    return model


def shared() -> nn.Module:
    model = Model(Layer)
    model.layers = nn.ModuleList([model.layers[0]] * 3 + [model.layers[3]])
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "numbers": lambda: Model(Layer),
    "a cache": lambda: WithCache(True),
    "no cache": lambda: WithCache(False),
    "tuples": lambda: TakesFirst(ReturnsTuple),
    "dataclasses": lambda: TakesHidden(ReturnsDataclass),
    "dicts": lambda: TakesDict(ReturnsDict),
    "keywords": Decodes,
    "instance forwards": instance_forwards,
    "checkpoints": lambda: Checkpoints(Layer),
    "reentrant checkpoints": lambda: CheckpointsReentrant(Layer),
    "twice": lambda: Twice(Layer),
    "hooks": hooked,
    "one layer thrice": shared,
    "dropout": lambda: Model(lambda _: Block(dropout=0.3)),
}


def layers_under_policy(model: nn.Module) -> set[int | None]:
    return {row.layer for row in explain(model).values if row.rule.startswith(("recompute", "swap"))}
