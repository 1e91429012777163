"""Recomputation under inductor: what its kernels must not hold together, and what memory it keeps.

The model shares rotary tables among its layers, so that inductor would like to compute several layers' rotations at once.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
from harness import full
from memopt.compiler import torch_bridge
from memopt.passes import turns
from torch import Tensor, nn
from torch._inductor.virtualized import V

from memopt import Measurement, compile_with_memopt, estimate, measure

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from llama_like import LlamaLike, LlamaLikeConfig

pytestmark = pytest.mark.inductor

LAYERS = 2
FULL = full(f"0-{LAYERS - 1}")
SIZES = LlamaLikeConfig(vocabulary=96, layers=LAYERS, width=48, heads=4, kv_heads=2, inner=128)


def llama() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return LlamaLike(SIZES), torch.randint(0, 96, (4, 48))


def gradients(model: nn.Module, symbols: Tensor) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    model(symbols).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def measured(model: nn.Module, symbols: Tensor) -> Measurement:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(symbols).backward()

    return measure(step, warmup=1)


@contextlib.contextmanager
def kernels_seen() -> Iterator[tuple[list[set[Any]], list[bool]]]:
    """What each finished kernel of inductor's holds, and what it asked about two kernels with nothing between them."""
    from torch._inductor.scheduler import Scheduler

    held: list[set[Any]] = []
    refused: list[bool] = []
    asked = turns.keep_apart

    def keep_apart(*groups: Any) -> bool:
        refused.append(asked(*map(list, groups)))
        return refused[-1]

    fuse = Scheduler.fuse_nodes

    def fuse_nodes(scheduler: Any, nodes: Any) -> Any:
        finished = fuse(scheduler, nodes)
        held.extend({n.meta[turns._KEY] for n in torch_bridge._operators_of(k) if turns._KEY in n.meta} for k in finished)
        return finished

    with mock.patch.object(torch_bridge, "keep_apart", keep_apart), mock.patch.object(Scheduler, "fuse_nodes", fuse_nodes):
        yield held, refused


def too_early(held: list[set[Any]]) -> list[set[Any]]:
    """The kernels that recompute a layer, hold nothing of its own backward, and a part of another layer's."""
    found = []
    for kernel in held:
        backward = {call for call, again in kernel if not again and call is not None}
        if any(again and call not in backward for call, again in kernel) and backward:
            found.append(kernel)
    return found


@pytest.fixture
def _no_caches() -> Iterator[None]:
    """Graphs are compiled again each time; what a C++ compiler made of a kernel stays."""
    with inductor_config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        yield


@pytest.mark.usefixtures("_no_caches")
def test_no_kernel_recomputes_a_layer_beside_the_backward_of_another() -> None:
    model, symbols = llama()
    told = estimate(model, FULL, (symbols,))
    wanted = gradients(copy.deepcopy(model), symbols)
    plain = copy.deepcopy(model)
    with kernels_seen() as (held, refused):
        compile_with_memopt(model, FULL)
        found = gradients(model, symbols)
    assert any(refused), "inductor wanted no such kernel: the test shows nothing"
    assert too_early(held) == []
    assert any(again for kernel in held for _, again in kernel)
    real = measured(model, symbols)
    assert 0.95 <= told.peak_bytes / real.peak_bytes <= 1.10

    torch._dynamo.reset()
    compile_with_memopt(plain, FULL, options={"allow_buffer_reuse": True})
    same = gradients(plain, symbols)
    assert real.peak_bytes <= measured(plain, symbols).peak_bytes
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(same[name], gradient, rtol=1e-4, atol=1e-6)


class Small(nn.Module):
    """Two layers that are quick to compile."""

    def __init__(self) -> None:
        super().__init__()
        pairs = [(nn.Linear(8, 16), nn.Linear(16, 8)) for _ in range(2)]
        self.layers = nn.ModuleList(nn.Sequential(a, nn.GELU(), b) for a, b in pairs)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.sum()


def settings(config: dict[str, Any], options: dict[str, Any] | None = None) -> list[bool]:
    """Whether inductor may give a value the memory of another, in each graph that it compiles."""
    seen = []

    def run_as_is(graph: Any, inputs: Any, **kwargs: Any) -> Any:
        seen.append(inductor_config.allow_buffer_reuse)
        return torch_bridge._run_as_is(graph, inputs)

    with mock.patch.object(torch_bridge, "compile_fx_inner", run_as_is):
        model = compile_with_memopt(Small(), config, options=options)
        model(torch.randn(4, 8)).backward()
    return seen


@pytest.mark.usefixtures("_no_caches")
@pytest.mark.parametrize(
    ("config", "options", "reuse"),
    [
        ({}, None, True),
        ({}, {"allow_buffer_reuse": False}, False),
        (full(0), None, False),
        (full(0), {"allow_buffer_reuse": True}, True),
        ({"swap": {"enable": True, "layer_swap": [{"layers": [0]}], "min_bytes": 1}}, None, False),
        ({"swap": {"enable": True, "layer_swap": [{"layers": [0]}], "min_bytes": 1}}, {"allow_buffer_reuse": True}, False),
    ],
    ids=["nothing", "nothing, own option", "recompute", "recompute, own option", "swap", "swap, own option"],
)
def test_memory_is_kept_for_reuse_only_where_no_rule_saves_it(config: Any, options: Any, *, reuse: bool) -> None:
    usual = inductor_config.allow_buffer_reuse
    assert settings(config, options) == [reuse, reuse]
    assert inductor_config.allow_buffer_reuse is usual


@pytest.mark.usefixtures("_no_caches")
def test_the_usual_choices_are_back_after_compiling() -> None:
    seen = []

    def run_as_is(graph: Any, inputs: Any, **kwargs: Any) -> Any:
        seen.append(V.choices)
        return torch_bridge._run_as_is(graph, inputs)

    with mock.patch.object(torch_bridge, "compile_fx_inner", run_as_is):
        compile_with_memopt(Small(), full(0))(torch.randn(4, 8)).backward()
    assert [type(choices) for choices in seen] == [torch_bridge._KeepingApart] * 2
    assert not isinstance(V.choices, torch_bridge._KeepingApart)
    assert all(choices.score_fusion == V.choices.score_fusion for choices in seen)  # the usual ones, but for one answer
