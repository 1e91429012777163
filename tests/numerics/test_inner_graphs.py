"""Graphs of inner modules, after breaks: layers keep their rules where a graph is theirs alone, and are named elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import check, full, select
from numeric_models import WIDTH, Block, Mlp, Residual, x
from torch import nn

from memopt import compile_with_memopt, explain

WHOLE = "recompute.full_recompute_layer"


def broken(h: torch.Tensor) -> torch.Tensor:
    torch._dynamo.graph_break()
    return h


class Inner(nn.Module):
    """A stack within a model. ``this`` stands for ``self``: torch notes the variable's name."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Residual(Mlp()) for _ in range(depth))

    def forward(this, h: torch.Tensor) -> torch.Tensor:
        h = this.into(h)
        for layer in this.layers:
            h = layer(h)
        return h


class Outer(nn.Module):
    """Breaks before and after its inner module, like many a library's outermost forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.head = nn.Linear(WIDTH, WIDTH)
        self.double()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.head(broken(self.inner(broken(h * 1))))


class Skipped(Outer):
    """Its own frame is never compiled: only that of the inner module is."""

    @torch.compiler.disable(recursive=False)
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(h))


def ruled(trained: Any, rule: str = WHOLE) -> set[int | None]:
    return {row.layer for row in trained.explanation.values if row.rule == rule}


@pytest.mark.parametrize("backend", ["no-op", "aot_eager", "inductor"])
@pytest.mark.parametrize("model", [Outer, Skipped])
def test_breaks_around_the_stack_cost_nothing(model: type[nn.Module], backend: str) -> None:
    trained = check(model(), [x()], full("0-1"), backend)
    assert ruled(trained) == {0, 1}
    assert trained.explanation.shares == dict.fromkeys(range(3), 1.0)


def test_names_of_modules_hold_in_an_inner_graph() -> None:
    trained = check(Skipped(), [x()], select({r"inner\.act": [1], "inner": [2]}), "aot_eager")
    rows = [row for row in trained.explanation.values if row.rule == "recompute.select_module['inner']"]
    assert {(row.layer, row.path.partition(".")[0]) for row in rows} == {(2, "inner")}


class Pair(nn.Module):
    """An encoder and a decoder of one class, each compiled by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Inner(2), Inner(2)
        self.double()

    @torch.compiler.disable(recursive=False)
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(h))


STACKS = ["encoder.layers", "decoder.layers"]


def test_two_stacks_that_share_a_graph_and_rules() -> None:
    trained = check(Pair(), [x()], full("0-3"), "aot_eager", layers=STACKS)
    assert all(seen.root == "encoder" for seen in trained.model.forward.session.captures)
    assert trained.model.forward.session.captures[0].ran_for == {"encoder", "decoder"}


def test_two_stacks_that_share_a_graph_and_not_their_rules() -> None:
    told = ["layers 2-3 (decoder.layers.0, decoder.layers.1): they run the graph that was compiled for encoder, and so follow"]
    trained = check(Pair(), [x()], full("0-1"), "aot_eager", layers=STACKS, warns=told)
    assert "scope='layer'" in trained.warnings[0]


def test_each_of_two_stacks_has_its_rules_layer_by_layer() -> None:
    trained = check(Pair(), [x()], full("0-1"), "aot_eager", layers=STACKS, scope="layer")
    assert ruled(trained) == {0, 1}


class Loop(nn.Module):
    """Breaks between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.double()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            h = broken(layer(h))
        return h


class Within(nn.Module):
    """A layer with a part whose forward torch compiles by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = Mlp()
        self.part = BreakingPart()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.mlp(h) + self.part(h)


class BreakingPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return broken(self.fc(h).sin()).cos()


class OfWithin(Loop):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Within() for _ in range(3))
        self.double()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            h = layer(h)
        return h


@pytest.mark.parametrize(("model", "given"), [(Loop, x(2, 6)), (OfWithin, x())])
def test_layers_that_share_a_graph_are_named_with_line_and_remedy(model: type[nn.Module], given: torch.Tensor) -> None:
    told = ["layers 0-1 (layers.0, layers.1): no captured graph names them"]
    trained = check(model(), [given], full("0-1"), "aot_eager", warns=told, exact=False)  # parts add up in another order
    assert "one graph may serve several layers" in trained.warnings[0]
    assert "test_inner_graphs.py" in trained.warnings[0]
    assert "Compile with scope='layer'" in trained.warnings[0]
    assert ruled(trained) == set()
    assert trained.explanation.shares == dict.fromkeys(range(3), 0.0)


def test_the_table_tells_shares_that_are_not_whole() -> None:
    model = Loop()
    compile_with_memopt(model, {}, backend="aot_eager")
    model(x(2, 6)).sum().backward()
    assert "layers 0-2: 0%" in str(explain(model))
