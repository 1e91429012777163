"""Choose, on the final pair of graphs, which saved values move, and say for every other one why it stays.

A value moves if every node of the backward that reads it belongs to a swapped layer, module or operator. Values are told apart
by storage: a storage is copied once, and its views are made again after the reload.

    gelu  saved  read by layers.0.mlp               OFFLOAD
    norm  saved  read by layers.0.mlp, layers.0     SAVE      the backward of layer 0 outside what is swapped reads it
    mask  saved  read by layers.0, layers.1         SAVE      the backward of layer 1, which is not swapped, reads it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch.fx import Node

from ..changed_memory import COPIES
from ..joint import decide, decision_of
from ..matched import NO_EFFECT, Matched
from ..operators import draws_random_numbers, is_seed, storage_root, target_names
from ..policy import Action, Decision, Rule, SwapPolicy
from ..sizes import nbytes
from .pair import Crossing, Pair


@dataclass(frozen=True, slots=True)
class Move:
    """A storage that leaves after its last use in the forward and comes back for the backward.

    Attributes:
        value: the node of the joint graph whose value is copied: a storage's producer, or the one slice of it that is needed.
        crossings: what crosses of it; all are views of ``value``, or itself.
        rule: the rule by which it moves.
        store: ``host`` or ``disk``.
        size: its bytes; None when only a run can tell.
    """

    value: Node
    crossings: tuple[Crossing, ...]
    rule: Rule
    store: str
    size: int | None

    @property
    def title(self) -> str:
        """What messages call the value: its name and where it comes from."""
        decision = decision_of(self.value)
        where = f" of layer {decision.layer}" if decision is not None and decision.layer is not None else ""
        path = f", {decision.path}" if decision is not None and decision.path else ""
        return f"{self.value.name}{where}{path}"


def choose_offload(pair: Pair, policy: SwapPolicy, matched: Matched) -> list[Move]:
    """Decide about every storage that crosses and that something swapped reads; record each decision in the joint graph.

    Rules by which nothing moves are noted in ``matched``, with what kept the largest value they could have moved.
    """
    storages: dict[Node, list[Crossing]] = {}
    for crossing in pair.crossings:
        storages.setdefault(storage_root(crossing.own), []).append(crossing)
    activations = _activations(pair)
    returned = {part: node for node in pair.joint.returned for part in _originals(storage_root(node), with_parts=True)} | {
        original: None for node in pair.joint.returned for original in _originals(storage_root(node))
    }
    moves = []
    moving: set[str] = set()
    stays: dict[str, tuple[int, str]] = {}
    for root, crossings in storages.items():
        rules = _rules(pair, crossings)
        if not rules:
            continue
        rule = rules[0]
        value = _tightest(root, crossings)
        store = _store(value, policy)
        reason = _reason_to_stay(pair, root, crossings, activations, returned) or _reason_of_value(value, store, policy)
        if reason is None:
            moves.append(Move(value, tuple(crossings), rule, store, nbytes(value.meta["val"])))
            moving.update(r.field for r in rules)
        elif root.op != "placeholder":
            found = (nbytes(value.meta["val"]) or 0, f"{value.name} stays: {reason}")
            for each in rules:
                stays[each.field] = max(stays.get(each.field, found), found)
        for node in dict.fromkeys([value, *(c.own for c in crossings)]):
            if reason is None:
                _record(pair, node, Action.OFFLOAD, rule, f"it waits for its backward on the {store}")
            elif node.op == "call_function":
                _record(pair, node, Action.SAVE, rule, f"it stays: {reason}")
    matched.effective |= moving
    for rule in dict.fromkeys(pair.swapped.values()):
        if rule.field not in moving:
            why = stays[rule.field][1] if rule.field in stays else "no backward of what it names reads a saved value"
            matched.ineffective[rule.field] = f"swaps nothing: {why}"
    if policy.store == "auto" and moves:
        _note_settings(policy, {move.store for move in moves}, matched)
    return moves


def _note_settings(policy: SwapPolicy, stores: set[str], matched: Matched) -> None:
    """Note the settings of a store that no value moves to; which one is used is known only here."""
    used = {"swap.host_limit": ("host", policy.host_limit), "swap.dir": ("disk", policy.directory)}
    if policy.host_limit is not None:  # above it, values go to the disk
        del used["swap.dir"]
    for field, (store, value) in used.items():
        if value is not None and store in stores:
            matched.effective.add(field)
        elif value is not None:
            others = " and ".join(sorted(stores))
            matched.ineffective[field] = f"{NO_EFFECT}, since with store: auto all that moves goes to the {others}"


def _rules(pair: Pair, crossings: Iterable[Crossing]) -> list[Rule]:
    """The rules by which the readers of a storage are swapped."""
    found = (pair.rule_of(reader) for crossing in crossings for reader in pair.readers(crossing.loaded))
    return list(dict.fromkeys(rule for rule in found if rule is not None))


def _record(pair: Pair, node: Node, action: Action, rule: Rule, reason: str) -> None:
    decision = decision_of(node)
    if decision is None:
        scope = pair.joint.scopes.get(node)
        layer, path = (scope.layer, scope.path) if scope is not None else (None, "")
        decision = Decision(action, rule.field, layer, path, reason)
    decide(node, replace(decision, action=action, rule=rule.field, reason=reason))


def _tightest(root: Node, crossings: list[Crossing]) -> Node:
    """What to copy: a single view that is smaller than its storage moves alone; views of one storage move as that storage."""
    first = crossings[0].own
    if len(crossings) > 1 or first is root or root.op == "placeholder":
        return root
    whole, part = nbytes(root.meta["val"]), nbytes(first.meta["val"])
    return first if whole is not None and part is not None and part < whole else root


def _store(value: Node, policy: SwapPolicy) -> str:
    if policy.store != "auto":
        return policy.store
    return "disk" if value.meta["val"].device.type == "cpu" else "host"


# What a backend leaves out where it changes nothing, besides copies: padding by nothing, rounding integers, the first power.
_MAYBE_NOTHING = COPIES | {"constant_pad_nd", "slice_scatter", "_unsafe_view"}
_ROUNDING = frozenset({"ceil", "floor", "round", "trunc"})
# What a backend has no kernel for: it lets the parts be computed right into the memory of the whole.
_JOINING = frozenset({"cat", "stack", "constant_pad_nd"})


def _originals(root: Node, *, with_parts: bool = False) -> set[Node]:
    """The storages that a backend may use in place of this one, itself among them, since it leaves out what changes nothing.

    Their memory is the caller's, or another value's, to change while a copy to another tier still reads it.

    ``with_parts``: also those that may lie inside it.
    """
    found = {root}
    pending = [root]
    for node in pending:
        names = target_names(node)
        rounds_integers = not _ROUNDING.isdisjoint(names) and not _is_floating(node)
        first_power = "pow" in names and node.args[1:] == (1,)
        joins = with_parts and not _JOINING.isdisjoint(names)
        if _MAYBE_NOTHING.isdisjoint(names) and not rounds_integers and not first_power and not joins:
            continue
        for source in node.all_input_nodes:
            original = storage_root(source)
            if original not in found and (
                (joins and _fills(source, original)) or "_unsafe_view" in names or _same_form(node, source)
            ):
                found.add(original)
                pending.append(original)
    return found


def _fills(source: Node, storage: Node) -> bool:
    """Whether a value is all of its storage: a slice is copied into what it becomes a part of."""
    value, whole = source.meta.get("val"), storage.meta.get("val")
    if not isinstance(value, torch.Tensor):  # a size
        return False
    return not isinstance(whole, torch.Tensor) or nbytes(value) == nbytes(whole)


def _same_form(one: Node, other: Node) -> bool:
    a, b = one.meta.get("val"), other.meta.get("val")
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return False
    return (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())


def _reason_to_stay(
    pair: Pair, root: Node, crossings: Iterable[Crossing], activations: set[Node], returned: Mapping[Node, Node | None]
) -> str | None:
    if root in pair.joint.layer_inputs and not pair.joint.layer_inputs_move:
        return "what the layer was given, and others may hold too"
    if root.op == "placeholder" and root not in pair.joint.layer_inputs:
        return "a parameter or buffer of the model" if root in pair.joint.parameters else "an input of the model"
    originals = _originals(root)
    given = next((node.name for node in originals - {root} if node.op == "placeholder"), None)
    if given is not None:
        return f"a copy of {given}, which a backend may take for the input itself"
    wholes = [returned[node] for node in originals if node in returned]
    if None in wholes:
        return "the model returns it, and its caller may keep or change it"
    if wholes:
        return f"the model returns {wholes[0]}, in whose memory it may lie, and its caller may keep or change that"
    for reader in (reader for crossing in crossings for reader in pair.readers(crossing.loaded)):
        if pair.rule_of(reader) is None:
            return f"{_who(pair, reader)} reads it"
    value = root.meta["val"]
    if not (value.is_floating_point() or value.is_complex()) and root not in activations:
        return "a mask or table of indices that no activation went into"
    return None


def _reason_of_value(value: Node, store: str, policy: SwapPolicy) -> str | None:
    tensor = value.meta["val"]
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return f"its layout is {tensor.layout}, not that of a plain tensor"
    if isinstance(tensor.storage_offset(), int) and tensor.storage_offset() and storage_root(value) is value:
        return "it does not lie at the beginning of its memory, so views of it could not be made again"
    if store == "host" and tensor.device.type == "cpu":
        return "it is in host memory already"
    size = nbytes(tensor)
    if size is not None and size < policy.min_bytes:
        return f"smaller than swap.min_bytes ({policy.min_bytes})"
    return None


def _who(pair: Pair, reader: Node) -> str:
    call = pair.call_of(reader)
    if not pair.is_known(reader):
        return f"a node of the backward that torch attributes to no layer ({reader.name})"
    if call is None:
        return f"the backward outside the layers ({reader.name})"
    in_swapped_layer = call[0] in pair.swapped_layers
    where = f"outside what is swapped there ({reader.name})" if in_swapped_layer else "which is not swapped,"
    return f"the backward of layer {call[0]}{' ' if in_swapped_layer else ', '}{where}"


def _activations(pair: Pair) -> set[Node]:
    """The values that depend on a floating-point value or on chance."""
    found: set[Node] = set()
    for node in pair.joint.graph.nodes:
        if _is_floating(node) or draws_random_numbers(node) or is_seed(node) or any(i in found for i in node.all_input_nodes):
            found.add(node)
    return found


def _is_floating(node: Node) -> bool:
    return any(v.is_floating_point() or v.is_complex() for v in _tensors(node))


def _tensors(node: Node) -> Iterator[torch.Tensor]:
    value = node.meta.get("val")
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, torch.Tensor):
            yield item
