"""Random small models under random configurations: bitwise the training of the plain model."""

from __future__ import annotations

from typing import Any

import torch
from harness import check, operators
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric_models import WIDTH, Attention, Block, Mlp, Residual, Stack, x
from torch import nn

PATTERNS = [".*mlp", "mlp", "attention", ".*fc1", r".*fc1\.linear", r".*\.gelu", ".*act", "inner", "norm.*", r".*\.layer_norm",
            r".*drop.*", r".*scaled_dot_product_attention", ".*out", "drop", ".*"]  # fmt: skip
KEPT = ["MatMul", "attention", "gelu", "dropout", "layer_norm", "add", "view", "e"]


@st.composite
def layer_lists(draw: st.DrawFn, depth: int) -> list[str]:
    first = draw(st.integers(0, depth - 1))
    last = draw(st.integers(first, depth - 1))
    return [f"{first}-{last}"]


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
    kinds = draw(st.lists(st.sampled_from(["mlp", "residual", "attention", "block"]), min_size=1, max_size=4))
    depth = len(kinds)
    options = {
        "dropout": draw(st.sampled_from([0.0, 0.3])),
        "bias": draw(st.booleans()),
        "seed": draw(st.integers(0, 9)),
        "frozen": draw(st.sampled_from([None, *range(depth)])),
        "twice": draw(st.booleans()),
        "detached": draw(st.booleans()),
    }
    recompute: dict[str, Any] = {"mode": draw(st.sampled_from(["None", "full", "select"]))}
    if recompute["mode"] == "full" or (recompute["mode"] == "select" and draw(st.booleans())):
        recompute["full_recompute_layer"] = draw(layer_lists(depth))
    if recompute["mode"] == "select":
        patterns = draw(st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3, unique=True))
        recompute["select_module"] = {pattern: draw(layer_lists(depth)) for pattern in patterns}
    if recompute["mode"] != "None" and draw(st.booleans()):
        recompute["exclude_op"] = draw(st.lists(st.sampled_from(KEPT), min_size=1, max_size=2, unique=True))
    return kinds, options, {"recompute": recompute}


def build(kinds: list[str], options: dict[str, Any]) -> nn.Module:
    torch.manual_seed(options["seed"])
    dropout, bias = options["dropout"], options["bias"]
    makers = {
        "mlp": lambda: Mlp(dropout=dropout, bias=bias),
        "residual": lambda: Residual(Mlp(dropout=dropout, bias=bias)),
        "attention": lambda: Attention(dropout=dropout, bias=bias),
        "block": lambda: Block(dropout=dropout, bias=bias),
    }
    model = Stack([makers[kind]() for kind in kinds])
    if options["frozen"] is not None:
        model.layers[options["frozen"]].requires_grad_(False)
    return Twice(model) if options["twice"] else model


class Twice(nn.Module):
    def __init__(self, inner: Stack) -> None:
        super().__init__()
        self.layers = inner.layers

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            for layer in self.layers:
                h = torch.tanh(layer(h))
        return h


@settings(max_examples=20, derandomize=True)
@given(cases())
def test_any_configuration_leaves_training_as_it_is(case: tuple[list[str], dict[str, Any], dict[str, Any]]) -> None:
    kinds, options, config = case
    torch._dynamo.reset()
    h = x(2, 3)
    if options["detached"] and options["frozen"] != 0:
        h = h.detach()
    trained = check(build(kinds, options), [h], config, "no-op", layers="layers", warns=None)
    if not any(p.requires_grad for p in trained.model.parameters()) and not h.requires_grad:
        return
    explanation = trained.explanation
    for graph in explanation.graphs:
        again = operators(graph.backward)
        assert again["aten.bernoulli_.float"] == 0
    assert explanation.saved_before >= 0
    assert {row.action for row in explanation.values} <= {"save", "recompute"}
    assert h.shape == (2, 3, WIDTH)
