"""DistributedDataParallel: the policy holds in every part of a graph that torch splits at DDP's buckets."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from launching import Line, by_config, run_example
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import memopt

LAYERS = 6
WAYS = ("model", "ddp", "module")
BORDER = 2 * 16 * 256 * 8  # half a batch of 4, a context of 16, width 256, doubles: what lies between two layers


def _check(line: Line, graphs: str) -> None:
    assert line.recomputed.endswith(f" of layers 0, 1, 2, 3, 4, 5 in {graphs}")
    assert line.difference < 1e-12
    assert line.after == (LAYERS + 1) * BORDER < line.before / 3


def test_compiled_before_ddp_around_it_and_within_it() -> None:
    lines = run_example("ddp", 2, "--compiled", *WAYS, "--optimize-ddp", "on", "off")
    found = by_config(lines, 2)
    assert list(found) == [f"{way},optimize_ddp={switch}" for switch in ("on", "off") for way in WAYS]
    for name, line in found.items():
        _check(line, "1 graph" if name.endswith("off") else "7 graphs")


@pytest.mark.inductor
def test_split_graphs_under_inductor() -> None:
    (line,) = by_config(run_example("ddp", 2, "--backend", "inductor"), 2).values()
    _check(line, "7 graphs")


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class _Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.usefixtures("one_process")
def test_every_part_of_a_split_graph_knows_its_layers() -> None:
    ddp = DistributedDataParallel(_Stack(), bucket_cap_mb=1)
    plan = {"recompute": {"mode": "full", "full_recompute_layer": ["1-2"]}}
    memopt.compile_with_memopt(ddp.module, plan, backend="aot_eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", memopt.MemoptWarning)
        ddp(torch.randn(3, 256)).sum().backward()
    found = memopt.explain(ddp.module)
    assert len(found.graphs) > 1
    by_rule = {row.layer for row in found.values if row.rule == "recompute.full_recompute_layer"}
    assert by_rule == {1, 2}
