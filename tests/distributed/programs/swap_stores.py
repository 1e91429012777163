"""Swap under tensor parallelism: each rank tells what moved in a step, and which files without a name it has open.

torchrun --nproc_per_node 2 tests/distributed/programs/swap_stores.py EXAMPLES DIRECTORY
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch.distributed as dist
import yaml
from torch.distributed.device_mesh import init_device_mesh

import memopt

sys.path.insert(0, sys.argv[1])
import tensor_parallel as example
from comparing import difference, gradients_of
from llama import loss_of, symbols_for


def unnamed_files(directory: str) -> set[int]:
    """The inodes of this process's open files in a directory whose names are gone."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        target = os.readlink(link) if link.is_symlink() else ""
        if target.startswith(directory) and target.endswith("(deleted)"):
            found.add(link.stat().st_ino)
    return found


def main() -> None:
    examples, directory = sys.argv[1:]
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    config = yaml.safe_load((Path(examples) / "tensor_parallel_swap.yaml").read_text())
    config["swap"]["dir"] = directory
    symbols = symbols_for(batch=4)
    alone = example.build()
    loss_of(alone(symbols), symbols).backward()
    model = memopt.compile_with_memopt(example.split_over(mesh, example.build()), config, backend="aot_eager")
    loss_of(model(symbols), symbols).backward()
    model.zero_grad()
    before = memopt.swap_counters()
    loss_of(model(symbols), symbols).backward()
    step = memopt.swap_counters() - before
    everywhere: list[set[int]] = [set()] * dist.get_world_size()
    dist.all_gather_object(everywhere, unnamed_files(directory))
    own = everywhere[dist.get_rank()]
    shared = [files & own for rank, files in enumerate(everywhere) if rank != dist.get_rank()]
    differs = difference(gradients_of(model), gradients_of(alone))
    planned = memopt.explain(model).swapped
    text = f"files {len(own)} shared {len(set().union(*shared))} out {step.bytes_out} in {step.bytes_in} planned {planned}"
    print(
        f"rank {dist.get_rank()}: {text} differs {differs:.0e} left {len(list(Path(directory).iterdir()))}\n",
        end="",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
