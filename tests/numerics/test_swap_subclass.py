"""Swap where parameters and activations are tensor subclasses: torch takes them apart, and each part travels by itself."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from memopt import compile_with_memopt, explain, swap_counters

SWAP = {"swap": {"enable": True, "min_bytes": 0, "layer_swap": [{"layers": ["0-2"]}]}}
BACKENDS = ["aot_eager", "inductor"]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.fc2(torch.nn.functional.gelu(self.fc1(h)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            h = layer(h)
        return h


def doubled(model: nn.Module) -> None:
    """Make every parameter a pair of tensors that differ."""
    for layer in model.layers:
        for linear in (layer.fc1, layer.fc2):
            for name, p in list(linear.named_parameters()):
                setattr(linear, name, nn.Parameter(TwoTensor(p.detach().clone(), 1.5 * p.detach())))


def compare(model: nn.Module, plain: nn.Module, h: torch.Tensor, parts: dict[str, object]) -> None:
    """Train both twice, and hold the gradients, part by part, against eager."""
    before = swap_counters()
    for _ in range(2):
        for each in (model, plain):
            each.zero_grad()
            each(h).sum().backward()
    now = swap_counters() - before
    moved = [row for row in explain(model).values if row.action == "offload"]
    assert moved
    assert now.bytes_out == now.bytes_in == 2 * sum(row.bytes for row in moved)
    assert (now.live_tickets, now.disk_bytes) == (0, 0)
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert type(ours.grad) is type(theirs.grad), name
        for part, get in parts.items():
            torch.testing.assert_close(get(ours.grad), get(theirs.grad), rtol=1e-9, atol=1e-9, msg=f"{name}: {part}")  # type: ignore[operator]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wrapper_of_two_tensors(backend: str) -> None:
    torch.manual_seed(0)
    model = Model().double()
    doubled(model)
    plain = copy.deepcopy(model)
    h = torch.randn(5, 8, dtype=torch.float64)
    compile_with_memopt(model, SWAP, backend=backend)
    compare(model, plain, TwoTensor(h, -2 * h), {"a": lambda g: g.a, "b": lambda g: g.b})


@pytest.fixture
def mesh() -> Iterator[object]:
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
@pytest.mark.parametrize("backend", BACKENDS)
def test_distributed_tensors_on_a_mesh_of_one(backend: str, mesh: object) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

    torch.manual_seed(0)
    model = Model().double()

    def shard(_: str, module: nn.Module, mesh: object) -> None:
        for name, p in list(module.named_parameters(recurse=False)):
            module.register_parameter(name, nn.Parameter(distribute_tensor(p.detach(), mesh, [Shard(0)])))  # type: ignore[arg-type]

    distribute_module(model, mesh, shard)  # type: ignore[arg-type]
    plain = copy.deepcopy(model)
    h = distribute_tensor(torch.randn(5, 8, dtype=torch.float64), mesh, [Replicate()])  # type: ignore[arg-type]
    compile_with_memopt(model, SWAP, backend=backend)
    compare(model, plain, h, {"local": lambda g: g.to_local()})
