"""memopt: fit PyTorch training into memory by a declarative rewrite of the joint forward-backward graph."""

from .compiler.cache_key import package_version
from .compiler.compare.comparison import Comparison, ComparisonRow
from .compiler.compare.run import compare_with_eager
from .compiler.compile import compile_with_memopt, explain, trace
from .compiler.config.load import MemoptConfig, load_config
from .compiler.errors import ConfigError, LayersError, MemoptWarning
from .compiler.estimate.estimate import Estimate, estimate
from .compiler.estimate.named_sizes import SizesError
from .compiler.explain.collectives import CollectiveRow
from .compiler.explain.explanation import Explanation, GraphExplanation
from .compiler.explain.totals import LayerTotal
from .compiler.explain.values import ValueRow
from .compiler.plan.resolve import resolve
from .compiler.ranks.agreement import RanksDisagreeError
from .compiler.session import PolicyNotApplied
from .passes.policy import Action, Decision, LayerPlan, Plan, Rule, RuleKind
from .passes.verify import VerificationError
from .runtime.counters import SwapCounters
from .runtime.errors import SwapError
from .runtime.measure import Measurement, measure
from .runtime.registry import swap_counters
from .runtime.timeline import Moment

__version__ = package_version()

__all__ = [
    "Action",
    "CollectiveRow",
    "Comparison",
    "ComparisonRow",
    "ConfigError",
    "Decision",
    "Estimate",
    "Explanation",
    "GraphExplanation",
    "LayerPlan",
    "LayerTotal",
    "LayersError",
    "Measurement",
    "MemoptConfig",
    "MemoptWarning",
    "Moment",
    "Plan",
    "PolicyNotApplied",
    "RanksDisagreeError",
    "Rule",
    "RuleKind",
    "SizesError",
    "SwapCounters",
    "SwapError",
    "ValueRow",
    "VerificationError",
    "compare_with_eager",
    "compile_with_memopt",
    "estimate",
    "explain",
    "load_config",
    "measure",
    "resolve",
    "swap_counters",
    "trace",
]
