"""Models that are not a plain stack of equal layers, and settings that change what a training step is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo_config
from harness import BACKENDS, EMPTY, FULL, assert_same, check, full, memopt_warnings, operators, run_as_is, select, train_step
from numeric_models import WIDTH, Attention, Block, Mlp, Residual, Stack, stack, x
from torch import nn

from memopt import ConfigError, LayersError, PolicyNotApplied, compile_with_memopt, explain

PLAIN_BACKENDS = ["no-op", "aot_eager"]
every_backend = pytest.mark.parametrize("backend", BACKENDS)
plain_backends = pytest.mark.parametrize("backend", PLAIN_BACKENDS)


class NoStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, WIDTH)
        self.fc2 = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.tanh(self.fc1(h)))


def test_no_stack_needs_no_layers_without_rules() -> None:
    check(NoStack().double(), [x()], EMPTY)


def test_no_stack_with_rules_is_refused() -> None:
    with pytest.raises(LayersError, match="no stack of layers in NoStack"):
        compile_with_memopt(NoStack(), full(0), backend=run_as_is)


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = stack(lambda: Residual(Mlp()), 2)
        self.decoder = stack(lambda: Residual(Mlp()), 3)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(h))


def test_two_stacks_are_refused_without_layers() -> None:
    with pytest.raises(LayersError, match="several stacks may be meant") as error:
        compile_with_memopt(EncoderDecoder(), full(0), backend=run_as_is)
    assert '"decoder.layers": 3 layers of Residual' in str(error.value)
    assert '"encoder.layers": 2 layers of Residual' in str(error.value)
    assert 'layers=["path", "path"]' in str(error.value)


@every_backend
def test_two_stacks_are_numbered_through(backend: str) -> None:
    config = full(1, 2)
    trained = check(EncoderDecoder(), [x()], config, backend, layers=["encoder.layers", "decoder.layers"])
    rows = [row for row in trained.explanation.values if row.rule == "recompute.full_recompute_layer"]
    assert {row.layer for row in rows} == {1, 2}
    assert [layer.path for layer in trained.model.forward.session.plan.layers] == [
        "encoder.layers.0", "encoder.layers.1", "decoder.layers.0", "decoder.layers.1", "decoder.layers.2",
    ]  # fmt: skip


def test_list_of_one_layer() -> None:
    trained = check(stack(lambda: Residual(Mlp()), 1), [x()], full(0))
    assert operators(trained.explanation.graphs[0].backward)["aten.gelu.default"] == 1
    with pytest.raises(ConfigError, match="layer numbers within"):
        compile_with_memopt(stack(Mlp, 1), full(1), backend=run_as_is)


def test_layers_of_different_classes() -> None:
    torch.manual_seed(0)
    model = Stack([Attention(), Residual(Mlp()), Block(), nn.LayerNorm(WIDTH)])
    trained = check(model, [x(2, 5)], full("0-3"), layers="layers")
    rows = [row for row in trained.explanation.values if row.rule == "recompute.full_recompute_layer"]
    assert {row.layer for row in rows} >= {0, 1, 2}
    torch._dynamo.reset()
    torch.manual_seed(0)
    with_modules = Stack([Attention(), Residual(Mlp()), Block(), nn.LayerNorm(WIDTH)])
    check(with_modules, [x(2, 5)], select({".*mlp|inner": [1, 2]}), layers="layers")


class Tied(nn.Module):
    """The head is the embedding, and two layers are one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(20, WIDTH)
        self.layers = nn.ModuleList([Block() for _ in range(2)])
        self.layers[1].mlp.fc1.weight = self.layers[0].mlp.fc1.weight
        self.head = nn.Linear(WIDTH, 20, bias=False)
        self.head.weight = self.embedding.weight
        self.double()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        h = self.embedding(ids)
        for layer in self.layers:
            h = layer(h)
        return self.head(h)


@every_backend
def test_tied_weights(backend: str) -> None:
    ids = torch.arange(12).reshape(2, 6)
    trained = check(Tied(), [ids], FULL, backend, steps=3)
    assert trained.model.head.weight is trained.model.embedding.weight
    assert trained.model.layers[1].mlp.fc1.weight is trained.model.layers[0].mlp.fc1.weight


class Twice(nn.Module):
    """A layer that runs twice, and the first one again at the end."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Residual(Mlp(dropout=0.3)) for _ in range(2)])
        self.double()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in (self.layers[0], self.layers[0], self.layers[1], self.layers[0]):
            h = layer(h)
        return h


@every_backend
def test_layer_that_runs_three_times(backend: str) -> None:
    trained = check(Twice(), [x()], full(0), backend, steps=3)
    explanation = trained.explanation
    regions = {n.meta["memopt"].region for n in explanation.graphs[0].joint.graph.nodes if n.meta.get("memopt")}
    assert len(regions - {None}) == 3
    if backend != "inductor":
        assert operators(explanation.graphs[0].backward)["aten.gelu.default"] == 3


class SharedModule(nn.Module):
    """One module at two positions of the list."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        one = Residual(Mlp())
        self.layers = nn.ModuleList([one, Residual(Mlp()), one])
        self.double()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            h = layer(h)
        return h


@pytest.mark.parametrize("config", [full(0), full(2), full("0-2")], ids=["first", "last", "all"])
def test_one_module_at_two_positions(config: object) -> None:
    """Torch gives both positions the first one's name, so a rule for one alone can not hold: it is said, or holds for both."""
    plain = SharedModule()
    model = copy.deepcopy(plain)
    compile_with_memopt(model, config, backend=run_as_is)
    said = memopt_warnings(lambda: train_step(model, [x()]))
    assert_same(train_step(model, [x()]), train_step(plain, [x()]), exact=True)
    rows = {row.layer for row in explain(model).values if row.rule == "recompute.full_recompute_layer"}
    assert rows or said


class LowRank(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.base(h) + self.up(self.down(h)) * 0.5


def low_rank() -> Stack:
    model = stack(Block, 3)
    model.requires_grad_(False)
    for layer in model.layers:
        layer.attention.qkv = LowRank(layer.attention.qkv)
        layer.mlp.fc1 = LowRank(layer.mlp.fc1)
    return model.double()


@every_backend
def test_frozen_model_with_trained_additions(backend: str) -> None:
    trained = check(low_rank(), [x(2, 5).detach()], FULL, backend, steps=3)
    assert trained.model.layers[0].mlp.fc1.base.weight.grad is None
    assert trained.model.layers[0].mlp.fc1.up.weight.grad is not None


def test_frozen_first_layers() -> None:
    model = stack(Block, 3)
    model.layers[0].requires_grad_(False)
    model.layers[1].requires_grad_(False)
    warning = "recompute.full_recompute_layer matches, and recomputes nothing"
    check(copy.deepcopy(model), [x(2, 5).detach()], full("1-2"))
    torch._dynamo.reset()
    check(model, [x(2, 5).detach()], full(0), warns=[warning])


def test_nothing_to_train_at_all() -> None:
    model = stack(Mlp)
    model.requires_grad_(False)
    compile_with_memopt(model, FULL(model), backend=run_as_is)
    h = x().detach()
    assert torch.equal(model(h), copy.deepcopy(stack(Mlp))(h))
    with pytest.raises(ValueError, match="no graph with a backward"):
        explain(model)


class Float(Stack):
    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__(layers)
        self.float()


@pytest.mark.parametrize(
    ("config", "backend"),
    [(FULL, "no-op"), (full("0-1", exclude_op=["MatMul"]), "no-op"), (FULL, "aot_eager"), (FULL, "inductor")],
    ids=["full-no-op", "matmuls kept-no-op", "full-aot_eager", "full-inductor"],
)
def test_autocast(config: Any, backend: str) -> None:
    torch.manual_seed(0)
    model = Float([Block(dropout=0.2) for _ in range(1 if backend == "inductor" else 2)])
    plain = copy.deepcopy(model)
    compile_with_memopt(model, config(model) if callable(config) else config, backend=BACKENDS[backend])
    h = x(2, 5).detach().float().requires_grad_()
    for seed in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, wanted = train_step(model, [h], seed=seed), train_step(plain, [h], seed=seed)
        assert_same(found, wanted, exact=backend != "inductor", tolerance=0.05)
    assert {row.dtype for row in explain(model).values if row.kind == "activation"} >= {"bfloat16"}


@every_backend
def test_model_in_bfloat16(backend: str) -> None:
    model = stack(lambda: Residual(Mlp(dropout=0.2)), 2).bfloat16()
    h = x().detach().bfloat16().requires_grad_()
    check(model, [h], FULL, backend, steps=1, tolerance=0.05)


def test_autocast_inside_the_model() -> None:
    class Inside(Float):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = super().forward(h)
            return h.float()

    torch.manual_seed(0)
    check(Inside([Residual(Mlp()), Residual(Mlp())]), [x().detach().float()], FULL)


class Breaks(nn.Module):
    """A block in the middle of which the graph breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)
        self.b = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = torch.sin(self.a(h)) * 2
        torch._dynamo.graph_break()
        return torch.tanh(self.b(h).sin().cos()) + h


LOST = "layers 0-1 (layers.0, layers.1): no captured graph names them, so their rules have no effect and torch decides."


def test_layers_that_lost_their_policy_are_named() -> None:
    trained = check(stack(Breaks, 4), [x()], full("0-1"), warns=[LOST])
    assert "graph_break()" in trained.warnings[0]
    assert {row.rule for row in trained.explanation.values if row.action == "recompute"} <= {""}


@pytest.mark.inductor
def test_layers_that_lost_their_policy_are_named_under_inductor() -> None:
    check(stack(Breaks, 4), [x()], full("0-1"), "inductor", warns=[LOST])


def test_layers_that_lost_their_policy_raise_when_strict() -> None:
    model = stack(Breaks, 4)
    compile_with_memopt(model, full("0-1"), backend=run_as_is, strict=True)
    with pytest.raises(PolicyNotApplied, match=r"layers 0-1 \(layers\.0, layers\.1\)"):
        train_step(model, [x()])


def test_graph_break_with_fullgraph_raises() -> None:
    model = stack(Breaks, 2)
    compile_with_memopt(model, full(0), backend=run_as_is, fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        train_step(model, [x()])


class BreaksOutside(Stack):
    """The graph breaks between the stack and what follows; names are whole."""

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = super().forward(h)
        torch._dynamo.graph_break()
        return torch.sin(h)


def test_break_outside_the_layers_costs_nothing() -> None:
    torch.manual_seed(0)
    trained = check(BreaksOutside([Residual(Mlp()) for _ in range(3)]), [x()], full(0, 2))
    rows = [row for row in trained.explanation.values if row.rule == "recompute.full_recompute_layer"]
    assert {row.layer for row in rows} == {0, 2}


class BreaksBetween(Stack):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:2]:
            h = layer(h)
        torch._dynamo.graph_break()
        for layer in self.layers[2:]:
            h = layer(h)
        return h


def test_break_between_layers_keeps_every_policy_or_names_what_is_lost() -> None:
    torch.manual_seed(0)
    model = BreaksBetween([Residual(Mlp()) for _ in range(4)])
    plain = copy.deepcopy(model)
    compile_with_memopt(model, full(1, 2), backend=run_as_is)
    said = memopt_warnings(lambda: train_step(model, [x()]))
    assert_same(train_step(model, [x()]), train_step(plain, [x()]), exact=True)
    applied = {row.layer for row in explain(model).values if row.rule == "recompute.full_recompute_layer"}
    assert applied <= {1, 2}
    missing = {1, 2} - applied
    assert all(any(f"layers.{layer}" in text for text in said) for layer in missing)
    assert missing or not said


def test_layers_compiled_one_by_one() -> None:
    """Layers that the user compiled before: memopt compiles through them, and the numbers stay."""
    model = stack(lambda: Residual(Mlp()), 4)
    plain = copy.deepcopy(model)
    for number, layer in enumerate(model.layers):
        model.layers[number] = torch.compile(layer, backend="aot_eager")
    compile_with_memopt(model, full("0-1"), backend=run_as_is)
    assert memopt_warnings(lambda: train_step(model, [x()])) == []
    train_step(plain, [x()])
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        train_step(plain, [x()])
        assert torch.equal(mine.grad, theirs.grad)
    rows = [row for row in explain(model).values if row.rule == "recompute.full_recompute_layer"]
    assert {row.layer for row in rows} == {0, 1}


class CountsOnAttribute(Stack):
    """Each value of an attribute makes another graph."""

    def forward(self, h: torch.Tensor, number: int) -> torch.Tensor:
        return super().forward(h) * number


def test_recompile_limit_is_said() -> None:
    torch.manual_seed(0)
    model = CountsOnAttribute([Residual(Mlp()), Residual(Mlp())])
    plain = copy.deepcopy(model)
    compile_with_memopt(model, FULL(model), backend=run_as_is, dynamic=False)
    said: list[str] = []
    with dynamo_config.patch(recompile_limit=2):
        for number in (2, 3, 4, 5):
            said += memopt_warnings(lambda number=number: train_step(model, [x(), number]))
            assert_same(train_step(model, [x(), number]), train_step(plain, [x(), number]), exact=True)
    assert len(said) == 1
    assert "torch.compile fell back to eager" in said[0]
    assert "recompile_limit" in said[0]


def test_recompile_limit_raises_when_strict() -> None:
    torch.manual_seed(0)
    model = CountsOnAttribute([Residual(Mlp()), Residual(Mlp())])
    compile_with_memopt(model, FULL(model), backend=run_as_is, dynamic=False, strict=True)
    with dynamo_config.patch(recompile_limit=2):
        train_step(model, [x(), 2])
        train_step(model, [x(), 3])
        with pytest.raises(PolicyNotApplied, match="recompile_limit"):
            train_step(model, [x(), 4])


def test_switched_off_compilation_is_said() -> None:
    model = stack(Mlp)
    compile_with_memopt(model, FULL(model), backend=run_as_is)
    with dynamo_config.patch(disable=True):
        said = memopt_warnings(lambda: train_step(model, [x()]))
    assert len(said) == 1
    assert "compilation is switched off" in said[0]


def test_switching_between_training_and_evaluation_mode() -> None:
    model = stack(lambda: Residual(Mlp(dropout=0.5)), 2)
    plain = copy.deepcopy(model)
    compile_with_memopt(model, FULL(model), backend=run_as_is)
    for training in (True, False, True):
        model.train(training)
        plain.train(training)
        assert_same(train_step(model, [x()]), train_step(plain, [x()]), exact=True)


def test_layer_replaced_after_compilation() -> None:
    model = stack(lambda: Residual(Mlp()), 2)
    compile_with_memopt(model, FULL(model), backend=run_as_is)
    train_step(model, [x()])
    torch.manual_seed(9)
    model.layers[1] = Residual(Mlp()).double()
    plain = stack(lambda: Residual(Mlp()), 2)
    plain.load_state_dict(model.state_dict())
    assert_same(train_step(model, [x()]), train_step(plain, [x()]), exact=True)


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.GroupNorm(3, 3)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + torch.relu(self.norm(self.conv(h)))


def test_images_in_channels_last() -> None:
    images = torch.randn(2, 3, 6, 6, dtype=torch.float64).to(memory_format=torch.channels_last).requires_grad_()
    check(stack(Conv, 2), [images], FULL)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        state = torch.zeros_like(h)
        for _ in range(3):
            state = self.cell(h, state)
        return h + state


def test_recurrent_layers() -> None:
    # Torch takes the cell apart, so its sums are not rounded as eager rounds them.
    check(stack(Recurrent, 2), [x()], FULL, exact=False)


class OwnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(value)
        return value.exp()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (value,) = ctx.saved_tensors
        return gradient * value.exp() * 2


class UsesFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return torch.tanh(OwnFunction.apply(torch.sin(self.fc(h))))


def test_autograd_function_of_the_users_own() -> None:
    check(stack(UsesFunction, 2), [x()], FULL)


def test_evaluation_part_inside_a_layer() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(WIDTH, WIDTH)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                scale = torch.sigmoid(self.fc(h)).mean()
            return torch.sin(self.fc(h)) * scale

    check(stack(Part, 2), [x()], FULL)


def test_output_without_gradient() -> None:
    """Inputs that need gradients, and nothing differentiable behind them."""

    class Chooses(Stack):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return super().forward(h).argmax(-1)

    torch.manual_seed(0)
    model = Chooses([Mlp(), Mlp()])
    plain = copy.deepcopy(model)
    compile_with_memopt(model, FULL(model), backend=run_as_is)
    assert torch.equal(model(x()), plain(x()))


class Long(nn.Module):
    """More operators in a row than Python's frames may nest."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(WIDTH))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for _ in range(600):
            h = torch.sin(h) * self.w
        return h


def test_chain_of_a_thousand_operators_in_a_layer() -> None:
    trained = check(stack(Long, 1), [x(2)], FULL, steps=1)
    saved = [row for row in trained.explanation.values if row.action == "save" and row.kind == "activation"]
    assert saved == []


class ComputesFromSaved(torch.autograd.Function):
    """Its backward computes the cosine from what was saved alone: no gradient goes in."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(value)
        return torch.sin(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (value,) = ctx.saved_tensors
        return torch.cos(value) * gradient


class UsesSaved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.fc2 = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.fc2(ComputesFromSaved.apply(self.fc(h)))


class UsesForwardDifferentiation(UsesSaved):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        value, slope = torch.func.jvp(lambda h: torch.sin(self.fc(h)), (h,), (torch.ones_like(h),))
        return self.fc2(slope) + value


# Inductor compiles no forward differentiation of a linear layer, with or without memopt.
@pytest.mark.parametrize(
    ("layer", "backend"),
    [*((UsesSaved, backend) for backend in BACKENDS), *((UsesForwardDifferentiation, backend) for backend in PLAIN_BACKENDS)],
)
@pytest.mark.parametrize("config", [full("0-2"), full(0), select({"fc": ["0-2"]})], ids=["all", "one", "module"])
def test_a_backward_that_computes_from_saved_values_alone(config: Any, layer: type[nn.Module], backend: str) -> None:
    # Forward differentiation is taken apart: its sums are not rounded as eager rounds them.
    check(stack(layer, 3), [x()], config, backend, exact=None if layer is UsesSaved else False, warns=None)


@plain_backends
def test_what_a_users_own_backward_reads_is_recomputed_with_its_layer(backend: str) -> None:
    rows = check(stack(UsesSaved, 3), [x()], full("0-2"), backend).explanation.values
    assert [(r.layer, r.path, r.op) for r in rows if r.action == "save" and r.kind == "activation"] == [
        (0, "fc2", "addmm"), (1, "fc2", "addmm"),
    ]  # fmt: skip
    assert {(r.layer, r.path) for r in rows if r.action == "recompute" and r.op in ("addmm", "sin")} == {
        (layer, path) for layer in range(3) for path in ("", "fc")
    }
