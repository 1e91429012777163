"""The forward and the backward graph that a joint graph was split into, with what swap asks about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch.fx import GraphModule, Node

from ..joint import Call, JointGraph, decision_of
from ..legalize.parameters import RULE as PARAMETERS
from ..operators import is_view_of, viewed
from ..policy import Rule
from ..verify import computed_again, saved_values


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor that crosses from forward to backward.

    Attributes:
        saved: the node of the forward graph that is returned for the backward.
        loaded: the placeholder of the backward graph that receives it.
        own: the node of the joint graph that both are.
    """

    saved: Node
    loaded: Node
    own: Node


@dataclass
class Pair:
    """Both graphs, and where their nodes come from. Node names are those of the joint graph.

    Attributes:
        joint: the decided joint graph.
        forward: the forward graph.
        backward: the backward graph.
        swapped: names of forward nodes that belong to something swapped -> the rule.
        crossings: the tensors that cross, in order.
        swapped_layers: the layers in which something is swapped.
        original: the nodes of the backward graph before anything is inserted.
        calls: the calls of layers in the order in which their backwards begin, each with its first node.
    """

    joint: JointGraph
    forward: GraphModule
    backward: GraphModule
    swapped: Mapping[str, Rule]
    crossings: list[Crossing] = field(init=False)
    swapped_layers: frozenset[int] = field(init=False)
    original: frozenset[Node] = field(init=False)
    calls: dict[Call, Node] = field(init=False)

    def __post_init__(self) -> None:
        loaded = {n.name: n for n in self.backward.graph.find_nodes(op="placeholder")}
        self.crossings = [
            Crossing(saved, loaded[saved.name], own)
            for saved, own in saved_values(self.joint, self.forward)
            if own is not None and saved.name in loaded and isinstance(own.meta.get("val"), torch.Tensor)
        ]
        again = {n.name: n for n in computed_again(self.joint, self.backward)}
        behind = {n.name: n for n in self.joint.backward}
        self._own: dict[Node, Node] = {}
        self._by_number: dict[object, Rule] = {}
        for node in self.joint.graph.nodes:
            rule = self.swapped.get(node.name)
            origin = self.joint.origin_of(node) if rule is not None else None
            # What needs no gradient carries the number of the operator before it, which may lie elsewhere.
            if rule is not None and origin is not None and self.joint.scopes.get(origin) == self.joint.scopes.get(node):
                self._by_number.setdefault(node.meta["seq_nr"], rule)
        self.swapped_layers = frozenset(i for rule in set(self.swapped.values()) for i in rule.layers)
        self.original = frozenset(self.backward.graph.nodes)
        self.calls = {}
        for node in self.backward.graph.nodes:
            if node.op != "call_function":
                continue
            own = again.get(node.name) or behind.get(node.name)
            if own is not None:
                self._own[node] = own
            call = self.call_of(node)
            if call is not None and not _may_serve_other_calls(node, own):
                self.calls.setdefault(call, node)

    def call_of(self, node: Node) -> Call | None:
        """The call of a layer whose backward the node of the backward graph is part of; None when that is unknown, or none."""
        own = self._own.get(node)
        return self.joint.call_of(own) if own is not None else None

    def ends(self) -> dict[Call, Node]:
        """The last operator of each call's backward before the backward of another call begins."""
        begins = {first: call for call, first in self.calls.items()}
        found: dict[Call, Node] = {}
        running: Call | None = None
        for node in self.backward.graph.nodes:
            running = begins.get(node, running)
            if running is not None and self.call_of(node) == running:
                found[running] = node
        return found

    def is_known(self, node: Node) -> bool:
        """Whether torch recorded what the node of the backward graph is the backward, or the recomputation, of."""
        own = self._own.get(node)
        if own is None:
            return False
        return own not in self.joint.backward or self.joint.origin_of(own) is not None

    def rule_of(self, node: Node) -> Rule | None:
        """The rule by which the operator is swapped that the node of the backward graph belongs to."""
        own = self._own.get(node)
        if own is None:
            return None
        return self.swapped.get(own.name) if own not in self.joint.backward else self._by_number.get(own.meta.get("seq_nr"))

    def readers(self, loaded: Node) -> Iterator[Node]:
        """The nodes of the backward graph that read a placeholder; behind a view of it, those that read the view."""
        pending = [loaded]
        for value in pending:
            for user in value.users:
                if is_view_of(user, loaded):
                    pending.append(user)
                else:
                    yield user


def _may_serve_other_calls(node: Node, own: Node | None) -> bool:
    """Whether the node may be shared by several calls of a layer, and run with another: a view, or what parameters give."""
    decision = decision_of(own) if own is not None else None
    return viewed(node) is not None or (decision is not None and decision.rule == PARAMETERS)
