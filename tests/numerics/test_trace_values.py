"""Looking at models in which a value decides: sizes that only a run can tell, and branches that a trace cannot take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo_config
from harness import EMPTY, FULL, check, full, memopt_warnings
from memopt.compiler.explain.explanation import GraphExplanation
from numeric_models import WIDTH, Mlp, Residual, Stack, x
from torch import nn

from memopt import Explanation, MemoptWarning, PolicyNotApplied, trace

BACKENDS = pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.inductor)])


class Experts(nn.Module):
    """Each row goes to one of two experts; how many go to which is known in a run only."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
        self.gate = nn.Linear(WIDTH, 2)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        chosen = self.gate(h).argmax(-1)
        out = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            (rows,) = torch.where(chosen == number)
            out = out.index_add(0, rows, torch.tanh(expert(h[rows])))
        return out + h


def experts() -> Stack:
    torch.manual_seed(3)
    return Stack([Experts() for _ in range(2)])


@pytest.fixture
def sizes_are_captured() -> Iterator[None]:
    with dynamo_config.patch(capture_dynamic_output_shape_ops=True):
        yield


def facts(explanation: Explanation | GraphExplanation) -> list[tuple[Any, ...]]:
    return [(r.name, r.layer, r.path, r.op, r.dtype, r.bytes, r.kind, r.action, r.rule) for r in explanation.values]


@pytest.mark.usefixtures("sizes_are_captured")
def test_sizes_that_only_a_run_can_tell_are_counted_as_unknown() -> None:
    trained = check(experts(), [x()], FULL, "aot_eager", layers="layers")
    torch._dynamo.reset()
    traced = trace(experts(), full("0-1"), [x()], backend="aot_eager", layers="layers")
    assert facts(traced) == facts(trained.explanation)
    for explanation in (trained.explanation, traced):
        by_layer = {total.layer: total for total in explanation.totals}
        # In a layer the products of both experts run again, of a size that nobody knows, and the gate's need not.
        assert [by_layer[n].unknown_flops for n in range(2)] == [2, 2]
        assert [by_layer[n].recomputed_flops for n in range(2)] == [0, 0]
        assert all(by_layer[n].unknown_before >= by_layer[n].unknown > 0 for n in range(2))
        row = next(line for line in str(explanation).splitlines() if line.startswith("│ all"))
        _, before, after, _, work = (cell.strip() for cell in row.strip("│").split("│"))
        assert before.endswith(f"+ {sum(t.unknown_before for t in explanation.totals)} unknown")
        assert after.endswith(f"+ {sum(t.unknown for t in explanation.totals)} unknown")
        assert work == "0 + 4 unknown"


class Scales(nn.Module):
    """Asks for a value, as a number or as a condition."""

    def __init__(self, condition: bool) -> None:
        super().__init__()
        self.mlp = Mlp()
        self.condition = condition

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if self.condition:
            return self.mlp(h) if h.sum() > 100 else h + self.mlp(h)
        return self.mlp(h) * int(h.abs().sum().item())


class First(nn.Module):
    """Plain layers, a layer that asks, and one behind it."""

    def __init__(self, condition: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList([Residual(Mlp()), Residual(Mlp()), Scales(condition), Residual(Mlp())])
        self.double()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:2]:
            h = layer(h)
        h = self.layers[2](h)
        return self.layers[3](h)


@BACKENDS
@pytest.mark.parametrize("condition", [False, True])
def test_a_trace_stops_where_a_value_is_asked_for_and_says_so(condition: bool, backend: str) -> None:
    model = First(condition)
    with pytest.warns(MemoptWarning, match="the trace stopped at") as caught:
        explanation = trace(model, full("0-1", 3), [x()], backend=backend, layers="layers")
    (text,) = (str(w.message) for w in caught)
    assert (
        f"{__file__}:{Scales.forward.__code__.co_firstlineno + (2 if condition else 3)}, where aten._local_scalar_dense" in text
    )
    assert "`.item()`, or a tensor as a condition" in text
    assert "what becomes of layer 3 (layers.3) is not known" in text
    assert "memopt.explain(model) then tells everything" in text
    assert explanation.warnings == (text,)
    assert {row.layer for row in explanation.values if row.rule} == {0, 1}


def test_what_is_shown_before_the_stop_is_what_a_run_has() -> None:
    with pytest.warns(MemoptWarning):
        traced = trace(First(False), full("0-1"), [x()], backend="aot_eager", layers="layers")
    torch._dynamo.reset()
    trained = check(First(False), [x()], full("0-1"), "aot_eager", layers="layers", warns=None, exact=False)
    found = [facts(graph) for graph in traced.graphs]
    assert len(found) == 2  # up to the layer that asks, and in it
    assert found == [facts(graph) for graph in trained.explanation.graphs[:2]]


def test_a_stopped_trace_is_an_error_when_strict() -> None:
    with pytest.raises(PolicyNotApplied, match="the trace stopped at"):
        trace(First(True), full("0-1"), [x()], backend="aot_eager", layers="layers", strict=True)


class AsksFirst(Stack):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        times = int(h.detach().abs().sum().item())
        return super().forward(h) * times


def test_a_trace_that_stops_before_the_first_graph_raises() -> None:
    model = AsksFirst([Residual(Mlp()) for _ in range(2)])
    with pytest.raises(ValueError, match=r"the trace stopped at .*test_trace_values\.py:\d+, where .*layers 0-1"):
        trace(model, FULL(model), [x()], backend="aot_eager")


def test_a_trace_stops_at_a_size_that_torch_does_not_capture() -> None:
    class Chooses(Stack):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            h = super().forward(h)
            return h[torch.where(h[:, 0] > 0)[0]]

    torch.manual_seed(3)
    model = Chooses([Residual(Mlp()) for _ in range(2)])
    with pytest.warns(MemoptWarning, match=r"where aten\.nonzero\.default asks for a value .*what comes after it is not shown"):
        explanation = trace(model, FULL(model), [x()], backend="aot_eager")
    assert {row.layer for row in explanation.values if row.rule} == {0, 1}


def test_a_value_in_a_graph_that_does_not_break_stops_nothing() -> None:
    class Captured(Stack):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            h = super().forward(h)
            return h * h.detach().sum().item()

    torch.manual_seed(3)
    model = Captured([Residual(Mlp()) for _ in range(2)])
    with dynamo_config.patch(capture_scalar_outputs=True):
        said = memopt_warnings(lambda: trace(model, EMPTY, [x()], backend="aot_eager"))
    assert said == []
