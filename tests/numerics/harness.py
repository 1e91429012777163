"""Train a model plainly and under memopt, from the same start, and compare everything that a user could see.

Per step: the outputs, the gradients of parameters and inputs, what the inputs hold, all buffers, the parameters after the
update, and the next random number. On backends that run the operators of the graph as they are, all must be bitwise equal.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from memopt.compiler.plan.layers import find_layers
from torch import nn
from torch.fx import GraphModule
from torch.utils._pytree import tree_flatten

from memopt import Explanation, MemoptWarning, compile_with_memopt, explain

EMPTY: dict[str, Any] = {}


def FULL(model: nn.Module, layers: str | Sequence[str] | None = None) -> dict[str, Any]:
    """A configuration that recomputes every layer of ``model``."""
    return full(f"0-{len(find_layers(model, layers)) - 1}")


def run_as_is(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that runs the forward and the backward graph as memopt left them."""
    return graph.forward


NOOP = run_as_is
BACKENDS = {"no-op": run_as_is, "aot_eager": "aot_eager", "inductor": "inductor"}
# Inductor fuses, so sums round differently; models of the tests compute in float64 where it is compared.
INDUCTOR_TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 2e-2}


def full(*layers: int | str, **more: Any) -> dict[str, Any]:
    """A configuration that recomputes whole layers."""
    return {"recompute": {"mode": "full", "full_recompute_layer": list(layers), **more}}


def select(patterns: Mapping[str, Sequence[Any]], **more: Any) -> dict[str, Any]:
    """A configuration that recomputes modules and operators."""
    return {"recompute": {"mode": "select", "select_module": dict(patterns), **more}}


@dataclass
class State:
    """What one training step left behind, by name."""

    tensors: dict[str, torch.Tensor | None] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)


def loss_of(outputs: Any) -> torch.Tensor:
    """A loss to which every differentiable output contributes, each element with another weight."""
    total = torch.zeros((), dtype=torch.float64)
    for leaf in tree_flatten(outputs)[0]:
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            weights = torch.linspace(0.5, 1.5, leaf.numel(), dtype=torch.float64).reshape(leaf.shape)
            total = total + (leaf.double() * weights).sum()
    return total


def train_step(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, seed: int = 7, lr: float = 0.0
) -> State:
    """Run one step and record what a user could see."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = None
    given = copy.deepcopy((tuple(args), dict(kwargs or {})))
    outputs = model(*given[0], **given[1])
    loss_of(outputs).backward()
    state = State()
    leaves, spec = tree_flatten(outputs)
    state.others["structure of the outputs"] = str(spec)
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            state.tensors[f"output {number}"] = leaf.detach().clone()
        else:
            state.others[f"output {number}"] = leaf
    for number, leaf in enumerate(tree_flatten(given)[0]):
        if isinstance(leaf, torch.Tensor):
            state.tensors[f"input {number}"] = leaf.detach().clone()
            state.tensors[f"gradient of input {number}"] = leaf.grad
    for name, parameter in model.named_parameters():
        state.tensors[f"gradient of {name}"] = None if parameter.grad is None else parameter.grad.clone()
        if lr and parameter.grad is not None:
            with torch.no_grad():
                parameter -= lr * parameter.grad
            state.tensors[f"parameter {name}"] = parameter.detach().clone()
    for name, buffer in model.named_buffers():
        state.tensors[f"buffer {name}"] = buffer.detach().clone()
    state.tensors["next random number"] = torch.rand(3)
    return state


def assert_same(found: State, wanted: State, *, exact: bool, tolerance: float | None = None, where: str = "") -> None:
    """Fail, naming what differs and by how much."""
    assert found.others == wanted.others, where
    assert list(found.tensors) == list(wanted.tensors), where
    gradients = [t for name, t in wanted.tensors.items() if name.startswith("gradient") and t is not None and t.numel()]
    # A gradient that is zero but for rounding is measured against the others.
    largest_gradient = max((float(t.abs().max()) for t in gradients), default=0.0)
    for name, right in wanted.tensors.items():
        left = found.tensors[name]
        if right is None or left is None:
            assert left is right, f"{where}{name}: found {left}, wanted {right}"
            continue
        assert (left.shape, left.dtype) == (right.shape, right.dtype), f"{where}{name}"
        if exact or not right.dtype.is_floating_point or name == "next random number":
            assert torch.equal(left, right), f"{where}{name}: {_difference(left, right)}"
            continue
        largest = largest_gradient if name.startswith("gradient") else float(right.abs().max()) if right.numel() else 0.0
        limit = (tolerance or INDUCTOR_TOLERANCE[right.dtype]) * largest
        worst = float((left.double() - right.double()).abs().max()) if right.numel() else 0.0
        assert worst <= limit, f"{where}{name}: {_difference(left, right)}"


def _difference(left: torch.Tensor, right: torch.Tensor) -> str:
    return f"largest difference {float((left.double() - right.double()).abs().max()):.3g}; found {left}, wanted {right}"


@dataclass
class Trained:
    """A model trained under memopt beside its plain twin."""

    model: nn.Module
    plain: nn.Module
    warnings: list[str]

    @property
    def explanation(self) -> Explanation:
        return explain(self.model)


def check(
    model: nn.Module,
    args: Sequence[Any],
    config: Any,
    backend: str = "no-op",
    *,
    kwargs: Mapping[str, Any] | None = None,
    steps: int = 2,
    lr: float = 0.01,
    warns: Sequence[str] | None = (),
    exact: bool | None = None,
    tolerance: float | None = None,
    plain: nn.Module | None = None,
    **options: Any,
) -> Trained:
    """Train ``model`` and a plain copy side by side; every step must leave the same behind.

    Args:
        config: a configuration, or a function of the model and ``layers`` that makes one, such as ``FULL``.
        backend: a key of ``BACKENDS``.
        warns: parts of the warnings that memopt must give, in order; any other is a failure. None: any.
        plain: the plain model, where it is not a copy of ``model``.
        exact: bitwise equality; None: wherever the backend runs the operators as they are.
        options: for ``compile_with_memopt``.
    """
    plain = copy.deepcopy(model) if plain is None else plain
    config = config(model, options.get("layers")) if callable(config) else config
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MemoptWarning)
        compiled = compile_with_memopt(model, config, backend=BACKENDS[backend], **options)
        for step in range(steps):
            wanted = train_step(plain, args, kwargs, seed=7 + step, lr=lr)
            found = train_step(compiled, args, kwargs, seed=7 + step, lr=lr)
            is_exact = backend != "inductor" if exact is None else exact
            assert_same(found, wanted, exact=is_exact, tolerance=tolerance, where=f"{backend}, step {step}: ")
    said = [str(w.message) for w in caught if issubclass(w.category, MemoptWarning)]
    if warns is not None and not any("recomputes nothing" in text for text in warns):
        # True of several tiny layers here, whose values are all kept for correctness, and not what their tests are about.
        said = [text for text in said if "recomputes nothing" not in text]
    if warns is not None:
        assert len(said) == len(warns), said
        for text, part in zip(said, warns, strict=True):
            assert part in text
    return Trained(compiled, plain, said)


def operators(graph: GraphModule) -> Counter[str]:
    """How often each operator stands in a graph: ``{"aten.mm.default": 3}``."""
    return Counter(str(n.target) for n in graph.graph.nodes if n.op == "call_function")


def crossing(explanation: Explanation, kind: str = "activation") -> list[str]:
    """The operators of the values that cross from forward to backward."""
    return [row.op for row in explanation.values if row.action == "save" and row.kind == kind]


def memopt_warnings(run: Callable[[], Any]) -> list[str]:
    """The texts of the warnings that memopt gives while ``run`` runs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MemoptWarning)
        run()
    return [str(w.message) for w in caught if issubclass(w.category, MemoptWarning)]
