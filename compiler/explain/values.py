"""The values that a backward needs, one row each: what happens to it, by which rule, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from ...passes.joint import JointGraph, decision_of
from ...passes.operators import producer, storage_root, target_names
from ...passes.policy import Action
from ...passes.sizes import nbytes, shape_of
from ...passes.swap.journey import Journey

GIVEN = "input"
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


def _kind(node: Node, joint: JointGraph) -> str:
    root = storage_root(node)
    if root.op != "placeholder" or root in joint.layer_inputs:
        return "activation"
    return "parameter" if root in joint.parameters else "input"


def moved_row(row: ValueRow, journey: Journey, name: str) -> ValueRow:
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


def value_row(graph: int, node: Node, joint: JointGraph, action: Action) -> ValueRow:
    """The row of a value that stays, or is computed again."""
    decision = decision_of(node)
    scope = joint.scope_of(node)
    kind = _kind(node, joint)
    rule, reason = "", BY_TORCH.get(action, "")
    if decision is not None and decision.action is action:
        rule, reason = decision.rule, decision.reason
    elif kind != "activation":
        reason = f"{'a parameter or buffer' if kind == 'parameter' else 'an input'}, or a view of one: it is in memory anyway"
    names = target_names(producer(node))
    if node in joint.layer_inputs:
        names = (GIVEN,)
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


def state_row(graph: int, node: Node) -> ValueRow:
    """The row of a random state, which torch's partitioner adds."""
    value = node.meta.get("val")
    size = nbytes(value) if isinstance(value, torch.Tensor) else None
    shape = (size,) if size is not None else ()  # a generator's state is a vector of bytes
    dtype = str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else type(value).__name__
    reason = "a recomputed random operator starts from it"
    return ValueRow(
        graph, node.name, None, "", "rng_state", shape, dtype, size, "random state", "save", "legalize.random", reason
    )
