"""The joint forward-backward graph with the facts that passes ask about it, each found once, in linear time."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch.fx import Graph, GraphModule, Node

from .operators import has_effect, is_mutating, is_seed, is_symbolic
from .policy import Action, Decision
from .scopes import Scope, find_scope

Call = tuple[int, str]
"""A call of a layer: its number, and a key that tells a layer's calls apart."""

_KEY = "memopt"
_BACKWARD_TAGS = ("is_backward", "must_be_in_backward")


def decision_of(node: Node) -> Decision | None:
    """What was decided about the node, if anything was."""
    return node.meta.get(_KEY)


def decide(node: Node, decision: Decision | None) -> None:
    """Record what happens to the node; None leaves it to torch's partitioner."""
    if decision is None:
        node.meta.pop(_KEY, None)
    else:
        node.meta[_KEY] = decision


def is_recomputed(node: Node) -> bool:
    """Whether it was decided to recompute the node."""
    decision = decision_of(node)
    return decision is not None and decision.action is Action.RECOMPUTE


def region_of(node: Node) -> int | None:
    """The region the node is recomputed with, if it is."""
    decision = decision_of(node)
    return decision.region if decision is not None else None


@dataclass
class JointGraph:
    """A joint graph and what is known of it. Passes read it and write decisions; none edits an edge.

    Attributes:
        module: the joint graph; its nodes run forward, then backward.
        layer_of_path: module path of a layer -> its number. Empty for a graph whose names do not start at the model.
        parameters: placeholders that live as long as the model does.
        mutated: placeholders whose tensors the forward changes in place.
        num_fwd_outputs: how many of the graph's outputs the forward returns.
        layer_inputs: where the graph is a layer's, the placeholders that receive what the layer was given.
        layer_inputs_move: these may be swapped with the layer.
        tangents: placeholders that carry the gradients which arrive at the backward.
        backward: the nodes that run in the backward.
        scopes: where each node of the forward comes from, as far as torch recorded it.
        returned: the nodes that the forward returns.
    """

    module: GraphModule
    layer_of_path: Mapping[str, int]
    parameters: frozenset[Node]
    mutated: frozenset[Node]
    tangents: frozenset[Node]
    num_fwd_outputs: int
    layer_inputs: frozenset[Node] = frozenset()
    layer_inputs_move: bool = False
    backward: set[Node] = field(init=False)
    scopes: dict[Node, Scope] = field(init=False)
    returned: frozenset[Node] = field(init=False)

    def __post_init__(self) -> None:
        (output,) = self.graph.find_nodes(op="output")
        outputs = output.args[0]
        assert isinstance(outputs, list | tuple)
        self.returned = frozenset(n for n in outputs[: self.num_fwd_outputs] if isinstance(n, Node))
        self.backward = set()
        untagged = self._untagged_in_backward()
        for node in self.graph.nodes:
            if (
                node in self.tangents
                or node in untagged
                or node.meta.get("partitioner_tag") in _BACKWARD_TAGS
                or any(i in self.backward for i in node.all_input_nodes)
            ) and node.op != "output":
                self.backward.add(node)
        found = ((n, find_scope(n, self.layer_of_path)) for n in self.graph.nodes if n not in self.backward)
        self.scopes = {n: scope for n, scope in found if scope is not None}
        self._by_chain: dict[object, Node] = {}
        for node, scope in self.scopes.items():
            if node.op == "call_function" and scope.chain:
                self._by_chain[scope.chain] = node
        self._origins: dict[object, Node] = {}
        for node in self.graph.nodes:
            if node.op == "call_function" and node not in self.backward and "seq_nr" in node.meta:
                self._origins.setdefault(node.meta["seq_nr"], node)
        self._adopt_nameless()

    @property
    def graph(self) -> Graph:
        """The graph itself."""
        return self.module.graph

    def forward_operators(self) -> Iterator[Node]:
        """The operators of the forward whose values can be decided about, in order."""
        for node in self.graph.nodes:
            if node.op != "call_function" or node in self.backward:
                continue
            if not (is_mutating(node) or is_seed(node) or is_symbolic(node)):
                yield node

    def read_by_backward(self, node: Node) -> bool:
        """Whether a node of the backward reads the value directly."""
        return any(user in self.backward for user in node.users)

    def origin_of(self, node: Node) -> Node | None:
        """An operator of the forward whose backward the node is part of; None when torch did not record it.

        Autograd numbers what it differentiates, and the backward of an operator carries the operator's number. What the
        backward of a user's own function computes carries no such number, but the call of the module that called the function.
        """
        if "partitioner_tag" not in node.meta and "nn_module_stack" in node.meta and node in self.backward:
            scope = find_scope(node, self.layer_of_path)
            return self._by_chain.get(scope.chain) if scope is not None else None
        return self._origins.get(node.meta.get("seq_nr"))

    def scope_of(self, node: Node) -> Scope | None:
        """Where a node comes from; for a node of the backward, that of the operator it is the backward of."""
        origin = self.origin_of(node) if node in self.backward else node
        return self.scopes.get(origin) if origin is not None else None

    def layer_of(self, node: Node) -> int | None:
        """The layer a node belongs to, in the forward or in the backward; None outside the layers."""
        # Torch gives sums of gradients the number of whatever the forward ended with.
        while node in self.backward and node.meta.get("is_gradient_acc") and node.all_input_nodes:
            node = node.all_input_nodes[-1]
        scope = self.scope_of(node)
        return scope.layer if scope is not None else None

    def call_of(self, node: Node) -> Call | None:
        """The call of a layer that the node is part of, in the forward or in the backward; None outside the layers."""
        scope = self.scope_of(node)
        if scope is None or scope.layer is None:
            return None
        return scope.layer, scope.chain[0][1] if scope.chain else ""

    def forward_users(self, node: Node) -> Iterable[Node]:
        """The nodes of the forward that read the value; the graph's output is not one."""
        return (u for u in node.users if u not in self.backward and u.op != "output")

    def _untagged_in_backward(self) -> set[Node]:
        """What a user's own backward computes from saved values alone: it follows from no gradient, and torch tags it nowhere.

        Torch tags all of the forward before it traces the backward; a rewrite of the forward may leave a node without a tag,
        which then leads to what the forward returns, or is one output of an operator of the forward.
        """
        forward: set[Node] = set()
        untagged = []
        for node in reversed(self.graph.nodes):
            tag = node.meta.get("partitioner_tag")
            if node.op == "output" or tag in _BACKWARD_TAGS:
                continue
            if tag is not None or node in self.returned or node in forward or _is_in_forward_whatever_reads_it(node):
                forward.update(node.all_input_nodes, [node])
            else:
                untagged.append(node)
        return {n for n in untagged if not (n.target is operator.getitem and n.args[0] in forward)}

    def _adopt_nameless(self) -> None:
        """Give a node that a graph rewrite left without a name the scope that all its forward users share."""
        for node in reversed(self.graph.nodes):
            if node.op != "call_function" or node in self.backward or node in self.scopes:
                continue
            scopes = {self.scopes.get(user) for user in self.forward_users(node)}
            if len(scopes) == 1 and (scope := scopes.pop()) is not None and scope.layer is not None:
                self.scopes[node] = Scope(scope.layer, scope.path, scope.chain, "", "")


def _is_in_forward_whatever_reads_it(node: Node) -> bool:
    return node.op != "call_function" or is_mutating(node) or is_symbolic(node) or is_seed(node) or has_effect(node)
