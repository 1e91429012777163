"""Saved bytes as formulas: they agree with the bytes, and with those of other inputs."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from estimate_models import gpt
from memopt.compiler.estimate.formula import nbytes_of
from torch import Tensor, nn
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from memopt import Estimate, estimate

BATCH, SEQ = (sympy.Symbol(name, integer=True, positive=True) for name in ("batch", "seq"))


class Block(nn.Module):
    """``x + w(tanh(v(x)))``: the backward needs what goes into ``v``, and what ``tanh`` makes."""

    def __init__(self) -> None:
        super().__init__()
        self.v, self.w = nn.Linear(8, 16, bias=False), nn.Linear(16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.w(torch.tanh(self.v(x)))
        return out


class Tower(nn.Module):
    """Blocks over rows that a linear map made."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(4, 8, bias=False)
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        for layer in self.layers:
            x = layer(x)
        return x


def tower(config: dict[str, Any], **options: Any) -> Estimate:
    return estimate(Tower(), config, (torch.zeros(5, 4),), backend="aot_eager", formula=True, **options)


def test_each_layer_has_its_formula() -> None:
    found = tower({})
    each = 8 * 4 * BATCH + 16 * 4 * BATCH  # its input, made by what lies before it, and tanh
    assert found.formula == {None: 32 * BATCH, 0: each, 1: each, 2: 64 * BATCH}
    assert found.saved_formula == 288 * BATCH
    assert found.saved_bytes == 288 * 5


def test_a_recomputed_layer_keeps_nothing_but_its_input() -> None:
    found = tower({"recompute": {"mode": "full", "full_recompute_layer": [0, 1, 2]}})
    assert found.formula == {None: 32 * BATCH, 0: 32 * BATCH, 1: 32 * BATCH}
    assert found.saved_formula == 96 * BATCH


def test_what_is_swapped_is_in_no_formula() -> None:
    found = tower({"swap": {"enable": True, "layer_swap": [{"layers": [0]}], "min_bytes": 1, "default_prefetch": 1}})
    assert found.swapped_bytes > 0
    assert found.saved_formula == (288 * 5 - found.swapped_bytes) // 5 * BATCH


def test_without_asking_there_is_none() -> None:
    found = estimate(Tower(), {}, (torch.zeros(5, 4),), backend="aot_eager")
    assert (found.formula, found.saved_formula, found.sizes) == ({}, None, {})


@pytest.mark.parametrize("config", [{}, {"recompute": {"mode": "full", "full_recompute_layer": [1]}}], ids=["none", "full"])
def test_the_formula_of_a_gpt_holds_for_other_inputs(config: dict[str, Any]) -> None:
    model, args = gpt(batch=4, seq=24, width=16, layers=2)
    found = estimate(model, config, args, formula=True, backend="aot_eager")
    assert found.saved_formula is not None
    assert found.saved_formula.free_symbols == {BATCH, SEQ}
    assert found.saved_formula.subs({BATCH: 4, SEQ: 24}) == found.saved_bytes
    other = estimate(model, config, gpt(batch=6, seq=40, width=16, layers=2)[1], backend="aot_eager")
    assert found.saved_formula.subs({BATCH: 6, SEQ: 40}) == other.saved_bytes
    by_layer = {total.layer: total.saved_after for total in other.layers if total.saved_after}
    assert {layer: int(part.subs({BATCH: 6, SEQ: 40})) for layer, part in found.formula.items()} == by_layer


def test_a_name_of_ones_own() -> None:
    assert tower({}, dims={"rows": [(0, 0)]}).saved_formula == 288 * sympy.Symbol("rows", integer=True, positive=True)


def test_bytes_of_a_tensor_with_symbols() -> None:
    env = ShapeEnv()
    n = env.create_symbol(6, ConstantSource("n"), positive=True)
    size = env.create_symintnode(n, hint=6)
    assert nbytes_of(torch.empty(3, 4, dtype=torch.bfloat16)) == 24
    assert nbytes_of(torch.empty(size, 4, size, device="meta")) == 16 * n**2
    assert nbytes_of(torch.empty(3, 1).expand(3, 500)) == 12
