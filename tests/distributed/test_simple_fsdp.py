"""Weights gathered within the graph: gathered again in the backward, they are not saved, to the byte."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from launching import by_config, run_example

LAYERS = 4
NUMBER = LAYERS * 7  # matrices
GATHERED = LAYERS * 4 * (4 * 64 * 64 + 3 * 64 * 128)  # bytes of a layer's weights: attention's four, the MLP's three


def test_without_a_rule_gathered_weights_are_saved(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("recompute: {mode: None}\n")
    (line,) = by_config(run_example("simple_fsdp", 2, "--config", str(empty)), 2).values()
    assert line.forward == Counter(all_gather=NUMBER)
    assert line.backward == Counter(reduce_scatter=NUMBER)
    assert line.after == line.before > GATHERED


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gathered_weights_are_gathered_again(backend: str) -> None:
    (line,) = by_config(run_example("simple_fsdp", 2, "--backend", backend), 2).values()
    assert line.forward == Counter(all_gather=NUMBER)
    assert line.backward == Counter(reduce_scatter=NUMBER, all_gather=NUMBER)
    assert line.again == Counter(all_gather=NUMBER)
    assert line.before - line.after == GATHERED
