"""Torch's compile caches, on disk and between processes: the same configuration hits, another never does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import EMPTY, select

HERE = Path(__file__).parent

PROGRAM = """
import json, sys, warnings
sys.path.insert(0, {here!r})
import torch
torch.set_num_threads(1)
from torch._dynamo.utils import counters
from harness import operators, train_step
from memopt import MemoptWarning, compile_with_memopt, explain
from numeric_models import Mlp, Residual, stack, x
if sys.argv[4]:
    from memopt.compiler import cache_key
    cache_key.source_digest = lambda: sys.argv[4]
model = stack(lambda: Residual(Mlp()), int(sys.argv[3]))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    compile_with_memopt(model, json.loads(sys.argv[1]), backend="inductor", scope=sys.argv[2])
    state = train_step(model, [x()])
said = [str(w.message) for w in caught if issubclass(w.category, MemoptWarning)]
derived_before_explain = model.forward.session.captures[0].rewritten is not None
hits = dict(counters["aot_autograd"])
explanation = explain(model)
rows = [(r.graph, r.name, r.layer, r.path, r.op, list(r.shape), r.dtype, r.bytes, r.kind, r.action, r.rule, r.reason)
        for r in explanation.values]
print("RESULT" + json.dumps({{
    "rows": rows,
    "totals": [[t.layer, t.saved_before, t.saved_after, t.recomputed, t.recomputed_flops] for t in explanation.totals],
    "said": said,
    "kept": list(explanation.warnings),
    "rewrote": derived_before_explain,
    "hit": hits.get("autograd_cache_hit", 0),
    "gelus": operators(explanation.graphs[0].backward).get("aten.erf.default", 0),
    "gradient": state.tensors["gradient of layers.0.inner.fc1.weight"].sum().item(),
}}))
"""


def run(config: dict[str, Any], cache: Path, scope: str = "model", layers: int = 2, source: str = "") -> dict[str, Any]:
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(here=str(HERE)), json.dumps(config), scope, str(layers), source],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.split("RESULT")[1])
    return result


@pytest.mark.inductor
def test_same_configuration_hits_and_another_never_does(tmp_path: Path) -> None:
    """Four processes, one cache folder: the last one configured as the first."""
    config = select({"inner": [0], "nothing": [1]}, exclude_op=["AllGather"])
    configs = [config, EMPTY, {**config, "recompute": {**config["recompute"], "exclude_op": ["AllGather", "gelu"]}}, config]
    cold, empty, edited, warm = (run(each, tmp_path) for each in configs)
    assert [result["hit"] for result in (cold, empty, edited, warm)] == [0, 0, 0, 1]
    assert [result["rewrote"] for result in (cold, empty, edited, warm)] == [True, True, True, False]
    saved = [sum(total[2] for total in result["totals"]) for result in (cold, edited, empty)]
    assert saved[0] < saved[1] <= saved[2]
    assert cold["gradient"] == pytest.approx(empty["gradient"], rel=1e-12)
    assert warm["gradient"] == cold["gradient"]
    # What the cache spared is explained, and warned about, all the same.
    assert len(cold["said"]) == 2
    assert "recompute.select_module['nothing'] did not match any module or operator" in cold["said"][0]
    assert "recompute.exclude_op['AllGather'] did not match any operator" in cold["said"][1]
    assert warm["said"] == cold["said"]
    assert warm["kept"] == cold["kept"]
    assert warm["rows"] == cold["rows"]
    assert warm["totals"] == cold["totals"]


@pytest.mark.inductor
def test_layers_compiled_by_themselves_hit_too(tmp_path: Path) -> None:
    """Two groups of layers, two entries; another configuration never gets them, and the same one is explained as completely."""
    config = select({"inner": ["0-1"]})
    cold, edited, warm = (
        run(each, tmp_path, "layer", 4) for each in (config, select({"inner": ["0-1"]}, exclude_op=["gelu"]), config)
    )
    assert [result["hit"] for result in (cold, edited, warm)] == [0, 0, 2]
    assert [result["rewrote"] for result in (cold, edited, warm)] == [True, True, False]
    assert warm["rows"] == cold["rows"]
    assert warm["totals"] == cold["totals"] != edited["totals"]
    assert [total[0] for total in warm["totals"]] == [0, 1, 2, 3]
    assert warm["said"] == cold["said"] == []
    assert warm["gradient"] == cold["gradient"] == pytest.approx(edited["gradient"], rel=1e-12)


@pytest.mark.inductor
def test_other_source_never_gets_an_old_graph(tmp_path: Path) -> None:
    """As after an upgrade of memopt, or an edit of a pass: the digest of version and source is another."""
    config = select({"inner": [0]})
    first, edited = run(config, tmp_path), run(config, tmp_path, source="edited")
    assert [result["hit"] for result in (first, edited)] == [0, 0]
    assert edited["rewrote"]
