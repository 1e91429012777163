"""Ranks that were given different things, that are missing, or alone: an error in time that says so, or no difference."""

from __future__ import annotations

import re
import socket

import pytest
from launching import PROGRAMS, torchrun

LIMIT = 15.0  # seconds
SAME = re.compile(r"difference 0e\+00, (\d+) again, equal decisions: True(; )?")


def run_faults(*cases: str, processes: int = 2) -> dict[tuple[str, int], str]:
    """What each rank says about each case, by (case, rank)."""
    done = torchrun(PROGRAMS / "faults.py", processes, *cases)
    found = re.findall(r"^rank (\d): (\w+) \| ([\d.]+) s \| (.*)$", done.stdout, re.MULTILINE)
    assert found, done.stderr[-3000:]
    assert all(float(seconds) < LIMIT for *_, seconds, _ in found)
    return {(case, int(rank)): text for rank, case, _, text in found}


def test_ranks_that_differ_and_ranks_that_may() -> None:
    cases = ("other_configuration", "recompute_comm_on_one_rank", "other_batch_sizes", "other_batch_sizes_later")
    found = run_faults(*cases)
    assert len(found) == 2 * len(cases)
    for rank in range(2):
        text = found["other_configuration", rank]
        assert text.startswith("RanksDisagreeError: ranks 0 and 1 would wait for each other's collectives for ever.")
        assert "'layer 1 (layers.1): recompute everything' where rank 1 has 'layer 1 (layers.1): nothing'" in text
        text = found["recompute_comm_on_one_rank", rank]
        assert text.startswith("RanksDisagreeError")
        assert "recompute_comm.select_module" in text
        # The weights of two layers are gathered again.
        assert SAME.findall(found["other_batch_sizes", rank]) == [("2", "")]
        assert SAME.findall(found["other_batch_sizes_later", rank]) == [("2", "; "), ("2", "")]


def test_a_process_group_made_after_compile_with_memopt() -> None:
    found = run_faults("group_made_later")
    assert [SAME.findall(found["group_made_later", rank]) for rank in range(2)] == [[("2", "")]] * 2


@pytest.mark.parametrize("case", ["missing_rank", "memopt_on_one_rank"])
def test_a_rank_that_does_not_compare(case: str) -> None:
    text = run_faults(case)[case, 0]
    assert text.startswith("RanksDisagreeError: rank 1 did not compile the graph whose collectives this rank takes part in")
    assert "within 4 s" in text


def test_the_rank_that_keeps_the_store_dies() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = run_faults("store_gone", str(port))["store_gone", 1]
    assert text.startswith("RanksDisagreeError: ranks 0, 1 could not be compared, because the store")


def test_a_world_of_one() -> None:
    found = run_faults("other_batch_sizes", processes=1)
    assert [SAME.findall(text) for text in found.values()] == [[("2", "")]]
