"""The rules that a configuration switches on, with their places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ...passes.policy import Rule, RuleKind
from ..config.load import MemoptConfig
from ..errors import Loc, field_name, quoted


@dataclass(frozen=True)
class Rules:
    """The rules in force, by what they do. A list of ``exclude_op`` names every layer, so it has no numbers yet."""

    recompute_full: tuple[Rule, ...] = ()
    recompute_select: tuple[Rule, ...] = ()
    recompute_comm: tuple[Rule, ...] = ()
    swap_layer: tuple[Rule, ...] = ()
    swap_op: tuple[Rule, ...] = ()
    exclude_literal: tuple[Rule, ...] = ()
    exclude_pattern: tuple[Rule, ...] = ()
    locs: Mapping[str, Loc] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(self.all())

    def all(self) -> Iterator[Rule]:
        """Every rule."""
        yield from (*self.recompute_full, *self.recompute_select, *self.recompute_comm)
        yield from (*self.swap_layer, *self.swap_op, *self.exclude_literal, *self.exclude_pattern)

    def loc(self, rule: Rule) -> Loc:
        """Where the rule stands in the configuration."""
        return self.locs[rule.field]

    def within(self, numbers: range) -> Rules:
        """The same rules without layers that the model does not have, and without rules that leaves nothing to do."""

        def cut(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
            kept = (replace(rule, layers=tuple(layer for layer in rule.layers if layer in numbers)) for rule in rules)
            return tuple(rule for rule in kept if rule.layers)

        full, select = cut(self.recompute_full), cut(self.recompute_select)
        return Rules(
            recompute_full=full,
            recompute_select=select,
            recompute_comm=cut(self.recompute_comm),
            swap_layer=cut(self.swap_layer),
            swap_op=cut(self.swap_op),
            exclude_literal=self.exclude_literal if full or select else (),
            exclude_pattern=cut(self.exclude_pattern) if full or select else (),
            locs=self.locs,
        )

    def patterns(self) -> Iterator[tuple[Rule, Sequence[Rule]]]:
        """The rules over paths, each with the rules over whole layers that leave it nothing to do there."""
        for rule in (*self.recompute_select, *self.recompute_comm):
            yield rule, self.recompute_full
        for rule in self.swap_op:
            yield rule, self.swap_layer
        for rule in self.exclude_pattern:
            yield rule, ()

    def exclude(self, numbers: range) -> Iterator[Rule]:
        """The rules of ``exclude_op``, with the layers of the model."""
        every = tuple(numbers)
        yield from (replace(rule, layers=every) for rule in self.exclude_literal)
        yield from self.exclude_pattern


def active_rules(config: MemoptConfig) -> Rules:
    """The rules of the sections that are enabled."""
    locs: dict[str, Loc] = {}

    def rule(
        kind: RuleKind, loc: Loc, pattern: str, layers: tuple[int, ...], *, shown: str = "", literal: bool = False
    ) -> Rule:
        name = field_name(loc) + shown
        locs[name] = loc
        return Rule(kind, name, pattern, layers, literal)

    def select(kind: RuleKind, loc: Loc, patterns: Mapping[str, tuple[int, ...]] | None) -> tuple[Rule, ...]:
        return tuple(rule(kind, (*loc, pattern), pattern, layers) for pattern, layers in (patterns or {}).items())

    recompute, comm, swap = config.recompute, config.recompute_comm, config.swap
    full = recompute.full_recompute_layer if recompute.mode != "None" else None
    exclude = recompute.exclude_op if recompute.mode != "None" else None
    modules = recompute.select_module if recompute.mode == "select" else None
    communication = comm.select_module if comm.enable else None
    where: Loc = ("recompute", "exclude_op")
    return Rules(
        recompute_full=(rule(RuleKind.RECOMPUTE_FULL, ("recompute", "full_recompute_layer"), "", full),) if full else (),
        recompute_select=select(RuleKind.RECOMPUTE_SELECT, ("recompute", "select_module"), modules),
        recompute_comm=select(RuleKind.RECOMPUTE_COMM, ("recompute_comm", "select_module"), communication),
        # The specification reads the first entry only.
        swap_layer=tuple(
            rule(RuleKind.SWAP_LAYER, ("swap", "layer_swap", index), "", entry.layers)
            for index, entry in enumerate((swap.layer_swap or ())[:1] if swap.enable else ())
        ),
        swap_op=tuple(
            rule(RuleKind.SWAP_OP, ("swap", "op_swap", index), entry.op_name, entry.layers, shown=f"[{quoted(entry.op_name)}]")
            for index, entry in enumerate((swap.op_swap or ()) if swap.enable else ())
        ),
        exclude_literal=tuple(
            rule(RuleKind.EXCLUDE_OP, where, text, (), shown=f"[{quoted(text)}]", literal=True) for text in exclude
        )
        if isinstance(exclude, tuple)
        else (),
        exclude_pattern=select(RuleKind.EXCLUDE_OP, where, exclude) if isinstance(exclude, Mapping) else (),
        locs=locs,
    )
