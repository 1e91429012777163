"""Which values of a graph share memory, and how many bytes each piece of memory has.

mm       -> storage "mm"          addmm          -> storage "addmm"
view(mm) -> storage "mm"          topk           -> storages "getitem", "getitem_1" and, unread outputs, "topk[2]"
t(view)  -> storage "mm"          copy_(p, new)  -> storage "p"
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from ..operators import viewed
from ..swap.targets import OFFLOAD, PREFETCH, WAIT

SizeOf = Callable[[torch.Tensor], int]

# Views that their schema does not call views.
_VIEWS_TOO = frozenset({torch.ops.aten._unsafe_view.default, torch.ops.aten.lift_fresh.default})


class Storages:
    """The memory of one graph's values.

    Attributes:
        of: node -> the name of the storage its value lies in; nodes without a tensor have none.
        made: operator -> the storages that it makes, in the order of its outputs.
        size: storage -> bytes.
        device: storage -> the type of the device it is on.
        held: storage of an element of a tuple -> the last node that takes an element out: until then all of them live.
    """

    def __init__(self, graph: Graph, size_of: SizeOf, prefix: str = "") -> None:
        self.of: dict[Node, str] = {}
        self.made: dict[Node, tuple[str, ...]] = {}
        self.size: dict[str, int] = {}
        self.device: dict[str, str] = {}
        self.held: dict[str, Node] = {}
        self.prefix = prefix
        self._size_of = size_of
        for node in graph.nodes:
            self._add(node)

    def elements(self, node: Node) -> int:
        """How many elements a value has; the most, of several."""
        value = node.meta.get("val")
        return max((self._size_of(tensor) // tensor.element_size() for _, tensor in _leaves(value)), default=0)

    def _add(self, node: Node) -> None:
        base = _base(node)
        if base is not None:
            if base in self.of:
                self.of[node] = self.of[base]
            return
        if node.op == "call_function" and node.target is operator.getitem:
            return  # taken care of where the tuple is made
        if node.op not in ("call_function", "placeholder", "get_attr") or node.target is OFFLOAD:
            return
        value = node.meta.get("val")
        if node.target is PREFETCH:
            value = next((user.meta.get("val") for user in node.users if user.target is WAIT), None)
        if isinstance(value, torch.Tensor) and not _is_taken_apart(node):
            self.of[node] = self._name(node.name, value)
            made = [self.of[node]]
        else:
            made = list(self._add_elements(node, value))
        if made and node.op == "call_function":
            self.made[node] = tuple(made)

    def _add_elements(self, node: Node, value: Any) -> Iterator[str]:
        takers = dict(_takers(node))
        taken = {place: nodes[0].meta.get("val") for place, nodes in takers.items()}
        found = {place: tensor for place, tensor in taken.items() if isinstance(tensor, torch.Tensor)}
        leaves = dict(_leaves(value))
        # Of an operator in a wrapper, such as one that keeps the random state, only what is taken is known.
        if all(place in leaves and leaves[place].shape == tensor.shape for place, tensor in found.items()):
            found = leaves
        last = max((taker for nodes in takers.values() for taker in nodes), default=None)
        for place, tensor in found.items():
            own = takers.get(place, [])
            name = self._name(own[0].name if own else f"{node.name}{list(place)}", tensor)
            self.of |= dict.fromkeys(own, name)
            if last is not None:
                self.held[name] = last
            yield name

    def _name(self, name: str, value: torch.Tensor) -> str:
        name = self.prefix + name
        self.size[name] = self._size_of(value)
        self.device[name] = value.device.type
        return name


def _base(node: Node) -> Node | None:
    """The node in whose memory the value lies, one step up."""
    if node.op != "call_function":
        return None
    first = node.args[0] if node.args and isinstance(node.args[0], Node) else None
    if node.target is WAIT or node.target in _VIEWS_TOO or _writes_first(node):
        return first
    return viewed(node)


def _is_taken_apart(node: Node) -> bool:
    return any(user.target is operator.getitem and user.args[0] is node for user in node.users)


def _writes_first(node: Node) -> bool:
    """Whether the value is the operator's first argument, changed in place."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable or not schema.arguments or len(schema.returns) != 1:
        return False
    returned, given = schema.returns[0].alias_info, schema.arguments[0].alias_info
    return returned is not None and given is not None and given.is_write


def _takers(node: Node, place: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], list[Node]]]:
    """The ``getitem`` nodes of a tuple, and of tuples in it, by the place of what they take."""
    found: dict[int, list[Node]] = {}
    for user in node.users:
        if user.target is operator.getitem and user.args[0] is node and isinstance(user.args[1], int):
            found.setdefault(user.args[1], []).append(user)
    for index, takers in found.items():
        yield (*place, index), takers
        for taker in takers:
            yield from _takers(taker, (*place, index))


def _leaves(value: Any, place: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield from _leaves(part, (*place, index))
