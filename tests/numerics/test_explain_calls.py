"""``explain`` tells what the latest call did, however often torch has compiled the model."""

from __future__ import annotations

import torch
from harness import FULL, full, run_as_is, train_step
from numeric_models import WIDTH, Mlp, Residual, Stack, stack, x
from torch import nn

from memopt import Explanation, compile_with_memopt, explain

ROW = WIDTH * 8
"""Bytes of one row of an activation."""


def compiled(model: Stack, **options: object) -> nn.Module:
    return compile_with_memopt(model, FULL(model), backend=run_as_is, **options)  # type: ignore[arg-type]


def totals(explanation: Explanation) -> tuple[int, int]:
    return explanation.saved_after, sum(total.recomputed for total in explanation.totals)


def test_totals_are_those_of_the_latest_batch_size() -> None:
    model = compiled(stack(lambda: Residual(Mlp()), 3), dynamic=False)
    train_step(model, [x(6)])
    _, operators = totals(explain(model))
    for rows in (6, 2, 6, 4):
        train_step(model, [x(rows)])
        assert totals(explain(model)) == (2 * rows * ROW, operators)
    explanation = explain(model)
    assert [graph.number for graph in explanation.graphs] == [0, 1, 2]
    assert [graph.number for graph in explanation.current] == [2]
    assert [sum(t.saved_after for t in graph.totals) for graph in explanation.graphs] == [12 * ROW, 4 * ROW, 8 * ROW]
    assert {row.graph for row in explanation.values} == {2}
    assert "Of 3 graphs, what the latest call ran: 2." in str(explanation)


def test_a_call_without_gradients_changes_nothing_in_it() -> None:
    model = compiled(stack(lambda: Residual(Mlp()), 2), dynamic=False)
    train_step(model, [x(6)])
    before = str(explain(model))
    with torch.no_grad():
        model(x(2))
    assert str(explain(model)) == before


class Skips(Stack):
    """Some calls leave out a layer."""

    def forward(self, h: torch.Tensor, skipped: int | None = None) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            if number != skipped:
                h = layer(h)
        return h


def test_totals_are_those_of_the_layers_that_the_latest_call_ran() -> None:
    model = compiled(Skips([Residual(Mlp()) for _ in range(3)]))
    counted = []
    for skipped in (None, 1, None):
        train_step(model, [x(4), skipped])
        counted.append({total.layer for total in explain(model).totals if total.recomputed})
    assert counted == [{0, 1, 2}, {0, 2}, {0, 1, 2}]


class Breaks(Stack):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = super().forward(h)
        torch._dynamo.graph_break()
        return torch.sin(h).exp()


def test_all_graphs_of_one_call_are_summed() -> None:
    model = Breaks([Residual(Mlp()) for _ in range(2)])
    compile_with_memopt(model, full("0-1"), backend=run_as_is, dynamic=False)
    for rows in (4, 6):
        train_step(model, [x(rows)])
    explanation = explain(model)
    assert [graph.number for graph in explanation.current] == [2, 3]
    assert explanation.saved_after == sum(t.saved_after for graph in explanation.current for t in graph.totals)
    assert {row.graph for row in explanation.values} == {2, 3}
