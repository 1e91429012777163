"""The detector finds what it is there for: each guard of the engine is taken away, and a program that was sound races."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from memopt.runtime import engine as engine_module
from memopt.runtime.carriers import staged as staged_carrier
from memopt.runtime.carriers.pinned import PinnedCarrier, StreamCopy
from memopt.runtime.engine import Engine, Reload
from memopt.runtime.ops import prefetch
from memopt.runtime.stores import host
from simulated_device import SimulatedDevice
from simulated_program import Program

Break = Callable[[pytest.MonkeyPatch], None]


def reload_at_once(program: Program) -> None:
    program.round_trip(600)


def memory_reused_at_once(program: Program) -> None:
    kept = [program.leave(600) for _ in range(3)]
    program.compute(600)
    kept.clear()


def extent_reused_at_once(program: Program) -> None:
    """The second value gets the first one's place while that is still being read; only another stream has waited for that."""
    ticket, seed = program.leave(3000)
    first, second = program.device.compute, program.device.new_stream()
    program.world.advance(1e6)
    token = prefetch(ticket)
    program.device.compute = second
    value = program.come(token, seed)
    program.device.compute = first
    del ticket, token
    program.leave(3000)
    del value


def token_dropped_at_once(program: Program) -> None:
    ticket, _ = program.leave(600)
    prefetch(ticket)
    program.work()
    program.engine.tidy()
    program.compute(600)


def used_on_another_stream(program: Program) -> None:
    """Allocated under one stream, used on another, then the first one gets the memory again."""
    ticket, seed = program.leave(600)
    first, second = program.device.compute, program.device.new_stream()
    program.world.advance(1e6)
    token = prefetch(ticket)
    program.device.compute = second
    program.come(token, seed)
    program.device.compute = first
    program.compute(600)


PROGRAMS = (reload_at_once, memory_reused_at_once, extent_reused_at_once, token_dropped_at_once, used_on_another_stream)


def wait_is_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedDevice, "wait", lambda self, stream, event: None)


def join_is_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamCopy, "join", lambda self: None)


def staged_join_is_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(staged_carrier._Fetched, "join", lambda self: self.job.wait())


def sources_are_dropped(patch: pytest.MonkeyPatch) -> None:
    send = Engine._send

    def send_and_forget(self: Engine, *args: object) -> None:
        send(self, *args)  # type: ignore[arg-type]
        self._leaving[-1].source = torch.empty(0)

    patch.setattr(Engine, "_send", send_and_forget)


def extents_do_not_cool(patch: pytest.MonkeyPatch) -> None:
    take = host._take_from
    patch.setattr(host, "_take_from", lambda *args: (e := take(*args)) and replace(e, after=()))


def reload_does_not_await_the_copy_out(patch: pytest.MonkeyPatch) -> None:
    fetch = PinnedCarrier.fetch

    def fetch_early(self: PinnedCarrier, parcel: object, target: torch.Tensor) -> object:
        sent, parcel.sent = parcel.sent, StreamCopy(self._device, self._device.record(self._in))  # type: ignore[attr-defined]
        try:
            return fetch(self, parcel, target)  # type: ignore[arg-type]
        finally:
            parcel.sent = sent  # type: ignore[attr-defined]

    patch.setattr(PinnedCarrier, "fetch", fetch_early)


def targets_are_dropped(patch: pytest.MonkeyPatch) -> None:
    def finish(self: Reload) -> bool:
        self.landed = self.ticket = None
        return True

    patch.setattr(engine_module.Reload, "finish", finish)


def nothing_is_lent(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedDevice, "lend", lambda self, tensor, stream: None)


def staging_is_not_awaited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(staged_carrier._Lane, "finish", lambda self, half: None)


HOST_BREAKS = (
    (wait_is_nothing, reload_at_once),
    (join_is_nothing, reload_at_once),
    (sources_are_dropped, memory_reused_at_once),
    (extents_do_not_cool, extent_reused_at_once),
    (reload_does_not_await_the_copy_out, reload_at_once),
    (targets_are_dropped, token_dropped_at_once),
    (nothing_is_lent, used_on_another_stream),
)
DISK_BREAKS = (
    (wait_is_nothing, reload_at_once),
    (staged_join_is_nothing, reload_at_once),
    (targets_are_dropped, token_dropped_at_once),
    (nothing_is_lent, used_on_another_stream),
    (staging_is_not_awaited, reload_at_once),
)


@pytest.mark.parametrize("store", ["host", "disk"])
@pytest.mark.parametrize("run", PROGRAMS)
def test_sound_as_it_is(store: str, run: Callable[[Program], None]) -> None:
    for seed in range(10):
        program = Program(random.Random(seed), store)
        run(program)
        program.finish()
        program.assert_sound()
        program.assert_nothing_held()


@pytest.mark.parametrize(("store", "broken", "run"), [("host", *b) for b in HOST_BREAKS] + [("disk", *b) for b in DISK_BREAKS])
def test_each_guard_is_needed(
    store: str, broken: Break, run: Callable[[Program], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    program = Program(random.Random(0), store)
    run(program)
    program.finish()
    assert program.world.races


def test_wrong_bytes_are_found() -> None:
    """The second, independent witness: the content itself."""
    program = Program(random.Random(0))
    ticket, seed = program.leave(600)
    program.come(prefetch(ticket), seed + 1 if program.sizes.setdefault(seed + 1, 600) else seed)
    program.finish()
    assert program.world.wrong == [f"the value of seed {seed + 1}"]
    assert program.world.races == []
