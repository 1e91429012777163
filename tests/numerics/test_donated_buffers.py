"""A backward compiled when it might write over saved values is not taken from the cache when it must not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import copy, json, sys, warnings
import torch
import torch._functorch.config as functorch_config
from torch import nn
from memopt import compile_with_memopt

warnings.simplefilter("ignore")
torch.set_num_threads(1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.outer(torch.nn.functional.gelu(self.inner(self.norm(x))))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x):
        kept = []
        for layer in self.layers:
            x = layer(x)
            y = x.exp().sigmoid()
            kept.append(y)
            x = x + y * y
        return x.sum() + 0 * kept[0].sum(), kept


def difference(donate):
    functorch_config.donated_buffer = donate
    torch._dynamo.reset()
    torch.manual_seed(0)
    ours = Stack()
    plain = copy.deepcopy(ours)
    a = torch.randn(512, 64, requires_grad=True)
    b = a.detach().clone().requires_grad_()
    compile_with_memopt(ours, json.loads(sys.argv[1]))
    for model, x in ((ours, a), (plain, b)):
        loss, kept = model(x)
        if not donate:
            loss.backward(retain_graph=True)
        (loss + kept[2].cos().sum()).backward()
    return (a.grad - b.grad).abs().max().item()


print("RESULT" + json.dumps([difference(True), difference(False)]))
"""


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"recompute": {"mode": "full", "full_recompute_layer": ["0-3"]}}, id="recompute"),
        pytest.param({"swap": {"enable": True, "layer_swap": [{"layers": ["0-2"]}]}}, id="swap"),
    ],
)
def test_a_second_backward_after_donation_was_switched_off(config: dict[str, Any], tmp_path: Path) -> None:
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(config)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(text for text in done.stdout.splitlines() if text.startswith("RESULT"))
    assert all(found < 1e-3 for found in json.loads(line.removeprefix("RESULT")))
