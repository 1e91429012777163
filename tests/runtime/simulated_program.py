"""A training program on the simulated device: values leave, memory is reused at once, values come back and are used."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import torch
from memopt.runtime.callers import StreamCaller
from memopt.runtime.carriers.interface import Carrier
from memopt.runtime.carriers.pinned import PinnedCarrier
from memopt.runtime.carriers.staged import StagedCarrier
from memopt.runtime.engine import Engine
from memopt.runtime.ops import prefetch, wait
from memopt.runtime.settings import Settings
from memopt.runtime.stores.host import PinnedPool
from simulated_device import SimulatedArena, SimulatedDevice, SimulatedWorker, World

SLAB = 4096


@dataclass
class Program:
    """One engine on one simulated device.

    Attributes:
        chance: decides durations, and when workers work.
    """

    chance: random.Random
    store: str = "host"
    in_flight_bytes: int = 1 << 30
    host_limit: int | None = None
    disk_limit: int = 1 << 30
    chunk_bytes: int = 256
    device_type: type[SimulatedDevice] = SimulatedDevice
    next_seed: int = 0
    sizes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = World(self.chance)
        self.device = self.device_type(self.world)
        self.arena = SimulatedArena(self.world, self.disk_limit)
        self.pool = PinnedPool(self.device.pin, self.host_limit, SLAB)
        self.workers: list[SimulatedWorker] = []
        staged = StagedCarrier(self.device, self.arena, self.chunk_bytes, self._new_worker)
        carriers: list[Carrier] = [PinnedCarrier(self.device, self.pool), staged] if self.store == "host" else [staged]
        settings = Settings(self.store, "/disk", self.in_flight_bytes, self.host_limit)
        self.engine = Engine(settings, StreamCaller(self.device), carriers)

    def _new_worker(self, name: str) -> SimulatedWorker:
        self.workers.append(SimulatedWorker(name, self.world))
        return self.workers[-1]

    def leave(self, nbytes: int, asynchronous: bool = True) -> tuple[torch.Tensor, int]:
        """Compute a value, swap it out, drop it: the ticket, and what to expect."""
        self.next_seed += 1
        seed = self.next_seed
        self.sizes[seed] = nbytes
        value = self.device.make(nbytes, seed)
        return self.engine.offload(value, f"value {seed}", asynchronous), seed

    def come(self, token: torch.Tensor, seed: int) -> torch.Tensor:
        """Wait for a reload and use it."""
        value = wait(token, (self.sizes[seed],), (1,), torch.uint8, torch.device("cpu"))
        self.device.use(value, seed)
        return value

    def compute(self, nbytes: int) -> None:
        """Allocate, write and drop: the memory is whatever was freed last."""
        self.device.make(nbytes, seed=0)

    def round_trip(self, nbytes: int, asynchronous: bool = True) -> None:
        ticket, seed = self.leave(nbytes, asynchronous)
        self.compute(nbytes)
        self.come(prefetch(ticket), seed)
        self.compute(nbytes)

    def finish(self) -> None:
        """Let everything end; then the engine must hold nothing."""
        for _ in range(3):  # what a reload held on to is let go one call after the reload
            self.world.advance(self.world.now + 1e6)
            self.work()
            self.engine.tidy()

    def work(self) -> None:
        """Have the workers do what they were given."""
        for worker in self.workers:
            while worker.jobs:
                worker.run_one()

    def assert_sound(self) -> None:
        assert self.world.races == []
        assert self.world.wrong == []

    def assert_nothing_held(self) -> None:
        now = self.engine.counters()
        assert (now.host_bytes, now.disk_bytes, now.in_flight_bytes, now.live_tickets) == (0, 0, 0, 0)
        assert self.arena.extents.taken == 0
        assert [slab.extents.taken for slab in self.pool._slabs if slab.extents.taken] == []
        assert self.device.blocks == 0
