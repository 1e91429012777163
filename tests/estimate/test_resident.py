"""What is in memory all the time: parameters, buffers, and the state of optimizers."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from memopt.compiler.estimate.resident import resident
from torch import nn

STEP = 4
"""Bytes of the count of steps that Adam keeps for each parameter."""


def model(device: str = "cpu") -> nn.Module:
    """10 x 6 weights and 6 biases in float32, twice: 2 parameters, 264 bytes each; and a batch norm's buffers."""
    with torch.device(device):
        return nn.Sequential(nn.Linear(10, 6), nn.BatchNorm1d(6, affine=False))


PARAMETERS, COUNT = (10 * 6 + 6) * 4, 2
BUFFERS = 6 * 4 * 2 + 8


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_parameters_and_buffers(device: str) -> None:
    assert resident(model(device), None) == {"parameters": PARAMETERS, "buffers": BUFFERS}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("optimizer", "state"),
    [
        (torch.optim.AdamW, 2 * PARAMETERS + COUNT * STEP),
        (torch.optim.Adam, 2 * PARAMETERS + COUNT * STEP),
        (functools.partial(torch.optim.Adam, amsgrad=True), 3 * PARAMETERS + COUNT * STEP),
        (torch.optim.SGD, 0),
        (functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), PARAMETERS),
    ],
    ids=["AdamW", "Adam", "amsgrad", "SGD", "momentum"],
)
def test_state_of_what_makes_an_optimizer(device: str, optimizer: Any, state: int) -> None:
    own = model(device)
    assert resident(own, optimizer)["optimizer"] == state
    assert all(p.grad is None for p in own.parameters())


def test_frozen_parameters_have_no_state() -> None:
    own = model()
    own[0].bias.requires_grad_(False)  # type: ignore[union-attr]
    assert resident(own, torch.optim.AdamW) == {
        "parameters": PARAMETERS,
        "buffers": BUFFERS,
        "optimizer": 2 * (PARAMETERS - 24) + STEP,
    }


def test_an_optimizer_before_its_first_step_is_counted_as_after_it() -> None:
    own = model()
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-3)
    assert resident(own, optimizer)["optimizer"] == 2 * PARAMETERS + COUNT * STEP
    assert optimizer.state == {}


def test_an_optimizer_with_momentum_before_its_first_step() -> None:
    own = model()
    optimizer = torch.optim.SGD([{"params": own.parameters(), "momentum": 0.9}], lr=0.1)
    assert resident(own, optimizer)["optimizer"] == PARAMETERS


def test_the_state_of_an_optimizer_is_what_it_is() -> None:
    own = model()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
    own[0].weight.grad = torch.zeros(6, 10)  # type: ignore[union-attr]
    optimizer.step()
    assert resident(own, optimizer)["optimizer"] == 10 * 6 * 4


def test_a_tied_weight_counts_once() -> None:
    tied = nn.Sequential(nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False))
    tied[1].weight = tied[0].weight
    assert resident(tied, torch.optim.AdamW) == {"parameters": 256, "buffers": 0, "optimizer": 2 * 256 + STEP}


def test_bfloat16_parameters() -> None:
    own = nn.Linear(8, 8, bias=False, dtype=torch.bfloat16)
    assert resident(own, torch.optim.AdamW) == {"parameters": 128, "buffers": 0, "optimizer": 2 * 128 + STEP}


@pytest.mark.parametrize("wrong", [lambda parameters: None, functools.partial(torch.optim.AdamW, lr=-1.0)])
def test_what_makes_no_optimizer_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"optimizer: found .*, which cannot take a step on these parameters \(.*\); allowed:"):
        resident(model(), wrong)
