"""Weights gathered within the graph: gathered again in the backward, they are not saved, to the byte."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from launching import by_config, run_example

LAYERS, MATRICES = 4, 7
GATHERED = LAYERS * 4 * (4 * 64 * 64 + 3 * 64 * 128)  # bytes of a layer's weights: attention's four, the MLP's three


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gathered_weights_are_gathered_again(backend: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("recompute: {mode: None}\n")
    lines = run_example("simple_fsdp", 2, "--backend", backend, "--config", str(empty), "simple_fsdp.yaml")
    found = by_config(lines, 2)
    plain, again = found["empty"], found["simple_fsdp"]
    number = LAYERS * MATRICES
    assert plain.forward == again.forward == Counter(all_gather=number)
    assert plain.backward == Counter(reduce_scatter=number)
    assert again.backward == Counter(reduce_scatter=number, all_gather=number)
    assert again.again == Counter(all_gather=number)
    assert plain.after - again.after == GATHERED
