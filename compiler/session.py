"""What memopt knows of one compiled model: its plan, its captured graphs, and what the user was told."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from ..passes.policy import Plan
from ..runtime.registry import tidy
from . import match_record, torch_bridge
from .cache_key import cache_key
from .capture import Capture, capture, same_autocast
from .clock import Clock
from .errors import MemoptWarning
from .explain.unapplied import eager, unapplied
from .layer_names import name_modules
from .lowering import Backend, kernels_of, lower, reuses_held_memory, split_only
from .pipeline import snapshot
from .plan.paths import normalise_path
from .ranks.agreement import Agreement


@dataclass(frozen=True)
class Place:
    """The layer that is running, where each is compiled by itself.

    Attributes:
        layer: its number.
        module: the layer.
        stands_for: the number by which graphs and cache keys name it: that of the first layer of its group.
        moves: what it was given may be swapped with it.
        repeated: what it was given is saved by another layer too; None where that is not to be judged.
    """

    layer: int
    module: nn.Module
    stands_for: int
    moves: bool = False
    repeated: bool | None = None


class PolicyNotApplied(RuntimeError):
    """With ``strict=True``: a part of the configuration had no effect on what was compiled."""


@dataclass(eq=False, repr=False)
class Session:
    """The torch.compile backend for one model, and its memory.

    Attributes:
        plan: which rule holds in which layer.
        backend: what lowers the two graphs.
        options: inductor's options, if any.
        lowers: False to split only, and run the graphs as they are.
        captures: the graphs seen so far.
        runs: how often a captured graph has run.
        calls: how often the model was called.
        said: every warning given so far, once each.
        agreement: how the ranks of a process group agree about collectives; None to compare with nobody.
        news: how often a graph was captured, or ran for a layer that it had not run for.
        order: the graphs that the latest call ran, in order, each with the number of the call.
        ran_eagerly: whether a call has run no captured graph.
    """

    model: nn.Module
    plan: Plan
    backend: Backend
    options: dict[str, Any] | None = None
    lowers: bool = True
    captures: list[Capture] = field(default_factory=list)
    runs: int = 0
    calls: int = 0
    said: list[str] = field(default_factory=list)
    ran_eagerly: bool = False
    agreement: Agreement | None = None
    news: int = 0
    order: list[tuple[int, Capture]] = field(default_factory=list)
    _names: dict[int, str] = field(default_factory=dict)
    _here: threading.local = field(default_factory=threading.local)
    _clock: Clock = field(default_factory=Clock)

    def __call__(self, graph: GraphModule, inputs: Sequence[Any], **_: Any) -> torch_bridge.Compiled:
        """Compile one captured graph: what torch.compile calls."""
        place = self.place
        if place is None:
            root, paths = self.model, {layer.path: layer.index for layer in self.plan.layers}
        else:
            root, paths = place.module, {"": place.stands_for}
        with self._clock.measure("record"):
            tensors = _tensors(root)
            if place is not None:
                name_modules(graph, inputs, root, tensors)
            moves = place is not None and place.moves
            seen = capture(len(self.captures), graph, inputs, paths, tensors, is_layer=place is not None, inputs_move=moves)
            key = cache_key(self.plan, graph, seen.layer_of_path, seen.layer_inputs if moves else ())
        partition = self._partition(seen)
        if self.lowers:
            swaps = self.plan.swap is not None and seen.trains
            compare = functools.partial(self._split_and_agree, seen, partition)
            spares = not self.plan.is_empty and seen.trains
            how = {"copies_in_background": swaps, "spares_memory": spares}
            compiled = lower(self.backend, graph, inputs, compare, key, self.options, **how)
        else:
            compiled = split_only(self.backend, graph, inputs, partition, self.options)
        self.captures.append(seen)
        self.news += 1
        if seen.rewritten is not None:
            match_record.write(key, seen.rewritten.matched, seen.steps, seen.keeps_result)
        elif seen.trains:
            self._recall(seen, key)
            self._agree(seen)

        def run(*args: Any) -> Any:
            self.runs += 1
            seen.call = self.calls
            self._note_run(seen)
            here = self.place
            if here is not None:
                self.news += seen.serve(here.layer, self.calls, repeated=here.repeated)
                self._here.ran.append(seen)
            if seen.root != "" and seen.key_input is not None:
                self.news += self._note_root(seen, args)
            return compiled(*args)

        return run

    @property
    def place(self) -> Place | None:
        """The layer that is running in this thread, where each is compiled by itself."""
        place: Place | None = getattr(self._here, "place", None)
        return place

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[list[Capture]]:
        """Within, the layer is running. Yields the graphs that ran for it, as they do."""
        before = getattr(self._here, "place", None), getattr(self._here, "ran", [])
        ran: list[Capture] = []
        self._here.place, self._here.ran = place, ran
        try:
            yield ran
        finally:
            self._here.place, self._here.ran = before

    def _note_run(self, seen: Capture) -> None:
        if torch_bridge.is_in_backward():
            return  # a checkpoint runs it again
        if not self.order or self.order[0][0] != self.calls:
            self.order.clear()
        self.order.append((self.calls, seen))

    def _note_root(self, seen: Capture, args: Sequence[Any]) -> bool:
        """Note for which module the graph of an inner module runs now; whether that is new."""
        assert seen.key_input is not None
        place, path = seen.key_input
        name = self._names.get(id(args[place]))
        if name is None:
            self._names = {number: name for name, number in _tensors(self.model).items()}
            name = self._names.get(id(args[place]), "")
        root = name.removesuffix(path).removesuffix(".") if name.endswith(path) else None
        if root is None or root in seen.ran_for:
            return False
        seen.ran_for.add(root)
        return True

    def rewritten(self, seen: Capture) -> Capture:
        """The capture with its graphs: made again, without lowering, where torch's cache had spared making them."""
        if seen.rewritten is None and seen.trains and seen.graph is not None and seen.inputs is not None:
            with torch.enable_grad(), same_autocast(seen):
                split_only(self.backend, snapshot(seen.graph), seen.inputs, self._partition(seen), self.options)
        return seen

    def tidy(self) -> None:
        """Free what has left, at the end of a forward: else it is there until the backward's first reload."""
        if self.plan.swap is not None:
            tidy()

    def _partition(self, seen: Capture) -> torch_bridge.Partition:
        asynchronous, kernels = not reuses_held_memory(self.backend), kernels_of(self.backend)
        return functools.partial(seen.rewrite, self.plan, asynchronous=asynchronous, kernels_of=kernels)

    def _split_and_agree(self, seen: Capture, partition: torch_bridge.Partition, *args: Any, **kwargs: Any) -> Any:
        """Split, and compare with the other ranks before the lowering, which may take long."""
        pair = partition(*args, **kwargs)
        self._agree(seen)
        return pair

    def _agree(self, seen: Capture) -> None:
        if self.agreement is not None:
            with self._clock.measure("agree"):
                self.agreement.reach(self.plan, seen.steps)

    def seconds(self) -> dict[str, float]:
        """Wall time spent so far, by part; ``torch`` is what torch's partitioner takes without memopt too."""
        total = dict(self._clock.seconds)
        for seen in self.captures:
            for part, spent in (seen.rewritten.seconds if seen.rewritten else {}).items():
                total[part] = total.get(part, 0.0) + spent
        return total

    def _recall(self, seen: Capture, key: str) -> None:
        record = match_record.read(key)
        if record is not None:
            seen.met, seen.effective = record.met, record.effective
            seen.ineffective, seen.warnings = record.ineffective, record.warnings
            seen.steps, seen.keeps_result = record.steps, record.keeps_result
        else:
            self.rewritten(seen)
            seen.trains = seen.rewritten is not None  # without a joint graph, no output needs a gradient

    def __repr__(self) -> str:
        return f"memopt({self.backend!r})"

    def say(self, texts: Sequence[str], *, stacklevel: int = 3) -> None:
        """Warn about each text once; with ``strict`` raise instead, now and at every later call."""
        new = [t for t in dict.fromkeys(texts) if t not in self.said]
        self.said += new
        if self.plan.strict:
            self.refuse()
        for text in new:
            warnings.warn(text, MemoptWarning, stacklevel=stacklevel)

    def refuse(self) -> None:
        """Raise PolicyNotApplied if, with ``strict``, there ever was something to say."""
        if self.plan.strict and self.said:
            raise PolicyNotApplied("\n".join(self.said))

    def after_capture(self, breaks: Sequence[str]) -> None:
        """Tell the user what the graphs captured so far say about the configuration."""
        self.say([*self.found_in_graphs(), *unapplied(self.plan, self.captures, breaks)], stacklevel=5)

    def after_eager(self, breaks: Sequence[str]) -> None:
        """Tell the user, once, that a call ran no compiled graph."""
        if not self.ran_eagerly:
            self.ran_eagerly = True
            self.say([eager(self.plan, breaks)], stacklevel=5)

    def found_in_graphs(self) -> list[str]:
        """What rewriting the graphs gave cause to say."""
        return [text for seen in self.captures for text in seen.warnings]


def _tensors(model: nn.Module) -> dict[str, int]:
    return {normalise_path(name, model): id(p) for name, p in model.named_parameters(remove_duplicate=False)}
