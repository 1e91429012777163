"""Every row of a benchmark in a fresh process, several rounds of all rows, medians and ratios."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

Results = dict[str, list[dict[str, float]]]


def in_fresh_process(script: str, row: str, layers: int) -> dict[str, float]:
    """Measure one row in a process of its own."""
    command = [sys.executable, script, "--row", row, "--layers", str(layers)]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"row {row!r} failed:\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def rounds_of(script: str, rows: Iterable[str], layers: int, rounds: int) -> Results:
    """Measure every row once a round: a slow spell of the machine then falls on all rows of a round alike."""
    results: Results = {row: [] for row in rows}
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(f"{layers} layers", total=rounds * len(results))
        for _ in range(rounds):
            for row, found in results.items():
                progress.update(task, description=f"{layers} layers: {row}")
                found.append(in_fresh_process(script, row, layers))
                progress.advance(task)
    return results


def median_of(results: list[dict[str, float]], figure: str) -> float:
    """Return the median of a figure over the rounds."""
    return statistics.median(r[figure] for r in results)


def ratio_of(ours: list[dict[str, float]], peers: list[dict[str, float]], figure: str) -> float:
    """Return the median over the rounds of our figure divided by the peer's of the same round."""
    return statistics.median(a[figure] / b[figure] for a, b in zip(ours, peers, strict=True))


def command_line(
    description: str,
    measure: Callable[[str, int], dict[str, float]],
    report: Callable[[list[int], int], None],
    *,
    depths: Sequence[int] = (6, 12),
) -> None:
    """Do what the command line asks for: measure one row in this process and print it as JSON, or report on all rows."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--row", help="measure one row in this process, and print it as JSON")
    parser.add_argument("--layers", type=int, action="append", help=f"may be repeated (default: {depths})")
    parser.add_argument("--rounds", type=int, default=3, help="how often every row is measured")
    options = parser.parse_args()
    if options.row:
        with contextlib.redirect_stdout(sys.stderr):
            result = measure(options.row, (options.layers or depths)[0])
        print(json.dumps(result))
    else:
        report(options.layers or list(depths), options.rounds)
