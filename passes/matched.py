"""What the rules of a configuration met in the graphs seen so far: the ground for saying what had no effect."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import Node

from .matching import MatchTimeout, fullmatch
from .policy import Rule


@dataclass
class Matched:
    """Which rules matched something.

    Attributes:
        rules: every rule that covered a node.
        operators: nodes that a rule names as operators, and so forces.
        timed_out: patterns that took too long on some operator path, and count as no match from then on.
        warnings: what the user should hear.
    """

    rules: set[Rule] = field(default_factory=set)
    operators: dict[Node, Rule] = field(default_factory=dict)
    timed_out: set[str] = field(default_factory=set)
    warnings: list[str] = field(default_factory=list)

    def fullmatch(self, rule: Rule, path: str) -> bool:
        """Whether the rule's pattern matches the whole operator path; a match that takes too long is none, and is told."""
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
