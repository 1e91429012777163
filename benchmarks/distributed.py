"""Recompute under tensor and sequence parallelism: collectives that run again, bytes saved, step time, and ranks that differ.

    python benchmarks/distributed.py                 all rows; writes a section of docs/benchmarks.md
    python benchmarks/distributed.py --row full --layers 4

The model is the Llama-like one of examples/distributed, over two gloo processes with one thread each, on the CPU. Collectives
are those that torch's profiler saw in an executed step.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from report import write_section
from rounds import Results, command_line, median_of, ratio_of, rounds_of

STEPS = 9
EXAMPLES = Path(__file__).parents[1] / "examples" / "distributed"
BATCH, LIMIT = 4, 15.0
EMPTY, FULL, EXCLUDE = "memopt, empty", "memopt, full", "memopt, full, exclude_op AllGather ReduceScatter"
GATHER, DIFFER = "memopt, recompute_comm .*\\.all_gather", "memopt, ranks that differ"
FIGURES = ("all_gather", "reduce_scatter", "again_all_gather", "again_reduce_scatter", "saved_bytes", "step_s")


def configuration(row: str, layers: int, rank: int) -> dict[str, object]:
    """What a rank is given in a row."""
    whole = [f"0-{layers - 1}"]
    full: dict[str, object] = {"mode": "full", "full_recompute_layer": whole}
    comm = {"enable": True, "select_module": {r".*\.all_gather": whole}}
    return {
        EMPTY: {},
        FULL: {"recompute": full},
        EXCLUDE: {"recompute": {**full, "exclude_op": ["AllGather", "ReduceScatter"]}},
        GATHER: {"recompute_comm": comm},
        DIFFER: {"recompute": full} if rank == 0 else {},
    }[row]


def measure(row: str, layers: int) -> dict[str, float]:
    """Measure one row over two processes: the figures of rank 0, once all ranks agree on those that are not times."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    environment = {**os.environ, **address, "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "PYTHONPATH": _paths()}
    command = [sys.executable, __file__, "--worker", row, str(layers)]
    ranks = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**environment, "RANK": rank})
        for rank in ("0", "1")
    ]
    ends = [process.communicate(timeout=600) for process in ranks]
    if any(process.returncode for process in ranks):
        raise RuntimeError("\n".join(error[-2000:] for _, error in ends))
    first, second = (dict[str, float](json.loads(out.splitlines()[-1])) for out, _ in ends)
    for figure in FIGURES[:-1] if row != DIFFER else ():
        assert first[figure] == second[figure], f"ranks differ in {figure}"
    return {figure: max(first[figure], second[figure]) for figure in first}


def _paths() -> str:
    return os.pathsep.join(filter(None, (str(EXAMPLES), os.environ.get("PYTHONPATH"))))


def work(row: str, layers: int) -> dict[str, float]:
    """What one rank measures."""
    import torch
    import torch.distributed as dist
    from comparing import collectives_in
    from llama import Llama, loss_of, symbols_for
    from measure import step_seconds
    from tensor_parallel import split_over
    from torch.distributed.device_mesh import init_device_mesh

    import memopt

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = split_over(init_device_mesh("cpu", (2,)), Llama(layers))
    config = configuration(row, layers, dist.get_rank())
    memopt.compile_with_memopt(model, config, backend="aot_eager" if row == DIFFER else "inductor")
    symbols = symbols_for(BATCH)

    def step() -> None:
        model.zero_grad()
        loss_of(model(symbols), symbols).backward()

    start = time.perf_counter()
    try:
        step()
    except memopt.RanksDisagreeError:
        return {"until_both_raised_s": time.perf_counter() - start}
    step()
    model.zero_grad()
    logits, _ = collectives_in(lambda: model(symbols))
    _, backward = collectives_in(loss_of(logits, symbols).backward)
    found = memopt.explain(model)
    again = {f"again_{op}": sum(r.again for r in found.collectives if r.op == op) for op in ("all_gather", "reduce_scatter")}
    seconds = step_seconds(step, STEPS)
    return {
        **{op: backward[op] for op in ("all_gather", "reduce_scatter")},
        **again,
        "saved_bytes": found.saved_after,
        "step_s": seconds,
    }


def table_of(results: Results, layers: int) -> list[str]:
    """Return the rows as a table, and what was wanted."""
    lines = [
        "| row | all_gather in backward | beyond the gradients' own | reduce_scatter in backward | beyond the gradients' own | "
        "saved | per layer less than empty | step time | of empty's |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    plain = results[EMPTY]
    own = {op: median_of(plain, op) for op in ("all_gather", "reduce_scatter")}
    for row, found in results.items():
        if row == DIFFER:
            continue
        counts = (cell for op in own for cell in (median_of(found, op), median_of(found, op) - own[op]))
        saved, seconds = median_of(found, "saved_bytes"), median_of(found, "step_s")
        less = (median_of(plain, "saved_bytes") - saved) / layers
        cells = (*(f"{count:.0f}" for count in counts), f"{saved:,.0f} B", f"{less:,.0f} B", f"{seconds * 1e3:.1f} ms")
        lines.append(f"| {row} | {' | '.join(cells)} | {ratio_of(found, plain, 'step_s'):.2f} |")
    waited = statistics.median(r["until_both_raised_s"] for r in results[DIFFER])
    return [
        *lines,
        "",
        *_wanted(results, own, layers),
        f"- Ranks that differ: both raised after {waited:.1f} s; wanted < {LIMIT:.0f} s.",
        "",
    ]


def _wanted(results: Results, own: dict[str, float], layers: int) -> list[str]:
    gathered = 2 * BATCH * 32 * 64 * 4  # two inputs of matrices a layer: batch, context, width, bytes of an element
    more = {row: tuple(median_of(results[row], op) - own[op] for op in own) for row in (FULL, EXCLUDE)}
    less = (median_of(results[EMPTY], "saved_bytes") - median_of(results[GATHER], "saved_bytes")) / layers
    return [
        f"- Full recompute runs {more[FULL][0]:.0f} all_gather and {more[FULL][1]:.0f} reduce_scatter again; wanted "
        f"{2 * layers} and {layers}: what a layer's last matrix scatters enters the next layer, and is saved there.",
        f"- With exclude_op it runs {more[EXCLUDE][0]:.0f} and {more[EXCLUDE][1]:.0f} again; wanted 0 and 0.",
        f"- recompute_comm saves {less:,.0f} bytes less a layer; wanted {gathered:,}, the bytes that are gathered.",
    ]


def main(depths: list[int], rounds: int) -> None:
    """Measure all rows, and write a section of the report."""
    rows = (EMPTY, FULL, EXCLUDE, GATHER, DIFFER)
    for layers in depths:
        about = __doc__.strip().splitlines()[-2:]
        lines = [*about, f"Medians over {rounds} round(s) of the median of {STEPS} steps.", ""]
        lines += table_of(rounds_of(__file__, rows, layers, rounds), layers)
        print("\n".join(lines))
        write_section(
            f"distributed, {layers} layers", f"python benchmarks/distributed.py --layers {layers} --rounds {rounds}", lines
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        result = work(sys.argv[2], int(sys.argv[3]))
        print("\n" + json.dumps(result), flush=True)
        os._exit(0)  # without waiting for the other rank, which may have raised
    command_line(__doc__.splitlines()[0], measure, main, depths=[4])
