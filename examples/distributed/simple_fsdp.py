"""Weights in parts, gathered within the graph ("SimpleFSDP"), and gathered again in the backward: two processes.

    torchrun --nproc_per_node 2 examples/distributed/simple_fsdp.py

Each weight is a DTensor of which a process holds a part; a parametrization makes it whole where it is used. What was gathered
is then a value of the graph like others: saved for the backward by default (ZeRO-2), and with recompute_comm gathered a
second time instead (ZeRO-3).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from comparing import collectives_in, difference, gradients_of, leave, options_for, report
from llama import Llama, loss_of, symbols_for
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.nn.utils import parametrize

import memopt

BATCH = 4


class Gathered(nn.Module):
    """A weight's parts -> the whole of it; its gradient is averaged over the processes, and each keeps its part."""

    def forward(self, part: Tensor) -> Tensor:
        """Map a DTensor to a plain tensor."""
        return part.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial("avg")])


def build() -> Llama:
    torch.manual_seed(0)
    return Llama(layers=4)


def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Leave each process a part of every weight of the layers' matrices; other weights stay whole on each."""
    for layer in model.layers:
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                module.weight = nn.Parameter(distribute_tensor(module.weight, mesh, [Shard(0)]))
                parametrize.register_parametrization(module, "weight", Gathered(), unsafe=True)
    return model


def averaged(model: nn.Module) -> dict[str, Tensor]:
    """Whole gradients, by the names that one process has; those of whole weights are averaged here."""
    found = {}
    for name, grad in gradients_of(model).items():
        if "parametrizations" not in name:
            dist.all_reduce(grad)
            grad = grad / dist.get_world_size()
        found[name.replace("parametrizations.", "").replace(".original", "")] = grad
    return found


def main() -> None:
    options = options_for(__file__)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    symbols = symbols_for(BATCH)
    own = symbols.chunk(dist.get_world_size())[dist.get_rank()]

    alone = build()
    loss_of(alone(symbols), symbols).backward()
    expected = gradients_of(alone)

    right = True
    for config in options.config:
        model = memopt.compile_with_memopt(shard(build(), mesh), config, backend=options.backend)
        loss_of(model(own), own).backward()  # compiles
        model.zero_grad()
        logits, forward = collectives_in(lambda model=model: model(own))
        _, backward = collectives_in(loss_of(logits, own).backward)
        right &= report(model, config, forward, backward, difference(averaged(model), expected))
    leave(right)


if __name__ == "__main__":
    main()
