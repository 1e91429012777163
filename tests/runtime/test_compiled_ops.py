"""The operators by hand in a compiled function: every backend keeps them, their order and their results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from swapping import OPS, offload, settled, until, wait_like


class Swapped(torch.autograd.Function):
    """sin(x) whose argument for backward is swapped out."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        held = x * 1
        ctx.save_for_backward(offload(held, asynchronous=False))
        return held.sin()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        x = wait_like(OPS.prefetch(ctx.saved_tensors[0]), grad)
        return grad * x.cos()


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return Swapped.apply(Swapped.apply(x @ w) @ w).sum()  # type: ignore[no-any-return]


def program_in_eager(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x @ w).sin() @ w).sin().sum()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_forward_and_backward(backend: str) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(16, 32), (torch.randn(32, 32) / 6).requires_grad_()
    (expected,) = torch.autograd.grad(program_in_eager(x, w), w)
    compiled = torch.compile(program, backend=backend, fullgraph=True)
    before = settled()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(compiled(x, w), w)
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5)
    compiled(x, w)
    # The partitioner may start a reload in the forward already: the last one may still be going on.
    after = until(lambda now: now.live_tickets == before.live_tickets)
    assert after.offloads - before.offloads == 8
    assert after.disk_bytes == before.disk_bytes


def in_one_graph(x: torch.Tensor) -> torch.Tensor:
    y = x.t().relu() + 1
    ticket = offload(y, asynchronous=False)
    z = y.sum(0) * 3
    del y
    back = OPS.wait(OPS.prefetch(ticket), [x.shape[1], x.shape[0]], [1, x.shape[1]], x.dtype, x.device)
    return back * z


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_strides_are_kept(backend: str, dynamic: bool) -> None:
    compiled = torch.compile(in_one_graph, backend=backend, fullgraph=True, dynamic=dynamic)
    for size in ((6, 10), (7, 11)):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), (x.t().relu() + 1) * (x.t().relu() + 1).sum(0) * 3)
