"""``estimate``: what one training step will take, before the first step."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch import nn
from torch.fx import Graph

from ...passes.liveness.fused import fused
from ...passes.liveness.kernels import Kernel
from ...passes.liveness.storages import Storages
from ...passes.sizes import Known, nbytes, size_hint
from ...runtime.timeline import Moment, peak_of
from ..arguments import check_call
from ..compile import Layers, trace
from ..config.load import ConfigSource
from ..explain.explanation import Explanation
from ..explain.totals import LayerTotal, summed
from ..lowering import Backend
from .formula import saved_formula
from .named_sizes import Dims, NamedSizes, SizesAt, SizesError, check_sizes
from .notes import NO_BACKWARD, notes
from .resident import OptimizerType, resident
from .step import Schedule, simulate
from .work import Work, work_of


@dataclass(frozen=True)
class Estimate:
    """What one step takes, as far as the graphs tell.

    Attributes:
        timeline: the live bytes while each operator runs, above what was there before the step, by category.
        resident: bytes that are there all the time: ``parameters``, ``buffers``, and ``optimizer`` state if one was named.
        layers: per layer, bytes saved before and after, and what runs again.
        work: floating-point operations of the forward, the backward, and what runs again.
        explanation: the values behind it, with their sizes as traced.
        sizes: name -> size of the dimensions that have names.
        formula: layer -> the bytes that its forward saves, in the names of ``sizes``; empty where none was asked for.
        asked: the sizes are not those of the inputs.
    """

    timeline: tuple[Moment, ...] = field(repr=False)
    resident: Mapping[str, int]
    layers: tuple[LayerTotal, ...] = field(repr=False)
    work: Work
    explanation: Explanation = field(repr=False)
    sizes: Mapping[str, int] = field(default_factory=dict)
    formula: Mapping[int | None, sympy.Expr] = field(default_factory=dict, repr=False)
    asked: bool = False

    def __str__(self) -> str:
        from .table import render

        return render(self)

    @property
    def at_peak(self) -> Moment:
        """The first moment at which most is alive: its operator, layer and bytes by category."""
        return peak_of(self.timeline)

    @property
    def peak_bytes(self) -> int:
        """The highest live bytes of the step above what was there before: gradients in, parameters out."""
        return self.at_peak.total

    @property
    def resident_bytes(self) -> int:
        """Parameters, buffers and optimizer state."""
        return sum(self.resident.values())

    @property
    def saved_bytes(self) -> int:
        """Activations that the forward keeps for the backward, without what is swapped."""
        return sum(t.saved_after for t in self.layers)

    @property
    def swapped_bytes(self) -> int:
        """Activations that leave in the forward and return in the backward."""
        return sum(t.swapped for t in self.layers)

    @property
    def recompute_flops(self) -> int:
        """Floating-point operations that run again in the backward."""
        return self.work.recompute

    @property
    def saved_formula(self) -> sympy.Expr | None:
        """``saved_bytes`` in the names of ``sizes``; None where no formula was asked for."""
        return sympy.Add(*self.formula.values()) if self.formula else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Everything the user is told about the configuration."""
        return self.explanation.warnings

    @property
    def notes(self) -> tuple[str, ...]:
        """What the figures leave out."""
        return tuple(notes(self.explanation, asked=self.asked))


def estimate(
    model: nn.Module,
    cfg: ConfigSource,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    at: Mapping[str, int] | None = None,
    dims: Dims | None = None,
    formula: bool = False,
    optimizer: OptimizerType = None,
    backend: Backend = "inductor",
    layers: Layers = None,
    pipeline_parallel_size: int = 1,
    layer_offset: int = 0,
    num_layers: int | None = None,
    strict: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> Estimate:
    """Estimate memory and work of one training step, without running anything: a model on the meta device will do.

    One step is a forward and a backward, with gradients that do not exist before. Memory inside operators of torch, such as
    the workspace of a convolution, is not known and not counted.

    Args:
        model: the module, in training mode if training is meant.
        cfg: as for :func:`compile_with_memopt`.
        args, kwargs: what the model would be called with.
        at: sizes to estimate for instead of those of the inputs, by name: ``{"batch": 8, "seq": 4096}``. The graph is
            captured once, with these sizes as symbols.
        dims: which dimensions the names stand for, as ``(argument, dimension)``, the argument by position or keyword. By
            default ``batch`` is the first dimension of every tensor, and ``seq`` the second one of tensors of integers.
        formula: also find the saved bytes as a formula in the named sizes.
        optimizer: whose state is counted: an optimizer, or what makes one of parameters, such as ``torch.optim.AdamW``.
        backend: what is estimated: ``inductor``, which fuses operators, or one that runs them one by one. Of a backend that
            is not known, the estimate is that of one by one.
        layers, pipeline_parallel_size, layer_offset, num_layers, strict, dynamic, options: as for
            :func:`compile_with_memopt`.
        device: the device that tensors on the meta device stand for.

    Raises:
        What :func:`trace` raises.
        SizesError: a ``ValueError``: the named sizes cannot be had of these inputs.
        ValueError: the model has no graph with a backward.
    """
    check_call(args, kwargs)
    check_sizes(at, dims)
    named: NamedSizes | None = None
    if at or dims or formula:
        named = NamedSizes.of(args, kwargs or {}, dims, (at or {}).keys())
        args, kwargs = named.marked(args, kwargs or {})
    explanation = trace(
        model,
        cfg,
        args,
        kwargs,
        backend=backend,
        layers=layers,
        pipeline_parallel_size=pipeline_parallel_size,
        layer_offset=layer_offset,
        num_layers=num_layers,
        strict=strict,
        dynamic=dynamic,
        options=options,
        device=device,
    )
    return estimate_of(explanation, model, backend=backend, optimizer=optimizer, named=named, at=at or {}, formula=formula)


def estimate_of(
    explanation: Explanation,
    model: nn.Module,
    *,
    backend: Backend = "inductor",
    optimizer: OptimizerType = None,
    named: NamedSizes | None = None,
    at: Mapping[str, int] | None = None,
    formula: bool = False,
) -> Estimate:
    """Estimate one step from what was decided, found by ``trace`` or by a call of a compiled model."""
    graphs = explanation.runs
    if not graphs:
        raise ValueError(f"model: it has no graph with a backward: {NO_BACKWARD}")
    known: Known = size_hint
    symbols: Mapping[sympy.Symbol, str] = {}
    sizes: Mapping[str, int] = {}
    if named is not None:
        if len(graphs) > 1:
            raise SizesError(
                f"at, dims, formula: found a model of {len(graphs)} parts, in each of which sizes have other names; "
                "allowed: a model that is captured as one graph, or inputs of the sizes that are meant."
            )
        symbols = named.symbols(explanation)
        sizes = named.checked(at or {}, symbols)
        known = SizesAt({**named.hints(explanation), **{symbol: sizes[name] for symbol, name in symbols.items()}})
    swaps = any(graph.swaps for graph in graphs)
    schedule: Schedule | None = functools.partial(_fused, swaps=swaps) if backend == "inductor" else None
    layers = summed(graph.totals_at(known) for graph in graphs)
    return Estimate(
        simulate(graphs, functools.partial(_bytes, known=known), schedule),
        resident(model, optimizer),
        layers,
        work_of(graphs, sum(layer.recomputed_flops for layer in layers), known),
        explanation,
        sizes,
        saved_formula(graphs, symbols) if formula else {},
        named is not None and dict(sizes) != dict(named.given),
    )


def _fused(graph: Graph, storages: Storages, kept: frozenset[str], phase: str, *, swaps: bool) -> Iterator[Kernel]:
    # Where values leave, the forward writes over none: it could be on its way out.
    return fused(graph, storages, kept, in_place=phase == "backward" or not swaps)


def _bytes(value: torch.Tensor, known: Known) -> int:
    return nbytes(value, known) or 0
