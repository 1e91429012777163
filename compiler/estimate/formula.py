"""Saved bytes as a formula in the named sizes: ``1024*batch*seq + 512*batch*seq**2``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import sympy
import torch

from ..explain.totals import saved_storages

if TYPE_CHECKING:
    from ..explain.explanation import GraphExplanation


def saved_formula(graphs: Sequence[GraphExplanation], symbols: Mapping[sympy.Symbol, str]) -> dict[int | None, sympy.Expr]:
    """For each layer the bytes that its forward keeps for the backward, without what is swapped; None: outside the layers.

    A size that only a run can tell stays in it as torch's symbol.
    """
    found: dict[int | None, list[sympy.Expr]] = {}
    for graph in graphs:
        joint = graph.facts
        for root in saved_storages(joint, graph.forward):
            value = root.meta.get("val")
            if isinstance(value, torch.Tensor):
                found.setdefault(joint.layer_of(root), []).append(nbytes_of(value))
    names = {symbol: sympy.Symbol(name, integer=True, positive=True) for symbol, name in symbols.items()}
    return {layer: sympy.expand(sympy.Add(*parts).subs(names)) for layer, parts in found.items()}


def nbytes_of(value: torch.Tensor) -> sympy.Expr:
    """The bytes of a tensor's distinct elements, as an expression."""
    total = sympy.Integer(value.element_size())
    for size, stride in zip(value.shape, value.stride(), strict=True):
        if isinstance(stride, int) and stride == 0:
            continue
        total *= _expression(size)
    return total


def _expression(size: object) -> object:
    return size.node.expr if isinstance(size, torch.SymInt) else size
