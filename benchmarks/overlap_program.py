"""From the graphs of an explanation to the queue of operators that ``overlap`` simulates."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator

import torch
from memopt.passes.operators import is_view_of, producer, storage_root, viewed
from memopt.passes.sizes import nbytes
from memopt.passes.swap.targets import OFFLOAD, PREFETCH, WAIT
from memopt.passes.work import flops
from overlap import Operator
from torch.fx import GraphModule, Node

from memopt import GraphExplanation


def program(explanation: GraphExplanation) -> list[Operator]:
    """One step: the forward, then the backward. Parameters, inputs and gradients of parameters count as there anyway.

    Elementwise operators are taken as fused into what reads them: they write memory only for others to read.
    """
    saved = {_name(n) for n in _returned(explanation.forward)}
    forward = list(_queue(explanation.forward, keep=saved, uncounted=set()))
    moved = {_name(n.args[0]) for n in explanation.forward.graph.nodes if n.target is OFFLOAD}
    crossing = {n.name for n in explanation.backward.graph.find_nodes(op="placeholder")} - moved
    made = {op.value for op in forward if op.kind == "compute" and op.nbytes}
    gradients = {_name(n) for n in _returned(explanation.backward)}
    return [*forward, *_queue(explanation.backward, keep=gradients, uncounted=gradients, there=crossing & made)]


def _queue(module: GraphModule, *, keep: set[str], uncounted: set[str], there: Iterable[str] = ()) -> Iterator[Operator]:
    """The operators of one graph.

    ``keep``: values that outlive it; ``uncounted``: values whose memory is no matter; ``there``: what it finds alive.
    """
    nodes = list(module.graph.nodes)
    last: dict[str, Node] = {}
    for node in nodes:
        if node.op == "call_function":
            for read in node.all_input_nodes:
                last[_name(read)] = node
    alive = set(there)
    for node in nodes:
        if node.op != "call_function":
            continue
        own = _operator(node, alive)
        alive.difference_update(uncounted)
        read = dict.fromkeys(map(_name, node.all_input_nodes))
        frees = tuple(v for v in read if last[v] is node and v in alive and v not in keep)
        alive.difference_update(frees)
        unread = (own.value,) if own.value in alive and own.value not in last and own.value not in keep else ()
        alive.difference_update(unread)
        nbytes_of_it = 0 if own.value in uncounted else own.nbytes
        yield Operator(own.kind, own.value, nbytes_of_it, own.flops, own.traffic, (*frees, *unread))


def _operator(node: Node, alive: set[str]) -> Operator:
    name = _name(node)
    if node.target is OFFLOAD:
        value = node.args[0]
        assert isinstance(value, Node)
        return Operator("offload", _name(value), _size(value))
    if node.target is PREFETCH:
        (wait,) = node.users
        return Operator("prefetch", _name(wait), _size(wait))
    if node.target is WAIT:
        alive.add(name)
        return Operator("wait", name, _size(node))
    if viewed(node) is not None or node.target is operator.getitem:
        return Operator("compute", name)
    size = _size(node) if _is_written(node) else 0
    traffic = size + sum(_size(i) for i in node.all_input_nodes if _is_written(i)) if size else 0
    if size:
        alive.add(name)
    return Operator("compute", name, size, flops(node), traffic)


def _is_written(node: Node) -> bool:
    """Whether the value goes through memory: an elementwise one only if something else than elementwise operators reads it."""
    if node.op == "placeholder" or not _is_elementwise(node):
        return True
    pending = [node]
    for value in pending:
        for user in value.users:
            if is_view_of(user, node):
                pending.append(user)
            elif not _is_elementwise(user):
                return True
    return False


def _is_elementwise(node: Node) -> bool:
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _name(node: object) -> str:
    """The name of the operator that produced the storage a value lies in."""
    assert isinstance(node, Node)
    made = producer(storage_root(node))
    return made.name.removesuffix("_wait") if made.target is WAIT else made.name


def _returned(module: GraphModule) -> list[Node]:
    (output,) = module.graph.find_nodes(op="output")
    returned = output.args[0]
    assert isinstance(returned, list | tuple)
    return [n for n in returned if isinstance(n, Node) and isinstance(n.meta.get("val"), torch.Tensor)]


def _size(node: Node) -> int:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    return sum(nbytes(v) or 0 for v in values if isinstance(v, torch.Tensor))
