"""Ranks meet before they communicate: all of them, now, and each knows that the others know.

::

    every rank     here     "I have come, and say this"
    first rank     ready    all have come, and nothing speaks against it
    other ranks    ack      "I shall wait for your word, whatever happens"
    first rank     go       all have heard it; or no, with the reason, for every rank that has come

Notes lie in the key-value store of the process group. Whoever leaves says so: a note of an earlier attempt is nobody's word.
A rank gives up after a time limit of its own, and then has not gone on; so the others do not either.
"""

from __future__ import annotations

import json
import time
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import torch_bridge

_FIRST_POLL, _LAST_POLL = 0.02, 0.25
"""Seconds between two looks at the store: more and more, since every rank asks the one process that keeps it."""

_GONE = b"gone"
_settled: set[str] = set()
"""Tokens of those whom this process, leading, has told go or no: their notes may lie there until they wake."""

Judge = Callable[[Mapping[int, str]], str | None]
"""What all ranks say -> why they must not go on; None if they may."""


def meet(board: torch_bridge.Store, ranks: Sequence[int], said: str, judge: Judge, timeout: float) -> str | None:
    """Wait for every rank, and find out whether all may go on.

    Args:
        board: the store.
        ranks: who has to come, this rank among them; the first leads.
        said: what this rank says.
        judge: asked on the leading rank alone.
        timeout: seconds to wait for the others.

    Returns:
        None on every rank, or on none; else why not, for people.
    """
    own = torch_bridge.own_rank()
    party = _Leader(board, ranks, own, judge) if own == ranks[0] else _Member(board, ranks, own)
    try:
        return party.meet(said, timeout)
    finally:
        board.set(f"here/{own}", _GONE)


class _Party:
    def __init__(self, board: torch_bridge.Store, ranks: Sequence[int], own: int) -> None:
        self.board = board
        self.ranks = ranks
        self.own = own
        self.token = uuid.uuid4().hex
        self._poll = _FIRST_POLL

    def come(self, said: str, *, ack: bool) -> None:
        self.board.set(f"here/{self.own}", _packed({"token": self.token, "said": said, "ack": ack}))

    def sleep(self) -> None:
        """Until the store is to be looked at again."""
        time.sleep(self._poll)
        self._poll = min(1.1 * self._poll, _LAST_POLL)

    def note(self, key: str) -> dict[str, Any] | None:
        """A note that lies there; None where there is none, or its rank has left."""
        if not self.board.check([key]):
            return None
        found = self.board.get(key)
        return None if found == _GONE else json.loads(zlib.decompress(found))


class _Member(_Party):
    def meet(self, said: str, timeout: float) -> str | None:
        self.come(said, ack=False)
        deadline = time.monotonic() + timeout
        is_ready = is_patient = False
        while True:
            # Looked at in this order: the leader speaks, then leaves. Who looked for its word first could find neither.
            leads_still = self.note(f"here/{self.ranks[0]}") is not None
            word = self.note(f"word/{self.token}")
            if word is not None:
                if word["word"] == "no":
                    return str(word["reason"])
                if word["word"] == "go":
                    return None
                if not is_ready:
                    is_ready, self._poll = True, _FIRST_POLL
                    self.come(said, ack=True)
                    deadline = time.monotonic() + timeout  # the leader gives up before
            if time.monotonic() >= deadline:
                if is_patient or not leads_still:
                    return absence(self.ranks[:1], timeout)
                is_patient, deadline = True, time.monotonic() + timeout  # it waits for others still, and knows who is missing
            self.sleep()


class _Leader(_Party):
    def __init__(self, board: torch_bridge.Store, ranks: Sequence[int], own: int, judge: Judge) -> None:
        super().__init__(board, ranks, own)
        self.judge = judge

    def meet(self, said: str, timeout: float) -> str | None:
        self.come(said, ack=True)
        deadline = time.monotonic() + timeout
        here: dict[int, dict[str, Any]] = {}
        reason: str | None = None
        for wanted in ("come", "ack"):
            while True:
                notes = {rank: self.note(f"here/{rank}") for rank in self.ranks[1:]}
                found = {rank: note for rank, note in notes.items() if note is not None and note["token"] not in _settled}
                left = [rank for rank in here if found.get(rank, {}).get("token") != here[rank]["token"]]
                missing = [rank for rank in self.ranks[1:] if rank not in found or (wanted == "ack" and not found[rank]["ack"])]
                if wanted == "ack" and left:
                    return self._tell("no", found, absence(left, timeout))
                if not missing:
                    break
                if time.monotonic() > deadline:
                    return self._tell("no", found, absence(missing, timeout))
                self.sleep()
            here, self._poll = found, _FIRST_POLL
            if wanted == "come":
                reason = self.judge({self.own: said, **{rank: note["said"] for rank, note in here.items()}})
                if reason is not None:
                    break
                self._tell("ready", here)
        return self._tell("no" if reason is not None else "go", here, reason)

    def _tell(self, word: str, here: Mapping[int, Mapping[str, Any]], reason: str | None = None) -> str | None:
        for note in here.values():
            self.board.set(f"word/{note['token']}", _packed({"word": word, "reason": reason}))
        if word != "ready":
            _settled.update(note["token"] for note in here.values())
        return reason


def absence(missing: Sequence[int], timeout: float) -> str:
    """Say that ranks did not come."""
    who = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
    return (
        f"{who} did not compile the graph whose collectives this rank takes part in, within {timeout:g} s: it failed or died "
        "before, runs another model, or does so without memopt. If it only needs longer, raise ranks_timeout; nothing was run."
    )


def _packed(note: Mapping[str, Any]) -> bytes:
    return zlib.compress(json.dumps(note).encode())
