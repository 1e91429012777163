"""What `recompute_comm` costs and saves, told truly. Torch pretends that there is a second process: graphs are looked at."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from harness import run_as_is
from memopt.compiler.ranks.agreement import Statement, _judge
from memopt.passes.communication import communicates
from numeric_models import WIDTH
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from memopt import Explanation, MemoptWarning, compile_with_memopt, explain

RULE = {"recompute_comm": {"enable": True, "select_module": {r"(.*\.)?all_reduce": ["0-2"]}}}
SWAP = {"swap": {"enable": True, "min_bytes": 0, "layer_swap": [{"layers": ["0-1"]}]}}


@pytest.fixture(autouse=True)
def _two_processes() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


class Reduced(nn.Module):
    def __init__(self, finish: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.finish = finish

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.finish(h, _reduce(self.fc(h)))


def _reduce(value: torch.Tensor) -> torch.Tensor:
    return _AllReduce.apply(value)  # type: ignore[no-any-return]


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return collectives.wait_tensor(collectives.all_reduce(value, "sum", dist.group.WORLD))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Model(nn.Module):
    def __init__(self, finish: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Reduced(finish) for _ in range(3))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            h = layer(h)
        return h


def trained(finish: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], config: dict[str, Any]) -> tuple[Explanation, str]:
    torch.manual_seed(0)
    model = Model(finish)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MemoptWarning)
        compile_with_memopt(model, config, backend="aot_eager" if "swap" in config else run_as_is)
        model(torch.randn(4, WIDTH)).sum().backward()
    return explain(model), "\n".join(str(w.message) for w in caught if issubclass(w.category, MemoptWarning))


def repeated(explanation: Explanation) -> int:
    """How many collectives of the forward stand in the backward graph; the gradients' own are none here."""
    return sum(communicates(n) is not None for n in explanation.graphs[0].backward.graph.nodes)


def added(h: torch.Tensor, reduced: torch.Tensor) -> torch.Tensor:
    return h + reduced


def through_gelu(_: torch.Tensor, reduced: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(reduced)


def test_what_the_backward_does_not_need_is_neither_repeated_nor_paid_for() -> None:
    without, _ = trained(added, {})
    found, said = trained(added, RULE)
    assert repeated(found) == 0
    assert not any(row.again for row in found.collectives)
    assert found.saved_after == without.saved_after
    assert "recomputes nothing" in said


def test_communicating_again_for_no_memory_is_told() -> None:
    found, said = trained(through_gelu, RULE)
    assert repeated(found) == sum(row.again for row in found.collectives) == 3
    assert found.saved_after == found.saved_before
    assert "communicates again and saves no memory: layers 0-2" in said


def test_what_runs_again_is_counted_where_values_are_swapped_too() -> None:
    found, _ = trained(through_gelu, {**RULE, **SWAP})
    assert found.swapped > 0
    assert repeated(found) == sum(row.again for row in found.collectives) == 3


def test_a_layer_that_is_compiled_again_says_what_its_group_said() -> None:
    """Ranks compare these texts: one that compiles layer 2 again, for a length of its own, must have nothing new to say."""
    torch.manual_seed(0)
    model = Model(through_gelu)
    compile_with_memopt(
        model, {"recompute": {"mode": "full", "full_recompute_layer": ["0-2"]}}, backend=run_as_is, scope="layer"
    )
    model(torch.randn(4, WIDTH)).sum().backward()
    model.layers[2](torch.randn(7, WIDTH)).sum().backward()
    said = [tuple(step.text for step in seen.steps) for seen in model.forward.session.captures]
    assert len(said) > 1
    assert len(set(said)) == 1
    assert "layer 0" in said[0][0]


@pytest.mark.parametrize("refusal", [None, "another group refused"])
def test_a_refusal_in_one_group_is_one_in_the_next(refusal: str | None) -> None:
    mine, other = Statement("m", ("plan",), ("all_reduce",)), Statement("m", ("plan",), ("all_reduce",), refusal)
    assert _judge({0: mine.text, 1: other.text}) == refusal


def test_what_differs_is_named() -> None:
    mine, other = Statement("m", ("layer 0: nothing",), ()), Statement("m", ("layer 0: recompute everything",), ())
    text = _judge({3: other.text, 0: mine.text, 1: mine.text})
    assert text is not None
    assert "rank 0 has 'layer 0: nothing' where rank 3 has 'layer 0: recompute everything'" in text
