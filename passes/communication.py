"""What communicates: collectives under one name each, the wait behind them, and messages between two ranks.

_c10d_functional.all_gather_into_tensor_coalesced   all_gather
_dtensor.shard_dim_alltoall                         all_to_all
symm_mem.fused_matmul_reduce_scatter                reduce_scatter
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch.fx import Node

# Compared without underscores, longest first: `reduce_scatter` is no `reduce`, and `all_reduce` contains one.
_CANONICAL = {
    "reducescatter": "reduce_scatter",
    "allgather": "all_gather",
    "alltoall": "all_to_all",
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
    "tilereduce": "reduce",
    "shotreduce": "reduce",
}
_MESSAGES = frozenset({"isend", "irecv", "batch_p2p_ops"})
_NAMESPACES = frozenset({"_c10d_functional", "c10d_functional", "_c10d_functional_autograd", "c10d", "symm_mem", "_dtensor"})


@lru_cache(maxsize=4096)
def canonical_name(target: object) -> str | None:
    """The one name under which all variants of a collective are known; None for what is no collective."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in _NAMESPACES:
        return None
    bare = target._schema.name.split("::")[-1].replace("_", "")
    return next((name for part, name in _CANONICAL.items() if part in bare), None)


def communicates(node: Node) -> str | None:
    """The canonical name of the collective that the node starts; None when it starts none."""
    return canonical_name(operator_of(node)) if node.op == "call_function" else None


def is_collective(node: Node) -> bool:
    """Whether the node starts a collective communication."""
    return communicates(node) is not None


def is_message(node: Node) -> bool:
    """Whether the node sends to or receives from one other rank: the two ranks may well run different layers."""
    target = operator_of(node)
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or target.namespace not in _NAMESPACES:
        return False
    return target._schema.name.split("::")[-1] in _MESSAGES


def is_wait(node: Node) -> bool:
    """Whether the node waits for a collective."""
    target = operator_of(node)
    return isinstance(target, torch._ops.OpOverload) and target._schema.name.split("::")[-1] == "wait_tensor"


def waits_of(node: Node) -> Iterator[Node]:
    """The waits for a collective; a coalesced one has several, each behind one of its outputs."""
    for user in node.users:
        if is_wait(user):
            yield user
        elif user.target is operator.getitem:
            yield from (u for u in user.users if is_wait(u))


def operator_of(node: Node) -> object:
    """What the node runs; for a mutating operator that torch wrapped to be functional, the operator within."""
    wrapped = getattr(node.target, "__name__", "").startswith("auto_functionalized")
    return node.args[0] if wrapped and node.args else node.target


def group_of(node: Node) -> str | None:
    """The name of the process group over which a collective communicates; None where it is not among its arguments."""
    schema = getattr(operator_of(node), "_schema", None)
    for position, spec in enumerate(schema.arguments if schema is not None else ()):
        if "group" in spec.name and "size" not in spec.name:
            value = node.kwargs.get(spec.name, node.args[position] if position < len(node.args) else None)
            return value if isinstance(value, str) else None
    return None
