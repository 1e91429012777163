"""The memory of what a model returns is its caller's, who may change it while values are still on their way out."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from memopt.runtime.stores.disk import DiskArena
from numeric_models import Mlp, double, x
from test_swap import Masked, swap
from torch import nn

from memopt import compile_with_memopt, explain


@pytest.fixture
def _slow_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    write = DiskArena.write
    monkeypatch.setattr(DiskArena, "write", lambda *given: (time.sleep(0.05), write(*given)))


def test_an_output_that_the_caller_changes_is_never_swapped() -> None:
    torch.manual_seed(3)
    model = compile_with_memopt(double(Masked()), swap("0-1"), backend="aot_eager")
    h, inner = model(torch.randint(0, 16, (2, 6)))
    with torch.no_grad():
        inner.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()


Join = Callable[[list[torch.Tensor]], torch.Tensor]


class States(nn.Module):
    """Returns what its layers made, joined."""

    def __init__(self, join: Join) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mlp() for _ in range(4))
        self.join = join

    def forward(self, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states = []
        for layer in self.layers:
            h = layer(h)
            states.append(h)
        return h.square().mean(), self.join(states)


JOINED: dict[str, Join] = {
    "stack": torch.stack,
    "cat": torch.cat,
    "cat of views": lambda states: torch.cat([state.view(-1) for state in states]),
    "cat of a cat": lambda states: torch.cat([torch.cat(states[:2]), *states[2:]]),
    "reshaped": lambda states: torch.stack(states).view(-1),
    "padded": lambda states: F.pad(states[0], (0, 0, 0, 3)),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_parts_of_sizes_that_change_and_of_several_results(backend: str) -> None:
    def join(states: list[torch.Tensor]) -> torch.Tensor:
        rows = states[0].shape[0]
        sorted_rows = states[1].sort(0).values
        return torch.cat([F.pad(states[0], (0, 0, 0, rows)), sorted_rows, states[2][:3]])

    model = double(States(join))
    plain = copy.deepcopy(model)
    compile_with_memopt(model, swap("0-1"), backend=backend, dynamic=True)
    for rows in (64, 80):
        for each in (model, plain):
            each.zero_grad()
            loss, joined = each(x(rows))
            (loss + joined.sin().sum()).backward()
        for got, want in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(got.grad, want.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("_slow_copies")
@pytest.mark.parametrize("join", JOINED.values(), ids=JOINED)
def test_a_part_of_an_output_that_the_caller_changes_is_never_swapped(join: Join) -> None:
    def gradients(called: nn.Module, model: nn.Module) -> list[torch.Tensor]:
        model.zero_grad()
        loss, states = called(given)
        states.detach().fill_(7.0)  # which no backward needs: a join is a copy
        loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    torch.manual_seed(0)
    model, given = double(States(join)), x(64)
    want = gradients(model, model)
    compile_with_memopt(model, swap("0-1"))
    for _ in range(2):
        torch.testing.assert_close(gradients(model, model), want, rtol=1e-9, atol=1e-12)
    reasons = {row.reason for row in explain(model).values if row.rule == "swap.layer_swap[0]" and row.action == "save"}
    assert any("in whose memory it may lie, and its caller may keep or change that" in reason for reason in reasons)
