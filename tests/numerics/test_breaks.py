"""Where torch compiles the model in parts, or not at all: which layers that costs their policy, and what line is to blame."""

from __future__ import annotations

import pytest
import torch
from harness import EMPTY, check, full, memopt_warnings, run_as_is, train_step
from numeric_models import WIDTH, stack, x
from torch import nn

from memopt import MemoptWarning, PolicyNotApplied, compile_with_memopt, trace

ELSEWHERE = "the model ran without any graph that memopt compiled: torch.compile fell back to eager"


class Recurrent(nn.Module):
    """Torch compiles no frame that calls an LSTM, nor, from within a loop, one that calls such a frame."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.recurrent(h[None])[0][0]


def place(module: type[nn.Module], offset: int) -> str:
    return f"{__file__}:{module.forward.__code__.co_firstlineno + offset}"


def test_layers_of_a_model_that_runs_eagerly_are_named_with_the_line() -> None:
    trained = check(
        stack(Recurrent, 3), [x()], full(0, 2), warns=["layers 0, 2 (layers.0, layers.2): " + ELSEWHERE], exact=False
    )
    assert f"({place(Recurrent, 1)})" in trained.warnings[0]
    assert "recompile_limit" not in trained.warnings[0]


def test_a_model_that_runs_eagerly_without_rules_says_so_once() -> None:
    model = stack(Recurrent)
    compile_with_memopt(model, EMPTY, backend=run_as_is)
    (text,) = memopt_warnings(lambda: [train_step(model, [x(rows)]) for rows in (4, 4, 5)])
    assert text.startswith(ELSEWHERE)


def test_a_model_that_runs_eagerly_is_an_error_when_strict() -> None:
    model = stack(Recurrent)
    compile_with_memopt(model, full(1), backend=run_as_is, strict=True)
    with pytest.raises(PolicyNotApplied, match=r"layer 1 \(layers\.1\): the model ran without"):
        train_step(model, [x()])


class Prints(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.fc(h))
        print(end="")
        return torch.sin(h).cos()


def test_the_line_that_breaks_the_graph_is_named() -> None:
    trained = check(
        stack(Prints, 3), [x()], full("0-1"), warns=["layers 0-1 (layers.0, layers.1): no captured graph names them"]
    )
    assert f"({place(Prints, 2)}). Compile with scope='layer'" in trained.warnings[0]


def test_the_line_that_breaks_the_graph_is_named_by_trace() -> None:
    with pytest.warns(MemoptWarning, match="no captured graph names them") as caught:
        trace(stack(Prints, 3), full("0-1"), [x()], backend="aot_eager")
    assert f"({place(Prints, 2)}). Compile with scope='layer'" in str(caught[0].message)
