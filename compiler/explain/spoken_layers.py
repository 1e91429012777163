"""Layers and graph breaks, as messages name them."""

from __future__ import annotations

from collections.abc import Sequence

from ...passes.policy import Plan
from ..config.layer_specs import spoken


def named(plan: Plan, layers: tuple[int, ...]) -> str:
    """``layers 0-1 (layers.0, layers.1)``."""
    paths = ", ".join(plan.layer(i).path for i in layers[:8]) + (", ..." if len(layers) > 8 else "")
    return f"{spoken(layers)} ({paths})"


def reasons(breaks: Sequence[str]) -> str:
    """``The graph broke at: Call to `print` (model.py:7).``; empty where nobody knows."""
    return f"The graph broke at: {'; '.join(breaks)}." if breaks else ""
