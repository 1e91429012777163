"""What tells one compiled policy from another: the text that goes into torch's compile-cache keys."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch.fx import GraphModule

from ..passes.policy import Plan
from ..passes.scopes import find_scope
from . import torch_bridge


@cache
def source_digest() -> str:
    """A digest of memopt's version and of the source of everything that decides or rewrites."""
    digest = hashlib.sha256(package_version().encode())
    parts = Path(__file__).parent, Path(__file__).parents[1] / "passes", Path(__file__).parents[1] / "runtime"
    for part in parts:
        for file in sorted(part.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def package_version() -> str:
    """The installed version of memopt."""
    try:
        return version("memopt")
    except PackageNotFoundError:
        return "unknown"


def cache_key(plan: Plan, graph: GraphModule, layer_of_path: dict[str, int], moving: tuple[int, ...] = ()) -> str:
    """A digest of the plan, of memopt itself, and of the names that the plan meets in a captured graph.

    Torch's own keys see operators and shapes, not module names: two models that differ in names alone share them. Shapes,
    gradients and budgets are here as well, because what is recorded of a compilation is found by this key.
    """
    digest = hashlib.sha256(source_digest().encode())
    for part in (plan.layers, plan.pending, plan.exclude, plan.swap, sorted(layer_of_path.items()), moving):
        digest.update(repr(part).encode())
    digest.update(f"{torch_bridge.activation_memory_budget()}|{torch.is_grad_enabled()}".encode())
    for node in graph.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            digest.update(f"{node.name}|{tuple(value.shape)}|{value.dtype}|{value.device}|{value.requires_grad}\n".encode())
    for node in graph.graph.nodes:
        digest.update(repr(node.meta.get("custom")).encode())
        scope = find_scope(node, layer_of_path)
        if scope is not None:
            digest.update(f"{node.name}|{scope.layer}|{scope.path}|{scope.function}\n".encode())
    return digest.hexdigest()
