"""Expert and data parallelism with recompute: a mixture of experts over 2 x 2 processes.

    torchrun --nproc_per_node 4 examples/distributed/expert_parallel.py
    torchrun --nproc_per_node 4 examples/distributed/expert_parallel.py --config expert_parallel_full.yaml

Each token goes to two of four experts, two of which live in each process. How many tokens go where is known at run time
only: the counts are exchanged first. So that torch.compile keeps such numbers in the graph, the script sets
torch._dynamo.config.capture_scalar_outputs; with --scalars break, the graph breaks there, and memopt names the layers that
it can then do nothing for.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from comparing import Gradients, collectives_in, difference, gradients_of, leave, options_for, report
from llama import MLP, WIDTH, Block, Llama, loss_of, symbols_for
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import memopt

LAYERS, EXPERTS, CHOSEN, EXPERT_PARALLEL, BATCH = 2, 4, 2, 2, 4


class MixtureOfExperts(nn.Module):
    """Every token through the experts its router chooses, which may live in other processes."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(MLP() for _ in range(EXPERTS))
        self.mesh: DeviceMesh | None = None

    def spread_over(self, mesh: DeviceMesh) -> None:
        """Keep this process's experts only."""
        here = EXPERTS // mesh.size()
        self.experts = nn.ModuleList(self.experts[here * mesh.get_local_rank() :][:here])
        self.mesh = mesh

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, time, width]`` to the same shape."""
        tokens = x.flatten(0, 1)
        weights, experts = self.router(tokens).softmax(dim=-1).topk(CHOSEN, dim=-1)
        order = experts.flatten().argsort(stable=True)
        numbers = experts.flatten()[order]
        results = self.of_experts(tokens[order // CHOSEN], numbers) * weights.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, order // CHOSEN, results).view(x.shape)

    def of_experts(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        """The result of the expert of this number for each token; tokens are sorted by number."""
        if self.mesh is None:
            return self.of_own_experts(tokens, numbers)
        here = len(self.experts)
        counts = (numbers[:, None] // here == torch.arange(self.mesh.size())).sum(dim=0)
        own_counts = all_to_all_single(counts, None, None, self.mesh)
        sent, received = counts.tolist(), own_counts.tolist()
        arrived = all_to_all_single_autograd(tokens, received, sent, self.mesh)
        its_numbers = all_to_all_single(numbers, received, sent, self.mesh)
        results = self.of_own_experts(arrived, its_numbers % here)
        return all_to_all_single_autograd(results, sent, received, self.mesh)

    def of_own_experts(self, tokens: Tensor, numbers: Tensor) -> Tensor:
        """The same for experts of this process."""
        return sum(expert(tokens) * (numbers == number)[:, None] for number, expert in enumerate(self.experts))


def build() -> Llama:
    torch.manual_seed(0)
    model = Llama(0)
    model.layers = nn.ModuleList(Block(MixtureOfExperts()) for _ in range(LAYERS))
    return model


def averaged(model: nn.Module, mesh: DeviceMesh) -> Gradients:
    """Average gradients over the processes, and name this process's experts as one process would."""
    found = {}
    here = EXPERTS // mesh["expert"].size()
    for name, grad in gradients_of(model).items():
        path = name.split(".")
        if "experts" in path:
            place = path.index("experts") + 1
            path[place] = str(int(path[place]) + here * mesh["expert"].get_local_rank())
        dist.all_reduce(grad, group=mesh["data"].get_group() if "experts" in path else None)
        found[".".join(path)] = grad / dist.get_world_size()
    return found


def main() -> None:
    options = options_for(__file__, scalars={"choices": ["capture", "break"], "default": "capture"})
    torch._dynamo.config.capture_scalar_outputs = options.scalars == "capture"
    dist.init_process_group("gloo")
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size() // EXPERT_PARALLEL, EXPERT_PARALLEL), mesh_dim_names=("data", "expert")
    )
    symbols = symbols_for(BATCH)
    own = symbols.chunk(dist.get_world_size())[dist.get_rank()]

    alone = build()
    loss_of(alone(symbols), symbols).backward()
    expected = gradients_of(alone)

    right = True
    for config in options.config:
        model = build()
        for layer in model.layers:
            layer.mlp.spread_over(mesh["expert"])
        memopt.compile_with_memopt(model, config, backend=options.backend)
        loss_of(model(own), own).backward()  # compiles
        model.zero_grad()
        logits, forward = collectives_in(lambda model=model: model(own))
        _, backward = collectives_in(loss_of(logits, own).backward)
        found = averaged(model, mesh)
        right &= report(model, config, forward, backward, difference(found, {name: expected[name] for name in found}))
    leave(right)


if __name__ == "__main__":
    main()
