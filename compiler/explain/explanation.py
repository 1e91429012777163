"""What was decided, and why, with bytes. Read-only: nothing here changes a graph that is lowered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch.fx import GraphModule, Node

from ...passes.joint import JointGraph, decision_of, is_recomputed
from ...passes.operators import is_symbolic, producer, storage_root, target_names
from ...passes.policy import Action
from ...passes.scopes import Scope
from ...passes.sizes import nbytes
from ...passes.swap.journey import Journey
from ...passes.swap.targets import OFFLOAD
from ...passes.verify import computed_again, saved_values
from ..pipeline import Rewritten, split_without_memopt
from .collectives import CollectiveRow, collective_rows
from .cost import flops, shape_of
from .shares import shares
from .table import render

if TYPE_CHECKING:
    from ..capture import Capture
    from ..session import Session

_GIVEN = "input"
"""The operator of what a layer compiled by itself was given."""

BY_TORCH = {
    Action.SAVE: "no rule: torch's partitioner saves it",
    Action.RECOMPUTE: "no rule: torch's partitioner recomputes it",
}


@dataclass(frozen=True, slots=True)
class ValueRow:
    """One value that the backward needs from the forward.

    Attributes:
        graph: the number of the captured graph.
        name: the node's name in ``graphs[graph].joint`` (and in the forward and backward graphs).
        layer: its layer's number; None outside the layer stacks.
        path: its module path, relative to the layer or else to the model.
        op: the operator, as ``exclude_op`` can name it.
        shape: its sizes; a size that only a run can tell is its symbol.
        dtype: its element type.
        bytes: the bytes of its elements; None when a size is unknown. For a dynamic size, that of the first call. Of swapped
            values that share memory, the first has the bytes of what is copied, and the others 0.
        kind: ``activation``, ``parameter`` (or computed from nothing but views of one), ``input``, or ``random state``.
        action: ``save``, ``recompute`` or ``offload``: what happens.
        rule: the rule that decided, as the configuration names it; empty where torch chose.
        reason: why, as a clause.
        store: where it waits for the backward, ``host`` or ``disk``; empty when it stays.
        leaves: the layer after whose last use of it in the forward it leaves; None outside the layers, or when it stays.
        issued: the layer during whose backward its reload is issued; None when it stays.
        returns: the layer whose backward first reads it; None when it stays.
    """

    graph: int
    name: str
    layer: int | None
    path: str
    op: str
    shape: tuple[int | str, ...]
    dtype: str
    bytes: int | None
    kind: str
    action: str
    rule: str
    reason: str
    store: str = ""
    leaves: int | None = None
    issued: int | None = None
    returns: int | None = None


@dataclass(frozen=True, slots=True)
class LayerTotal:
    """What a layer's activations cost.

    Attributes:
        layer: the layer's number; None for everything outside the layer stacks.
        saved_before: bytes that plain ``torch.compile`` saves for backward, each storage counted once, where it is produced.
        saved_after: the same under the configuration, without what is swapped.
        swapped: bytes that leave for the host or the disk, where each is produced.
        recomputed: how many operators run again in the backward.
        recomputed_flops: floating-point operations of the matrix products, convolutions and attention among them, as
            ``torch.utils.flop_counter`` counts.
        unknown: how many of the values in ``saved_after`` have a size that only a run can tell; their bytes are in no sum.
        unknown_before: the same for ``saved_before``.
        unknown_flops: how many of the operators have work that only a run can tell; it is in no sum.
    """

    layer: int | None
    saved_before: int
    saved_after: int
    recomputed: int
    recomputed_flops: int
    unknown: int
    swapped: int = 0
    unknown_before: int = 0
    unknown_flops: int = 0


class GraphExplanation:
    """One captured graph: the decided joint graph, and the forward and backward that it was split into.

    Attributes:
        number: its place among the model's captured graphs.
        layers: where layers are compiled by themselves, those that ran this graph; else empty.
        joint: nodes carry their decision in ``node.meta["memopt"]``.
        forward: the forward graph, before the backend's own changes.
        backward: the backward graph, before the backend's own changes.
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
        self._facts = rewritten.joint
        self._journeys = {c.own.name: j for j in rewritten.journeys for c in j.move.crossings}

    @cached_property
    def values(self) -> tuple[ValueRow, ...]:
        """One row per value that the backward needs, in the order of the forward."""
        joint = self._facts
        saved = saved_values(joint, self.forward)
        crossing = {own for _, own in saved if own is not None}
        again = _run_again(joint, self.backward)
        rows = []
        for node in joint.graph.nodes:
            if not isinstance(node.meta.get("val"), torch.Tensor):
                continue
            if node.name in self._journeys:
                row = _row(self.number, node, joint, Action.OFFLOAD)
                rows.append(_moved_row(row, self._journeys[node.name], node.name))
            elif node in crossing:
                rows.append(_row(self.number, node, joint, Action.SAVE))
            elif node in again and joint.read_by_backward(node):
                rows.append(_row(self.number, node, joint, Action.RECOMPUTE))
        states = (node for node, own in saved if own is None and node.target is not OFFLOAD)
        rows += [_state_row(self.number, node) for node in states]
        if not self.layers:
            return tuple(rows)
        return tuple(self._row_of(row, layer) for layer in self.layers for row in rows)

    def _row_of(self, row: ValueRow, layer: int) -> ValueRow:
        """The row of one of the layers that share the graph."""
        if row.op == _GIVEN and layer in self._repeated:
            return replace(row, layer=layer, bytes=0, reason="what the layer was given, which another layer saves too")
        if not row.store:
            return replace(row, layer=layer)
        return replace(row, layer=layer, leaves=layer, issued=layer + self._ahead, returns=layer)

    @cached_property
    def collectives(self) -> tuple[CollectiveRow, ...]:
        """One row per collective of the forward, in its order."""
        rows = tuple(collective_rows(self.number, self._facts, self.backward))
        return tuple(replace(row, layer=layer) for layer in self.layers for row in rows) if self.layers else rows

    @cached_property
    def totals(self) -> tuple[LayerTotal, ...]:
        """One entry per layer in this graph, and one for the rest."""
        joint = self._facts
        split = split_without_memopt(joint)[0]
        before, unknown_before = _saved_by_layer(joint, split)
        after, unknown = _saved_by_layer(joint, self.forward)
        count, work, unknown_work, moved = (Counter[int | None]() for _ in range(4))
        for node in _run_again(joint, self.backward):
            layer, spent = _layer(node, joint), flops(node)
            count[layer] += 1
            work[layer] += spent or 0
            unknown_work[layer] += spent is None
        for move in {journey.move for journey in self._journeys.values()}:
            moved[_layer(move.value, joint)] += move.size or 0
        parts = (before, after, count, work, unknown, moved, unknown_before, unknown_work)
        if self.layers:
            total = LayerTotal(None, *(sum(part.values()) for part in parts))
            given = [_bytes_given(joint, forward) for forward in (split, self.forward)]
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
    """

    def __init__(
        self,
        graphs: tuple[GraphExplanation, ...],
        warnings: tuple[str, ...],
        current: tuple[GraphExplanation, ...],
        shares: Mapping[int, float],
    ) -> None:
        self.graphs = graphs
        self.warnings = warnings
        self.current = current
        self.shares = shares

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
        sums: dict[int | None, list[int]] = {}
        for graph in self.current:
            for total in graph.totals:
                layer, *parts = astuple(total)
                sums[layer] = [a + b for a, b in zip(sums.get(layer, [0] * len(parts)), parts, strict=True)]
        return tuple(LayerTotal(n, *sums[n]) for n in sorted(sums, key=lambda n: (n is None, n or 0)))

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


def explain_session(session: Session) -> Explanation:
    """Explain what a session has captured; what torch's compile cache spared is derived again, without lowering."""
    seen = [session.rewritten(c) for c in session.captures if c.trains]
    latest = max((c.call for c in seen), default=0)
    ahead = session.plan.swap.prefetch if session.plan.swap is not None else 0

    def graph(c: Capture, since: int) -> GraphExplanation:
        assert c.rewritten is not None
        layers = tuple(sorted(layer for layer, call in c.served.items() if call >= since))
        return GraphExplanation(c.number, c.rewritten, layers, ahead, c.repeated)

    made = [c for c in seen if c.rewritten is not None]
    current = tuple(graph(c, latest) for c in made if c.call == latest)
    held = shares(session.plan, session.captures)
    return Explanation(tuple(graph(c, 0) for c in made), tuple(session.said), current, held)


def _run_again(joint: JointGraph, backward: GraphModule) -> set[Node]:
    """The operators of the forward that the backward runs; one that replays a random state has another name there."""
    return computed_again(joint, backward) | {n for n in joint.graph.nodes if is_recomputed(n)}


def _scope(node: Node, joint: JointGraph) -> Scope | None:
    """A node's scope; for a value of the backward that the forward computes, that of the operator it is the backward of."""
    origin = joint.origin_of(node) if node in joint.backward else node
    return joint.scopes.get(origin) if origin is not None else None


def _layer(node: Node, joint: JointGraph) -> int | None:
    scope = _scope(node, joint)
    return scope.layer if scope is not None else None


def _kind(node: Node, joint: JointGraph) -> str:
    root = storage_root(node)
    if root.op != "placeholder" or root in joint.layer_inputs:
        return "activation"
    return "parameter" if root in joint.parameters else "input"


def _moved_row(row: ValueRow, journey: Journey, name: str) -> ValueRow:
    """The row of a value that moves; of several that share memory, the first has the bytes of what is copied, once."""
    move = journey.move
    first, *_ = move.crossings
    shared = name != first.own.name
    return replace(
        row,
        bytes=0 if shared else move.size,
        reason=f"it is a view of what moves with {first.own.name}" if shared else row.reason,
        store=move.store,
        leaves=journey.leaves_in,
        issued=journey.issued_in,
        returns=journey.returns_in,
    )


def _row(graph: int, node: Node, joint: JointGraph, action: Action) -> ValueRow:
    decision = decision_of(node)
    scope = _scope(node, joint)
    kind = _kind(node, joint)
    rule, reason = "", BY_TORCH.get(action, "")
    if decision is not None and decision.action is action:
        rule, reason = decision.rule, decision.reason
    elif kind != "activation":
        reason = f"{'a parameter or buffer' if kind == 'parameter' else 'an input'}, or a view of one: it is in memory anyway"
    names = target_names(producer(node))
    if node in joint.layer_inputs:
        names = (_GIVEN,)
        reason = reason if rule else "what the layer was given, which its backward begins with"
    value = node.meta["val"]
    return ValueRow(
        graph,
        node.name,
        scope.layer if scope is not None else None,
        scope.path if scope is not None else "",
        names[0] if names else node.op,
        shape_of(value),
        str(value.dtype).removeprefix("torch."),
        nbytes(value),
        kind,
        action.value,
        rule,
        reason,
    )


def _state_row(graph: int, node: Node) -> ValueRow:
    value = node.meta.get("val")
    size = nbytes(value) if isinstance(value, torch.Tensor) else None
    shape = (size,) if size is not None else ()  # a generator's state is a vector of bytes
    dtype = str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else type(value).__name__
    reason = "a recomputed random operator starts from it"
    return ValueRow(
        graph, node.name, None, "", "rng_state", shape, dtype, size, "random state", "save", "legalize.random", reason
    )


def _saved_storages(joint: JointGraph, forward: GraphModule) -> Iterator[Node]:
    saved = (own for _, own in saved_values(joint, forward) if own is not None and not is_symbolic(own))
    roots = dict.fromkeys(storage_root(n) for n in saved)
    yield from (root for root in roots if root.op != "placeholder" or root in joint.layer_inputs)


def _bytes_given(joint: JointGraph, forward: GraphModule) -> int:
    """The bytes that a layer's forward saves of what the layer was given."""
    return sum(nbytes(root.meta["val"]) or 0 for root in _saved_storages(joint, forward) if root in joint.layer_inputs)


def _saved_by_layer(joint: JointGraph, forward: GraphModule) -> tuple[Counter[int | None], Counter[int | None]]:
    """For each layer, the bytes that are known, and how many values have a size that is not."""
    sizes, unknown = Counter[int | None](), Counter[int | None]()
    for root in _saved_storages(joint, forward):
        value = root.meta.get("val")
        size = nbytes(value) if isinstance(value, torch.Tensor) else None
        sizes[_layer(root, joint)] += size or 0
        unknown[_layer(root, joint)] += size is None
    return sizes, unknown


__all__ = ["CollectiveRow", "Explanation", "GraphExplanation", "LayerTotal", "ValueRow", "explain_session"]
