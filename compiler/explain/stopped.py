"""Where a trace has to stop: what comes next depends on values, and fake tensors have none."""

from __future__ import annotations

from collections.abc import Sequence

from ...passes.policy import Plan
from .. import torch_bridge
from ..capture import Capture
from ..places import place_in, place_of
from .spoken_layers import named
from .unapplied import lost_layers

_SPOKEN = {"aten._local_scalar_dense.default": "`.item()`, or a tensor as a condition"}


def stopped(plan: Plan, captures: Sequence[Capture], error: torch_bridge.NeedsValue) -> str:
    """Say where the trace stopped, what that leaves unknown, and what to do."""
    operator = str(error.func)
    spoken = f" ({_SPOKEN[operator]})" if operator in _SPOKEN else ""
    place = place_of(error) or _line_in_graph(captures, operator)
    at = f"at {place}, where {operator}{spoken}" if place else f"where {operator}{spoken}"
    lost = lost_layers(plan, [seen for seen in captures if seen.trains])
    what = f"what becomes of {named(plan, lost)} is not known" if lost else "what comes after it is not shown"
    return (
        f"the trace stopped {at} asks for a value that only a run has, and torch.compile breaks the graph there: {what}. "
        "Call the model once after compile_with_memopt; memopt.explain(model) then tells everything."
    )


def is_whole(captures: Sequence[Capture], breaks: Sequence[str]) -> bool:
    """Whether the model is one graph, so that nothing was left to see when running that graph stopped."""
    return len(captures) == 1 and not breaks


def _line_in_graph(captures: Sequence[Capture], operator: str) -> str:
    """The user's line of an operator of the graph that was running: the last one captured."""
    rewritten = captures[-1].rewritten if captures else None
    for node in rewritten.forward.graph.nodes if rewritten is not None else ():
        if str(node.target) == operator and node.stack_trace:
            return place_in(node.stack_trace)
    return ""
