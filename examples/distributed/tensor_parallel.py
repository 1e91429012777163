"""Tensor and sequence parallelism (``parallelize_module``) with recompute: a Llama-like model over two processes.

    torchrun --nproc_per_node 2 examples/distributed/tensor_parallel.py
    torchrun --nproc_per_node 2 examples/distributed/tensor_parallel.py --config tensor_parallel_gather.yaml

With exclude_op: [AllGather, ReduceScatter] the backward does not communicate a second time; without it, what layers need
for their backward is gathered again. tensor_parallel_gather.yaml recomputes the gathering alone, and
tensor_parallel_swap.yaml keeps some layers on disk, each rank in files of its own.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from comparing import collectives_in, difference, gradients_of, leave, options_for, report
from llama import Llama, loss_of, symbols_for
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import memopt


def build() -> Llama:
    torch.manual_seed(0)
    return Llama(layers=4)


def split_over(mesh: DeviceMesh, model: Llama) -> nn.Module:
    """Give each rank a part of every matrix, and between them a part of the sequence."""
    outer = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    inner = {
        "norm1": SequenceParallel(),
        "attention": gathered,
        **{f"attention.{name}": ColwiseParallel() for name in ("q", "k", "v")},
        "attention.o": RowwiseParallel(output_layouts=Shard(1)),
        "norm2": SequenceParallel(),
        "mlp": gathered,
        **{f"mlp.{name}": ColwiseParallel() for name in ("gate", "up")},
        "mlp.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    parallelize_module(model, mesh, outer)
    for layer in model.layers:
        parallelize_module(layer, mesh, inner)
    return model


def main() -> None:
    options = options_for(__file__)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    symbols = symbols_for(batch=4)

    alone = build()
    loss_of(alone(symbols), symbols).backward()
    expected = gradients_of(alone)

    right = True
    for config in options.config:
        model = memopt.compile_with_memopt(split_over(mesh, build()), config, backend=options.backend)
        loss_of(model(symbols), symbols).backward()  # compiles
        model.zero_grad()
        logits, forward = collectives_in(lambda model=model: model(symbols))
        _, backward = collectives_in(loss_of(logits, symbols).backward)
        right &= report(model, config, forward, backward, difference(gradients_of(model), expected))
    leave(right)


if __name__ == "__main__":
    main()
