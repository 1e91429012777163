"""Graphs that branch: inductor writes over what a branch still reads, where a layer is compiled by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import EMPTY, check, full
from numeric_models import WIDTH, stack, x
from test_swap import swap
from torch import nn


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        branched = torch.cond(h.sum() > 0, lambda h: self.a(h).sin(), lambda h: self.b(h).cos() * h, (h.clone(),))
        return h + branched


@pytest.mark.parametrize("config", [EMPTY, swap("0-1"), full("0-1")], ids=["empty", "swap", "full"])
@pytest.mark.parametrize("scope", ["layer", "model"])
def test_gradients_are_those_of_eager(config: Any, scope: str) -> None:
    torch.manual_seed(0)
    check(stack(Branches, 4), [x(2, 5)], config, "inductor", scope=scope)
