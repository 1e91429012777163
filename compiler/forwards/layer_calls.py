"""What became of the layers that are compiled by themselves, in one call of the model after another, and what to say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ..explain.unapplied import broken, eager, frozen, ruled_layers, unapplied, uncalled
from ..session import Session

_PATIENCE = 3
"""So many calls of the model may pass before a layer that none of them called is told."""


_LONG_PATIENCE = 20
"""The same for a layer that was called before: it may have been replaced since."""


@dataclass
class LayerCalls:
    """The layers that ran in the latest call of the model, by how they ran.

    Attributes:
        ran: those whose forward was called.
        eager: those that ran no captured graph.
        broken: those whose graph breaks inside, so that they ran as several graphs, or in part eagerly.
        told: what the user heard already: which of these it was, and the layer.
        counts: how often each module ran.
        trained: those that ever ran with gradients.
        ever: those that ever ran.
        passes: how often the model was called with gradients.
        last: for each layer, the latest of these calls in which it ran.
    """

    ran: set[int] = field(default_factory=set)
    eager: set[int] = field(default_factory=set)
    broken: set[int] = field(default_factory=set)
    told: set[tuple[str, int]] = field(default_factory=set)
    counts: Counter[int] = field(default_factory=Counter)
    trained: set[int] = field(default_factory=set)
    ever: set[int] = field(default_factory=set)
    passes: int = 0
    last: dict[int, int] = field(default_factory=dict)

    def begin(self) -> None:
        """A new call begins."""
        self.ran.clear()
        self.eager.clear()
        self.broken.clear()
        self.counts.clear()

    def count(self, first: int) -> int:
        """How often the module whose first place is this one had run in this call; it runs once more."""
        self.counts[first] += 1
        return self.counts[first] - 1

    def note(self, layer: int, graphs: int, *, breaks: bool) -> None:
        """Take note that a layer ran, as so many graphs; ``breaks``: torch broke one there."""
        self.ran.add(layer)
        self.ever.add(layer)
        if not torch.is_grad_enabled():
            return
        self.trained.add(layer)
        if graphs == 0:
            self.eager.add(layer)
        elif graphs > 1 or breaks:
            self.broken.add(layer)

    def say(self, session: Session, breaks: Callable[[], list[str]], *, is_news: bool, is_whole: bool) -> None:
        """Tell the user what the call showed, each thing once.

        Args:
            session: who speaks.
            breaks: torch's reasons for the graph breaks in the call.
            is_news: a graph was captured in the call, or ran for a layer that it had not run for.
            is_whole: the model was called, not a layer by itself.
        """
        ruled = ruled_layers(session.plan)
        elsewhere = {i for kind, i in self.told if kind == "shared"}
        self.passes += is_whole and torch.is_grad_enabled()
        for layer in self.ran:
            self.last[layer] = self.passes
        gone = {layer for layer in self.ever if self.passes - self.last.get(layer, self.passes) >= _LONG_PATIENCE}
        absent = ruled - (self.ever - gone) - elsewhere
        # Not at once, where others run: layers may be skipped by chance.
        is_due = is_whole and torch.is_grad_enabled() and (self.passes >= _PATIENCE or not self.ran)
        missing = absent if is_due else set()
        with_backward = {i for seen in session.captures if seen.trains for i in seen.named_layers()}
        found = {
            "eager": self.eager & ruled,
            "broken": self.broken & ruled,
            "uncalled": missing,
            "frozen": ruled & self.ran & self.trained - self.eager - with_backward,
        }
        new = {kind: tuple(sorted(i for i in layers if (kind, i) not in self.told)) for kind, layers in found.items()}
        if not is_news and not any(new.values()):
            return
        self.told |= {(kind, i) for kind, layers in new.items() for i in layers}
        reasons = breaks()
        texts = session.found_in_graphs() if is_news else []
        if new["uncalled"]:
            texts.append(uncalled(session.plan, new["uncalled"]))
        if new["eager"]:
            texts.append(eager(session.plan, reasons, new["eager"]))
        if new["frozen"]:
            texts.append(frozen(session.plan, new["frozen"]))
        if new["broken"]:
            texts.append(broken(session.plan, session.captures, reasons, new["broken"]))
        if is_news:
            # What is called layer by layer is not whole before all were.
            absent = absent if is_whole else ruled - self.trained
            told = {i for kind, i in self.told if kind != "uncalled"} | absent
            texts += unapplied(session.plan, session.captures, reasons, told, is_alone=True)
        session.say(texts, stacklevel=5)


def first_differentiable(args: Any, kwargs: Any) -> torch.Tensor | None:
    """The first tensor that needs a gradient among what a layer is given."""
    leaves = tree_leaves((args, kwargs))
    return next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad), None)


def new_tensors(result: Any, given: Any) -> Iterator[torch.Tensor]:
    """The tensors in what a layer returned, without those that it was given and returned as they were."""
    known = {id(leaf) for leaf in tree_leaves(given)}
    return (tensor for tensor in _tensors_in(result, set()) if id(tensor) not in known)


def _tensors_in(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """The tensors in nested results, dataclasses among them, which may lead back to themselves."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif is_dataclass(leaf) and not isinstance(leaf, type) and id(leaf) not in seen:
            seen.add(id(leaf))
            yield from _tensors_in([getattr(leaf, part.name, None) for part in fields(leaf)], seen)
