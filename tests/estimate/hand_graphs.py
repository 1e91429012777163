"""Graphs of a few nodes, made by hand: operators run on fake tensors, so that every node has its value's shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from memopt.passes.joint import JointGraph
from memopt.passes.liveness.kernels import Kernel
from memopt.passes.liveness.storages import Storages
from memopt.passes.sizes import nbytes
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

aten = torch.ops.aten


def size_of(value: torch.Tensor) -> int:
    """The bytes of a tensor whose sizes are all numbers."""
    size = nbytes(value)
    assert size is not None
    return size


class Hand:
    """Makes a graph; names are given, so that tests can say what they expect."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.mode = FakeTensorMode()

    def input(self, name: str, *shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Node:
        """A placeholder."""
        node = self.graph.placeholder(name)
        with self.mode:
            node.meta["val"] = torch.empty(shape, dtype=dtype, device=device)
        return node

    def op(self, name: str, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        """An operator, whose value is what it makes of fake tensors."""
        node = self.bare(name, target, *args, **kwargs)
        given, named = map_arg((args, kwargs), lambda n: n.meta["val"])
        with self.mode:
            node.meta["val"] = target(*given, **named)
        return node

    def bare(self, name: str, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Node:
        """An operator of whose value nothing is known."""
        return self.graph.create_node("call_function", target, args, kwargs, name)

    def returns(self, *nodes: Node) -> Graph:
        """The finished graph."""
        self.graph.output(list(nodes))
        self.graph.lint()
        return self.graph

    def module(self, *nodes: Node) -> GraphModule:
        """The finished graph, in a module."""
        return GraphModule(nn.Module(), self.returns(*nodes))

    def storages(self, *nodes: Node, prefix: str = "") -> Storages:
        """The memory of the finished graph."""
        return Storages(self.returns(*nodes), size_of, prefix)


def told(kernels: Sequence[Kernel]) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Kernels as ``(node, makes, frees)``."""
    return [(k.node.name, k.makes, tuple(sorted(k.frees))) for k in kernels]


def explained(
    joint: GraphModule,
    forward: GraphModule,
    backward: GraphModule,
    outputs: int,
    parameters: Sequence[str] = (),
    number: int = 0,
) -> Any:
    """What the simulation takes of an explained graph."""
    named = {n.name: n for n in joint.graph.find_nodes(op="placeholder")}
    tangents = frozenset(n for name, n in named.items() if "tangents" in name)
    facts = JointGraph(joint, {}, frozenset(named[name] for name in parameters), frozenset(), tangents, outputs)
    return SimpleNamespace(number=number, facts=facts, forward=forward, backward=backward)
