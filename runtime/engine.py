"""Moves values out and back, for one device and one set of settings.

::

    ticket = offload(x)       x is copied out; the engine holds x until the copy has ended, then x's memory is free
    token = prefetch(ticket)  memory is allocated and the copy back begins
    y = wait(token)           what follows sees the bytes of x; the engine holds nothing of y

All state hangs on tickets and tokens (``Stored``, ``Reload``). Whoever drops one only leaves a note (``let_go``); every
operator call first does what the notes say, and drops the sources of copies out that have ended, in the thread that
calls: a worker frees no tensors.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from .callers import Caller
from .carriers import Carrier, Copy, Held, Parcel
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
        early, self.early = self.early, None
        if early is not None:  # nobody will ask for it
            early.let_go()
        carrier = self.parcel.carrier
        return carrier is None or self.parcel.place is None or carrier.give_back(self.parcel)


@dataclass(eq=False, slots=True)
class Reload:
    """What a token owns. ``landed`` is None once it was waited for; ``ticket`` keeps the stored copy until then."""

    stored: Stored
    ticket: Handle | None
    copy: Copy
    landed: torch.Tensor | None
    stream: object

    def let_go(self) -> None:
        """See Owned."""
        self.stored.engine._let_go.append(self)

    def copies(self) -> list[Copy]:
        """What may be going on."""
        return [self.copy]

    def finish(self) -> bool:
        """Free what the copy writes to; False: not yet, it is being written to."""
        if self.landed is None or self.copy.ended():
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
        self._in_flight = 0
        self._live = 0
        self._total = SwapCounters()

    def offload(self, value: torch.Tensor, name: str, asynchronous: bool) -> Stored:
        """Start the copy out of ``value``; with ``asynchronous=False`` what follows comes after it.

        Raises:
            SwapError: no room, or no way out; then nothing is held.
        """
        self._caller.check(name)
        layout = Layout.of(value)
        stored = Stored(self, Parcel(name, layout), value.device)
        parcel, source = stored.parcel, layout.bytes_of(value)
        with self._lock:
            self._live += 1
        try:
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
            stored.let_go()
            raise
        return stored

    def prefetch(self, stored: Stored, ticket: Handle | None) -> Reload:
        """Start the copy back.

        Raises:
            SwapError: the copy out failed.
        """
        parcel = stored.parcel
        self._caller.check(parcel.name)
        self.tidy()
        if parcel.sent.ended():
            self._raise_if_failed(parcel, parcel.sent)
        landed = self._caller.empty(parcel.layout)
        try:
            with self._lock:
                copy = parcel.sent
                if parcel.carrier is not None:
                    parcel.fetched = [c for c in parcel.fetched if not c.ended()]
                    copy = parcel.carrier.fetch(parcel, parcel.layout.landing(landed))
                self._total += SwapCounters(bytes_in=parcel.nbytes, prefetches=1)
            return Reload(stored, ticket, copy, landed, self._caller.stream())
        except BaseException:
            # Nobody else knows what the copy writes to.
            for copy in list(parcel.fetched):
                copy.wait()
            raise

    def wait(self, reload: Reload) -> torch.Tensor:
        """The value, whole for whatever follows.

        Raises:
            SwapError: it was waited for before, or a copy failed.
        """
        parcel = reload.stored.parcel
        self._caller.check(parcel.name)
        self.tidy()
        with self._lock:
            landed, reload.landed = reload.landed, None
        if landed is None:
            raise SwapError(f"swap of {parcel.name!r}: this reload was waited for before; prefetch the ticket again")
        try:
            self._caller.join(reload.copy, landed, reload.stream)
            self._raise_if_failed(parcel, reload.copy)
        except BaseException:
            # The copy may still write to it: it goes when the token does and the copy has ended.
            reload.landed = landed
            raise
        reload.ticket = None
        return parcel.layout.restore(landed)

    def tidy(self) -> None:
        """Give back what was let go, and drop the sources of copies that have ended."""
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
                in_flight_bytes=self._in_flight,
                live_tickets=self._live,
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
            owned = self._let_go.popleft()
            self._live -= isinstance(owned, Stored)
            self._unfinished.append(owned)

    def _drop_sources(self) -> None:
        """Let go of what copies out have read. Not the oldest first: those to the disk take longer than those to the host."""
        going_on = [leaving for leaving in self._leaving if not leaving.parcel.sent.ended()]
        if len(going_on) < len(self._leaving):
            self._leaving = going_on
            self._in_flight = sum(leaving.parcel.nbytes for leaving in going_on)

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
                if not self._leaving or self._in_flight + parcel.nbytes <= self.settings.in_flight_bytes:
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
        self._in_flight = sum(leaving.parcel.nbytes for leaving in self._leaving)
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
