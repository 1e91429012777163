"""A thread that copies, and the copies it was given."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from .errors import WorkerDied

_CHECK_SECONDS = 0.5
"""How often one who waits looks whether the thread is still there."""


class Job:
    """A copy that a worker was given.

    What the job refers to is let go before it ends, so that tensors are freed by those who wait and not by the worker.
    """

    def __init__(self, work: Callable[[], None], thread: threading.Thread) -> None:
        self._work: Callable[[], None] | None = work
        self._thread = thread
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._begins = threading.Lock()

    def run(self) -> None:
        """Do the work, unless it was cancelled; whatever it raises is kept for those who wait."""
        with self._begins:
            work, self._work = self._work, None
        if work is None:
            return
        try:
            work()
        except BaseException as error:
            # Those who wait raise an error of their own; the traceback would keep the work's tensors alive.
            self._error = error.with_traceback(None)
            self._error.__context__ = None
        del work
        self._done.set()

    def cancel(self) -> None:
        """Have it never done; if it has begun, wait for its end."""
        with self._begins:
            work, self._work = self._work, None
        if work is not None:
            self._done.set()
        self.wait()

    def ended(self) -> bool:
        """Whether the work has ended, well or not, or never will."""
        return self._done.is_set() or self._is_lost()

    def wait(self) -> None:
        """Return when the work has ended, well or not, or never will."""
        while not self._done.wait(_CHECK_SECONDS):
            if self._is_lost():
                return

    join = wait

    def failure(self) -> BaseException | None:
        """What the work raised, or WorkerDied; None if all went well or is still to be done."""
        if self._is_lost():
            return WorkerDied(f"the thread that copies ({self._thread.name}) has died")
        return self._error

    def _is_lost(self) -> bool:
        # In this order: a thread that has just ended may have done the work last.
        return not self._thread.is_alive() and not self._done.is_set()


class Worker:
    """One daemon thread, started with the first job; a new one if it has died."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()

    def submit(self, work: Callable[[], None], note: Callable[[Job], object] = lambda _: None) -> Job:
        """Have ``work`` done after all that was submitted before. The owner locks.

        ``note`` is told of the job before it can begin. If anything is raised here, the job does not run any more.
        """
        if self._thread is None or not self._thread.is_alive():
            self._jobs = SimpleQueue()
            self._thread = threading.Thread(target=_serve, args=(self._jobs,), name=self._name, daemon=True)
            self._thread.start()
        job = Job(work, self._thread)
        try:
            note(job)
            self._jobs.put(job)
        except BaseException:
            job.cancel()
            raise
        return job

    def stop(self, seconds: float = 0.0) -> None:
        """Let the thread end after what was submitted, and wait up to ``seconds`` for that."""
        if self._thread is not None and self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(seconds)


def _serve(jobs: SimpleQueue[Job | None]) -> None:
    while True:
        job = jobs.get()
        if job is None:
            return
        job.run()
        del job  # while waiting for the next one, hold nothing
