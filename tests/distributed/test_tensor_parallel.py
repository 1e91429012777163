"""Tensor and sequence parallelism over two processes: what runs again, what is saved, and gradients of one process."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from launching import EXAMPLES, PROGRAMS, by_config, run_example, torchrun

LAYERS = 4
GATHERED = 4 * 32 * 64 * 4  # batch, context, width, bytes of an element: what each of a layer's two all-gathers delivers
NAMES = ("tensor_parallel", "tensor_parallel_full", "tensor_parallel_gather", "tensor_parallel_swap")


def test_what_runs_again_is_what_the_configuration_says(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("recompute: {mode: None}\n")
    configs = [empty, *(EXAMPLES / f"{name}.yaml" for name in NAMES)]
    found = by_config(run_example("tensor_parallel", 2, "--config", *map(str, configs)), 2)
    assert list(found) == ["empty", *NAMES]

    plain = found["empty"]
    # Two matrices a layer gather the sequence and two scatter it; the tokens, and what enters and leaves the head, come on top.
    assert plain.forward == Counter(all_gather=2 * LAYERS + 2, reduce_scatter=2 * LAYERS + 1)
    assert plain.backward == Counter(all_gather=2 * LAYERS + 1, reduce_scatter=2 * LAYERS + 1)
    for line in found.values():
        assert line.forward == plain.forward
        assert line.backward == plain.backward + line.again  # executed, against explained

    assert found["tensor_parallel"].again == Counter()
    # What the last matrix of a layer scatters enters the next layer, and is saved there.
    assert found["tensor_parallel_full"].again == Counter(all_gather=2 * LAYERS, reduce_scatter=LAYERS)
    assert found["tensor_parallel_gather"].again == Counter(all_gather=2 * LAYERS)
    assert found["tensor_parallel_gather"].after == plain.after - 2 * LAYERS * GATHERED
    assert found["tensor_parallel_full"].after < found["tensor_parallel"].after < plain.after
    assert found["tensor_parallel_swap"].again == Counter()
    assert found["tensor_parallel_swap"].swapped > 2 * 2 * GATHERED


@pytest.mark.inductor
def test_inductor_runs_again_what_aot_eager_does() -> None:
    lines = run_example("tensor_parallel", 2, "--backend", "inductor", "--config", "tensor_parallel_full.yaml")
    (line,) = by_config(lines, 2).values()
    own = Counter(all_gather=2 * LAYERS + 1, reduce_scatter=2 * LAYERS + 1)
    assert line.again == Counter(all_gather=2 * LAYERS, reduce_scatter=LAYERS)
    assert line.backward == own + line.again


def test_each_rank_swaps_to_files_of_its_own(tmp_path: Path) -> None:
    done = torchrun(PROGRAMS / "swap_stores.py", 2, str(EXAMPLES), str(tmp_path))
    found = re.findall(
        r"^rank (\d): files (\d+) shared (\d+) out (\d+) in (\d+) planned (\d+) differs (\S+) left (\d+)$", done.stdout, re.M
    )
    assert sorted(rank for rank, *_ in found) == ["0", "1"], done.stderr[-3000:]
    for _, files, shared, out, back, planned, differs, left in found:
        assert (int(files), int(shared), int(left)) == (1, 0, 0)
        assert int(out) == int(back) == int(planned) > 0
        assert float(differs) <= 1e-5
