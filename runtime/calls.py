"""The calls of layers in their order, where each layer is compiled by itself: what tells when the reloads of another begin.

::

    forward    layer 0   layer 1   layer 2      each call notes the tickets of what left in it
    backward   layer 2 begins: reloads of layer 1 are issued (default_prefetch: 1), the first at once, each
               further one when layer 2 has used as many bytes of its own

Only time depends on this: a reload that was not issued here begins where the graph asks for it, and counts as late.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from weakref import ref

import torch

from .engine import Stored
from .tickets import Handle

_running = threading.local()


class Calls:
    """The passes of one model.

    Attributes:
        ahead: ``default_prefetch``: so many calls of layers before its own backward, a call's reloads begin.
    """

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self._local = threading.local()

    @contextlib.contextmanager
    def new_pass(self) -> Iterator[None]:
        """Within, the calls belong to one forward of the model."""
        before = getattr(self._local, "current", None)
        self._local.current = Pass(self.ahead)
        try:
            yield
        finally:
            self._local.current = before

    @property
    def is_in_pass(self) -> bool:
        """Whether a forward of the model is running, and not a layer by itself."""
        return getattr(self._local, "current", None) is not None

    @contextlib.contextmanager
    def call(self, layer: int) -> Iterator[Call]:
        """Within, what leaves belongs to this call of the layer."""
        current: Pass | None = getattr(self._local, "current", None)
        if current is None:  # the layer is called by itself: a new pass begins where the layers do
            current = getattr(self._local, "loose", None)
            if current is None or layer <= current.last_layer:
                current = self._local.loose = Pass(self.ahead)
        call = current.open(layer)
        before = getattr(_running, "call", None)
        _running.call = call
        try:
            yield call
        finally:
            _running.call = before


class Pass:
    """The calls of one forward of a model, and the reloads that wait for their turn in its backward."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.last_layer = -1
        self._calls: list[Call] = []
        self._queue: deque[ref[Handle]] = deque()
        self._credit = 0
        self._lock = threading.RLock()

    def open(self, layer: int) -> Call:
        """A new call, the latest."""
        call = Call(self, len(self._calls))
        self._calls.append(call)
        self.last_layer = layer
        return call

    def begin_backward(self, number: int) -> None:
        """The backward of a call begins: issue what should have been, and go on with the calls that come next but ``ahead``."""
        with self._lock:
            self._issue(len(self._queue))
            self._credit = 0
            for earlier in reversed(self._calls[max(number - self.ahead, 0) : number]):
                self._queue.extend(reversed(earlier.left))
            self._issue(1 if self._calls[number].left else len(self._queue))

    def used(self, nbytes: int) -> None:
        """A call's backward has begun to use so many bytes that came back, and will free them."""
        with self._lock:
            self._credit += nbytes
            while self._queue:
                handle = self._queue[0]()
                size = handle.owned.parcel.nbytes if handle is not None and isinstance(handle.owned, Stored) else 0
                if size > self._credit:
                    return
                self._credit -= size
                self._issue(1)

    def _issue(self, count: int) -> None:
        while count and self._queue:
            handle = self._queue.popleft()()
            stored = handle.owned if handle is not None else None
            if isinstance(stored, Stored) and stored.early is None:
                stored.early = stored.engine.prefetch(stored, None)
                count -= 1


class Call:
    """One call of a layer.

    Attributes:
        left: what left in it, in that order.
    """

    def __init__(self, owner: Pass, number: int) -> None:
        self.left: list[ref[Handle]] = []
        self._owner = owner
        self._number = number

    @property
    def is_watched(self) -> bool:
        """Whether anything is to be issued ahead."""
        return self._owner.ahead > 0

    def watch(self, results: Iterable[object]) -> None:
        """Take note when the backward of the call begins, which returned ``results``."""
        if not self.is_watched:
            return
        for node in {r.grad_fn for r in results if isinstance(r, torch.Tensor) and r.grad_fn is not None}:
            node.register_prehook(self._begin)

    def _begin(self, _gradients: object) -> None:
        self._owner.begin_backward(self._number)

    def used(self, nbytes: int) -> None:
        """See Pass."""
        self._owner.used(nbytes)


def note(handle: Handle | None) -> Call | None:
    """Note that something left in the call that is running; that call, if any."""
    call: Call | None = getattr(_running, "call", None)
    if call is not None and handle is not None and call.is_watched:
        call.left.append(ref(handle))
        return call
    return None
