"""From a model and a configuration to the plan: which rule holds in which layer, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from ...passes.policy import LayerPlan, Plan, Rule, RuleKind, SwapPolicy
from ..arguments import check_number
from ..config.layer_specs import spoken
from ..config.load import ConfigSource, MemoptConfig, load_config
from ..errors import LayersError, quoted
from .checks import Report, check_no_effect, check_overlap, check_ranges, check_stage, check_swap
from .layers import Layer, find_layers
from .paths import relative_module_paths
from .pattern_matcher import PatternMatcher, nearest_paths
from .rules import Rules, active_rules

__all__ = ["LayerPlan", "Plan", "Rule", "RuleKind", "resolve", "unmatched"]


def resolve(
    model: nn.Module,
    cfg: ConfigSource,
    *,
    layers: str | Sequence[str] | None = None,
    pipeline_parallel_size: int = 1,
    layer_offset: int = 0,
    num_layers: int | None = None,
    strict: bool = False,
) -> Plan:
    """Say which rule holds where. Pure: the model is only looked at, may be on the meta device, and nothing is compiled.

    Args:
        model: any module with one stack of layers, or several named by ``layers``.
        cfg: a configuration, or anything `load_config` reads.
        layers: see `find_layers`.
        pipeline_parallel_size: how many pipeline stages the training uses; swap works with 1 only.
        layer_offset: for a stage of a pipeline, the number that its first layer has in the whole model.
        num_layers: how many layers the whole model has; what the configuration says about layers of other stages is then left
            to these. None where the last of this model's layers is the last of all.
        strict: make an error of every warning.

    Returns:
        The plan. Its warnings are sentences, and are not issued; `unmatched` tells which patterns name no module.

    Raises:
        ConfigError: the configuration is wrong for this model; every problem is listed.
        LayersError: the layers are not found. A configuration that switches everything off needs none.
        TypeError, ValueError: ``layer_offset`` or ``num_layers`` is no number of layers.
    """
    check_number("layer_offset", layer_offset, least=0)
    if num_layers is not None:
        check_number("num_layers", num_layers, least=1)
    config = load_config(cfg)
    rules = active_rules(config)
    try:
        stack = find_layers(model, layers, first=layer_offset)
    except LayersError:
        if layers is not None or rules or config.swap.enable:
            raise
        stack = ()
    report = Report(config)
    numbers = range(layer_offset, layer_offset + len(stack))
    whole = numbers.stop if num_layers is None else num_layers
    check_no_effect(config, report)
    check_stage(config, numbers, whole, report)
    check_swap(config, whole, pipeline_parallel_size, report)
    check_ranges(config, rules, whole, report)
    rules = rules.within(numbers)
    resolver = _Resolver(config, stack, rules)
    check_overlap(rules, resolver.recomputed, resolver.swapped, report)
    resolver.warn(report)
    report.finish(strict)
    return Plan(
        layers=resolver.layer_plans(),
        pending=tuple(resolver.pending),
        exclude=tuple(rule for rule in rules.exclude(numbers) if rule.literal or not resolver.matcher.given_up(rule.pattern)),
        warnings=report.warnings,
        hints=resolver.hints,
        strict=strict,
        no_module=tuple(resolver.no_module),
        swap=_swap_policy(config) if rules.swap_layer or rules.swap_op else None,
        whole=whole,
    )


def _swap_policy(config: MemoptConfig) -> SwapPolicy:
    swap = config.swap
    return SwapPolicy(swap.default_prefetch, swap.store, swap.dir, swap.min_bytes, swap.in_flight_bytes, swap.host_limit)


def unmatched(plan: Plan) -> tuple[str, ...]:
    """A sentence for every pattern that matches no module in some of its layers, for use before there is a graph."""
    sentences = []
    for rule in plan.no_module:
        near = ", ".join(plan.hints.get(rule.pattern, ()))
        sentences.append(
            f"{rule.field} matches no module in {spoken(rule.layers)}; unless it names an operator, which is checked when the "
            f"graph is compiled, it has no effect{' there' if rule.layers != _named_layers(plan, rule) else ''}."
            f"{' Nearest paths: ' if near else ''}{near}{'.' if near else ''}"
        )
    return tuple(sentences)


class _Resolver:
    """Matches the rules' patterns against the modules of every layer.

    Attributes:
        recomputed: for each layer's number, path -> the rule that recomputes it; a path within another one is left out.
        swapped: the same for swap.
        pending: the rules to be looked for among operators.
        no_module: as in `Plan`.
        hints: as in `Plan`.
    """

    def __init__(self, config: MemoptConfig, stack: Sequence[Layer], rules: Rules) -> None:
        self.config = config
        self.stack = stack
        self.rules = rules
        self.matcher = PatternMatcher()
        self.paths = {layer.index: relative_module_paths(layer.module) for layer in stack}
        self.recomputed = self._cover(rules.recompute_full, rules.recompute_select)
        self.swapped = self._cover(rules.swap_layer, rules.swap_op)
        self.pending: list[Rule] = []
        self.no_module: list[Rule] = []
        self.hints: dict[str, tuple[str, ...]] = {}
        for rule, whole in rules.patterns():
            self._look_for(rule, whole)

    def _cover(self, whole: Sequence[Rule], patterns: Sequence[Rule]) -> dict[int, dict[str, Rule]]:
        """For each layer, the paths the rules name, without those that lie within another; the first rule counts."""
        found: dict[int, dict[str, Rule]] = {layer: {} for layer in self.paths}
        for rule in whole:
            for layer in rule.layers:
                found[layer].setdefault("", rule)
        for rule in patterns:
            for layer in rule.layers:
                if "" not in found[layer]:
                    for path in self.matcher.matched(rule.pattern, self.paths[layer]):
                        found[layer].setdefault(path, rule)
        return {
            layer: {path: named[path] for path in ("", *self.paths[layer]) if path in named and not _is_covered(path, named)}
            for layer, named in found.items()
        }

    def _look_for(self, rule: Rule, whole: Sequence[Rule]) -> None:
        """Decide where a pattern is still to be looked for, and note where it names no module."""
        covered = {layer for other in whole for layer in other.layers}
        open_layers = tuple(layer for layer in rule.layers if layer not in covered)
        missing = [layer for layer in open_layers if not self.matcher.matched(rule.pattern, self.paths[layer])]
        if open_layers and not self.matcher.given_up(rule.pattern) and rule.kind is not RuleKind.EXCLUDE_OP:
            self.pending.append(replace(rule, layers=open_layers))
            if missing and rule.kind is not RuleKind.RECOMPUTE_COMM:
                self.no_module.append(replace(rule, layers=tuple(missing)))
        if missing:
            paths = [path for layer in missing for path in self.paths[layer]]
            self.hints.setdefault(rule.pattern, nearest_paths(rule.pattern, paths))

    def warn(self, report: Report) -> None:
        """Report timeouts, and communication patterns that name modules."""
        for rule, whole in self.rules.patterns():
            if complaint := self.matcher.complaint(rule.pattern):
                report.warn(self.rules.loc(rule), complaint, name=rule.field)
            if rule.kind is RuleKind.RECOMPUTE_COMM:
                self._warn_of_cells(rule, {layer for other in whole for layer in other.layers}, report)

    def _warn_of_cells(self, rule: Rule, covered: set[int], report: Report) -> None:
        cells: dict[str, list[int]] = {}
        for layer in rule.layers:
            matched = self.matcher.matched(rule.pattern, self.paths[layer]) if layer not in covered else ()
            for path in self.paths[layer] if matched else ():
                if path in matched:
                    cells.setdefault(path, []).append(layer)
        if cells:
            named = "; ".join(f"module {quoted(path)} in {spoken(cells[path])}" for path in cells)
            report.warn(
                self.rules.loc(rule),
                f"{quoted(rule.pattern)} is expected to be operation but got cell, this configuration will not be effective: "
                f"it matches {named}. Operators below a module are matched by their own paths",
                name=rule.field,
            )

    def layer_plans(self) -> tuple[LayerPlan, ...]:
        """One entry per layer."""
        ahead = self.config.swap.default_prefetch
        swapping = {layer for rule in (*self.rules.swap_layer, *self.rules.swap_op) for layer in rule.layers}
        plans = []
        for layer in self.stack:
            recomputed, swapped = self.recomputed[layer.index], self.swapped[layer.index]
            plans.append(
                LayerPlan(
                    index=layer.index,
                    path=layer.path,
                    recompute_full="" in recomputed,
                    recompute=tuple(path for path in recomputed if path),
                    swap_full="" in swapped,
                    swap=tuple(path for path in swapped if path),
                    prefetch_at=layer.index + ahead if layer.index in swapping else None,
                    rules={**recomputed, **swapped},
                )
            )
        return tuple(plans)


def _named_layers(plan: Plan, rule: Rule) -> tuple[int, ...]:
    return next((other.layers for other in plan.pending if other.field == rule.field), ())


def _is_covered(path: str, named: Mapping[str, Rule]) -> bool:
    if not path:
        return False
    parts = path.split(".")
    return any(".".join(parts[:end]) in named for end in range(len(parts)))
