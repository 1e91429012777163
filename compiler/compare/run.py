"""``compare_with_eager``: two copies of a model, one of them configured, and what both leave behind."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from torch import nn

from ..arguments import check_arguments, check_call, check_number
from ..compile import Layers, compile_with_memopt
from ..config.load import ConfigSource, load_config
from ..errors import MemoptWarning, show
from ..forwards.by_layer import LayeredForward, detach
from ..forwards.whole import CompiledForward
from ..lowering import Backend
from ..plan.layers import find_layers
from ..session import Session
from ..untouched import untouched
from .comparison import Comparison, ComparisonRow, worst_of
from .judge import TOLERANCES, has_finite_gradients, judge
from .step import Loss, Runner, tensors_in
from .witnesses import Witness, beside_eager, beside_torch

EXACT = ("aot_eager",)
"""The backends that run the operators of the graphs one by one, so that every bit must be the same as in eager.

Where it is not because ``torch.compile`` adds up gradients in another order, it must be the same as there.
"""
NOT_FINITE = "the plain model's own gradients are not finite: where it has no number, the configured one must have none either."


def compare_with_eager(
    model: nn.Module,
    cfg: ConfigSource,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: Backend = "inductor",
    scope: str = "model",
    layers: Layers = None,
    pipeline_parallel_size: int = 1,
    steps: int = 1,
    seed: int = 0,
    tolerance: float | None = None,
    loss: Loss | None = None,
    progress: Callable[[str], object] | None = None,
) -> Comparison:
    """Train a configured copy of a model beside a plain one, and compare what both leave behind.

    Both start from the same weights and run each step on the same inputs and from the same seed; no optimizer changes them.
    After each step their outputs, the gradients of parameters and inputs, the buffers and the next random numbers are compared.
    The first step that differs is the last; in it, ``torch.compile`` without memopt and the plain model once more tell whose
    the difference is.

    The model, its gradients and its inputs stay as they are, and so do the random states of Python, NumPy and torch.
    Inductor compiles with ``fallback_random``, in this comparison only: else it draws other dropout masks than eager.

    Args:
        model: the module, with real tensors, in training mode if training is meant. It may be compiled by memopt already.
        cfg: as for :func:`compile_with_memopt`.
        args, kwargs: what the model is called with.
        backend, scope, layers, pipeline_parallel_size: as for :func:`compile_with_memopt`.
        steps: how many forwards and backwards to compare.
        seed: of the random numbers of the first step; each step has the next one.
        tolerance: the largest relative difference (see ``ComparisonRow.relative``) that counts as the same. By default by the
            coarsest floating-point type in the compiled graphs: 1e-11 for float64, 2e-5 for float32, 4e-3 for float16, 2e-2 for
            bfloat16; under ``aot_eager`` 0, except for what ``torch.compile`` gives in the same bits without memopt.
        loss: what to differentiate, a function of the model's output that returns a tensor of one element. By default the
            output if it is one number, its ``loss`` if it has one, else a sum in which every element of the output has another
            weight.
        progress: is told what is being done, in a few words.

    Raises:
        What :func:`compile_with_memopt` raises, and what the model raises.
        ValueError: also, the model or its inputs have no values or cannot be copied, or the loss needs no gradient.
    """
    check_arguments(model, backend, None)
    check_call(args, kwargs)
    check_number("steps", steps, least=1)
    check_number("seed", seed, least=0)
    _check_tolerance(tolerance)
    if loss is not None and not callable(loss):
        raise TypeError(f"loss: found {show(loss)}; allowed: a function of the model's output, or None.")
    config = load_config(cfg)
    run = Runner(tuple(args), dict(kwargs or {}), loss, seed)
    _refuse_meta(model, run)
    tell = progress or (lambda _: None)
    with untouched(), warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoptWarning)  # they are part of the result
        plain, ours = _copy(model), _copy(model)
        compile_with_memopt(
            ours,
            config,
            backend=backend,
            scope=scope,
            layers=layers,
            pipeline_parallel_size=pipeline_parallel_size,
            options=_options(backend),
        )
        stock = Witness(lambda: _under_torch_compile(model, backend, scope, layers), run)
        again = Witness(lambda: _copy(model), run)
        session: Session = ours.__dict__["forward"].session
        notes = [] if model.training else ["the model is in evaluation mode: model.train() compares it as it trains."]
        rows: dict[tuple[str, str], ComparisonRow] = {}
        for step in range(steps):
            tell(f"Step {step + 1} of {steps}: plain ...")
            wanted = run.step(plain, step)
            tell(f"Step {step + 1} of {steps}: as configured{'' if step else ', with compilation'} ...")
            found = run.step(ours, step)
            exact = backend in EXACT and tolerance is None
            rounding = _rounding(session)
            compared = list(judge(found, wanted, step, 0.0 if exact else rounding if tolerance is None else tolerance))
            if any(not row.agrees for row in compared) and isinstance(backend, str):
                tell("A difference: running torch.compile without memopt ...")
                with contextlib.suppress(Exception):  # then there is nothing to compare with
                    compared = beside_torch(compared, found, wanted, stock.after(step), rounding if exact else None)
            is_same = all(row.agrees for row in compared)
            if not is_same:
                tell("A difference: running the plain model again ...")
                compared = beside_eager(compared, wanted, again.after(step))
            for row in compared:
                key = row.kind, row.name
                rows[key] = worst_of([rows[key], row]) if key in rows else row
            if not has_finite_gradients(wanted):
                notes.append(NOT_FINITE)
            if not is_same:
                break
        if not any(seen.trains for seen in session.captures):
            notes.append("no graph with a backward was compiled: eager was compared with eager.")
    return _comparison(tuple(rows.values()), (*session.said, *dict.fromkeys(notes)), step + 1)


def _comparison(rows: tuple[ComparisonRow, ...], texts: tuple[str, ...], steps: int) -> Comparison:
    bad = [row for row in rows if not row.agrees]
    worst = worst_of([row for row in bad if row.reproducible] or bad or rows)
    return Comparison(
        agrees=not bad,
        deterministic=not bad or any(row.reproducible for row in bad),
        largest=worst.relative,
        worst="" if worst.bitwise else worst.name,
        rows=rows,
        warnings=texts,
        steps=steps,
    )


def _copy(model: nn.Module) -> nn.Module:
    """A copy that runs as plain eager, also of a model that memopt has compiled."""
    try:
        made = copy.deepcopy(model)
    except Exception as error:
        raise ValueError(f"model: copying it failed: {type(error).__name__}: {error}") from error
    detach(made)
    own = made.__dict__.get("forward")
    if isinstance(own, CompiledForward | LayeredForward):
        object.__delattr__(made, "forward")
        if own.original is not None:
            object.__setattr__(made, "forward", own.original)
    return made


def _under_torch_compile(model: nn.Module, backend: Backend, scope: str, layers: Layers) -> nn.Module:
    """A copy that runs under ``torch.compile`` without memopt: as a whole, or each layer by itself."""
    made = _copy(model)
    for module in [layer.module for layer in find_layers(made, layers)] if scope == "layer" else [made]:
        module.compile(backend=backend, options=_options(backend))
    return made


def _options(backend: Backend) -> dict[str, Any] | None:
    """Inductor draws random numbers of its own, unless it is told to draw them as eager does."""
    return {"fallback_random": True} if backend == "inductor" else None


def _rounding(session: Session) -> float:
    """What rounding may do, by the coarsest type of the compiled graphs."""
    seen = (session.rewritten(c).rewritten for c in session.captures if c.trains)
    values = (node.meta.get("val") for made in seen if made is not None for node in made.joint.graph.nodes)
    types = {value.dtype for value in values if isinstance(value, torch.Tensor)}
    return max((TOLERANCES[dtype] for dtype in types if dtype in TOLERANCES), default=TOLERANCES[torch.float32])


def _refuse_meta(model: nn.Module, run: Runner) -> None:
    tensors = [
        *((f"the parameter {name}", p) for name, p in model.named_parameters()),
        *((f"the buffer {name}", b) for name, b in model.named_buffers()),
    ]
    meta = next((name for name, tensor in tensors if tensor.device.type == "meta"), None)
    if meta is not None:
        raise ValueError(
            f"model: found {meta} on the meta device, which has no values; allowed: a model with real tensors. Build it "
            "outside `with torch.device('meta')`, or use memopt.trace, which needs no values."
        )
    inputs = (*tensors_in(run.args, "args"), *tensors_in(run.kwargs, "kwargs"))
    meta = next((name for name, tensor in inputs if tensor.device.type == "meta"), None)
    if meta is not None:
        raise ValueError(f"{meta}: found a tensor on the meta device, which has no values; allowed: a real tensor.")


def _check_tolerance(tolerance: object) -> None:
    if tolerance is None:
        return
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float):
        raise TypeError(f"tolerance: found {show(tolerance)}; allowed: a number of at least 0, or None.")
    if not (isfinite(tolerance) and tolerance >= 0):
        raise ValueError(f"tolerance: found {tolerance}; allowed: a finite number of at least 0.")
