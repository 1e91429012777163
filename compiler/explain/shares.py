"""How much of each layer is under its rules, where torch.compile breaks the graph: split layers, shared graphs.

graph of the model        layers 0-3 whole                       each 100%
graphs of a layer         one for ``mlp`` of all layers          each less: no layer's rules hold in a graph that they share
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ...passes.policy import Plan
from ..config.layer_specs import spoken
from ..roots import layer_around
from .spoken_layers import named, reasons

if TYPE_CHECKING:
    from ..capture import Capture

REMEDY = "Compile with scope='layer', which gives every layer's rules to that layer's own graph, or mend the line."


def shares(plan: Plan, captures: Sequence[Capture]) -> dict[int, float]:
    """For each layer of the latest call, the share of its captured operators that lie in a graph that names it.

    Operators that torch.compile left to eager are in no graph, and not counted; a layer without any captured has 0.
    """
    own, others = Counter[int](), Counter[int]()
    for seen in _of_latest_call(captures):
        for layer in seen.served or [n for n in seen.operators if n is not None]:
            own[layer] += sum(seen.operators.values()) if seen.served else seen.operators[layer]
        for layer in _foreign_layers(plan, seen):
            others[layer] += sum(seen.operators.values())
    return {n.index: own[n.index] / max(own[n.index] + others[n.index], 1) for n in plan.layers}


def told_of_breaks(plan: Plan, captures: Sequence[Capture], breaks: Sequence[str]) -> Iterator[str]:
    """One sentence for each way in which graph breaks keep rules from holding as written."""
    ruled = {i for layer in plan.layers for rule in layer.rules.values() for i in rule.layers}
    ruled |= {i for rule in plan.pending for i in rule.layers}
    latest = _of_latest_call(captures)
    split = tuple(sorted(_split(latest) & ruled)) if breaks else ()
    if split:
        yield (
            f"{named(plan, split)}: the graph breaks inside. Its parts follow the rules each by itself, and what goes from one "
            f"to the next is saved. {reasons(breaks)} Mend the line for the whole effect."
        )
    for seen in latest:
        yield from _shared_by_stacks(plan, seen)
    partly = {i: share for i, share in shares(plan, captures).items() if i in ruled and 0 < share < 1}
    if partly:
        least = min(partly.values())
        yield (
            f"{named(plan, tuple(partly))}: only part of each (at least {least:.0%} of its operators) is under its rules; the "
            f"rest runs in graphs that layers share. {reasons(breaks)} {REMEDY}"
        )
    for seen in latest:
        if len({signature for layer in seen.served for signature in _rules_of_parts(plan, layer, seen)}) > 1:
            yield (
                f"{named(plan, tuple(sorted(seen.served)))}: the graph of {', '.join(sorted(seen.ran_for)[:4])} is one, so a "
                f"rule for one of these modules holds for all of them. {reasons(breaks)}"
            )


def _of_latest_call(captures: Sequence[Capture]) -> list[Capture]:
    training = [seen for seen in captures if seen.trains]
    latest = max((seen.call for seen in training), default=0)
    return [seen for seen in training if seen.call == latest]


def _split(captures: Sequence[Capture]) -> set[int]:
    parts = Counter(n for seen in captures if not seen.served for n in seen.operators if n is not None)
    return {layer for layer, count in parts.items() if count > 1}


def _foreign_layers(plan: Plan, seen: Capture) -> set[int]:
    """The layers that run a graph in which none of them is named."""
    if seen.served or not seen.root:
        return set()
    paths = {layer.path: layer.index for layer in plan.layers}
    return {n for root in (seen.ran_for or {seen.root}) if (n := layer_around(root, paths)) is not None}


def _rules_of_parts(plan: Plan, layer: int, seen: Capture) -> Iterator[Hashable]:
    """For each module of the layer that runs the graph, the rules around and inside it, by their paths from it."""
    own = plan.layer(layer)
    for root in seen.ran_for:
        if f"{root}.".startswith(f"{own.path}."):
            part = root.removeprefix(own.path).removeprefix(".")
            around = {rule.field for path, rule in own.rules.items() if not path or f"{part}.".startswith(f"{path}.")}
            inside = {(p.removeprefix(f"{part}."), r.field) for p, r in own.rules.items() if p.startswith(f"{part}.")}
            yield frozenset(around), frozenset(inside)


def _shared_by_stacks(plan: Plan, seen: Capture) -> Iterator[str]:
    """Two inner modules of one form may share a graph: the second one's layers then follow the rules of the first one's."""
    if not seen.root or not seen.layer_of_path or seen.served:
        return
    paths: Mapping[str, int] = {layer.path: layer.index for layer in plan.layers}
    for root in sorted(seen.ran_for - {seen.root}):
        pairs = {paths[f"{root}.{path}"]: number for path, number in seen.layer_of_path.items() if f"{root}.{path}" in paths}
        astray = tuple(n for n, other in pairs.items() if plan.layer(n).rules.keys() != plan.layer(other).rules.keys())
        if astray:
            yield (
                f"{named(plan, astray)}: they run the graph that was compiled for {seen.root}, and so follow the rules of "
                f"{spoken(tuple(pairs[n] for n in astray))}, not their own. {REMEDY}"
            )
        seen.layers |= pairs.keys()
        seen.met |= {(rule, n) for n, other in pairs.items() for rule, layer in seen.met if layer == other}
