"""An accelerator that is not there: streams with a clock of their own, an allocator that reuses memory at once, and a
detector of races.

Time is virtual. Work that is put on a stream gets its begin and end at once, but what it does to memory happens when the
clock gets to its end: whoever reads too early reads what was there before. The clock moves a little with every call, and as
far as needed when a thread waits.

Independently of what the clock happened to do, every access to device memory, pinned memory or the simulated disk is checked
against earlier ones to the same bytes: unless one of two that conflict is known to happen before the other (by the order of a
stream, by an event that was waited for, by a thread that saw a copy end), that is a race. Each stream and thread carries a
vector clock: what it knows of all others.
"""

from __future__ import annotations

import ctypes
import errno
import heapq
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from memopt.runtime.errors import PinningFailed
from memopt.runtime.layout import Layout
from memopt.runtime.stores.extents import Extents
from memopt.runtime.workers import Job, Worker

DEVICE_BYTES = 1 << 20
Knowledge = dict[str, int]


@dataclass(eq=False)
class Actor:
    """A stream, or a thread. ``free_at`` is when a stream has done all that was put on it."""

    name: str
    knows: Knowledge = field(default_factory=dict)
    free_at: float = 0.0

    def learn(self, knowledge: Knowledge) -> None:
        for name, count in knowledge.items():
            self.knows[name] = max(self.knows.get(name, 0), count)

    def step(self) -> int:
        self.knows[self.name] = self.knows.get(self.name, 0) + 1
        return self.knows[self.name]


@dataclass(frozen=True)
class Access:
    space: str
    begin: int
    end: int
    writes: bool
    actor: str
    count: int
    what: str

    def conflicts(self, other: Access) -> bool:
        overlap = self.space == other.space and self.begin < other.end and other.begin < self.end
        return overlap and (self.writes or other.writes)


class World:
    """The clock, everyone in it, and every access so far."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now = 0.0
        self.races: list[str] = []
        self.wrong: list[str] = []
        self.thread = Actor("host")
        self._accesses: list[Access] = []
        self._effects: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def put(self, stream: Actor, seconds: float, effect: Callable[[], None]) -> None:
        """Work for a stream: the calling thread's knowledge goes along."""
        stream.learn(self.thread.knows)
        stream.free_at = max(stream.free_at, self.now) + seconds
        heapq.heappush(self._effects, (stream.free_at, next(self._order), effect))

    def advance(self, until: float) -> None:
        """Let time pass."""
        self.now = max(self.now, until)
        while self._effects and self._effects[0][0] <= self.now:
            heapq.heappop(self._effects)[2]()

    def pass_some_time(self) -> None:
        self.advance(self.now + self.chance.expovariate(5.0))

    def access(self, actor: Actor, count: int, space: str, begin: int, nbytes: int, writes: bool, what: str) -> None:
        new = Access(space, begin, begin + nbytes, writes, actor.name, count, what)
        kept = []
        for old in self._accesses:
            known = actor.knows.get(old.actor, 0) >= old.count
            if old.conflicts(new) and not known:
                self.races.append(f"{new.what} ({new.actor}) may come before {old.what} ({old.actor}) has ended")
            covered = new.writes and old.space == new.space and new.begin <= old.begin and old.end <= new.end
            if not (known and covered):
                kept.append(old)
        self._accesses = [*kept, new]

    @contextmanager
    def as_thread(self, thread: Actor) -> Iterator[None]:
        outer, self.thread = self.thread, thread
        try:
            yield
        finally:
            self.thread = outer


class SimulatedEvent:
    def __init__(self, world: World, stream: Actor) -> None:
        self._world = world
        self.knows = dict(stream.knows)
        self.at = max(stream.free_at, world.now)

    def query(self) -> bool:
        self._world.pass_some_time()
        if self._world.now >= self.at:
            self._world.thread.learn(self.knows)
            return True
        return False

    def synchronize(self) -> None:
        self._world.advance(self.at)
        self._world.thread.learn(self.knows)


class SimulatedDevice:
    """See ``interface.Device``. ``blocks`` is how many tensors are alive; ``peak`` the most bytes that were."""

    def __init__(self, world: World, seconds_per_byte: float = 0.01) -> None:
        self.world = world
        self.blocks = 0
        self.bytes = 0
        self.peak = 0
        self.pinned: list[torch.Tensor] = []
        self.pinning_fails = False
        self.captures = False
        self._seconds_per_byte = seconds_per_byte
        self._memory = torch.zeros(DEVICE_BYTES, dtype=torch.uint8)
        self._used = 0
        self._free: list[tuple[Actor, int, int]] = []  # the stream whose pool it is in, address, bytes
        self._lent_free: list[tuple[list[SimulatedEvent], Actor, int, int]] = []
        self._lent: dict[int, list[Actor]] = {}
        self._names = itertools.count()
        self.compute = self.new_stream()

    # What the engine uses.

    def new_stream(self) -> Actor:
        return Actor(f"stream {next(self._names)}")

    def current_stream(self) -> Actor:
        return self.compute

    def record(self, stream: Actor, timing: bool = False) -> SimulatedEvent:
        stream.learn(self.world.thread.knows)
        return SimulatedEvent(self.world, stream)

    def wait(self, stream: Actor, event: SimulatedEvent) -> None:
        stream.free_at = max(stream.free_at, event.at)
        stream.learn(event.knows)

    def copy(self, stream: Actor, target: torch.Tensor, source: torch.Tensor) -> None:
        # Addresses only: a copy on a stream keeps no tensor alive.
        to, fro, nbytes = target.data_ptr(), source.data_ptr(), target.numel()
        assert source.numel() == nbytes
        self.world.put(stream, self._seconds(nbytes), lambda: ctypes.memmove(to, fro, nbytes) and None)
        count = stream.step()
        self.world.access(stream, count, "memory", fro, nbytes, False, "the read of a copy")
        self.world.access(stream, count, "memory", to, nbytes, True, "the write of a copy")
        self.world.pass_some_time()

    def empty(self, layout: Layout) -> torch.Tensor:
        flat = self._allocate(layout.nbytes)
        return flat.view(layout.dtype).as_strided(layout.size, layout.stride)

    def lend(self, tensor: torch.Tensor, stream: Actor) -> None:
        self._lent.setdefault(tensor.data_ptr(), []).append(stream)

    def pin(self, nbytes: int) -> torch.Tensor:
        if self.pinning_fails:
            raise PinningFailed(f"{nbytes} bytes: out of memory")
        self.pinned.append(torch.zeros(nbytes, dtype=torch.uint8))
        return self.pinned[-1]

    def seconds_between(self, begin: SimulatedEvent, end: SimulatedEvent) -> float:
        return end.at - begin.at

    def capturing(self) -> bool:
        return self.captures

    # What a program does.

    def make(self, nbytes: int, seed: int) -> torch.Tensor:
        """A new value, computed on the current stream."""
        value = self._allocate(nbytes)
        self.make_again(value, seed)
        return value

    def make_again(self, value: torch.Tensor, seed: int) -> None:
        """Overwrite a value on the current stream."""
        nbytes, to = value.numel(), value.data_ptr()
        content = content_of(nbytes, seed)
        self.world.put(self.compute, self._seconds(nbytes), lambda: ctypes.memmove(to, content, nbytes) and None)
        self.world.access(self.compute, self.compute.step(), "memory", to, nbytes, True, "computing a value")

    def use(self, value: torch.Tensor, seed: int) -> None:
        """Compute with a value on the current stream: it must be what ``make`` made."""
        nbytes, fro = value.numel(), value.data_ptr()

        def compare() -> None:
            if ctypes.string_at(fro, nbytes) != content_of(nbytes, seed):
                self.world.wrong.append(f"the value of seed {seed}")

        self.world.put(self.compute, self._seconds(nbytes), compare)
        self.world.access(self.compute, self.compute.step(), "memory", fro, nbytes, False, "the use of a value")

    def _seconds(self, nbytes: int) -> float:
        return 0.001 + nbytes * self._seconds_per_byte * self.world.chance.random()

    def _allocate(self, nbytes: int) -> torch.Tensor:
        self._take_back_lent()
        stream = self.compute
        fits = [block for block in self._free if block[0] is stream and block[2] >= nbytes]
        if fits:
            block = min(fits, key=lambda block: block[2])
            self._free.remove(block)
            _, address, size = block
        else:
            address, size = self._memory.data_ptr() + self._used, nbytes
            self._used += nbytes
            assert self._used <= DEVICE_BYTES, "the simulated device is full"
        self.blocks += 1
        self.bytes += size
        self.peak = max(self.peak, self.bytes)

        class Block(ctypes.c_ubyte * nbytes):  # type: ignore[misc]
            def __del__(block) -> None:
                self._give_back(stream, address, size)

        return torch.frombuffer(Block.from_address(address), dtype=torch.uint8)

    def _give_back(self, stream: Actor, address: int, size: int) -> None:
        """As a caching allocator does: reused at once by the same stream, whoever else may still be at it."""
        self.blocks -= 1
        self.bytes -= size
        lent = self._lent.pop(address, None)
        if lent:
            self._lent_free.append(([self.record(other) for other in lent], stream, address, size))
        else:
            self._free.append((stream, address, size))

    def _take_back_lent(self) -> None:
        for entry in list(self._lent_free):
            if all(event.query() for event in entry[0]):
                self._lent_free.remove(entry)
                self._free.append(entry[1:])


def content_of(nbytes: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(nbytes)


class SimulatedJob(Job):
    def __init__(self, work: Callable[[], None], worker: SimulatedWorker) -> None:
        super().__init__(work, threading.current_thread())
        self.worker = worker
        self.knows = dict(worker.world.thread.knows)
        worker.world.thread.step()

    def run(self) -> None:
        with self.worker.world.as_thread(self.worker.actor):
            self.worker.actor.learn(self.knows)
            super().run()
            self.knows = dict(self.worker.actor.knows)

    def ended(self) -> bool:
        world = self.worker.world
        world.pass_some_time()
        if world.chance.random() < 0.3:
            self.worker.run_one()
        if self._done.is_set():
            world.thread.learn(self.knows)
        return super().ended()

    def wait(self) -> None:
        while not self._done.is_set():
            self.worker.run_one()
        self.worker.world.thread.learn(self.knows)

    join = wait


class SimulatedWorker(Worker):
    """A thread that works when time passes, or when somebody waits for it."""

    def __init__(self, name: str, world: World) -> None:
        self.actor = Actor(name)
        self.world = world
        self.jobs: deque[SimulatedJob] = deque()
        self._busy = False

    def submit(self, work: Callable[[], None], note: Callable[[Job], object] = lambda _: None) -> Job:
        job = SimulatedJob(work, self)
        note(job)
        self.jobs.append(job)
        return job

    def run_one(self) -> None:
        if self.jobs and not self._busy:
            self._busy = True
            self.jobs.popleft().run()
            self._busy = False


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))


class SimulatedArena:
    """See DiskArena. ``limit`` is the size of the disk."""

    def __init__(self, world: World, limit: int = 1 << 30) -> None:
        self.extents = Extents(64)
        self.limit = limit
        self._world = world
        self._content = bytearray()

    @property
    def capacity(self) -> int:
        return self.extents.capacity

    def take(self, nbytes: int) -> int:
        offset = self.extents.take(nbytes)
        if offset is None:
            lacking = self.extents.lacking(nbytes)
            if self.capacity + lacking > self.limit:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.extents.grow(lacking)
            self._content.extend(bytes(lacking))
            offset = self.extents.take(nbytes)
            assert offset is not None
        return offset

    def give_back(self, offset: int) -> None:
        self.extents.give_back(offset)

    def write(self, offset: int, memory: memoryview) -> None:
        self._access(offset, memory, writes=True)
        self._content[offset : offset + len(memory)] = bytes(memory)

    def read(self, offset: int, memory: memoryview) -> None:
        self._access(offset, memory, writes=False)
        ctypes.memmove(_address(memory), bytes(self._content[offset : offset + len(memory)]), len(memory))

    def close(self) -> None:
        pass

    def _access(self, offset: int, memory: memoryview, writes: bool) -> None:
        thread = self._world.thread
        count = thread.step()
        self._world.access(thread, count, "disk", offset, len(memory), writes, "an access to the disk")
        self._world.access(thread, count, "memory", _address(memory), len(memory), not writes, "a worker at pinned memory")
        self._world.pass_some_time()
