"""Random programs on the simulated device: values come back bit by bit, nothing races, nothing is held in the end."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from memopt.runtime.errors import SwapError
from memopt.runtime.ops import prefetch
from simulated_device import Actor
from simulated_program import SLAB, Program

ACTIONS = (
    "forward",
    "forward",
    "backward",
    "prefetch",
    "prefetch",
    "come",
    "come",
    "compute",
    "compute",
    "drop ticket",
    "drop token",
    "other stream",
    "other stream",
    "let time pass",
)
SIZES = (64, 513, 3000, SLAB)


class Run:
    """What a program holds while it runs."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.streams: list[Actor] = [program.device.compute, program.device.new_stream()]
        self.tickets: list[tuple[torch.Tensor, int]] = []
        self.tokens: list[tuple[torch.Tensor, int]] = []

    def do(self, action: str) -> None:
        program, chance = self.program, self.program.chance
        nbytes = chance.choice(SIZES)
        if action == "forward":
            for _ in range(chance.randint(1, 4)):
                with suppress(SwapError):  # a full disk: the program goes on without this value
                    self.tickets.append(program.leave(nbytes, asynchronous=chance.random() < 0.8))
        elif action == "backward" and self.tickets:
            # Last out, first in; the reload of the next is under way before this one is used.
            order = list(reversed(self.tickets))
            tokens = [self.prefetch(*order[0])]
            for i in range(len(order)):
                tokens += [self.prefetch(*entry) for entry in order[i + 1 : i + 2]]
                self.come(tokens[i])
                tokens[i] = None
            if chance.random() < 0.7:
                self.tickets.clear()
        elif action == "prefetch" and self.tickets:
            self.tokens.append(self.prefetch(*chance.choice(self.tickets)))
        elif action == "come" and self.tokens:
            self.come(self.tokens.pop(chance.randrange(len(self.tokens))))
        elif action == "compute":
            program.compute(nbytes)
        elif action == "drop ticket" and self.tickets:
            self.tickets.pop(chance.randrange(len(self.tickets)))
        elif action == "drop token" and self.tokens:
            self.tokens.pop(chance.randrange(len(self.tokens)))
        elif action == "other stream":
            program.device.compute = chance.choice(self.streams)
        elif action == "let time pass":
            program.world.advance(program.world.now + chance.choice((1.0, 100.0)))

    def prefetch(self, ticket: torch.Tensor, seed: int) -> tuple[torch.Tensor, int] | None:
        return prefetch(ticket), seed

    def come(self, token: tuple[torch.Tensor, int] | None) -> None:
        assert token is not None
        self.program.come(*token)
        self.program.compute(self.program.chance.choice(SIZES))


@pytest.mark.parametrize("store", ["host", "disk"])
@settings(max_examples=300, derandomize=True)
@given(
    actions=st.lists(st.sampled_from(ACTIONS), min_size=10, max_size=50),
    seed=st.integers(0, 2**32),
    in_flight_bytes=st.sampled_from((0, 1000, 5000, 1 << 30)),
    host_limit=st.sampled_from((None, 0, SLAB, 3 * SLAB)),
    disk_limit=st.sampled_from((4096, 1 << 30)),
)
def test_any_schedule(
    store: str, actions: list[str], seed: int, in_flight_bytes: int, host_limit: int | None, disk_limit: int
) -> None:
    program = Program(random.Random(seed), store, in_flight_bytes, host_limit, disk_limit)
    run = Run(program)
    for action in actions:
        run.do(action)
    program.assert_sound()
    assert program.engine.counters().in_flight_bytes <= max(in_flight_bytes, max(SIZES))
    run.tickets.clear()
    run.tokens.clear()
    program.finish()
    program.assert_sound()
    program.assert_nothing_held()
