"""Ranks meet: all go on, or none does, whoever is late, gone or of another mind. Ranks are threads here, with one store."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from memopt.compiler import torch_bridge
from memopt.compiler.ranks import rendezvous

_here = threading.local()


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> dist.Store:
    monkeypatch.setattr(torch_bridge, "own_rank", lambda: _here.rank)
    return dist.HashStore()


def differing(said: Mapping[int, str]) -> str | None:
    return None if len(set(said.values())) == 1 else f"they say {sorted(set(said.values()))}"


def ranks_meet(
    board: dist.Store, says: Mapping[int, str], *, late: Mapping[int, float] | None = None, timeout: float = 5.0, world: int = 0
) -> dict[int, str | None]:
    """What each rank that comes is told; ``late``: seconds before it does."""
    ranks = tuple(range(world or len(says)))
    told: dict[int, str | None] = {}

    def come(rank: int) -> None:
        _here.rank = rank
        time.sleep((late or {}).get(rank, 0.0))
        told[rank] = rendezvous.meet(board, ranks, says[rank], differing, timeout)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in says]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return told


@pytest.mark.parametrize("late", [{}, {0: 0.3}, {2: 0.3}])
def test_who_agrees_goes_on(board: dist.Store, late: dict[int, float]) -> None:
    assert ranks_meet(board, dict.fromkeys(range(3), "a"), late=late) == dict.fromkeys(range(3))


def test_who_differs_is_told_the_same_everywhere(board: dist.Store) -> None:
    told = ranks_meet(board, {0: "a", 1: "b", 2: "a"})
    assert told == dict.fromkeys(range(3), "they say ['a', 'b']")


@pytest.mark.parametrize("missing", [0, 2])
def test_a_missing_rank_is_named_in_time(board: dist.Store, missing: int) -> None:
    start = time.monotonic()
    told = ranks_meet(board, {rank: "a" for rank in range(3) if rank != missing}, timeout=2.5, world=3)
    assert time.monotonic() - start < 10
    for text in told.values():
        assert text is not None
        assert f"rank {missing} did not compile the graph" in text
        assert "within 2.5 s" in text


@pytest.mark.parametrize(("words", "told"), [(["no"], "rank 2 is missing"), (["ready", "go"], None)])
def test_the_word_of_a_leader_that_has_left_is_heard(
    board: dist.Store, monkeypatch: pytest.MonkeyPatch, words: list[str], told: str | None
) -> None:
    """The leader speaks and leaves while this rank sleeps, and the time is up when it wakes."""
    now, left = 0.0, list(words)

    def leader_speaks(_seconds: float) -> None:
        nonlocal now
        now += 10.0 if len(left) == 1 else 0.1  # the last word comes with the end of the time
        if left:
            leader._tell(left.pop(0), {1: {"token": member.token}}, "rank 2 is missing")
        if not left:
            board.set("here/0", b"gone")

    monkeypatch.setattr(rendezvous, "time", SimpleNamespace(monotonic=lambda: now, sleep=leader_speaks))
    leader, member = rendezvous._Leader(board, (0, 1), 0, differing), rendezvous._Member(board, (0, 1), 1)
    leader.come("a", ack=True)
    assert member.meet("a", timeout=5.0) == told
    assert not left


@pytest.mark.parametrize("late", [0, 1])
def test_who_comes_after_another_gave_up_does_not_go_on(board: dist.Store, late: int) -> None:
    told = ranks_meet(board, {0: "a", 1: "a"}, late={late: 3.0}, timeout=0.5)
    assert all(text is not None for text in told.values())


def test_who_sleeps_through_the_end_of_a_meeting_is_not_taken_for_one_of_the_next(
    board: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "_FIRST_POLL", 0.3)  # of who waits, while the leader is in the next meeting already
    ranks, told = (0, 1, 2), {}

    def come(rank: int) -> None:
        _here.rank = rank
        told[rank] = [rendezvous.meet(board, ranks, f"graph {number}", differing, 20.0) for number in range(3)]

    threads = [threading.Thread(target=come, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert told == dict.fromkeys(ranks, [None] * 3)


def test_a_second_attempt_starts_from_nothing(board: dist.Store) -> None:
    assert None not in ranks_meet(board, {1: "a"}, timeout=0.3, world=2).values()
    assert None not in ranks_meet(board, {0: "a", 1: "b"}).values()
    assert None not in ranks_meet(board, {0: "a"}, timeout=0.3, world=2).values()
    assert ranks_meet(board, {0: "a", 1: "a"}) == {0: None, 1: None}
    assert ranks_meet(board, {0: "b", 1: "b"}, late={0: 0.2}) == {0: None, 1: None}


def test_a_note_of_a_dead_rank_is_nobodys_word(board: dist.Store) -> None:
    dead = rendezvous._Member(board, (0, 1), 1)
    dead.come("a", ack=False)  # and dies
    told = ranks_meet(board, {0: "a"}, timeout=0.5, world=2)
    assert told[0] is not None
    assert "rank 1" in told[0]
