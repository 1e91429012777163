from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import torch
from memopt.runtime.callers import StreamCaller
from swapping import OPS, offload, settled, wait_like


def test_threads_that_train_side_by_side(tmp_path: Path) -> None:
    before = settled()

    def train(number: int) -> None:
        for step in range(60):
            values = [torch.full((500 + 300 * i,), float(1000 * number + step)) for i in range(3)]
            tickets = [offload(v, tmp_path, in_flight_bytes=4000) for v in values]
            if step % 4 == 0:
                continue
            tokens = [OPS.prefetch(t) for t in tickets]
            for token, value in zip(tokens, values, strict=True):
                assert torch.equal(wait_like(token, value), value)

    with ThreadPoolExecutor(6) as threads:
        for result in [threads.submit(train, i) for i in range(6)]:
            result.result()
    after = settled()
    assert (after.disk_bytes, after.live_tickets) == (before.disk_bytes, before.live_tickets)
    assert after.in_flight_bytes == 0
    counted = after - before
    assert counted.offloads == 6 * 60 * 3
    assert counted.prefetches == 6 * 45 * 3


def test_forward_in_one_thread_and_backward_in_another(tmp_path: Path) -> None:
    passed: SimpleQueue[tuple[torch.Tensor, torch.Tensor] | None] = SimpleQueue()
    wrong: list[int] = []

    def backward() -> None:
        while (item := passed.get()) is not None:
            ticket, value = item
            if not torch.equal(wait_like(OPS.prefetch(ticket), value), value):
                wrong.append(1)

    thread = threading.Thread(target=backward)
    thread.start()
    for i in range(200):
        value = torch.full((700,), float(i))
        passed.put((offload(value, tmp_path), value))
    passed.put(None)
    thread.join()
    assert wrong == []


def test_one_token_for_two_threads_is_given_to_one() -> None:
    for _ in range(30):
        value = torch.randn(2000)
        token = OPS.prefetch(offload(value))
        start = threading.Barrier(2)

        def take(start: threading.Barrier = start, token: torch.Tensor = token, value: torch.Tensor = value) -> bool:
            start.wait()
            try:
                return torch.equal(wait_like(token, value), value)
            except RuntimeError:
                return False

        with ThreadPoolExecutor(2) as threads:
            results = [threads.submit(take) for _ in range(2)]
            assert sorted(r.result() for r in results) == [False, True]


def test_waits_of_several_threads_are_each_counted_once() -> None:
    class Ended:
        def query(self) -> bool:
            return True

    class Instant:
        """A device on which a wait takes a second, and nothing is slow."""

        def current_stream(self) -> int:
            return 0

        def record(self, *_: object, **__: object) -> Ended:
            return Ended()

        def seconds_between(self, *_: object) -> float:
            time.sleep(0)
            return 1.0

    class Going:
        def ended(self) -> bool:
            return False

        def join(self) -> None:
            time.sleep(0)

    caller = StreamCaller(Instant())  # type: ignore[arg-type]

    def train(_: int) -> None:
        for _ in range(200):
            caller.join(Going(), torch.empty(0), 0)  # type: ignore[arg-type]
            caller.settle()

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(train, range(6)))
    assert (caller.late, caller.seconds_waited) == (1200, 1200.0)
