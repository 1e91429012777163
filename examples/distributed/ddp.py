"""Data parallelism (``DistributedDataParallel``) with recompute: each of two processes trains on half of the batch.

    torchrun --nproc_per_node 2 examples/distributed/ddp.py
    torchrun --nproc_per_node 2 examples/distributed/ddp.py --compiled ddp --optimize-ddp off

memopt may be given the model before DDP wraps it, DDP itself, or the module within DDP. Where DDP sends gradients in
several buckets, torch splits the captured graph between them (torch._dynamo.config.optimize_ddp); the configuration holds
in each part.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from comparing import collectives_in, difference, gradients_of, leave, options_for, report
from llama import loss_of
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import memopt

WIDTH, VOCABULARY, CONTEXT, BATCH, STEPS = 256, 96, 16, 4, 3


class Layer(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[batch, time, width]`` to the same shape."""
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """Six layers, about 12 MB of weights; the embedding and the head share one."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(6))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, symbols: Tensor) -> Tensor:
        """Map ``[batch, time]`` to logits."""
        x = self.tokens(symbols)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def build() -> Model:
    torch.manual_seed(0)
    return Model().double()  # three steps amplify rounding, so that single precision would hide small mistakes


def compiled(config: str, backend: str, where: str) -> tuple[nn.Module, nn.Module]:
    """Return what is trained, and what memopt compiled: the model before DDP, DDP itself, or the module within."""
    model = build()
    if where == "model":
        memopt.compile_with_memopt(model, config, backend=backend)
    ddp = DistributedDataParallel(model, bucket_cap_mb=2)
    if where != "model":
        memopt.compile_with_memopt(ddp if where == "ddp" else ddp.module, config, backend=backend)
    return ddp, ddp if where == "ddp" else model


def main() -> None:
    options = options_for(
        __file__,
        compiled={"choices": ["model", "ddp", "module"], "nargs": "+", "default": ["model"]},
        optimize_ddp={"choices": ["on", "off"], "nargs": "+", "default": ["on"]},
    )
    dist.init_process_group("gloo")
    symbols = torch.randint(0, VOCABULARY, (STEPS, BATCH, CONTEXT), generator=torch.Generator().manual_seed(1))
    own = symbols.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]

    right = True
    for optimize_ddp in options.optimize_ddp:
        torch._dynamo.config.optimize_ddp = optimize_ddp == "on"
        for where in options.compiled:
            torch.compiler.reset()
            ddp, model = compiled(options.config[0], options.backend, where)
            alone = build()
            largest = 0.0
            for step in range(STEPS):
                loss_of(alone(symbols[step]), symbols[step]).backward()
                logits, forward = collectives_in(lambda ddp=ddp, step=step: ddp(own[step]))
                _, backward = collectives_in(loss_of(logits, own[step]).backward)
                found = {name.removeprefix("module."): g for name, g in gradients_of(ddp).items()}
                largest = max(largest, difference(found, gradients_of(alone)))
                for trained in (alone, ddp):
                    with torch.no_grad():
                        for parameter in trained.parameters():
                            parameter -= 0.1 * parameter.grad
                    trained.zero_grad()
            right &= report(model, f"{where},optimize_ddp={optimize_ddp}", forward, backward, largest)
    leave(right)


if __name__ == "__main__":
    main()
