"""Fully sharded data parallelism (FSDP2) with recompute and swap: each of two processes trains on half of the batch.

    torchrun --nproc_per_node 2 examples/distributed/fsdp2.py

``fully_shard`` gathers a layer's weights in hooks around its forward, which break the graph: so each layer is compiled by
itself, inside its hooks, with ``scope="layer"``. Call compile_with_memopt before ``fully_shard``, or after it.
"""

from __future__ import annotations

import warnings

import torch
import torch.distributed as dist
from comparing import collectives_in, difference, gradients_of, leave, options_for, report
from llama import Llama, loss_of, symbols_for
from torch.distributed.fsdp import fully_shard

import memopt

BATCH = 4


def build() -> Llama:
    torch.manual_seed(0)
    return Llama()


def sharded(config: str, backend: str, scope: str, order: str) -> Llama:
    """Return a model whose layers are sharded each by itself, compiled before or after that."""
    model = build()
    if order == "before":
        memopt.compile_with_memopt(model, config, backend=backend, scope=scope)
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    if order == "after":
        memopt.compile_with_memopt(model, config, backend=backend, scope=scope)
    return model


def main() -> None:
    options = options_for(
        __file__,
        scope={"choices": ["model", "layer"], "default": "layer"},
        order={"choices": ["before", "after"], "nargs": "+", "default": ["before"]},
    )
    dist.init_process_group("gloo")
    symbols = symbols_for(BATCH)
    own = symbols.chunk(dist.get_world_size())[dist.get_rank()]
    alone = build()
    loss_of(alone(symbols), symbols).backward()

    right = True
    for order in options.order:
        torch.compiler.reset()
        model = sharded(options.config[0], options.backend, options.scope, order)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", memopt.MemoptWarning)
            for _ in range(2):  # FSDP makes its state in the first step
                model.zero_grad()
                logits, forward = collectives_in(lambda model=model: model(own))
                _, backward = collectives_in(loss_of(logits, own).backward)
        for text in {str(w.message) for w in caught if issubclass(w.category, memopt.MemoptWarning)}:
            print(f"rank {dist.get_rank()}: warning: {text}\n", end="", flush=True)
        right &= report(
            model, f"{options.scope},{order}", forward, backward, difference(gradients_of(model), gradients_of(alone))
        )
    leave(right)


if __name__ == "__main__":
    main()
