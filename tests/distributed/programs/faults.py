"""What may go wrong between two ranks: each case prints one line per rank, with the seconds it took and the error if any.

torchrun --nproc_per_node 2 tests/distributed/programs/faults.py CASE...
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn

import memopt

WIDTH, TIMEOUT = 16, 4.0
FULL = {"recompute": {"mode": "full", "full_recompute_layer": ["0-1"]}}


class Layer(nn.Module):
    """A layer whose weight lies in parts on the ranks, and is gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Parameter(torch.randn(WIDTH // dist_size(), WIDTH))
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        whole = Gather.apply(self.part)
        return x + torch.tanh(self.up(x) @ whole)


class Gather(torch.autograd.Function):
    """All-gather in the forward, reduce-scatter in the backward."""

    @staticmethod
    def forward(ctx: object, part: Tensor) -> Tensor:
        return collectives.wait_tensor(collectives.all_gather_single(part, 0, group()))

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return collectives.wait_tensor(collectives.reduce_scatter_single(grad, "sum", 0, group()))


class Model(nn.Module):
    """Two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def group() -> str:
    return dist.group.WORLD.group_name


def dist_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def build() -> Model:
    torch.manual_seed(0)
    return Model()


def step(model: nn.Module, batch: int) -> dict[str, Tensor]:
    model.zero_grad()
    x = torch.randn(batch, WIDTH, generator=torch.Generator().manual_seed(RANK))
    model(x).square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def compiled(config: object = FULL, **settings: object) -> nn.Module:
    return memopt.compile_with_memopt(build(), config, backend="aot_eager", **settings)


def trained(model: nn.Module, batch: int = 4) -> str:
    """Train a step; tell how gradients differ from eager ones, and what was decided."""
    found = step(model, batch)
    decided = [(row.op, row.layer, row.path, row.again, row.rule) for row in memopt.explain(model).collectives]
    again = sum(row.again for row in memopt.explain(model).collectives)
    expected = step(build(), batch)
    largest = max((found[name] - g).abs().max().item() for name, g in expected.items())
    everywhere = [None] * dist.get_world_size()
    dist.all_gather_object(everywhere, decided)
    return f"difference {largest:.0e}, {again} again, equal decisions: {all(d == decided for d in everywhere)}"


def other_configuration() -> str:
    config = FULL if RANK == 0 else {"recompute": {"mode": "full", "full_recompute_layer": [0]}}
    return trained(compiled(config))


def recompute_comm_on_one_rank() -> str:
    comm = {"recompute_comm": {"enable": True, "select_module": {r"(.*\.)?all_gather": ["0-1"]}}}
    return trained(compiled(comm if RANK == 0 else {}))


def other_batch_sizes() -> str:
    return trained(compiled(), batch=4 if RANK == 0 else 6)


def other_batch_sizes_later() -> str:
    model = compiled()
    first = trained(model)
    return first + "; " + trained(model, batch=4 if RANK == 0 else 6)


def missing_rank() -> str:
    if RANK == 1:
        return "gone"
    return trained(compiled(ranks_timeout=TIMEOUT))


def memopt_on_one_rank() -> str:
    if RANK == 0:
        return trained(compiled(ranks_timeout=TIMEOUT))
    step(build(), 4)
    return "went through"


def run(name: str, case: Callable[[], str]) -> None:
    start = time.monotonic()
    try:
        text = case()
    except (memopt.RanksDisagreeError, RuntimeError) as error:
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
    print(f"rank {RANK}: {name} | {time.monotonic() - start:.1f} s | {text}\n", end="", flush=True)


def main() -> None:
    first, *rest = sys.argv[1:]
    if first == "group_made_later":
        model = compiled()
        dist.init_process_group("gloo")
        run(first, lambda: trained(model))
    elif first == "store_gone":
        os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)  # rank 0 keeps the store, not torchrun
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{rest[0]}", rank=RANK, world_size=2)
        if RANK == 1:
            run(first, lambda: trained(compiled(ranks_timeout=TIMEOUT)))
        time.sleep(2.0)  # rank 0, which keeps the store, ends before the other one has compared
        os._exit(0)
    else:
        dist.init_process_group("gloo")
        for name in (first, *rest):
            run(name, globals()[name])
    sys.stdout.flush()
    os._exit(0)  # without waiting for whoever is gone


RANK = int(os.environ.get("RANK", "0"))

if __name__ == "__main__":
    main()
