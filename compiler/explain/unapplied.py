"""What a configuration asks for, and no captured graph has."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ...passes.matched import NO_EFFECT
from ...passes.policy import Plan, Rule, RuleKind
from ..capture import Capture
from ..config.layer_specs import spoken
from ..roots import layer_around
from .shares import REMEDY, told_of_breaks
from .spoken_layers import named, reasons


def unapplied(
    plan: Plan, captures: Sequence[Capture], breaks: Sequence[str], told: Collection[int] = (), *, is_alone: bool = False
) -> list[str]:
    """Say what had no effect, one sentence each.

    Args:
        plan: what was asked for.
        captures: the graphs captured so far.
        breaks: torch's reasons for the graph breaks met on the way, one line each, with their places.
        told: layers of which the user hears otherwise.
        is_alone: layers are compiled by themselves; those that have not run with gradients yet may still do so.
    """
    training = [seen for seen in captures if seen.trains]
    of_breaks = list(told_of_breaks(plan, captures, breaks))  # credits what graphs share, so it comes first
    lost = tuple(i for i in lost_layers(plan, training or captures) if i not in told and not is_alone)
    texts = [_lost_text(plan, captures, lost, breaks)] if lost else []
    if not training:
        return texts
    lost = (*lost, *told)
    return [
        *texts,
        *of_breaks,
        *_without_match(plan, training, lost, is_whole=not lost_layers(plan, training)),
        *_without_collective(plan, training, lost),
        *_without_operators(plan, training, lost),
        *_without_effect(training),
    ]


def eager(plan: Plan, breaks: Sequence[str], layers: tuple[int, ...] | None = None) -> str:
    """Say that the model, or some layers, ran without any compiled graph, which layers that concerns, and why."""
    lost = lost_layers(plan, ()) if layers is None else layers
    whose = f"{named(plan, lost)}: " if lost else ""
    causes = (
        "Usual causes: torch._dynamo.config.recompile_limit was reached (raise it, or pass dynamic=True), or compilation is "
        "switched off."
    )
    return (
        f"{whose}the model ran without any graph that memopt compiled: torch.compile fell back to eager, so the configuration "
        f"has no effect in this call. {reasons(breaks) or causes}"
    )


def broken(plan: Plan, captures: Sequence[Capture], breaks: Sequence[str], layers: tuple[int, ...]) -> str:
    """Say that the graph breaks inside layers that are compiled by themselves, and what that costs."""
    met = _met(captures)
    by_name = {(rule.field, i) for i in layers for path, rule in plan.layer(i).rules.items() if path}
    by_name |= {(rule.field, i) for rule in plan.pending for i in rule.layers if i in layers}
    without = sorted({field for field, i in by_name if (field, i) not in met})
    names = " An operator whose module torch lost there follows no rule for modules." if by_name else ""
    if without:
        names += f" {' and '.join(without)} matched nothing there, and has no effect."
    return (
        f"{named(plan, layers)}: the graph breaks inside each of them, so its parts are compiled one by one, and what goes "
        f"from part to part is saved for the backward.{names} {reasons(breaks)}".rstrip()
    )


def uncalled(plan: Plan, layers: tuple[int, ...]) -> str:
    """Say that with ``scope="layer"`` the forward of layers was not called, so that nothing was compiled."""
    return (
        f"{named(plan, layers)}: the model did not call them, so their rules have no effect in this call: with scope='layer' "
        "the forward of each layer is compiled. If the model calls the parts of its layers itself, use scope='model'."
    )


def frozen(plan: Plan, layers: tuple[int, ...]) -> str:
    """Say that layers that are compiled by themselves have no backward."""
    return (
        f"{named(plan, layers)}: nothing that they compute needs a gradient, so nothing is saved for a backward, and their "
        "rules have no effect."
    )


def ruled_layers(plan: Plan) -> set[int]:
    """The layers for which there are rules."""
    rules = {rule for layer in plan.layers for rule in layer.rules.values()} | set(plan.pending)
    return {i for rule in rules for i in rule.layers}


def lost_layers(plan: Plan, captures: Sequence[Capture]) -> tuple[int, ...]:
    """The layers for which there are rules, and that no captured graph names."""
    seen: frozenset[int] = frozenset().union(*(c.named_layers() for c in captures))
    return tuple(sorted(ruled_layers(plan) - seen))


def _lost_text(plan: Plan, captures: Sequence[Capture], lost: tuple[int, ...], breaks: Sequence[str]) -> str:
    paths = {layer.path: layer.index for layer in plan.layers}
    shared = {layer_around(root, paths) for seen in captures for root in seen.ran_for} & set(lost)
    why = f"{reasons(breaks)} ".lstrip()
    if shared:
        how = f"Torch compiles their forward by itself, and one graph may serve several layers. {why}{REMEDY}"
    else:
        how = (
            f"{why}Either they did not run, or they run in graphs of their own. {REMEDY} With fullgraph=True, torch says more."
        )
    return f"{named(plan, lost)}: no captured graph names them, so their rules have no effect and torch decides. {how}"


def _met(captures: Sequence[Capture]) -> frozenset[tuple[str, int]]:
    return frozenset().union(*(c.met_in() for c in captures))


def _without_operators(plan: Plan, captures: Sequence[Capture], lost: Collection[int]) -> list[str]:
    """Modules that exist and never run: an unused one, or one of which only the weight is used."""
    met = _met(captures)
    idle: dict[str, list[int]] = {}
    for layer in plan.layers:
        fields = {
            r.field for path, r in layer.rules.items() if path and r.kind in (RuleKind.RECOMPUTE_SELECT, RuleKind.SWAP_OP)
        }
        for field in fields:
            if layer.index not in lost and (field, layer.index) not in met:
                idle.setdefault(field, []).append(layer.index)
    return [
        f"{field} names modules in {spoken(layers)} that run no operator of their own, and has no effect there."
        for field, layers in sorted(idle.items())
    ]


def _without_match(plan: Plan, captures: Sequence[Capture], lost: Collection[int], *, is_whole: bool) -> list[str]:
    """``is_whole``: every layer with a rule has been seen, so that a rule for all of them may be judged."""
    met = _met(captures)
    texts = []
    for rule in plan.no_module:
        missing = tuple(i for i in rule.layers if i not in lost and (rule.field, i) not in met)
        if missing:
            near = plan.hints.get(rule.pattern, ())
            hint = f" Nearest paths: {', '.join(near)}." if near else ""
            whole = missing == _named_layers(plan, rule)
            where = "" if whole else f" in {spoken(missing)}"
            there = "" if whole else " there"
            texts.append(f"{rule.field} did not match any module or operator{where}, and has no effect{there}.{hint}")
    fields = {field for field, _ in met}
    texts += [
        f"{rule.field} did not match any operator of a recomputed region, and has no effect."
        for rule in plan.exclude
        if rule.field not in fields and is_whole
    ]
    return texts


def _without_collective(plan: Plan, captures: Sequence[Capture], lost: Collection[int]) -> list[str]:
    met = _met(captures)
    texts = []
    for rule in plan.pending:
        if rule.kind is not RuleKind.RECOMPUTE_COMM:
            continue
        missing = tuple(i for i in rule.layers if i not in lost and (rule.field, i) not in met)
        if missing:
            steps = [step for seen in captures for step in seen.steps]
            paths = sorted({step.operator for step in steps if step.operator and step.layer in missing})
            there = f"The collectives there: {', '.join(paths)}." if paths else "No collective runs there."
            texts.append(f"{rule.field} did not match any collective in {spoken(missing)}, and has no effect there. {there}")
    return texts


def _named_layers(plan: Plan, rule: Rule) -> tuple[int, ...]:
    return next((p.layers for p in plan.pending if p.field == rule.field), rule.layers)


def _without_effect(captures: Sequence[Capture]) -> list[str]:
    some: frozenset[str] = frozenset().union(*(c.effective for c in captures))
    none = {field: why for c in captures for field, why in c.ineffective.items()}
    whys = [(field, why) for field, why in sorted(none.items()) if field not in some]
    return [f"{field}: {why}." if why.startswith(NO_EFFECT) else f"{field} matches, and {why}." for field, why in whys]
