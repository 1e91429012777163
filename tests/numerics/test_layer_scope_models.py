"""``scope="layer"`` on layers as libraries write them: rules hold, gradients stay, and what does not hold is told."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import check, full, memopt_warnings, run_as_is, select, train_step
from layer_models import DEPTH, MODELS, POLICIES, Drops, Layer, Model, Output, layers_under_policy, shared, swap
from memopt.compiler.forwards.layer_calls import new_tensors
from numeric_models import WIDTH, Block, Mlp, stack, x
from torch import Tensor, nn

from memopt import PolicyNotApplied, compile_with_memopt, swap_counters


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same(name: str, policy: str) -> None:
    data = x(2, 3) if name == "dropout" else x()
    # Eager adds what several layers give back to one value one by one; a compiled layer first adds up its own.
    rounding = {"exact": False, "tolerance": 1e-13} if name == "keywords" else {}
    before = swap_counters()
    trained = check(
        MODELS[name](), [data], POLICIES[policy], "aot_eager", scope="layer", steps=3, plain=MODELS[name](), **rounding
    )
    assert layers_under_policy(trained.model) == {0, 1, 2}
    spent = swap_counters() - before
    assert (spent.offloads > 0) == (policy == "swap")


class Breaks(Layer):
    """The graph breaks in a module of the layer, and goes on in the middle of it."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self.mlp = BreakingMlp()


class BreakingMlp(Mlp):
    def forward(self, h: Tensor) -> Tensor:
        h = self.act(self.fc1(h))
        print(end="")
        return self.fc2(self.act(h).sin())


BREAK = f"({__file__}:{BreakingMlp.forward.__code__.co_firstlineno + 2})"
INSIDE = "layers 0-2 (layers.0, layers.1, layers.2): the graph breaks inside each of them"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_break_inside_the_layers_is_told_and_every_part_follows_the_rules(policy: str) -> None:
    trained = check(Model(Breaks), [x()], POLICIES[policy], "aot_eager", scope="layer", steps=3, warns=[INSIDE])
    assert BREAK in trained.warnings[0]
    explanation = trained.explanation
    ruled = [row for row in explanation.values if row.rule.startswith(("recompute", "swap"))]
    # Not layer 3: torch must not run for it what was compiled for another policy.
    assert {row.layer for row in ruled} == {0, 1, 2}
    assert len({row.graph for row in ruled}) >= (2 if policy == "select" else 3)
    if policy == "select":
        assert {row.path.partition(".")[0] for row in ruled} == {"mlp"}


def test_a_break_inside_layers_without_rules_is_not_told() -> None:
    model = stack(Mlp)
    model.layers.append(Breaks().double())
    check(model, [x()], full(0), "aot_eager", scope="layer", layers="layers")


def test_a_rule_that_no_part_meets_is_named() -> None:
    model = Model(Breaks)
    for layer in model.layers:
        layer.unused = nn.Linear(WIDTH, WIDTH).double()
    trained = check(model, [x()], select({"unused": ["0-2"]}), "aot_eager", scope="layer", warns=[INSIDE])
    assert "recompute.select_module['unused'] matched nothing there, and has no effect." in trained.warnings[0]


class Experts(Layer):
    """Positions go to one expert each: how many come to which only a run can tell."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self.experts = nn.ModuleList(Mlp() for _ in range(2))

    def forward(self, h: Tensor) -> Tensor:
        choice = (h.sum(-1) > 0).long()
        result = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            (chosen,) = torch.where(choice == number)
            result = result.index_add(0, chosen, expert(h[chosen]))
        return h + result


@pytest.mark.parametrize("policy", [full("0-2"), select({r"experts\.\d": ["0-2"]}), swap("0-2")])
def test_experts_with_sizes_that_only_a_run_can_tell(policy: dict[str, Any]) -> None:
    trained = check(Model(Experts), [x(16)], policy, "aot_eager", scope="layer", warns=[INSIDE])
    assert {0, 1, 2} == layers_under_policy(trained.model)


class CallsTheParts(Model):
    def forward(self, h: Tensor) -> Any:
        for layer in self.layers:
            h = h + layer.mlp(layer.norm(h))
        return h


def test_layers_that_are_not_called_are_told() -> None:
    model = CallsTheParts(Layer)
    compile_with_memopt(model, full("0-2"), backend=run_as_is, scope="layer")
    (text,) = memopt_warnings(lambda: [train_step(model, [x()]) for _ in range(2)])
    assert text.startswith("layers 0-2 (layers.0, layers.1, layers.2): the model did not call them")
    strict = compile_with_memopt(CallsTheParts(Layer), full("0-2"), backend=run_as_is, scope="layer", strict=True)
    with pytest.raises(PolicyNotApplied, match="did not call them"):
        strict(x())


def test_one_module_at_places_with_different_rules_is_told_once() -> None:
    trained = check(
        shared(), [x()], full(0), "aot_eager", scope="layer", warns=["layers 0 and 1 are one", "layers 0 and 2 are one"]
    )
    assert layers_under_policy(trained.model) == {0}


def test_a_layer_called_by_itself_is_told_about_too() -> None:
    model = Model(Breaks)
    compile_with_memopt(model, full("0-2"), backend=run_as_is, scope="layer")
    (text,) = memopt_warnings(lambda: [train_step(model.layers[1], [x()]) for _ in range(2)])
    assert text.startswith("layer 1 (layers.1): the graph breaks inside")


def test_layers_left_out_by_chance() -> None:
    check(Drops(Layer), [x()], full("0-2"), "aot_eager", scope="layer", steps=4, warns=None)


def torchs_encoder() -> nn.Module:
    """In evaluation its layers run as one operator each."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True), DEPTH).double()


@pytest.mark.parametrize("make", [lambda: Model(lambda _: Block(dropout=0.3)), torchs_encoder])
@pytest.mark.parametrize(("policy", "lengths"), [(full("0-2"), (3, 5)), (swap("0-2"), (3, 3))])
def test_evaluation_between_steps(policy: dict[str, Any], lengths: tuple[int, ...], make: Callable[[], nn.Module]) -> None:
    model = make()
    plain = copy.deepcopy(model)
    compile_with_memopt(model, policy, backend="aot_eager", scope="layer")
    for positions in lengths:
        data = x(2, positions)
        for each in (model, plain):
            each.eval()
        with torch.no_grad():
            assert torch.equal(model(data), plain(data))
        for each in (model, plain):
            each.train()
        found, wanted = train_step(model, [data]), train_step(plain, [data])
        assert all(torch.equal(found.tensors[name], t) for name, t in wanted.tensors.items() if t is not None)


def test_tensors_that_a_layer_hands_on_are_not_its_own() -> None:
    given, made = torch.ones(2), torch.ones(3)
    assert [t.shape for t in new_tensors((Output(made, given), {"bias": given}), ((given,), {}))] == [made.shape]


def test_layers_of_which_nothing_needs_a_gradient_are_told() -> None:
    model = Model(Layer)
    model.layers[:2].requires_grad_(False)
    frozen = "layers 0-1 (layers.0, layers.1): nothing that they compute needs a gradient"
    trained = check(model, [x().detach()], full("0-2"), "aot_eager", scope="layer", steps=3, warns=[frozen])
    assert layers_under_policy(trained.model) == {2}
