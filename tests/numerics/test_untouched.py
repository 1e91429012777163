"""Looking at a model with ``trace`` changes nothing in it, whatever its forward assigns."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from dataclasses import dataclass, field

import pytest
import torch
from harness import FULL
from memopt.compiler.untouched import untouched
from numeric_models import WIDTH, Stack, x
from torch import nn

from memopt import trace


@dataclass
class Statistics:
    calls: int = 0
    means: list[torch.Tensor] = field(default_factory=list)


class KeepsItself(nn.Module):
    """A layer that assigns everything there is to assign."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.calls = 0
        self.last: torch.Tensor | None = None
        self.seen: list[torch.Tensor] = []
        self.recent: deque[int] = deque([1, 2], maxlen=2)
        self.by_name = OrderedDict(b=torch.zeros(1), a=torch.ones(1))
        self.sizes = {4}
        self.statistics = Statistics()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
        self.calls += 1
        self.last = h
        self.fresh = h * 2
        torch._dynamo.graph_break()
        self.seen.append(h)
        self.recent.append(3)
        self.by_name["b"] = h
        self.by_name["c"] = h
        self.sizes.add(h.shape[0] + 1)
        self.statistics.calls += 1
        self.statistics.means.append(self.mean)
        self.fc.weight = nn.Parameter(self.fc.weight * 2)
        return torch.tanh(self.fc(h - self.mean))


def state(model: Stack) -> list[object]:
    """All that a layer can hold, by value or by identity."""
    found: list[object] = []
    for layer in model.layers:
        found += [list(layer.__dict__), layer.calls, layer.last, list(layer.recent), set(layer.sizes), layer.statistics.calls]
        found += [[id(t) for t in tensors] for tensors in (layer.seen, layer.statistics.means)]
        found += [[(name, id(t)) for name, t in layer.by_name.items()]]
        found += [[(name, id(t), t.clone().tolist()) for name, t in layer.state_dict(keep_vars=True).items()]]
        found += [[(id(p), p.requires_grad, p.grad) for p in layer.parameters()]]
    return found


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_what_a_forward_assigns_is_not_left_in_the_model(device: str) -> None:
    with torch.device(device):
        model = Stack([KeepsItself() for _ in range(2)])
        h = x().detach().to(device).requires_grad_()
    found = (lambda: [id(t) for t in model.state_dict(keep_vars=True).values()]) if device == "meta" else lambda: state(model)
    before = found()
    trace(model, {}, [h], backend="aot_eager")
    assert found() == before


class Raises(Stack):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        super().forward(h)
        raise RuntimeError("not today")


def test_what_a_forward_assigns_is_not_left_when_it_raises() -> None:
    model = Raises([KeepsItself()])
    before = state(model)
    with pytest.raises(RuntimeError, match="not today"):
        trace(model, FULL(model), [x()], backend="aot_eager")
    assert state(model) == before


class Cache:
    """What a caller hands in beside tensors."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.length = 0


class FillsCache(Stack):
    def forward(self, h: torch.Tensor, cache: Cache) -> torch.Tensor:
        h = super().forward(h)
        cache.keys.append(h)
        cache.length += 1
        return h


def test_what_a_forward_stores_in_its_arguments_is_not_left_there() -> None:
    cache = Cache()
    trace(FillsCache([nn.Linear(WIDTH, WIDTH) for _ in range(2)]), {}, [x(), cache], backend="aot_eager")
    assert (cache.keys, cache.length) == ([], 0)


class Draws(Stack):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = super().forward(h)
        torch._dynamo.graph_break()
        torch.manual_seed(1)
        return h * random.random()


def test_random_states_are_what_they_were() -> None:
    model = Draws([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
    random.seed(5)
    torch.manual_seed(5)
    wanted = random.random(), torch.rand(2).tolist()
    random.seed(5)
    torch.manual_seed(5)
    trace(model, {}, [x()], backend="aot_eager")
    assert (random.random(), torch.rand(2).tolist()) == wanted


def test_gradients_and_their_need_are_restored() -> None:
    layer = nn.Linear(2, 2)
    layer.weight.grad = before = torch.ones(2, 2)
    with untouched(layer):
        layer.weight.grad = torch.zeros(2, 2)
        layer.bias.requires_grad_(False)
    assert layer.weight.grad is before
    assert layer.bias.requires_grad
