"""FSDP2: its hooks break the graph around every layer, so each layer is compiled by itself; the rules hold in all of them."""

from __future__ import annotations

from launching import EXAMPLES, by_config, lines_in, run_example, torchrun

BORDER = 2 * 32 * 64 * 4  # half a batch of 4, a context of 32, width 64: what a layer is given


def test_recompute_and_swap_before_and_after_sharding() -> None:
    found = by_config(run_example("fsdp2", 2, "--order", "before", "after"), 2)
    assert list(found) == ["layer,before", "layer,after"]
    one, other = found.values()
    assert (one.before, one.after, one.swapped) == (other.before, other.after, other.swapped)
    per_layer = one.before // 4
    # Layers 0 to 2 keep what they are given (FSDP2's hooks hand it on, so others may hold it), the rest of layer 2 is away.
    assert one.swapped == per_layer - BORDER
    assert one.after == 3 * BORDER + per_layer
    assert one.difference < 1e-5


def test_in_one_graph_the_layers_that_lose_their_rules_are_named() -> None:
    done = torchrun(EXAMPLES / "fsdp2.py", 2, "--scope", "model")
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        assert f"rank {rank}: warning: layers 0-2 (layers.0, layers.1, layers.2): no captured graph names them" in done.stdout
    assert "Compile with scope='layer'" in done.stdout
    assert [line.difference < 1e-5 for line in lines_in(done.stdout)] == [True, True]
