"""Sizes that a graph knows only when it runs, made available in the backward.

    size = sym_size(fc1, 0)      forward: computed, and returned for the backward
    size = placeholder           backward

The backward of a value that moved has no tensor to ask for its sizes until the value is back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.fx import Node

from ..operators import is_symbolic
from .pair import Pair

Size = int | Node


class Symbols:
    """Finds the sizes of forward values in the backward, and takes them across where they are missing."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._known: dict[object, Node] = {}
        for node in pair.backward.graph.find_nodes(op="placeholder"):
            if isinstance(node.meta.get("val"), torch.SymInt):
                self._known.setdefault(_expression(node.meta["val"]), node)

    def sizes(self, value: Node) -> list[Size]:
        """The sizes of a value of the forward graph, as arguments for a node of the backward graph."""
        return self._all(value, value.meta["val"].shape, torch.ops.aten.sym_size.int)

    def strides(self, value: Node) -> list[Size]:
        """The strides of a value of the forward graph, in elements, likewise."""
        return self._all(value, value.meta["val"].stride(), torch.ops.aten.sym_stride.int)

    def argument(self, node: Node) -> Node:
        """A number that the forward computes, in the backward."""
        return self._known.get(_expression(node.meta["val"])) or self._take_across(node)

    def _all(self, value: Node, numbers: Sequence[int | torch.SymInt], read: Callable[..., object]) -> list[Size]:
        return [n if isinstance(n, int) else self._one(value, n, dim, read) for dim, n in enumerate(numbers)]

    def _one(self, value: Node, number: torch.SymInt, dim: int, read: Callable[..., object]) -> Node:
        found = self._known.get(_expression(number))
        if found is not None:
            return found
        graph = self._pair.forward.graph
        with graph.inserting_after(value):
            made = graph.call_function(read, (value, dim))
        made.meta = {"val": number, "partitioner_tag": "is_forward"}
        return self._take_across(made)

    def _take_across(self, made: Node) -> Node:
        """Return the number from the forward, and receive it in the backward: numbers come first there."""
        (output,) = self._pair.forward.graph.find_nodes(op="output")
        output.args = ((*output.args[0], made),)
        if "desc" in output.meta:
            output.meta["desc"] = [*output.meta["desc"], None]
        placeholders = self._pair.backward.graph.find_nodes(op="placeholder")
        numbers = [n for n in placeholders if is_symbolic(n)]
        with self._pair.backward.graph.inserting_before(placeholders[len(numbers)]):
            loaded = self._pair.backward.graph.placeholder(made.name)
        loaded.meta = {"val": made.meta["val"]}
        self._known[_expression(made.meta["val"])] = loaded
        return loaded


def _expression(number: torch.SymInt) -> object:
    return number.node.expr
