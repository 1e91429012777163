"""Which rules name an operator by its path: ``mlp.fc1.linear``, ``mlp.fc1.addmm``."""

from __future__ import annotations

from collections.abc import Iterable

from torch.fx import Node

from .matched import Matched
from .operators import function_names, target_names
from .policy import Rule
from .scopes import Scope


def operator_paths(scope: Scope, names: tuple[str, ...]) -> tuple[str, ...]:
    """The paths by which a pattern can name an operator: ``mlp.fc1.linear``; without a module, the name alone."""
    prefix = scope.path + "." if scope.path else ""
    return tuple(prefix + name for name in names)


def rule_naming(node: Node, scope: Scope, rules: Iterable[Rule], matched: Matched) -> tuple[Rule, str, str] | None:
    """The first rule that names the operator, the path it names, and a key for this call; every rule that does is credited."""
    called = [(path, scope.call) for path in operator_paths(scope, function_names(scope))]
    own = [(path, node.name) for path in operator_paths(scope, target_names(node))]
    first: tuple[Rule, str, str] | None = None
    for rule in rules:
        if scope.layer is None or scope.layer not in rule.layers:
            continue
        found = next(((path, call) for path, call in called + own if matched.fullmatch(rule, path)), None)
        if found is not None:
            matched.credit(rule, scope.layer)
            first = first or (rule, *found)
    return first
