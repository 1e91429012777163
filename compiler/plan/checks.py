"""What a configuration may not ask of a model, and what it asks without effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...passes.policy import Rule, RuleKind
from ..config.layer_specs import canonical, parse_item, parse_layers, spoken, written_items
from ..config.load import MemoptConfig, SwapConfig
from ..errors import ConfigError, Findings, Loc, Problem, counted, field_name, line_of, quoted, show
from .rules import Rules


class Report:
    """Collects problems and warnings, each with its place in the configuration."""

    def __init__(self, config: MemoptConfig) -> None:
        self.origin = config.origin
        self.problems: list[Problem] = []
        self._ignored: list[Problem] = []

    def problem(self, loc: Loc, found: str, allowed: str, hint: str = "", *, name: str = "") -> None:
        """Note an error at ``loc``; ``name`` is how to call the place, if not by itself."""
        self.problems.append(Problem(name or field_name(loc), line_of(loc, self.origin.lines), found, allowed, hint))

    def warn(self, loc: Loc, text: str, *, name: str = "") -> None:
        """Note a warning about ``loc``."""
        self._ignored.append(Problem(name or field_name(loc), line_of(loc, self.origin.lines), text))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings, without lines: they are part of a plan, which does not depend on the layout of a file."""
        return tuple(f"{item.field}: {item.found}" for item in self._ignored)

    def finish(self, strict: bool) -> None:
        """Raise one `ConfigError` for all problems, and, if ``strict``, for all warnings."""
        problems = [*self.problems, *(self._ignored if strict else ())]
        if problems:
            raise ConfigError(problems, self.origin.source)


def check_no_effect(config: MemoptConfig, report: Report) -> None:
    """Warn of settings that the rest of the configuration switches off."""
    recompute, comm, swap = config.recompute, config.recompute_comm, config.swap
    if recompute.mode != "select" and recompute.select_module is not None:
        report.warn(("recompute", "select_module"), f"has no effect with mode: {recompute.mode}")
    if recompute.mode == "None":
        for name in ("full_recompute_layer", "exclude_op"):
            if getattr(recompute, name) is not None:
                report.warn(("recompute", name), "has no effect with mode: None")
    elif isinstance(recompute.exclude_op, Mapping):
        recomputed = set(recompute.full_recompute_layer or ())
        if recompute.mode == "select":
            recomputed.update(*(recompute.select_module or {}).values())
        for pattern, layers in recompute.exclude_op.items():
            if recomputed.isdisjoint(layers):
                text = f"has no effect: nothing is recomputed in {spoken(layers)}"
                report.warn(("recompute", "exclude_op", pattern), text)
    if not comm.enable and comm.select_module is not None:
        report.warn(("recompute_comm", "select_module"), "has no effect with enable: False")
    if not swap.enable:
        defaults = SwapConfig()
        for name in SwapConfig.model_fields:
            if getattr(swap, name) != getattr(defaults, name):
                report.warn(("swap", name), "has no effect with enable: False")
        return
    if not swap.layer_swap and not swap.op_swap:
        report.warn(("swap", "enable"), "True has no effect: neither layer_swap nor op_swap names anything to swap")
    if swap.layer_swap and len(swap.layer_swap) > 1:
        first = set(swap.layer_swap[0].layers)
        ignored = sorted({layer for entry in swap.layer_swap[1:] for layer in entry.layers} - first)
        which = f"{spoken(ignored)} of the others" if ignored else "the others"
        text = f"only the first entry is used; {which} will be ignored. Write all layers into swap.layer_swap[0].layers"
        report.warn(("swap", "layer_swap"), text)
    if swap.store == "host" and swap.dir is not None and swap.host_limit is None:  # above the limit, values go to files
        report.warn(("swap", "dir"), "has no effect with store: host")
    if swap.store == "disk" and swap.host_limit is not None:
        report.warn(("swap", "host_limit"), "has no effect with store: disk")


def check_swap(config: MemoptConfig, num_layers: int, pipeline_parallel_size: int, report: Report) -> None:
    """Pipeline parallelism, and the bounds of ``default_prefetch``."""
    size = pipeline_parallel_size
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        report.problem(("pipeline_parallel_size",), show(size), "an integer of at least 1")
    elif size > 1 and config.swap.enable:
        report.problem(
            ("swap", "enable"),
            f"True with pipeline_parallel_size={size}",
            "swap without pipeline parallelism",
            "To save memory under pipeline parallelism, use recompute.",
        )
    if config.swap.enable and not _prefetch_fits(config, num_layers):
        report.problem(
            ("swap", "default_prefetch"),
            show(config.swap.default_prefetch),
            f"1 <= default_prefetch <= num_layers - 1 = {num_layers - 1}",
            "A model of one layer has none to prefetch from, so it cannot swap." if num_layers == 1 else "",
        )


def check_stage(config: MemoptConfig, numbers: range, num_layers: int, report: Report) -> None:
    """A stage of a pipeline lies within the whole model, and does not swap: it has no next layer to be fetched at."""
    if num_layers < numbers.stop:
        found = f"{num_layers}, and this model's layers are {numbers.start} to {numbers.stop - 1}"
        report.problem(("num_layers",), found, f"at least {numbers.stop}, the layers of the whole model")
    elif config.swap.enable and len(numbers) < num_layers:
        report.problem(
            ("swap", "enable"),
            f"True with a model that has {counted(len(numbers), 'layer')} of {num_layers}: a stage of a pipeline",
            "swap without pipeline parallelism",
            "To save memory under pipeline parallelism, use recompute.",
        )


def check_ranges(config: MemoptConfig, rules: Rules, num_layers: int, report: Report) -> None:
    """Layer numbers against the number of layers, and, for swap, against the prefetch."""
    ahead = config.swap.default_prefetch
    for rule in rules.all():
        swaps = rule.kind in (RuleKind.SWAP_LAYER, RuleKind.SWAP_OP)
        loc = (*rules.loc(rule), "layers") if swaps else rules.loc(rule)
        for place, item, end in _written(config, loc, rule.layers):
            if end >= num_layers:
                allowed = f"layer numbers within [0, {num_layers - 1}]: the model has {counted(num_layers, 'layer')}"
                report.problem(place, show(item), allowed)
            elif swaps and _prefetch_fits(config, num_layers) and end + ahead >= num_layers:
                highest = num_layers - 1 - ahead
                sum_rule = f"the highest layer plus default_prefetch ({ahead}) must be less than num_layers ({num_layers})"
                report.problem(place, show(item), f"layers up to {highest}: {sum_rule}")


def check_overlap(
    rules: Rules, recomputed: Mapping[int, Mapping[str, Rule]], swapped: Mapping[int, Mapping[str, Rule]], report: Report
) -> None:
    """Report every layer and module, with its parents and children, that is both recomputed and swapped."""
    pairs: dict[tuple[Rule, str, Rule, str], list[int]] = {}
    for layer, recompute in recomputed.items():
        for pair in _pairs(rules, layer, recompute, swapped[layer]):
            pairs.setdefault(pair, []).append(layer)
    for (rule, path, other, other_path), layers in pairs.items():
        if path:
            found = f"{quoted(path)} in {spoken(layers)}, where {other.field} swaps {quoted(other_path)}"
        else:
            found = f"{spoken(layers)}, where {other.field} swaps"
        allowed = "either recompute or swap for a layer, or for a module with its parents and children"
        report.problem(rules.loc(rule), found, allowed, name=rule.field)


def _pairs(
    rules: Rules, layer: int, recompute: Mapping[str, Rule], swap: Mapping[str, Rule]
) -> Iterator[tuple[Rule, str, Rule, str]]:
    swapping = [rule for rule in (*rules.swap_layer, *rules.swap_op) if layer in rule.layers]
    if "" in recompute:
        yield from ((recompute[""], "", other, "") for other in swapping)
        return
    if "" in swap:
        yield from ((rule, "", swap[""], "") for rule in rules.recompute_select if layer in rule.layers)
        return
    modules = [
        (rule, path, other, other_path)
        for path, rule in recompute.items()
        for other_path, other in swap.items()
        if path == other_path or path.startswith(f"{other_path}.") or other_path.startswith(f"{path}.")
    ]
    yield from modules
    # One pattern on both sides names the same operators, whichever they are.
    seen = {(rule.field, other.field) for rule, _, other, _ in modules}
    for rule in (*rules.recompute_select, *rules.recompute_comm):
        for other in rules.swap_op:
            both = rule.pattern == other.pattern and layer in rule.layers and layer in other.layers
            if both and (rule.field, other.field) not in seen:
                yield rule, rule.pattern, other, other.pattern


def _prefetch_fits(config: MemoptConfig, num_layers: int) -> bool:
    return 1 <= config.swap.default_prefetch <= num_layers - 1


def _written(config: MemoptConfig, loc: Loc, layers: tuple[int, ...]) -> Iterator[tuple[Loc, object, int]]:
    """The items of a layer specification as they were written, each with its place and its last layer."""
    raw = config.origin.written(loc)
    try:
        as_written = raw is not None and parse_layers(raw) == layers
    except Findings:
        as_written = False
    if as_written:
        for index, item in written_items(raw):
            yield loc if index is None else (*loc, index), item, parse_item(item)[1]
    else:
        for item in canonical(layers):
            yield loc, item, parse_item(item)[1]
