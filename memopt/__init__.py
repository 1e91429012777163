"""memopt: fit PyTorch training into memory by a declarative rewrite of the joint forward-backward graph."""

from .compiler.agreement import RanksDisagreeError
from .compiler.cache_key import package_version
from .compiler.compile import compile_with_memopt, explain, trace
from .compiler.config.load import MemoptConfig, load_config
from .compiler.errors import ConfigError, LayersError, MemoptWarning
from .compiler.explain.collectives import CollectiveRow
from .compiler.explain.explanation import Explanation, GraphExplanation
from .compiler.explain.totals import LayerTotal
from .compiler.explain.values import ValueRow
from .compiler.plan.resolve import resolve
from .compiler.session import PolicyNotApplied
from .passes.policy import Action, Decision, LayerPlan, Plan, Rule, RuleKind
from .passes.verify import VerificationError
from .runtime.counters import SwapCounters
from .runtime.errors import SwapError
from .runtime.registry import swap_counters

__version__ = package_version()

__all__ = [
    "Action",
    "CollectiveRow",
    "ConfigError",
    "Decision",
    "Explanation",
    "GraphExplanation",
    "LayerPlan",
    "LayerTotal",
    "LayersError",
    "MemoptConfig",
    "MemoptWarning",
    "Plan",
    "PolicyNotApplied",
    "RanksDisagreeError",
    "Rule",
    "RuleKind",
    "SwapCounters",
    "SwapError",
    "ValueRow",
    "VerificationError",
    "compile_with_memopt",
    "explain",
    "load_config",
    "resolve",
    "swap_counters",
    "trace",
]
