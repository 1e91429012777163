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

from .engine import Reload, Stored
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
        begins = False
        if current is None:  # the layer is called by itself: a new pass begins where the layers do
            current = getattr(self._local, "loose", None)
            begins = current is None or layer <= current.last_layer
            if current is None or begins:
                current = self._local.loose = Pass(self.ahead)
        call = current.open(layer, is_first=begins)
        before = getattr(_running, "call", None)
        _running.call = call
        try:
            yield call
        finally:
            _running.call = before


class Pass:
    """The calls of one forward of a model, and the reloads that wait for their turn in its backward.

    A call holds its pass, and the hooks on what it returned hold the call: the pass holds neither, so that nothing outlives the
    graph.
    """

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.last_layer = -1
        self._calls: list[ref[Call]] = []
        self._returned: dict[int, tuple[ref[torch.Tensor], ref[Call]]] = {}
        self._given: dict[int, ref[torch.Tensor]] = {}
        self._queue: deque[ref[Handle]] = deque()
        self._credit = 0
        self._begun: int | None = None
        self._lock = threading.RLock()

    def open(self, layer: int, *, is_first: bool) -> Call:
        """A new call, the latest."""
        call = Call(self, len(self._calls), is_first=is_first)
        self._calls.append(ref(call))
        self.last_layer = layer
        return call

    def begin_backward(self, number: int) -> None:
        """The backward of a call begins: issue what should have been, and go on with the calls that come next but ``ahead``."""
        with self._lock:
            if number == self._begun:  # what it returned has several functions in the graph
                return
            self._begun = number
            self._issue(len(self._queue))
            self._credit = 0
            for earlier in reversed(self._calls[max(number - self.ahead, 0) : number]):
                if (call := earlier()) is not None:
                    self._queue.extend(reversed(call.left))
            own = self._calls[number]()
            self._issue(1 if own is not None and own.left else len(self._queue))

    def used(self, nbytes: int) -> None:
        """A call's backward has begun to use so many bytes that came back, and will free them."""
        with self._lock:
            self._credit += nbytes
            while self._queue:
                stored = _stored(self._queue[0])
                if stored is None or stored.early is not None:
                    self._queue.popleft()
                elif stored.parcel.nbytes <= self._credit:
                    self._credit -= stored.parcel.nbytes
                    self._issue(1)
                else:
                    return

    def _issue(self, count: int) -> None:
        while count and self._queue:
            handle = self._queue.popleft()
            held = handle()  # the ticket is not let go while its reload begins
            stored = _stored(handle)
            if held is not None and stored is not None and stored.early is None:
                _prefetch_early(stored)
                count -= 1


class Call:
    """One call of a layer.

    Attributes:
        is_first: whether it begins a pass by itself, outside a forward of the model.
        left: what left in it, in that order.
        keeps_result: whether its graph saves what it returned, which is then in memory for its sake too.
    """

    def __init__(self, owner: Pass, number: int, *, is_first: bool) -> None:
        self.is_first = is_first
        self.left: list[ref[Handle]] = []
        self.keeps_result = False
        self._owner = owner
        self._number = number

    @property
    def is_watched(self) -> bool:
        """Whether anything is to be issued ahead."""
        return self._owner.ahead > 0

    def given(self, tensor: torch.Tensor) -> tuple[bool, bool]:
        """Take note of what the call was given.

        Returns:
            Whether it is what an earlier call returned and nobody else saves; whether another call of this pass saves it too.
        """
        number = id(tensor)
        before = self._owner._given.get(number)
        again = before is not None and before() is tensor
        found, maker = self._owner._returned.get(number, (None, None))
        source = maker() if maker is not None and found is not None and found() is tensor else None
        self._owner._given[number] = ref(tensor)
        kept = source is not None and source.keeps_result
        return source is not None and not kept and not again, again or kept

    def watch(self, results: Iterable[torch.Tensor]) -> None:
        """Take note of what the call returned, and of when its backward begins."""
        nodes = set()
        for result in results:
            self._owner._returned[id(result)] = ref(result), ref(self)
            if result.grad_fn is not None:
                nodes.add(result.grad_fn)
        for node in nodes:
            # The hook keeps the call alive, for as long as its backward may come.
            node.register_prehook(self._begin)

    def used(self, nbytes: int) -> None:
        """See Pass."""
        self._owner.used(nbytes)

    def _begin(self, _gradients: object) -> None:
        if self.is_watched:
            self._owner.begin_backward(self._number)


def _prefetch_early(stored: Stored) -> None:
    reload = stored.early = Reload(stored)
    try:
        stored.engine.prefetch(reload)
    except BaseException:
        reload.let_go()
        stored.early = None
        raise


def _stored(handle: ref[Handle]) -> Stored | None:
    found = handle()
    return found.owned if found is not None and isinstance(found.owned, Stored) else None


def note(handle: Handle | None) -> None:
    """Note that what ``handle`` owns has left in the call that is running, if any."""
    call: Call | None = getattr(_running, "call", None)
    if call is not None and call.is_watched and handle is not None and isinstance(handle.owned, Stored):
        handle.owned.used = call.used
        call.left.append(ref(handle))
