"""A mixture of experts over four processes: sizes that only a run knows, tokens that travel once or twice."""

from __future__ import annotations

from collections import Counter

from launching import EXAMPLES, by_config, lines_in, run_example, torchrun

LAYERS = 2
# A layer exchanges counts, tokens, their experts' numbers, and results; gradients of tokens and results travel back.
FORWARD, OWN = Counter(all_to_all=4 * LAYERS), Counter(all_to_all=2 * LAYERS)


def test_tokens_travel_again_only_where_that_is_not_excluded() -> None:
    found = by_config(run_example("expert_parallel", 4, "--config", "expert_parallel.yaml", "expert_parallel_full.yaml"), 4)
    kept = found["expert_parallel"]
    assert kept.recomputed.endswith(" of layers 0, 1 in 1 graph")
    assert kept.forward == FORWARD
    assert kept.backward == OWN
    assert kept.again == Counter()
    assert kept.after < kept.before / 2
    whole = found["expert_parallel_full"]
    assert whole.forward == FORWARD
    assert whole.again == Counter(all_to_all=3 * LAYERS)  # the counts are known: sizes that depend on data are saved
    assert whole.backward == OWN + whole.again


def test_a_graph_that_breaks_at_the_counts_is_named() -> None:
    done = torchrun(EXAMPLES / "expert_parallel.py", 4, "--scalars", "break")
    assert done.returncode == 0, done.stderr[-3000:]
    lines = lines_in(done.stdout)
    assert len(lines) == 4
    assert all(line.difference <= 1e-5 and line.recomputed == "nothing" for line in lines)
    assert "layers 0-1 (layers.0, layers.1): no captured graph names them, so their rules have no effect" in done.stderr
    assert "expert_parallel.py:" in done.stderr.partition("The graph broke at: ")[2].partition("\n")[0]
