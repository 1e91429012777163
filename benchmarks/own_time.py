"""memopt's own share of compile time, and how it grows with the number of layers.

    python benchmarks/own_time.py

Own time is the plan and every pass: capture records, cache key, marking, legalize, copies for explain, verify. What torch's
partitioner does with or without memopt (dead code, common subexpressions, the cut itself) is not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time

import torch
from report import write_section

from memopt import compile_with_memopt
from memopt.demo.gpt import GPT, GPTConfig

LAYERS = (8, 16, 24, 32, 64, 128)
WHOLE_COMPILE_AT = 24


def measure(layers: int, backend: str) -> dict[str, float]:
    """Compile a step of a GPT with full recompute in this process, and say where the time went, in seconds."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=1000, layers=layers))
    symbols, targets = torch.randint(0, 1000, (2, 4, 256))
    start = time.perf_counter()
    config = {"recompute": {"mode": "full", "full_recompute_layer": [f"0-{layers - 1}"], "exclude_op": ["MatMul"]}}
    compile_with_memopt(model, config, backend=backend)
    planning = time.perf_counter() - start
    model(symbols, targets).backward()
    whole = time.perf_counter() - start
    session = model.forward.session
    own = planning + sum(seconds for part, seconds in session.seconds().items() if part != "torch")
    return {"own_s": own, "whole_s": whole, **{f"{k}_s": v for k, v in session.seconds().items()}}


def in_fresh_process(layers: int, backend: str) -> dict[str, float]:
    """Measure in a process of its own, with empty compile caches."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "2"}
        command = [sys.executable, __file__, "--layers", str(layers), "--backend", backend]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure every depth, and write the table."""
    lines = ["| layers | own time | per layer | of it: decide | verify | records and keys |", "|---|---|---|---|---|---|"]
    for layers in LAYERS:
        r = in_fresh_process(layers, "aot_eager")
        other = r["own_s"] - r["decide_s"] - r["verify_s"]
        line = f"| {layers} | {r['own_s'] * 1e3:.0f} ms | {r['own_s'] / layers * 1e3:.1f} ms | "
        line += f"{r['decide_s'] * 1e3:.0f} ms | {r['verify_s'] * 1e3:.0f} ms | {other * 1e3:.0f} ms |"
        print(line, flush=True)
        lines.append(line)
    whole = in_fresh_process(WHOLE_COMPILE_AT, "inductor")
    share = f"Of a whole compilation with inductor at {WHOLE_COMPILE_AT} layers ({whole['whole_s']:.0f} s), memopt's own time "
    share += f"is {whole['own_s']:.2f} s: {whole['own_s'] / whole['whole_s']:.2%}."
    print(share)
    write_section("own time", "python benchmarks/own_time.py", [*lines, "", share])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int)
    parser.add_argument("--backend", default="aot_eager")
    options = parser.parse_args()
    if options.layers:
        with contextlib.redirect_stdout(sys.stderr):
            found = measure(options.layers, options.backend)
        print(json.dumps(found))
    else:
        main()
