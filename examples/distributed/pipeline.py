"""Pipeline parallelism (``torch.distributed.pipelining``) with recompute: two stages, four microbatches in flight.

    torchrun --nproc_per_node 2 examples/distributed/pipeline.py
    torchrun --nproc_per_node 2 examples/distributed/pipeline.py --schedule gpipe

Both stages are given the same configuration, which numbers the layers of the whole model: each says where its own begin
(layer_offset), and how many there are in all (num_layers).
"""

from __future__ import annotations

from collections import Counter

import torch
import torch.distributed as dist
from comparing import Gradients, difference, gradients_of, leave, options_for, report
from llama import Llama, loss_of, symbols_for
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import memopt

LAYERS, BATCH, MICROBATCHES = 4, 8, 4


class Stage(nn.Module):
    """A part of the model: the first one begins with the embedding, the last one ends with the head."""

    def __init__(self, whole: Llama, first: int, last: int) -> None:
        super().__init__()
        self.tokens = whole.tokens if first == 0 else None
        self.layers = nn.ModuleList(whole.layers[first : last + 1])
        self.norm, self.head = (whole.norm, whole.head) if last == LAYERS - 1 else (None, None)

    def forward(self, x: Tensor) -> Tensor:
        """Map symbols, or what the stage before made, to logits, or to what the next stage needs."""
        x = x if self.tokens is None else self.tokens(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(self.norm(x))


def build() -> Llama:
    torch.manual_seed(0)
    return Llama(LAYERS)


def named_as_in_the_whole(found: Gradients, offset: int) -> Gradients:
    """``layers.0.mlp.up.weight`` of a stage -> ``layers.2.mlp.up.weight``."""

    def whole(name: str) -> str:
        kind, number, *rest = name.split(".")
        return ".".join((kind, str(int(number) + offset), *rest)) if kind == "layers" else name

    return {whole(name): grad for name, grad in found.items()}


def main() -> None:
    options = options_for(__file__, schedule={"choices": ["1f1b", "gpipe"], "default": "1f1b"})
    dist.init_process_group("gloo")
    rank, stages = dist.get_rank(), dist.get_world_size()
    symbols = symbols_for(BATCH)

    alone = build()
    loss_of(alone(symbols), symbols).backward()
    expected = gradients_of(alone)

    right = True
    for config in options.config:
        share = LAYERS // stages
        offset = rank * share
        module = Stage(build(), offset, offset + share - 1)
        memopt.compile_with_memopt(
            module,
            config,
            backend=options.backend,
            pipeline_parallel_size=stages,
            layer_offset=offset,
            num_layers=LAYERS,
        )
        stage = PipelineStage(module, rank, stages, torch.device("cpu"))
        schedule = (Schedule1F1B if options.schedule == "1f1b" else ScheduleGPipe)(stage, MICROBATCHES, loss_fn=loss_of)
        schedule.step(*([symbols] if rank == 0 else []), target=symbols if rank == stages - 1 else None)

        found = named_as_in_the_whole(gradients_of(module), offset)
        own = {name: expected[name] for name in found}
        right &= report(module, config, Counter(), Counter(), difference(found, own))
    leave(right)


if __name__ == "__main__":
    main()
