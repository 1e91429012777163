"""Swap from a warm compile cache, in a second process: the same bytes travel, the same gradients, the same explanation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

PROGRAM = """
import copy, json, sys
sys.path.insert(0, {here!r})
import torch
torch.set_num_threads(1)
from torch._dynamo.utils import counters
from memopt import compile_with_memopt, explain, swap_counters
from numeric_models import Block, stack, x
torch.manual_seed(0)
model = stack(lambda: Block(), 4)
plain = copy.deepcopy(model)
compile_with_memopt(model, {{"swap": {{"enable": True, "min_bytes": 0, "layer_swap": [{{"layers": ["0-2"]}}]}}}})
h = x(2, 6)
spent = []
for step in range(2):
    before = swap_counters()
    for each in (model, plain):
        each.zero_grad()
        each(h).sum().backward()
    now = swap_counters() - before
    spent.append([now.bytes_out, now.bytes_in, now.offloads, now.prefetches, now.live_tickets, now.disk_bytes])
worst = max(
    float((a.grad - b.grad).abs().max() / b.grad.abs().max())
    for a, b in zip(model.parameters(), plain.parameters(), strict=True) if b.grad is not None and b.grad.abs().max() > 0
)
rewrote = model.forward.session.captures[0].rewritten is not None
explanation = explain(model)
print("RESULT" + json.dumps({{
    "hit": counters["aot_autograd"].get("autograd_cache_hit", 0),
    "rewrote": rewrote,
    "spent": spent,
    "worst": worst,
    "gradients": [p.grad.double().sum().item() for p in model.parameters() if p.grad is not None],
    "rows": [(r.name, r.layer, r.path, r.bytes, r.action, r.rule, r.reason, r.store, r.leaves, r.issued, r.returns)
             for r in explanation.values],
    "swapped": explanation.swapped,
}}))
"""


def run(cache: Path) -> dict[str, Any]:
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    command = [sys.executable, "-c", PROGRAM.format(here=str(HERE))]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.split("RESULT")[1])
    return result


@pytest.mark.inductor
def test_a_second_process_swaps_the_same_from_the_cache(tmp_path: Path) -> None:
    cold, warm = run(tmp_path), run(tmp_path)
    assert [(r["hit"], r["rewrote"]) for r in (cold, warm)] == [(0, True), (1, False)]
    assert warm["spent"] == cold["spent"]
    out, back, offloads, prefetches, live, held = cold["spent"][0]
    assert out == back == cold["swapped"] > 0
    assert sum(row[4] == "offload" for row in cold["rows"]) >= offloads == prefetches > 0  # views of one value travel once
    assert (live, held) == (0, 0)
    assert cold["worst"] <= 1e-9
    assert warm["worst"] <= 1e-9
    assert warm["gradients"] == cold["gradients"]
    assert warm["rows"] == cold["rows"]
    assert warm["swapped"] == cold["swapped"]
