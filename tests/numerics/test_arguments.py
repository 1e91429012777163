"""Arguments that could not be honoured are refused by name, before anything is compiled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from harness import FULL, run_as_is
from numeric_models import Mlp, stack, x
from torch import nn
from torch.fx import GraphModule

from memopt import compile_with_memopt, trace


@pytest.mark.parametrize("look", [compile_with_memopt, trace])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_modules_of_torch_jit_are_refused(look: Any) -> None:
    model = torch.jit.trace(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), torch.zeros(1, 2))
    with pytest.raises(
        TypeError, match=r"model: found TopLevelTracedModule, a module of torch\.jit; allowed: the torch\.nn\.Module"
    ):
        look(model, {})


@pytest.mark.parametrize("look", [compile_with_memopt, trace])
@pytest.mark.parametrize("name", ["dynamic", "strict"])
def test_switches_are_truth_values(look: Any, name: str) -> None:
    allowed = "True, False or None" if name == "dynamic" else "True or False"
    with pytest.raises(TypeError, match=f"^{name}: found 'yes'; allowed: {allowed}\\.$"):
        look(stack(Mlp), {}, **{name: "yes"})


def test_options_are_a_mapping() -> None:
    with pytest.raises(TypeError, match="options: found 'max_autotune'; allowed: a mapping"):
        compile_with_memopt(stack(Mlp), {}, options="max_autotune")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("args", "found"), [(x(), "a tensor"), ("text", "'text'"), ({"h": 1}, "{'h': 1}"), (None, "None"), (3, "3")]
)
def test_what_a_traced_model_is_called_with_is_a_tuple(args: Any, found: str) -> None:
    with pytest.raises(TypeError, match=f"^args: found {re.escape(found)}; allowed: a tuple or list"):
        trace(stack(Mlp), {}, args)


@pytest.mark.parametrize("kwargs", [{3: 4}, [("h", 4)]])
def test_keywords_of_a_traced_model_are_a_mapping(kwargs: Any) -> None:
    with pytest.raises(TypeError, match=f"^kwargs: found {re.escape(str(kwargs))}; allowed: a mapping of names"):
        trace(stack(Mlp), {}, (), kwargs)


def returns_nothing(graph: GraphModule, inputs: Sequence[Any]) -> None:
    graph.graph.lint()


def test_a_backend_that_returns_nothing_is_named() -> None:
    model = stack(Mlp)
    compile_with_memopt(model, FULL(model), backend=returns_nothing)
    with pytest.raises(ValueError, match="backend: 'returns_nothing' returned None for a graph; allowed: a callable"):
        model(x())


def test_what_is_refused_is_left_as_it_was() -> None:
    model = stack(Mlp)
    with pytest.raises(TypeError, match="fullgraph"):
        compile_with_memopt(model, {}, backend=run_as_is, fullgraph=1)  # type: ignore[arg-type]
    assert "forward" not in model.__dict__
