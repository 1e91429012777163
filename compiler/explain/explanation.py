"""What was decided, and why, with bytes. Read-only: nothing here changes a graph that is lowered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch.fx import GraphModule, Node

from ...passes.joint import JointGraph, is_recomputed
from ...passes.policy import Action
from ...passes.sizes import Known, nbytes, size_hint
from ...passes.swap.targets import OFFLOAD
from ...passes.verify import computed_again, saved_values
from ...passes.work import flops
from ..pipeline import Rewritten, split_without_memopt
from .collectives import CollectiveRow, collective_rows
from .shares import shares
from .table import render
from .totals import LayerTotal, bytes_given, saved_by_layer, summed
from .values import GIVEN, ValueRow, moved_row, state_row, value_row

if TYPE_CHECKING:
    from ..capture import Capture
    from ..session import Session


class GraphExplanation:
    """One captured graph: the decided joint graph, and the forward and backward that it was split into.

    Attributes:
        number: its place among the model's captured graphs.
        layers: where layers are compiled by themselves, those that ran this graph; else empty.
        joint: nodes carry their decision in ``node.meta["memopt"]``.
        forward: the forward graph, before the backend's own changes.
        backward: the backward graph, before the backend's own changes.
        facts: what passes know of the joint graph.
        journeys: the values that are swapped: when each leaves, and when it returns.
    """

    def __init__(
        self,
        number: int,
        rewritten: Rewritten,
        layers: tuple[int, ...] = (),
        ahead: int = 0,
        repeated: Collection[int] = (),
    ) -> None:
        """Make an explanation of a graph.

        Args:
            number: see Attributes.
            rewritten: what the pipeline made of it.
            layers: those that share the graph, where it is a layer's.
            ahead: reloads are issued so many layers before, where layers are compiled by themselves.
            repeated: those of the layers for which what they were given is another layer's to count.
        """
        self.number = number
        self.layers = layers
        self._repeated = frozenset(repeated)
        self._ahead = ahead
        self.joint: GraphModule = rewritten.joint.module
        self.forward = rewritten.forward
        self.backward = rewritten.backward
        self.facts = rewritten.joint
        self.journeys = rewritten.journeys
        self._journeys = {c.own.name: j for j in rewritten.journeys for c in j.move.crossings}

    @property
    def swaps(self) -> bool:
        """Whether a value leaves in it."""
        return bool(self._journeys)

    @cached_property
    def values(self) -> tuple[ValueRow, ...]:
        """One row per value that the backward needs, in the order of the forward."""
        joint = self.facts
        saved = saved_values(joint, self.forward)
        crossing = {own for _, own in saved if own is not None}
        again = _run_again(joint, self.backward)
        rows = []
        for node in joint.graph.nodes:
            if not isinstance(node.meta.get("val"), torch.Tensor):
                continue
            if node.name in self._journeys:
                row = value_row(self.number, node, joint, Action.OFFLOAD)
                rows.append(moved_row(row, self._journeys[node.name], node.name))
            elif node in crossing:
                rows.append(value_row(self.number, node, joint, Action.SAVE))
            elif node in again and joint.read_by_backward(node):
                rows.append(value_row(self.number, node, joint, Action.RECOMPUTE))
        states = (node for node, own in saved if own is None and node.target is not OFFLOAD)
        rows += [state_row(self.number, node) for node in states]
        if not self.layers:
            return tuple(rows)
        return tuple(self._row_of(row, layer) for layer in self.layers for row in rows)

    def _row_of(self, row: ValueRow, layer: int) -> ValueRow:
        """The row of one of the layers that share the graph."""
        if row.op == GIVEN and layer in self._repeated:
            return replace(row, layer=layer, bytes=0, reason="what the layer was given, which another layer saves too")
        if not row.store:
            return replace(row, layer=layer)
        return replace(row, layer=layer, leaves=layer, issued=layer + self._ahead, returns=layer)

    @cached_property
    def collectives(self) -> tuple[CollectiveRow, ...]:
        """One row per collective of the forward, in its order."""
        rows = tuple(collective_rows(self.number, self.facts, self.backward))
        return tuple(replace(row, layer=layer) for layer in self.layers for row in rows) if self.layers else rows

    @cached_property
    def totals(self) -> tuple[LayerTotal, ...]:
        """One entry per layer in this graph, and one for the rest."""
        return self.totals_at(size_hint)

    @cached_property
    def _split(self) -> GraphModule:
        """The forward as torch would have made it without memopt."""
        return split_without_memopt(self.facts)[0]

    def totals_at(self, known: Known) -> tuple[LayerTotal, ...]:
        """The totals for sizes that ``known`` tells."""
        joint = self.facts
        before, unknown_before = saved_by_layer(joint, self._split, known)
        after, unknown = saved_by_layer(joint, self.forward, known)
        count, work, unknown_work, moved = (Counter[int | None]() for _ in range(4))
        for node in _run_again(joint, self.backward):
            layer, spent = joint.layer_of(node), flops(node, known)
            count[layer] += 1
            work[layer] += spent or 0
            unknown_work[layer] += spent is None
        for move in {journey.move for journey in self._journeys.values()}:
            moved[joint.layer_of(move.value)] += nbytes(move.value.meta["val"], known) or 0
        parts = (before, after, count, work, unknown, moved, unknown_before, unknown_work)
        if self.layers:
            total = LayerTotal(None, *(sum(part.values()) for part in parts))
            given = [bytes_given(joint, forward, known) for forward in (self._split, self.forward)]
            less = replace(total, saved_before=total.saved_before - given[0], saved_after=total.saved_after - given[1])
            return tuple(replace(less if n in self._repeated else total, layer=n) for n in self.layers)
        layers = {*(n for part in parts for n in part), *(s.layer for s in joint.scopes.values())}
        return tuple(LayerTotal(n, *(part[n] for part in parts)) for n in sorted(layers, key=lambda n: (n is None, n or 0)))


class Explanation:
    """What was decided for a model, value by value; ``str()`` is a table for people.

    Torch compiles a model again for inputs of other sizes, in another mode, or where its attributes have changed. What is told
    here is the latest call: the variants that it did not run are in ``graphs`` only, each with its own values and totals.

    Attributes:
        graphs: the captured graphs that have a backward, in the order of capture.
        current: those among them that the latest call with gradients ran.
        warnings: everything the user was told about the configuration.
        shares: layer -> the share of its operators that lie in a graph that names it, so that its rules hold for them.
        layer_paths: layer -> its module path in the model.
        runs: the graphs with a backward in the order in which the latest call ran them; one that ran for several layers, as
            after graph breaks, stands there as often.
        is_whole: False where a trace had to stop before the model's end: everything told is of the part before.
    """

    def __init__(
        self,
        graphs: tuple[GraphExplanation, ...],
        warnings: tuple[str, ...],
        current: tuple[GraphExplanation, ...],
        shares: Mapping[int, float],
        layer_paths: Mapping[int, str],
        *,
        runs: tuple[GraphExplanation, ...] = (),
        is_whole: bool = True,
    ) -> None:
        self.graphs = graphs
        self.warnings = warnings
        self.current = current
        self.shares = shares
        self.layer_paths = layer_paths
        self.runs = runs or current
        self.is_whole = is_whole

    @property
    def values(self) -> tuple[ValueRow, ...]:
        """One row per value that the backward of the latest call needs, in the order of the forward."""
        return tuple(row for graph in self.current for row in graph.values)

    @property
    def collectives(self) -> tuple[CollectiveRow, ...]:
        """One row per collective that the forward of the latest call ran: its bytes, and whether the backward ran it again."""
        return tuple(row for graph in self.current for row in graph.collectives)

    @cached_property
    def totals(self) -> tuple[LayerTotal, ...]:
        """Per layer, summed over the graphs of the latest call: bytes saved before and after, what runs again."""
        return summed(graph.totals for graph in self.current)

    @property
    def saved_before(self) -> int:
        """Bytes of activations that plain ``torch.compile`` saves for backward."""
        return sum(t.saved_before for t in self.totals)

    @property
    def saved_after(self) -> int:
        """Bytes of activations saved for backward under the configuration, without what is swapped."""
        return sum(t.saved_after for t in self.totals)

    @property
    def swapped(self) -> int:
        """Bytes of activations that leave in the forward, and return in the backward."""
        return sum(t.swapped for t in self.totals)

    def __str__(self) -> str:
        return render(self)


def explain_session(session: Session, *, is_whole: bool = True) -> Explanation:
    """Explain what a session has captured; what torch's compile cache spared is derived again, without lowering.

    ``is_whole``: the model was captured to its end.
    """
    seen = [session.rewritten(c) for c in session.captures if c.trains]
    latest = max((c.call for c in seen), default=0)
    ahead = session.plan.swap.prefetch if session.plan.swap is not None else 0

    def graph(c: Capture, since: int) -> GraphExplanation:
        assert c.rewritten is not None
        layers = tuple(sorted(layer for layer, call in c.served.items() if call >= since))
        return GraphExplanation(c.number, c.rewritten, layers, ahead, c.repeated)

    made = [c for c in seen if c.rewritten is not None]
    latest_ones = {c.number: graph(c, latest) for c in made if c.call == latest}
    current = tuple(latest_ones.values())
    runs = tuple(latest_ones[c.number] for call, c in session.order if call == latest and c.number in latest_ones)
    held = shares(session.plan, session.captures)
    paths = {layer.index: layer.path for layer in session.plan.layers}
    said = tuple(session.said)
    return Explanation(tuple(graph(c, 0) for c in made), said, current, held, paths, runs=runs, is_whole=is_whole)


def _run_again(joint: JointGraph, backward: GraphModule) -> set[Node]:
    """The operators of the forward that the backward runs; one that replays a random state has another name there."""
    return computed_again(joint, backward) | {n for n in joint.graph.nodes if is_recomputed(n)}
