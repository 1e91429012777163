"""``compare_with_eager``: what is the same, what differs, and what cannot be told."""

from __future__ import annotations

import copy
import dataclasses
import random
from math import inf
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from harness import run_as_is
from memopt.compiler import torch_bridge
from memopt.compiler.compare.comparison import Comparison
from memopt.compiler.compare.judge import judge
from memopt.compiler.compare.run import compare_with_eager
from memopt.compiler.compare.step import State, loss_of, tensors_in
from memopt.compiler.compare.witnesses import beside_torch
from torch import Tensor, nn
from torch.fx import GraphModule

from memopt import ConfigError, compile_with_memopt, explain

FULL = {"recompute": {"mode": "full", "full_recompute_layer": ["0-1"]}}


class Double(torch.autograd.Function):
    """The identity, whose gradient is doubled where it is compiled: a wrong compiler."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * (2.0 if torch.compiler.is_compiling() else 1.0)


class Block(nn.Module):
    def __init__(self, width: int = 8, dropout: float = 0.0, wrong: str = "") -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.wrong = wrong
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        compiling = torch.compiler.is_compiling()
        hidden = self.fc1(x)
        if self.wrong == "gradient":
            hidden = Double.apply(hidden)
        hidden = self.dropout(self.fc2(torch.tanh(hidden)))
        with torch.no_grad():
            self.mean.mul_(0.9).add_(0.2 if self.wrong == "buffer" and compiling else 0.1)
        if self.wrong == "output" and compiling:
            hidden = hidden * 1.001
        if self.wrong == "random" and compiling:
            torch.rand(1)
        return x + hidden


class Tower(nn.Module):
    def __init__(self, dropout: float = 0.0, wrong: str = "") -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(dropout=dropout, wrong=wrong if i == 1 else "") for i in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def x() -> Tensor:
    return torch.randn(4, 8)


def compared(model: nn.Module, config: Any = None, args: tuple[Any, ...] | None = None, **options: Any) -> Comparison:
    options = {"backend": "aot_eager", **options}
    return compare_with_eager(model, FULL if config is None else config, (x(),) if args is None else args, **options)


# ---------------------------------------------------------------- the same


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_the_same_bit_for_bit(scope: str) -> None:
    found = compared(Tower(dropout=0.5), scope=scope, steps=3)
    assert found.verdict == "the same bit for bit"
    assert (found.agrees, found.deterministic, found.largest, found.worst, found.steps) == (True, True, 0.0, "", 3)
    assert found.warnings == ()
    assert [(row.kind, row.name) for row in found.rows] == [
        ("output", "output"),
        *(("gradient", f"layers.{i}.{part}") for i in (0, 1) for part in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")),
        *(("buffer", f"layers.{i}.mean") for i in (0, 1)),
        ("random state", "cpu"),
    ]
    assert all(row.bitwise and row.absolute == row.relative == row.allowed == 0 for row in found.rows)


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float32, 2e-5), (torch.float64, 1e-11), (torch.bfloat16, 2e-2)])
def test_inductor_rounds_within_what_its_types_allow(dtype: torch.dtype, allowed: float) -> None:
    with inductor_config.patch(fallback_random=False):
        found = compared(Tower(dropout=0.5).to(dtype), args=(x().to(dtype),), backend="inductor")
        assert not inductor_config.fallback_random
    assert found.agrees
    assert {row.allowed for row in found.rows} == {allowed, 0.0}
    assert {row.allowed for row in found.rows if row.kind == "random state"} == {0.0}
    assert found.largest == max(row.relative for row in found.rows) <= allowed
    if found.largest:
        assert (
            found.verdict == f"the same within {allowed:.1e} (largest relative difference {found.largest:.1e}, {found.worst})"
        )


def test_the_coarsest_type_of_the_graph_counts_under_autocast() -> None:
    class Mixed(Tower):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x).float()

    assert {row.allowed for row in compared(Mixed(), backend="aot_eager_decomp_partition").rows} == {2e-2, 0.0}


def test_swap_is_the_same_too() -> None:
    swap = {"swap": {"enable": True, "default_prefetch": 1, "min_bytes": 0, "layer_swap": [{"layers": [0]}]}}
    assert compared(Tower(), swap, steps=2).verdict == "the same bit for bit"


def test_gradients_of_inputs_and_frozen_parameters() -> None:
    model = Tower()
    model.layers[0].requires_grad_(False)
    names = [row.name for row in compared(model, args=(x().requires_grad_(),)).rows if row.kind == "gradient"]
    assert names == [f"layers.1.{part}" for part in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")] + ["args[0]"]


def test_everything_is_left_as_it_was() -> None:
    model = Tower(dropout=0.5)
    given = x().requires_grad_()
    model(given).sum().backward()
    state, gradients = copy.deepcopy(model.state_dict()), [copy.deepcopy(p.grad) for p in model.parameters()]
    gradient = copy.deepcopy(given.grad)
    torch.manual_seed(5)
    random.seed(5)
    compared(model, args=(given,))
    assert float(torch.rand(1)) == float(torch.rand(1, generator=torch.Generator().manual_seed(5)))
    assert random.random() == random.Random(5).random()
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients, strict=True))
    assert torch.equal(given.grad, gradient)
    assert "forward" not in model.__dict__


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_a_compiled_model_is_compared_with_its_plain_self(scope: str) -> None:
    model = compile_with_memopt(Tower(wrong="gradient"), FULL, backend="aot_eager", scope=scope)
    model(x()).sum().backward()
    assert not compared(model).agrees
    assert explain(model).graphs


# ---------------------------------------------------------------- different


@pytest.mark.parametrize("scope", ["model", "layer"])
@pytest.mark.parametrize(
    ("wrong", "kind", "name"),
    [
        ("gradient", "gradient", "layers.1.fc1.weight"),
        ("output", "output", "output"),
        ("buffer", "buffer", "layers.1.mean"),
        ("random", "random state", "cpu"),
    ],
)
def test_what_a_wrong_compiler_changes_is_named(wrong: str, kind: str, name: str, scope: str) -> None:
    found = compared(Tower(wrong=wrong), scope=scope, steps=3)
    assert (found.agrees, found.deterministic, found.steps) == (False, True, 1)
    bad = {(row.kind, row.name) for row in found.rows if not row.agrees}
    assert (kind, name) in bad
    assert found.verdict.startswith("DIFFERENT: the ")
    if wrong != "output":
        assert {k for k, _ in bad} == {kind}
    if wrong == "gradient":
        assert found.worst.startswith(("layers.0.", "layers.1.fc1."))
        assert ("gradient", "layers.1.fc2.weight") not in bad
    elif wrong != "output":
        assert found.worst == name
    assert found.largest == next(row.relative for row in found.rows if row.name == found.worst) > 0


def test_a_difference_ends_the_comparison_in_its_step() -> None:
    class Late(Block):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (1.5 if torch.compiler.is_compiling() and bool(self.mean[0] > 0.15) else 1.0)

    model = nn.Sequential(Late(), Late())
    found = compared(model, {}, steps=3)
    assert not found.agrees
    assert found.steps == 2
    assert "in step 1: relative difference" in found.verdict


def test_a_missing_gradient_is_a_difference() -> None:
    found = judge(State({("gradient", "w"): None}), State({("gradient", "w"): torch.ones(2)}), 0, 1.0)
    assert [(row.absolute, row.agrees) for row in found] == [(inf, False)]
    found = judge(State({("output", "y"): torch.ones(2)}), State({("output", "y"): torch.ones(2, 1)}), 0, 1.0)
    assert [(row.absolute, row.agrees) for row in found] == [(inf, False)]


def test_what_differs_by_itself_is_no_fault_of_the_compiler() -> None:
    class Flaky(Tower):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            Flaky.calls += 1
            return super().forward(x) * Flaky.calls

    found = compared(Flaky())
    assert (found.agrees, found.deterministic) == (False, False)
    assert found.verdict.startswith("NOT DETERMINISTIC: the ")
    assert "two runs of the plain model from the same seed differ in it too" in found.verdict
    assert "differs in eager too" in str(found)


def test_a_difference_beside_what_is_not_deterministic_is_still_one() -> None:
    class Flaky(Tower):
        calls = 0

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            Flaky.calls += 1
            return super().forward(x), torch.full((2,), float(Flaky.calls))

    found = compared(Flaky(wrong="gradient"))
    assert (found.agrees, found.deterministic) == (False, True)
    assert found.verdict.startswith("DIFFERENT: the gradient of layers.")
    assert [row.name for row in found.rows if not row.reproducible] == ["output[1]"]


def test_a_tolerance_may_be_given() -> None:
    model = Tower(wrong="output")
    assert compared(model, tolerance=0.5).agrees
    assert not compared(model, tolerance=1e-6).agrees
    assert "the same within 5.0e-01 (largest relative difference " in compared(model, tolerance=0.5).verdict


# ---------------------------------------------------------------- whose difference it is


KEY = ("gradient", "w")


def states(*values: float) -> tuple[State, ...]:
    return tuple(State({KEY: torch.tensor([1.0, value])}) for value in values)


@pytest.mark.parametrize(
    ("ours", "torchs", "rounding", "agrees", "as_torch"),
    [
        (0.5 + 1e-6, 0.5 + 1e-6, 2e-5, True, True),
        (0.5 + 1e-6, 0.5, 2e-5, False, False),
        (0.5 + 1e-3, 0.5 + 1e-3, 2e-5, False, True),
        (0.5 + 1e-6, 0.5 + 1e-6, None, False, True),
    ],
)
def test_the_rounding_of_torch_compile_itself_is_allowed(
    ours: float, torchs: float, rounding: float | None, agrees: bool, as_torch: bool
) -> None:
    found, wanted, alone = states(ours, 0.5, torchs)
    (row,) = beside_torch(list(judge(found, wanted, 0, 0.0)), found, wanted, alone, rounding)
    assert (row.agrees, row.as_torch, row.allowed) == (agrees, as_torch, rounding if agrees else 0.0)
    assert row.by_torch == pytest.approx(torchs - 0.5, rel=0.1)


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_a_model_for_which_torch_compile_rounds_otherwise_than_eager(scope: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, use_cache=False, **sizes)
    symbols = torch.randint(0, 64, (2, 16))
    model = transformers.LlamaForCausalLM(config).train()
    found = compare_with_eager(
        model, FULL, kwargs={"input_ids": symbols, "labels": symbols}, backend="aot_eager", scope=scope, steps=2
    )
    assert (found.agrees, found.steps) == (True, 2)
    rounded = [row for row in found.rows if not row.bitwise]
    assert all(row.as_torch and row.allowed == 2e-5 and row.by_torch == row.relative for row in rounded)
    told = found.verdict.endswith(", and in every bit what torch.compile gives without memopt")
    assert told is bool(rounded)


def test_what_memopt_alone_changes_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    original = torch_bridge.min_cut

    def wrong(*args: Any) -> tuple[GraphModule, GraphModule]:
        forward, backward = original(*args)
        (output,) = backward.graph.find_nodes(op="output")
        gradients = list(output.args[0])
        place = next(i for i, gradient in enumerate(gradients) if gradient is not None)
        with backward.graph.inserting_before(output):
            more = backward.graph.call_function(torch.ops.aten.mul.Tensor, (gradients[place], 1.0001))
        more.meta = dict(gradients[place].meta)
        gradients[place] = more
        output.args = (tuple(gradients),)
        backward.recompile()
        return forward, backward

    monkeypatch.setattr(torch_bridge, "min_cut", wrong)
    for backend in ("aot_eager", "aot_eager_decomp_partition"):
        found = compared(Tower(), backend=backend)
        assert not found.agrees
        assert found.worst == "layers.0.fc1.weight"
        assert [row.name for row in found.rows if not row.agrees] == ["layers.0.fc1.weight"]
        assert "; 1 of 12 tensors differ; torch.compile without memopt does not differ (" in found.verdict


def test_what_torch_compile_changes_too_is_told() -> None:
    assert compared(Tower(wrong="gradient")).verdict.endswith("; torch.compile without memopt gives the same")
    assert "torch.compile" not in compared(Tower(wrong="gradient"), backend=run_as_is).verdict


# ---------------------------------------------------------------- what weakens it


def test_gradients_that_are_no_numbers_are_compared_by_place() -> None:
    class Root(Tower):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.sqrt(x - x) * self.layers[0].fc1.bias

    found = compared(Root(), args=(x().requires_grad_(),))
    assert found.verdict == "the same bit for bit"
    assert [text for text in found.warnings if "not finite" in text] == [
        "the plain model's own gradients are not finite: where it has no number, the configured one must have none either."
    ]
    left, right = (State({("gradient", "w"): torch.tensor(values)}) for values in ([1.0, inf], [1.0, float("nan")]))
    assert [row.absolute for row in judge(left, right, 0, 1.0)] == [inf]


def test_what_the_configuration_does_not_do_is_told() -> None:
    found = compared(Tower(), {"recompute": {"mode": "select", "select_module": {"nope": [0]}}})
    assert found.agrees
    assert any("select_module['nope']" in text for text in found.warnings)
    assert "warning: " in str(found)


def test_evaluation_mode_is_told() -> None:
    assert any("model.train()" in text for text in compared(Tower().eval()).warnings)


def test_what_is_never_compiled_is_told() -> None:
    class Refused(Tower):
        @torch.compiler.disable
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    assert any("eager was compared with eager" in text for text in compared(Refused()).warnings)


# ---------------------------------------------------------------- losses and outputs


def test_which_loss_is_differentiated() -> None:
    output = torch.ones(3, requires_grad=True)
    number = torch.tensor(2.0, requires_grad=True)
    assert loss_of(number).item() == 2.0
    assert loss_of({"loss": number, "logits": output}).item() == 2.0

    @dataclasses.dataclass
    class Result:
        logits: Tensor
        loss: Tensor | None = None

    assert loss_of(Result(output, number)).item() == 2.0
    loss_of(Result(output)).backward()  # type: ignore[no-untyped-call]
    assert output.grad is not None
    torch.testing.assert_close(output.grad, torch.tensor([0.5, 1.0, 1.5]) / 3**0.5)


def test_a_loss_may_be_given() -> None:
    seen: list[Tensor] = []

    def loss(output: Tensor) -> Tensor:
        seen.append(output)
        return output.square().mean()

    assert compared(Tower(), loss=loss, steps=2).agrees
    assert len(seen) == 4


def test_tensors_are_found_wherever_outputs_hold_them() -> None:
    @dataclasses.dataclass
    class Result:
        a: Tensor
        b: list[Any]

    value = Result(torch.ones(1), [{"c d": torch.ones(2)}, (3, None, "text")])
    found = {name: tuple(tensor.shape) for name, tensor in tensors_in(value, "output")}
    assert found == {"output.a": (1,), "output.b[0]['c d']": (2,), "output.b[1][0]": ()}


def test_a_table_for_people() -> None:
    text = str(compared(Tower(wrong="buffer")))
    assert text.splitlines()[0].strip() == "The configured model beside plain eager"
    assert "buffer layers.1.mean" in text
    assert text.splitlines()[-1].startswith(
        "DIFFERENT: the buffer layers.1.mean in step 0: relative difference 1.0e+00, allowed 0"
    )


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"steps": 0}, ValueError, "steps: found 0; allowed: an integer of at least 1"),
        ({"steps": 1.5}, TypeError, "steps: found 1.5"),
        ({"seed": -1}, ValueError, "seed: found -1"),
        ({"tolerance": -1.0}, ValueError, "tolerance: found -1.0; allowed: a finite number of at least 0"),
        ({"tolerance": float("nan")}, ValueError, "tolerance: found nan"),
        ({"tolerance": "1"}, TypeError, "tolerance: found '1'"),
        ({"loss": 3}, TypeError, "loss: found 3; allowed: a function"),
        ({"loss": lambda y: y}, ValueError, r"loss: found a tensor of \(4, 8\); allowed: a function of the model's output"),
        ({"loss": lambda y: 1.0}, ValueError, "loss: found float"),
        ({"loss": lambda y: y.sum().detach()}, ValueError, "the loss needs no gradient"),
        ({"backend": "nope"}, ValueError, "backend: found 'nope'"),
        ({"scope": "nope"}, ValueError, "scope: found 'nope'"),
        ({"args": x()}, TypeError, "args: found a tensor"),
        ({"args": (x().requires_grad_() * 1,)}, ValueError, "args: copying the inputs failed: "),
        ({"args": (torch.ones(4, 8, device="meta"),)}, ValueError, r"args\[0\]: found a tensor on the meta device"),
        ({"config": {"recompute": {"mode": "ful"}}}, ConfigError, "Did you mean 'full'"),
    ],
)
def test_what_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compared(Tower(), **options)


def test_models_without_values_or_gradients_are_refused() -> None:
    with torch.device("meta"):
        model = Tower()
    with pytest.raises(ValueError, match=r"model: found the parameter layers\.0\.fc1\.weight on the meta device"):
        compared(model)
    with pytest.raises(ValueError, match="the model's output needs no gradient"):
        compared(Tower().requires_grad_(False))


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    model = Tower()
    model.held = torch.ones(1, requires_grad=True) * 2  # type: ignore[assignment]
    with pytest.raises(ValueError, match="model: copying it failed: RuntimeError"):
        compared(model)
