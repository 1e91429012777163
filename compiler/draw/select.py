"""From an explanation to what is drawn: the nodes of the chosen layers, each with its place and its fate."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.fx import GraphModule, Node

from ...passes.joint import JointGraph, decision_of
from ...passes.operators import storage_root, target_names
from ...passes.policy import Action
from ...passes.scopes import find_scope
from ...passes.sizes import nbytes, shape_of
from ...passes.swap.targets import OFFLOAD, PREFETCH, WAIT
from ...passes.verify import computed_again
from ..config.layer_specs import spoken
from ..errors import counted, one_of
from .drawing import Drawing, Fate, Item

if TYPE_CHECKING:
    from ..explain.explanation import Explanation, GraphExplanation

GRAPHS = ("joint", "forward", "backward")

_BY_TORCH = {"save": Fate.TORCH_SAVES, "recompute": Fate.TORCH_RECOMPUTES}
_INSERTED: Mapping[object, Fate] = {OFFLOAD: Fate.LEAVES, PREFETCH: Fate.FETCHED, WAIT: Fate.AWAITED}
_PRINTED = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format, torch.SymInt, torch.SymFloat)

_NO_RULE = "no rule holds"

Verdict = tuple[Fate, str, str]
"""What happens to a value, the rule, the reason."""


def select(explanation: Explanation, which: str = "joint", layers: Collection[int] = (), *, outside: bool = False) -> Drawing:
    """Choose what is drawn of what the latest call ran.

    Args:
        explanation: what ``trace`` or ``explain`` returned.
        which: ``joint``, ``forward`` or ``backward``.
        layers: the numbers of the layers; empty for all.
        outside: draw what lies outside the layers too.

    Raises:
        ValueError: there is no such graph or layer, or nothing to draw.
    """
    if which not in GRAPHS:
        raise ValueError(f"which: found {which!r}; allowed: {one_of(GRAPHS)}.")
    if not explanation.current:
        raise ValueError("the model has no graph with a backward: there is nothing to draw.")
    readers = [_Reader(graph, which, several=len(explanation.current) > 1) for graph in explanation.current]
    known = sorted({layer for reader in readers for layer in reader.layers()})
    if missing := sorted(set(layers) - set(known)):
        found = f"the {which} graph has {spoken(known)}" if known else f"no node of the {which} graph lies in a layer"
        raise ValueError(f"layer: found {spoken(missing).partition(' ')[2]}; {found}.")
    chosen = set(layers) or set(known)
    items = tuple(item for reader in readers for item in reader.items(chosen, outside=outside))
    if not items:
        raise ValueError(f"no node of the {which} graph lies in a layer: only what lies outside the layers can be drawn.")
    total = sum(len(reader.nodes) for reader in readers)
    parts = [spoken(sorted(chosen))] if chosen else []
    parts += ["what lies outside the layers"] if outside else []
    title = f"{which} graph: {' and '.join(parts)}, {len(items)} of {counted(total, 'node')}"
    return Drawing(which, title, items)


@dataclass(frozen=True, slots=True)
class _Place:
    layer: int | None
    path: str


_NOWHERE = _Place(None, "")
"""Of a node that torch gives no name; ``is`` tells it from a place outside the layers."""


class _Reader:
    """One captured graph, read node by node."""

    def __init__(self, graph: GraphExplanation, which: str, *, several: bool) -> None:
        self._which = which
        self._number = graph.number
        self._prefix = f"{graph.number}:" if several else ""
        self._joint: JointGraph = graph.facts
        self._own: dict[str, Node] = {n.name: n for n in graph.joint.graph.nodes}
        self._verdicts = _verdicts(graph)
        module: GraphModule = getattr(graph, which)
        self.nodes = [n for n in module.graph.nodes if n.op != "output"]
        self._tickets = {n.name: n.args[0] for n in graph.forward.graph.nodes if n.target is OFFLOAD}
        self._places = {n: self._place(n) for n in self.nodes}
        self._adopt_nameless()

    def layers(self) -> set[int]:
        """The layers that have nodes in the graph."""
        return {place.layer for place in self._places.values() if place.layer is not None}

    def items(self, layers: Collection[int], *, outside: bool) -> Iterator[Item]:
        """The nodes of the chosen layers, and of what lies outside the layers if that is wanted."""
        drawn = {n for n, place in self._places.items() if (outside if place.layer is None else place.layer in layers)}
        for node in self.nodes:
            if node not in drawn:
                continue
            place = self._places[node]
            fate, rule, reason = self._verdict(node)
            shape, size = _shape(node.meta.get("val"))
            yield Item(
                key=self._prefix + node.name,
                name=node.name,
                operator=self._operator(node),
                formula=self._formula(node),
                shape=shape,
                bytes=size,
                graph=self._number,
                backward=self._is_backward(node),
                layer=place.layer,
                path=place.path,
                fate=fate,
                rule=rule,
                reason=reason,
                inputs=tuple(self._prefix + i.name for i in node.all_input_nodes if i in drawn),
                from_outside=tuple(i.name for i in node.all_input_nodes if i not in drawn),
                to_outside=tuple(u.name for u in node.users if u not in drawn),
                is_given=node.op == "placeholder",
            )

    def _is_backward(self, node: Node) -> bool:
        return node in self._joint.backward if self._which == "joint" else self._which == "backward"

    def _joint_node(self, node: Node) -> Node | None:
        """The node of the joint graph that a node of a split graph is: what crosses is a placeholder in the backward."""
        own = self._own.get(node.name)
        if own is not None and (own.target == node.target or node.op == "placeholder"):
            return own
        return None

    def _swapped(self, node: Node) -> Node | None:
        """The value that an inserted operator moves, or that a ticket stands for."""
        while node.target in (PREFETCH, WAIT) and isinstance(node.args[0], Node):
            node = node.args[0]
        value = self._tickets.get(node.name) if node.target is OFFLOAD or node.op == "placeholder" else None
        return self._own.get(value.name) if isinstance(value, Node) else None

    def _place(self, node: Node) -> _Place:
        own = self._swapped(node) or self._joint_node(node)
        if node.meta.get("is_gradient_acc"):
            return _NOWHERE  # torch gives a sum of gradients the number of some other operator
        scope = self._joint.scope_of(own) if own is not None else find_scope(node, self._joint.layer_of_path)
        return _Place(scope.layer, scope.path) if scope is not None else _NOWHERE

    def _adopt_nameless(self) -> None:
        """Give what torch names nowhere (sums of gradients, random states) the layer of its last input, or of its readers."""
        places = self._places
        nameless = [n for n in self.nodes if places[n] is _NOWHERE and (n.op == "call_function" or n.name not in self._own)]
        for of_inputs, nodes in ((True, nameless), (False, nameless[::-1]), (True, nameless)):
            for node in nodes:
                if places[node] is not _NOWHERE:
                    continue
                near = node.all_input_nodes if of_inputs else (u for u in node.users if u in places)
                layers = [places[n].layer for n in near if places[n].layer is not None]
                if layers and (of_inputs or len(set(layers)) == 1):
                    places[node] = _Place(layers[-1], "")

    def _verdict(self, node: Node) -> Verdict:
        moved = self._swapped(node)
        if moved is not None:
            _, rule, reason = self._verdicts.get(moved.name, (Fate.OFFLOAD, "", ""))
            return _INSERTED.get(node.target, Fate.OFFLOAD), rule, reason
        own = self._joint_node(node)
        if own is not None:
            return self._verdicts.get(own.name, _PLAIN)
        if self._which == "backward" and _is_replay(node):
            return Fate.RECOMPUTE, "legalize.random", "replayed from the forward's random state"
        return _PLAIN

    def _operator(self, node: Node) -> str:
        if node.op == "placeholder":
            return self._received(node)
        return (*target_names(node), _target(node))[0]

    def _received(self, node: Node) -> str:
        own = self._own.get(node.name)
        if own is None:
            return "ticket" if node.name in self._tickets else "saved"
        if own.op != "placeholder":
            return "saved"
        if own in self._joint.tangents:
            return "gradient"
        return "parameter" if own in self._joint.parameters else "input"

    def _formula(self, node: Node) -> str:
        if node.op == "placeholder":
            return self._received(node)
        if node.target in _INSERTED:
            return f"{_target(node)}({', '.join(i.name for i in node.all_input_nodes)})"
        parts = [_argument(a) for a in node.args] + [f"{k}={_argument(v)}" for k, v in node.kwargs.items()]
        return f"{_target(node)}({', '.join(parts)})"


_PLAIN: Verdict = (Fate.PLAIN, "", "")


def _verdicts(graph: GraphExplanation) -> Mapping[str, Verdict]:
    """What happens to the values of the joint graph, by name; nodes about which nothing is to be said are left out.

    What happens counts, not what was decided: a value that was to be saved or swapped and that the backward does not need is a
    plain one, with the rule.
    """
    rows = {row.name: row for row in graph.values if row.kind == "activation"}
    again = computed_again(graph.facts, graph.backward)
    own = {n.name: n for n in graph.joint.graph.nodes}
    kept = {storage_root(own[row.name]) for row in rows.values() if row.action != "recompute" and row.name in own}
    found: dict[str, Verdict] = {}
    for node in own.values():
        decision = decision_of(node)
        row = rows.get(node.name)
        if row is not None and row.action == "offload":
            found[node.name] = Fate.OFFLOAD, row.rule, row.reason
        elif decision is not None and decision.action is Action.RECOMPUTE:
            found[node.name] = Fate.RECOMPUTE, decision.rule, decision.reason
        elif decision is not None and decision.action is Action.SAVE:
            is_kept = storage_root(node) in kept or any(user in kept for user in node.users)
            found[node.name] = Fate.SAVE if is_kept else Fate.PLAIN, decision.rule, decision.reason
        elif row is not None:
            found[node.name] = _BY_TORCH[row.action], "", _NO_RULE
        elif node in again:
            found[node.name] = Fate.TORCH_RECOMPUTES, "", _NO_RULE
    return found


def _is_replay(node: Node) -> bool:
    """Whether torch runs a random operator of the forward again here, from the state that the forward had."""
    return _target(node).endswith("run_with_rng_state")


def _target(node: Node) -> str:
    if node.op != "call_function":
        return node.op
    if node.target is operator.getitem:
        return "getitem"
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target.overloadpacket)
    return str(getattr(node.target, "__name__", type(node.target).__name__))


def _argument(value: object) -> str:
    """An argument as text in which nothing depends on where it lies."""
    if isinstance(value, Node):
        return value.name
    if isinstance(value, list | tuple):
        return f"[{', '.join(_argument(v) for v in value)}]"
    if isinstance(value, slice):
        return ":".join("" if v is None else _argument(v) for v in (value.start, value.stop, value.step))
    if value is None or isinstance(value, _PRINTED):
        return str(value).removeprefix("torch.")
    return str(getattr(value, "__name__", type(value).__name__))


def _shape(value: object) -> tuple[str, int | None]:
    """Sizes and element types of a value, and its bytes; of several tensors, all."""
    values: Sequence[object] = value if isinstance(value, list | tuple) else (value,)
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    if not tensors:
        return "", None
    texts = (f"[{', '.join(map(str, shape_of(t)))}] {str(t.dtype).removeprefix('torch.')}" for t in tensors)
    sizes = [nbytes(t) for t in tensors]
    known = [size for size in sizes if size is not None]
    return ", ".join(texts), sum(known) if len(known) == len(sizes) else None


__all__ = ["GRAPHS", "select"]
