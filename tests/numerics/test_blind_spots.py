"""What a rule, or a safeguard, could overlook: subgraphs, names, idle modules, lost layers."""

from __future__ import annotations

import copy

import pytest
import torch
from harness import FULL, check, full, memopt_warnings, select
from memopt.compiler import match_record, session
from memopt.passes.policy import LayerPlan, Plan, Rule, RuleKind
from numeric_models import WIDTH, Mlp, stack, x
from torch import nn

from memopt import PolicyNotApplied, compile_with_memopt, explain, trace


class DropsInABranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = self.fc(h)
        dropped = torch.cond(h.sum() > -1e9, lambda h: nn.functional.dropout(h, 0.5) * 2, lambda h: h.sin(), (h,))
        return torch.sin(dropped) * dropped


@pytest.mark.parametrize("backend", ["no-op", "aot_eager"])
def test_random_numbers_within_a_branch_are_not_drawn_again(backend: str) -> None:
    trained = check(stack(DropsInABranch), [x()], FULL, backend)
    rows = [row for row in trained.explanation.values if row.op == "cond"]
    assert {(row.action, row.rule) for row in rows} == {("save", "legalize.random")}


class UsesAWeightOnly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = Mlp()
        self.idle = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.mlp(h), self.idle.weight)


class CallsItModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = stack(UsesAWeightOnly)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.module(h)


def test_a_users_own_attribute_called_module_is_part_of_the_path() -> None:
    explanation = trace(CallsItModule(), select({"mlp": [0, 1]}), (x(),), backend="aot_eager")
    inside = trace(stack(UsesAWeightOnly), select({"mlp": [0, 1]}), (x(),), backend="aot_eager")
    assert explanation.totals == inside.totals
    assert {t.saved_after < t.saved_before for t in explanation.totals if t.layer is not None} == {True}


def test_a_copy_of_a_compiled_sequential() -> None:
    model = nn.Sequential(nn.Sequential(Mlp(), Mlp())).double()
    compile_with_memopt(model, full("0-1"), backend="aot_eager", layers="0")
    twin = copy.deepcopy(model)
    assert twin.forward.model is twin
    assert torch.equal(twin(x()), model(x()))


def test_a_module_that_runs_no_operator_is_told() -> None:
    said = memopt_warnings(lambda: trace(stack(UsesAWeightOnly), select({"idle": [0, 1]}), (x(),), backend="aot_eager"))
    assert said == [
        "recompute.select_module['idle'] names modules in layers 0-1 that run no operator of their own, "
        "and has no effect there."
    ]


class SkipsTheLastInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Mlp(), Mlp()])

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = self.layers[0](h)
        return h if self.training else self.layers[1](h)


def test_an_evaluation_does_not_hide_a_layer_that_training_lost_nor_a_lost_layer_a_mistyped_pattern() -> None:
    model = SkipsTheLastInTraining().double()
    config = {"recompute": {"mode": "select", "full_recompute_layer": [1], "select_module": {"fc9": [0]}}}

    def run() -> None:
        compile_with_memopt(model, config, backend="aot_eager", layers="layers")
        with torch.no_grad():
            model.eval()(x())
        model.train()(x()).sum().backward()

    said = memopt_warnings(run)
    assert any(text.startswith("layer 1 (layers.1): no captured graph names them") for text in said), said
    assert any(text.startswith("recompute.select_module['fc9'] did not match any module or operator") for text in said), said


def test_what_is_recorded_of_a_compilation_is_not_taken_for_another() -> None:
    from memopt.compiler.cache_key import cache_key

    rule = Rule(RuleKind.RECOMPUTE_FULL, "recompute.full_recompute_layer", "", (0,))
    plan = Plan((LayerPlan(0, "layers.0", recompute_full=True, rules={"": rule}),))
    graph = torch.fx.symbolic_trace(nn.Linear(WIDTH, WIDTH))
    (value,) = graph.graph.find_nodes(op="placeholder")
    keys = set()
    for tensor in (x(), x().detach(), x().detach().float()):
        value.meta["example_value"] = tensor
        keys.add(cache_key(plan, graph, {}))
    with torch._functorch.config.patch(activation_memory_budget=0.5):
        keys.add(cache_key(plan, graph, {}))
    assert len(keys) == 4


def test_strict_refuses_at_every_call() -> None:
    model = compile_with_memopt(stack(Mlp), select({"fc9": [0]}), backend="aot_eager", strict=True)
    for _ in range(2):
        with pytest.raises(PolicyNotApplied, match=r"select_module\['fc9'\] did not match any module or operator"):
            model(x())


def test_a_strict_refusal_leaves_an_already_compiled_model_as_it_was() -> None:
    model = stack(Mlp)
    model.compile(backend="aot_eager")
    compiled = model._compiled_call_impl
    with pytest.raises(PolicyNotApplied, match=r"model\.compile\(\) was called before"):
        compile_with_memopt(model, full(0), backend="aot_eager", strict=True)
    assert model._compiled_call_impl is compiled
    assert "forward" not in model.__dict__


def test_explaining_a_warm_cache_needs_no_gradient_mode_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    cold = compile_with_memopt(stack(Mlp), full(0), backend="aot_eager")
    cold(x()).sum().backward()
    # A hit in torch's cache: the graph is captured, no pass runs, and what it met is on record.
    monkeypatch.setattr(session, "lower", lambda _backend, graph, *_, **__: graph.forward)
    record = match_record.MatchRecord(frozenset(), frozenset(), {}, ())
    monkeypatch.setattr(match_record, "read", lambda _key: record)
    warm = compile_with_memopt(stack(Mlp), full(0), backend="aot_eager")
    warm(x()).sum().backward()
    with torch.no_grad():
        assert explain(warm).values == explain(cold).values != ()
