"""What the rules of a configuration met in a graph: the ground for saying what had no effect."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import Node

from .matching import MatchTimeout, fullmatch
from .policy import Rule

NO_EFFECT = "has no effect"
"""How the clause for a setting begins."""


@dataclass
class Matched:
    """Which rules matched something.

    Attributes:
        met: (rule's field, layer) for every layer in which a rule matched, whether or not an earlier rule had decided.
        effective: the fields of rules by which something is recomputed or swapped in the end.
        ineffective: the fields of rules that asked for it, and by which nothing is -> why, as a clause; and of settings.
        fulfilled: the fields of rules that name what the model's own checkpoints recompute already.
        operators: nodes that a rule names as operators, and so forces.
        swapped: names of nodes that belong to a swapped layer, module or operator -> the rule that says so.
        timed_out: patterns that took too long on some operator path, and count as no match from then on.
        warnings: what the user should hear.
    """

    met: set[tuple[str, int]] = field(default_factory=set)
    effective: set[str] = field(default_factory=set)
    ineffective: dict[str, str] = field(default_factory=dict)
    fulfilled: set[str] = field(default_factory=set)
    operators: dict[Node, Rule] = field(default_factory=dict)
    swapped: dict[str, Rule] = field(default_factory=dict)
    timed_out: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)
    _known: dict[tuple[str, str], bool] = field(default_factory=dict)

    def credit(self, rule: Rule, layer: int) -> None:
        """Record that the rule matched in the layer."""
        self.met.add((rule.field, layer))

    def fullmatch(self, rule: Rule, path: str) -> bool:
        """Whether the rule's pattern matches the whole operator path; a match that takes too long is none, and is told."""
        known = self._known.get((rule.pattern, path))
        if known is None:
            known = self._known[rule.pattern, path] = self._fullmatch(rule, path)
        return known

    def _fullmatch(self, rule: Rule, path: str) -> bool:
        if rule.pattern in self.timed_out:
            return False
        try:
            return fullmatch(rule.pattern, path)
        except MatchTimeout:
            self.timed_out.add(rule.pattern)
            self.warnings.append(
                f"{rule.field}: matching took too long on the operator path {path!r}, which counts as no match; "
                "the pattern is not tried on further operators."
            )
            return False
