"""Moves values out and back, for one device and one set of settings.

::

    ticket = offload(x)       x is copied out; the engine holds x until the copy has ended, then x's memory is free
    token = prefetch(ticket)  memory is allocated and the copy back begins
    y = wait(token)           what follows sees the bytes of x; the engine holds nothing of y

All state hangs on tickets and tokens (``Stored``, ``Reload``), which are there before a copy begins and own it, wherever the
program is interrupted. Whoever drops one only leaves a note (``let_go``); every operator call first does what the notes say,
and drops the sources of copies out that have ended, in the thread that calls: a worker frees no tensors.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from . import tickets
from .callers import Caller
from .carriers.interface import Carrier, Copy, Held, Parcel
from .counters import SwapCounters
from .errors import SwapError, swap_error
from .layout import Layout
from .settings import Settings
from .tickets import Handle


@dataclass(eq=False, slots=True)
class Stored:
    """What a ticket owns.

    ``early`` is a reload that was issued before the graph asked for it (``calls.py``), and ``used`` is told how many bytes came
    back.
    """

    engine: Engine
    parcel: Parcel
    device: torch.device
    early: Reload | None = None
    used: Callable[[int], None] | None = None

    def let_go(self) -> None:
        """See Owned."""
        self.engine._let_go.append(self)

    def copies(self) -> list[Copy]:
        """What may be going on."""
        return [self.parcel.sent, *self.parcel.fetched]

    def finish(self) -> bool:
        """Free the place in the store; False: not yet."""
        if self.early is not None:  # nobody will ask for it
            self.early.let_go()
            self.early = None
        carrier = self.parcel.carrier
        return carrier is None or self.parcel.place is None or carrier.give_back(self.parcel)


@dataclass(eq=False, slots=True)
class Reload:
    """What a token owns. ``landed``, and ``ticket``, which keeps the stored copy, are None once it was waited for.

    ``claimed``: that was issued early has a token now.
    """

    stored: Stored
    ticket: Handle | None = None
    copy: Copy | None = None
    landed: torch.Tensor | None = None
    stream: object = None
    waited: bool = False
    claimed: bool = False

    def let_go(self) -> None:
        """See Owned."""
        self.stored.engine._let_go.append(self)

    def copies(self) -> list[Copy]:
        """What may be going on."""
        return [self.copy] if self.copy is not None else self.stored.copies()

    def finish(self) -> bool:
        """Free what the copy writes to; False: not yet, it is being written to."""
        if self.landed is None or all(copy.ended() for copy in self.copies()):
            self.landed = self.ticket = None
            return True
        return False


@dataclass(eq=False, slots=True)
class _Leaving:
    """A parcel whose copy out may be going on, and what that reads."""

    parcel: Parcel
    source: torch.Tensor


class Engine:
    """See the module. Safe for several threads; no lock is held while a copy is waited for."""

    def __init__(self, settings: Settings, caller: Caller, carriers: Sequence[Carrier]) -> None:
        """``carriers`` are asked in this order until one has room."""
        self.settings = settings
        self.abandoned = False
        self._caller = caller
        self._carriers = tuple(carriers)
        self._lock = threading.RLock()
        self._let_go: deque[Stored | Reload] = deque()
        self._unfinished: list[Stored | Reload] = []
        self._leaving: list[_Leaving] = []
        self._live: set[Stored] = set()
        self._total = SwapCounters()

    def offload(self, value: torch.Tensor, name: str, asynchronous: bool) -> torch.Tensor:
        """Start the copy out of ``value``; with ``asynchronous=False`` what follows comes after it.

        Returns:
            A ticket, which owns what is stored (``Stored``).

        Raises:
            SwapError: no room, or no way out; then nothing is held.
        """
        self._caller.check(name)
        layout = Layout.of(value)
        stored = Stored(self, Parcel(name, layout), value.device)
        parcel, source = stored.parcel, layout.bytes_of(value)
        ticket = tickets.issue(stored)
        try:
            self._live.add(stored)
            if parcel.nbytes:
                self._send(parcel, source)
            with self._lock:
                self._total += SwapCounters(bytes_out=parcel.nbytes, offloads=1)
            if not asynchronous:
                del source
                parcel.sent.join()
                self._raise_if_failed(parcel, parcel.sent)
                self.tidy()
        except BaseException:
            del ticket  # which the error would keep
            raise
        return ticket

    def prefetch(self, reload: Reload) -> None:
        """Start the copy back. Somebody who lets it go owns ``reload``.

        Raises:
            SwapError: the copy out failed.
        """
        parcel = reload.stored.parcel
        self._caller.check(parcel.name)
        self.tidy()
        if parcel.sent.ended():
            self._raise_if_failed(parcel, parcel.sent)
        reload.stream = self._caller.stream()
        reload.landed = landed = self._caller.empty(parcel.layout)
        with self._lock:
            copy = parcel.sent
            if parcel.carrier is not None:
                parcel.fetched = [c for c in parcel.fetched if not c.ended()]
                copy = parcel.carrier.fetch(parcel, parcel.layout.landing(landed))
            reload.copy = copy
            self._total += SwapCounters(bytes_in=parcel.nbytes, prefetches=1)

    def claim_early(self, stored: Stored) -> Reload | None:
        """The reload that was issued early, for whoever asks first; None: there is none that has begun."""
        with self._lock:
            early = stored.early
            if early is None or early.claimed or early.copy is None:
                return None
            early.claimed = True
            return early

    def wait(self, reload: Reload) -> torch.Tensor:
        """The value, whole for whatever follows.

        Raises:
            SwapError: it was waited for before, or a copy failed.
        """
        parcel = reload.stored.parcel
        self._caller.check(parcel.name)
        self.tidy()
        with self._lock:
            copy, landed, before = reload.copy, reload.landed, reload.waited
            reload.waited = True
        if before or copy is None or landed is None:
            raise SwapError(f"swap of {parcel.name!r}: this reload was waited for before; prefetch the ticket again")
        try:
            self._caller.join(copy, landed, reload.stream)
            self._raise_if_failed(parcel, copy)
        except BaseException:
            # The copy may still write to ``landed``, which goes when the token does and the copy has ended.
            reload.waited = False
            raise
        reload.landed = reload.ticket = None
        return parcel.layout.restore(landed)

    def tidy(self) -> None:
        """Give back what was let go, and drop the sources of copies that have ended.

        What is interrupted here is done again by the next call: whatever was given back already is so once.
        """
        if self._caller.capturing():  # where events cannot be asked
            return
        with self._lock:
            self._collect()
            self._unfinished = [owned for owned in self._unfinished if not owned.finish()]
            if self._let_go:  # the tickets of reloads that have just been finished
                self._collect()
                self._unfinished = [owned for owned in self._unfinished if not owned.finish()]
            self._drop_sources()
            self._caller.settle()

    def counters(self) -> SwapCounters:
        """Totals, and how things stand."""
        self.tidy()
        with self._lock:
            now = SwapCounters(
                late=self._caller.late,
                seconds_waited=self._caller.seconds_waited,
                in_flight_bytes=self._in_flight(),
                live_tickets=len(self._live),
            )
            for held in (carrier.held() for carrier in self._carriers):
                now += _gauges(held)
            return self._total + now

    def stop(self, seconds: float) -> None:
        """Let copies of worker threads end; wait up to ``seconds`` for each of them."""
        for carrier in self._carriers:
            carrier.stop(seconds)

    def abandon(self) -> None:
        """In a child process: the threads and streams are the parent's, and so are the tickets. Locks nothing."""
        self.abandoned = True
        for carrier in self._carriers:
            carrier.close()

    def _collect(self) -> None:
        while self._let_go:
            owned = self._let_go[0]
            if isinstance(owned, Stored):
                self._live.discard(owned)
            self._unfinished.append(owned)
            if self._let_go and self._let_go[0] is owned:  # last, so that it is never nowhere
                self._let_go.popleft()

    def _drop_sources(self) -> None:
        """Let go of what copies out have read. Not the oldest first: those to the disk take longer than those to the host."""
        self._leaving = [leaving for leaving in self._leaving if not leaving.parcel.sent.ended()]

    def _in_flight(self, *more: torch.Tensor) -> int:
        """Bytes that copies out, and ``more``, keep in memory: a slice keeps all of what it is a slice of."""
        storages = (source.untyped_storage() for source in (*(leaving.source for leaving in self._leaving), *more))
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    def _send(self, parcel: Parcel, source: torch.Tensor) -> None:
        """Start the copy out, as soon as there is room for it among the others on their way."""
        self.tidy()
        with self._lock:
            going_on = [copy for owned in self._unfinished for copy in owned.copies()]
        # What nobody wants any more still takes room while it is being copied: that room is waited for, not new one taken.
        for copy in going_on:
            copy.wait()
        begin = None
        while True:
            self.tidy()
            with self._lock:
                held = self._in_flight(source)
                # What is in memory for another copy's sake anyway is not waited for.
                if not self._leaving or held <= self.settings.in_flight_bytes or held == self._in_flight():
                    if begin is not None:
                        self._total += SwapCounters(seconds_blocked=perf_counter() - begin)
                    return self._start(parcel, source)
                oldest = self._leaving[0].parcel.sent
            begin = perf_counter() if begin is None else begin
            oldest.wait()

    def _start(self, parcel: Parcel, source: torch.Tensor) -> None:
        """Start the copy out; under the same lock that found room for it, so that nobody else takes that room."""
        # First noted, then started: whatever happens in between, what a copy reads is kept until the copy has ended.
        self._leaving.append(_Leaving(parcel, source))
        try:
            for parcel.carrier in self._carriers:
                if parcel.carrier.send(parcel, source):
                    return
            raise AssertionError("the last carrier takes everything or raises")
        except (OSError, RuntimeError) as error:
            raise swap_error(error, parcel.name, parcel.nbytes, self.settings.where) from error

    def _raise_if_failed(self, parcel: Parcel, copy: Copy) -> None:
        failure = copy.failure()
        if failure is not None:
            raise swap_error(failure, parcel.name, parcel.nbytes, self.settings.where) from failure


def _gauges(held: Held) -> SwapCounters:
    return SwapCounters(
        host_bytes=held.host_bytes,
        disk_bytes=held.disk_bytes,
        host_capacity=held.host_capacity,
        disk_capacity=held.disk_capacity,
        pinned_allocations=held.pinned_allocations,
    )
