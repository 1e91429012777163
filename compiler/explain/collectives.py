"""The collectives of a graph: where each is, how many bytes it returns, and whether the backward runs it again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from ...passes.communication import communicates, group_of, waits_of
from ...passes.joint import JointGraph, decision_of
from ...passes.naming import operator_paths
from ...passes.sizes import nbytes, shape_of
from ...passes.verify import computed_again


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """One collective that the forward runs.

    Attributes:
        graph: the number of the captured graph.
        name: the node's name in ``graphs[graph].joint``.
        layer: its layer's number; None outside the layer stacks.
        path: its module path, relative to the layer or else to the model.
        op: ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``all_reduce`` or ``broadcast``: all variants under one name.
        shape: the sizes of its result on this rank; of the first, where a coalesced collective has several.
        dtype: the element type of its result.
        bytes: the bytes of its result on this rank; None when only a run can tell.
        again: whether the backward runs it again.
        rule: the rule that decided; empty where none did, because nothing in the backward needs the result.
        reason: why, as a clause.
    """

    graph: int
    name: str
    layer: int | None
    path: str
    op: str
    shape: tuple[int | str, ...]
    dtype: str
    bytes: int | None
    again: bool
    rule: str
    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """One collective in the order in which a rank runs them: what all ranks have to agree about.

    Attributes:
        group: the name of its process group; empty where the graph does not say.
        text: which collective of which module it is, and in which part of the step it runs.
        layer: the layer of a collective of the forward; None outside the layers, and in the backward.
        operator: the path by which ``recompute_comm`` can name it there; empty in the backward.
    """

    group: str
    text: str
    layer: int | None = None
    operator: str = ""


def collective_rows(number: int, joint: JointGraph, backward: GraphModule) -> Iterator[CollectiveRow]:
    """One row per collective of the forward, in its order."""
    again = computed_again(joint, backward)
    for node in _collectives(joint.graph.nodes):
        if node in joint.backward:
            continue
        scope = joint.scopes.get(node)
        results = list(waits_of(node)) or [node]
        tensors = [value for result in results for value in _tensors(result)]
        sizes = [nbytes(tensor) for tensor in tensors]
        decision = next((d for n in (*results, node) if (d := decision_of(n)) is not None), None)
        yield CollectiveRow(
            number,
            node.name,
            scope.layer if scope is not None else None,
            scope.path if scope is not None else "",
            communicates(node) or "",
            shape_of(tensors[0]) if tensors else (),
            str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
            None if None in sizes else sum(size or 0 for size in sizes),
            node in again,
            decision.rule if decision is not None else "",
            decision.reason if decision is not None else "the backward does not need its result",
        )


def collective_steps(joint: JointGraph, forward: GraphModule, backward: GraphModule) -> tuple[Step, ...]:
    """The collectives of a training step in their order: the forward's, then the backward's, repeated ones among them."""
    own = {node.name: node for node in joint.graph.nodes}
    return (
        *(_step("forward", node, own, joint) for node in _collectives(forward.graph.nodes)),
        *(_step("backward", node, own, joint) for node in _collectives(backward.graph.nodes)),
    )


def _step(part: str, node: Node, own: dict[str, Node], joint: JointGraph) -> Step:
    found = own.get(node.name)
    scope, repeated = None, ""
    if found is not None:
        origin = joint.origin_of(found) if found in joint.backward else found
        scope = joint.scopes.get(origin) if origin is not None else None
        repeated = ", run again" if part == "backward" and found not in joint.backward else ""
    place = "outside the layers" if scope is None or scope.layer is None else f"layer {scope.layer}"
    path = f" {scope.path}" if scope is not None and scope.path else ""
    name = communicates(node) or ""
    text = f"{name} of {place}{path} in the {part}{repeated}"
    if part == "backward" or scope is None:
        return Step(group_of(node) or "", text)
    return Step(group_of(node) or "", text, scope.layer, *operator_paths(scope, (name,)))


def _collectives(nodes: Iterable[Node]) -> Iterator[Node]:
    return (node for node in nodes if communicates(node) is not None)


def _tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    return [v for v in values if isinstance(v, torch.Tensor)]
