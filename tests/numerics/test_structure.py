"""What goes into a layer and what comes out: keyword tensors, None, nested outputs, tuples, constants, sizes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch._dynamo.config as dynamo_config
import torch.nn.functional as F
from harness import (
    BACKENDS,
    EMPTY,
    FULL,
    INDUCTOR_TOLERANCE,
    assert_same,
    check,
    crossing,
    full,
    memopt_warnings,
    operators,
    run_as_is,
    select,
    train_step,
)
from numeric_models import WIDTH, Attention, Block, Mlp, Residual, Stack, stack, x
from torch import nn

from memopt import compile_with_memopt

PLAIN_BACKENDS = ["no-op", "aot_eager"]
every_backend = pytest.mark.parametrize("backend", BACKENDS)
plain_backends = pytest.mark.parametrize("backend", PLAIN_BACKENDS)
configs_and_backends = pytest.mark.parametrize(
    ("config", "backend"),
    [(EMPTY, "no-op"), (FULL, "no-op"), (FULL, "aot_eager"), (FULL, "inductor")],
    ids=["empty-no-op", "full-no-op", "full-aot_eager", "full-inductor"],
)
both_configs = pytest.mark.parametrize("config", [EMPTY, FULL], ids=["empty", "full"])


@dataclass
class Meta:
    scale: float
    name: str


class TakesKeywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, h: torch.Tensor, *, bias: torch.Tensor, mask: torch.Tensor | None = None, meta: Meta, flags: dict[str, Any]
    ) -> tuple[torch.Tensor, None, dict[str, Any]]:
        h = torch.tanh(self.fc(h)) * bias * meta.scale
        if mask is not None:
            h = h * mask
        return h, None, {"aux": h.mean(), "count": h.shape[0], "flags": flags}


class PassesKeywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.linspace(-1, 1, WIDTH))
        self.layers = nn.ModuleList([TakesKeywords(), TakesKeywords()])

    def forward(self, h: torch.Tensor, *, bias: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        extra = []
        for layer in self.layers:
            h, nothing, more = layer(h, bias=self.b.exp() + bias, mask=mask, meta=Meta(0.5, "half"), flags={"on": True, "n": 3})
            extra.append((nothing, more))
        return {"h": h, "extra": extra, "none": None}


@pytest.mark.parametrize(("masked", "backend"), [(False, "no-op"), (True, "no-op"), (True, "aot_eager"), (True, "inductor")])
def test_keyword_tensors_keep_their_gradient(masked: bool, backend: str) -> None:
    torch.manual_seed(0)
    bias = torch.ones(WIDTH, dtype=torch.float64).requires_grad_()
    mask = (torch.arange(WIDTH) % 2).double() if masked else None
    trained = check(PassesKeywords().double(), [x()], FULL, backend, kwargs={"bias": bias, "mask": mask})
    assert trained.model.b.grad.abs().min() > 0 or masked
    outputs = trained.model(x(), bias=bias, mask=mask)
    assert outputs["none"] is None
    assert [nothing for nothing, _ in outputs["extra"]] == [None, None]
    assert outputs["extra"][1][1]["count"] == 4
    assert outputs["extra"][1][1]["flags"] == {"on": True, "n": 3}


class TupleLayer(nn.Module):
    """Operators with several outputs, more than one of them used."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.fc(self.norm(h)))
        values, indices = torch.topk(h, 4, dim=-1)
        ordered, order = torch.sort(h, dim=-1)
        left, right = torch.split(h, WIDTH // 2, dim=-1)
        parts = torch.unbind(h, dim=-1)
        pooled, at = F.max_pool2d_with_indices(h[None, None], 2)
        total = values.sum(-1, keepdim=True) * parts[3][:, None] * left.sigmoid().sum() * right.exp().mean()
        return h * total + ordered * (indices.sum() + order[0]) + pooled.sum() * at.double().mean()


OPERATORS = [
    "topk", "sort", "native_layer_norm", "layer_norm", "split", "unbind", "max_pool2d_with_indices", "max_pool2d",
]  # fmt: skip


@pytest.mark.parametrize("kept", [*[[name] for name in OPERATORS], OPERATORS], ids=lambda names: "+".join(names))
def test_keeping_a_tuple_valued_operator(kept: list[str]) -> None:
    check(stack(TupleLayer), [x(6)], full("0-1", exclude_op=kept))


@pytest.mark.inductor
def test_keeping_tuple_valued_operators_under_inductor() -> None:
    config = full(0, exclude_op=["topk", "layer_norm", "split", "unbind"])
    check(stack(TupleLayer, 1), [x(6)], config, "inductor", tolerance=1e-9)


@pytest.mark.parametrize("kept", ["scaled_dot_product_attention", "FlashAttention", "attention", "native_layer_norm"])
def test_keeping_attention_or_norms(kept: str) -> None:
    trained = check(stack(Block), [x(2, 5)], full("0-1", exclude_op=[kept]))
    assert any(row.rule == f"recompute.exclude_op['{kept}']" and row.action == "save" for row in trained.explanation.values)


@pytest.mark.parametrize("pattern", [r"topk", r"sort", r"split", r"unbind", r"max_pool2d_with_indices", r"norm\..*", r"norm"])
def test_recomputing_one_tuple_valued_operator(pattern: str) -> None:
    warnings = ["which chooses elements"] if pattern in ("topk", "sort", "max_pool2d_with_indices") else []
    # The whole module is one operator, whose result leaves it.
    warnings += ["recompute.select_module['norm'] matches, and recomputes nothing"] if pattern == "norm" else []
    trained = check(stack(TupleLayer), [x(6)], select({pattern: [0]}), warns=warnings)
    rows = [row for row in trained.explanation.values if row.rule == f"recompute.select_module['{pattern}']"]
    assert {(row.layer, row.action) for row in rows} <= {(0, "recompute")}


@pytest.mark.parametrize(
    "config",
    [
        select({"fc1": [0, 1], ".*fc1": [0, 1]}),
        select({"fc.*": [0, 1], "fc1": [0]}),
        select({"fc1.linear": [0, 1], ".*linear": [0]}),
        full("0-1", exclude_op=["addmm", "linear"]),
        full("0-1", exclude_op={".*fc1.*": ["0-1"], "fc1.linear": [1]}),
    ],
    ids=["same modules", "some of the modules", "same operators", "same kept operators", "kept by regular expressions"],
)
def test_rules_that_match_the_same_are_not_called_unmatched(config: object) -> None:
    model = stack(Mlp)
    compile_with_memopt(model, config, backend=run_as_is)
    said = memopt_warnings(lambda: train_step(model, [x()]))
    assert [text for text in said if "did not match" in text] == []


def test_rule_that_recomputes_nothing_says_so() -> None:
    model = stack(Mlp)
    compile_with_memopt(model, select({"fc1": [0, 1]}), backend=run_as_is)
    said = memopt_warnings(lambda: train_step(model, [x()]))
    assert len(said) == 1
    assert "recompute.select_module['fc1']" in said[0]


def test_recomputed_operator_with_an_excluded_output() -> None:
    """The whole tuple is saved where a rule asks for one output to be: half of it would have no solution."""
    config = select({"topk": [0, 1], "fc": [0, 1]}, exclude_op=["topk"])
    trained = check(stack(TupleLayer), [x(6)], config)
    rows = [row for row in trained.explanation.values if row.op == "topk"]
    assert {(row.action, row.rule) for row in rows} == {("save", "recompute.exclude_op['topk']")}


class Concatenates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, c: torch.Tensor) -> torch.Tensor:
        c = torch.sin(self.fc(c))
        both = torch.cat([c, c]).view(-1, c.shape[0], WIDTH)
        return c * both.sum(0)


class ReturnsSize(Stack):
    def forward(self, h: torch.Tensor) -> Any:
        y = super().forward(h)
        return y, y.shape[0], h.shape[0] * 2


@configs_and_backends
def test_batch_size_that_changes_is_compiled_once(config: object, backend: str) -> None:
    torch.manual_seed(3)
    model = ReturnsSize([Concatenates(), Concatenates()])
    sizes = [2, 3, 5, 7]
    trained = check(model, [x(sizes[0])], config, backend, dynamic=True, steps=1)
    for size in sizes[1:]:
        wanted = train_step(trained.plain, [x(size)])
        found = train_step(trained.model, [x(size)])
        assert_same(found, wanted, exact=backend != "inductor", tolerance=INDUCTOR_TOLERANCE[torch.float64])
        assert found.others["output 1"] == size
        assert type(found.others["output 1"]) is int
    assert len(trained.explanation.graphs) == 1


@both_configs
def test_batch_size_that_is_found_to_change(config: object) -> None:
    """Without ``dynamic``: the second size makes a second graph, for all sizes, and the third none."""
    trained = check(stack(Block), [x(2, 5)], config, steps=1)
    for size in (3, 4, 6):
        assert_same(train_step(trained.model, [x(size, 5)]), train_step(trained.plain, [x(size, 5)]), exact=True)
    assert len(trained.explanation.graphs) == 2


@both_configs
def test_saving_everything_with_dynamic_sizes(config: object) -> None:
    check(stack(Block), [x(3, 5)], full("0-1", exclude_op=["e"]), dynamic=True)


class DataDependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.fc(h))
        chosen = torch.nonzero(h[:, 0] > 0).squeeze(-1)
        picked = torch.exp(h[chosen] * 2)
        return h + picked.sum(0) * chosen.shape[0]


def test_size_that_depends_on_data() -> None:
    with dynamo_config.patch(capture_dynamic_output_shape_ops=True):
        trained = check(stack(DataDependent), [x(9)], FULL, fullgraph=True)
    kept = [row for row in trained.explanation.values if row.op == "nonzero"]
    assert {row.action for row in kept} == {"save"}
    assert {row.reason for row in kept} <= {
        "its size depends on the data",
        "it chooses elements, and a second run may choose others",
    }


class UnbackedSize(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Concatenates(), Concatenates()])

    def forward(self, h: torch.Tensor) -> Any:
        torch._check(h.shape[0] >= 2)
        for layer in self.layers:
            h = layer(h)
        return h, h.shape[0]


@pytest.mark.parametrize("config", [EMPTY, FULL, full("0-1", exclude_op=["e"])], ids=["empty", "full", "save all"])
def test_batch_size_that_is_never_known(config: object) -> None:
    torch.manual_seed(0)
    model = UnbackedSize().double()
    torch.manual_seed(0)
    plain = UnbackedSize().double()
    compile_with_memopt(model, config(model) if callable(config) else config, backend=run_as_is)

    for size in (2, 3, 5, 7):
        h = x(size)
        wanted = plain(h)
        copy_of_h = h.detach().clone().requires_grad_()
        torch._dynamo.decorators.mark_unbacked(copy_of_h, 0)
        found = model(copy_of_h)
        assert torch.equal(found[0], wanted[0])
        assert found[1] == size
        wanted[0].sum().backward()
        found[0].sum().backward()
        assert torch.equal(copy_of_h.grad, h.grad)
    assert len(model.forward.session.captures) == 1


class OddOutputs(nn.Module):
    """Outputs that are constants, inputs unchanged, saved values, views, or the same tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.register_buffer("table", torch.arange(4.0))

    def forward(self, h: torch.Tensor, other: torch.Tensor) -> Any:
        constant = h.clone().zero_().view(-1)
        first = torch.tanh(self.layers[0](h))
        second = torch.exp(self.layers[1](first))
        return constant, first, first, other, second, second.t(), torch.ones(3), self.table, first.detach(), 5, None, [h.shape]


@configs_and_backends
def test_odd_outputs(config: object, backend: str) -> None:
    torch.manual_seed(0)
    check(OddOutputs().double(), [x(), x(3)], config, backend)


@both_configs
def test_odd_outputs_with_dynamic_sizes(config: object) -> None:
    torch.manual_seed(0)
    check(OddOutputs().double(), [x(), x(3)], config, dynamic=True)


def test_value_in_another_dtype_and_integer_outputs() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, WIDTH)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            ids = (h.detach().abs().sum(-1) * 3).long() % 10
            return h + torch.tanh(self.embedding(ids)).float().double()

    check(stack(Layer), [x()], FULL)


class Router(nn.Module):
    """Tokens go to the expert with the highest score; inputs nearly tie, so a rounding would re-route them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, 4, bias=False)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        with torch.no_grad():
            self.gate.weight[1].copy_(self.gate.weight[0])

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(self.gate(self.norm(h)), -1)
        weights, chosen = torch.topk(scores, 2, dim=-1)
        counts = torch.bincount(chosen.flatten(), minlength=4)
        best = scores.argmax(-1)
        out = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).to(h.dtype) * weights
            out = out + torch.tanh(expert(h)) * mine.sum(-1, keepdim=True)
        return h + out * counts.sum() + best[:, None]


@every_backend
def test_routing_is_that_of_the_forward(backend: str) -> None:
    with dynamo_config.patch(capture_dynamic_output_shape_ops=True):
        trained = check(stack(lambda: Router()), [x(12)], FULL, backend, tolerance=1e-10)
    backward = operators(trained.explanation.graphs[0].backward)
    repeated = {op for op in backward if any(name in op for name in ("topk", "argmax", "bincount", "sort"))}
    assert repeated == set()
    rows = [row for row in trained.explanation.values if row.op == "topk"]
    assert {(row.action, row.rule) for row in rows} == {("save", "legalize.indices")}


def test_forced_recompute_of_a_choice_warns() -> None:
    config = select({"topk": [0]})
    warning = "recompute.select_module['topk'] recomputes topk, which chooses elements"
    with dynamo_config.patch(capture_dynamic_output_shape_ops=True):
        trained = check(stack(lambda: Router()), [x(12)], config, warns=[warning])
    assert "aten.topk.default" in operators(trained.explanation.graphs[0].backward)


@every_backend
def test_only_layer_inputs_cross(backend: str) -> None:
    def layer() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())

    trained = check(stack(layer, 6), [x()], FULL, backend)
    explanation = trained.explanation
    rows = [row for row in explanation.values if row.action == "save" and row.kind == "activation"]
    # The input of the first layer is the model's; the output of the last is not read by the backward.
    assert len(rows) == 5
    assert {row.bytes for row in rows} == {4 * WIDTH * 8}
    assert [row.layer for row in rows] == [0, 1, 2, 3, 4]
    assert explanation.saved_after == 5 * 4 * WIDTH * 8


def test_a_mean_of_repeated_work_is_not_merged() -> None:
    """The recomputed copy of a forward value stays a copy in the backward graph."""
    trained = check(stack(lambda: Residual(Mlp()), 3), [x()], FULL)
    graph = trained.explanation.graphs[0]
    assert operators(graph.forward)["aten.gelu.default"] == 3
    assert operators(graph.backward)["aten.gelu.default"] == 3


class CastsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        weight = self.w.to(torch.bfloat16).t()
        return torch.tanh(h.to(torch.bfloat16) @ weight).to(h.dtype)


@pytest.mark.parametrize("config", [full("0-7"), full("0-3"), select({"to": ["0-7"]})], ids=["full", "half", "cast"])
def test_casts_of_weights_are_not_kept(config: object) -> None:
    trained = check(stack(CastsWeight, 8), [x()], config)
    saved = [row for row in trained.explanation.values if row.action == "save" and row.kind == "activation"]
    assert [row.name for row in saved if row.shape == (WIDTH, WIDTH)] == []


@pytest.mark.parametrize("bias", [True, False])
def test_last_matmul_is_not_run_again(bias: bool) -> None:
    trained = check(stack(lambda: Mlp(bias=bias), 1), [x()], FULL)
    backward = operators(trained.explanation.graphs[0].backward)
    products = backward["aten.mm.default"] + backward["aten.addmm.default"]
    assert products == 2 * 2 + 1


class Tail(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        parts = torch.unbind(torch.sin(h).view(2, -1, WIDTH))
        turned = parts[1].t()[:, :2].t()
        return torch.tanh(self.fc(turned)).repeat(h.shape[0] // 2, 1)


def test_views_behind_a_tuple_follow_it() -> None:
    trained = check(stack(Tail, 2), [x(4)], select({"sin": [0, 1]}))
    assert "aten.sin.default" in operators(trained.explanation.graphs[0].backward)
    saved = [row.op for row in trained.explanation.values if row.action == "save" and row.kind == "activation"]
    assert not {"sin", "unbind", "permute", "t", "slice"} & set(saved)


def matmuls(explanation: Any) -> int:
    backward = operators(explanation.graphs[0].backward)
    return sum(count for op, count in backward.items() if op.split(".")[1] in ("mm", "addmm", "bmm", "linear"))


@pytest.mark.parametrize("dims", [2, 3])
def test_products_run_again_where_nothing_is_kept(dims: int) -> None:
    h = x(4) if dims == 2 else x(2, 3)
    # The product in front of the GELU is run again; the second one's result is not needed.
    assert matmuls(check(stack(lambda: Mlp(bias=False), 2), [h], FULL).explanation) == 8 + 2


MATMUL_SPELLINGS = ["mm", "aten.mm", "linear", "MatMul", "matmul", "Linear"]


@pytest.mark.parametrize("spelling", MATMUL_SPELLINGS)
@pytest.mark.parametrize("dims", [2, 3])
def test_spellings_of_a_product_without_bias(spelling: str, dims: int) -> None:
    h = x(4) if dims == 2 else x(2, 3)
    kept = check(stack(lambda: Mlp(bias=False), 2), [h], full("0-1", exclude_op=[spelling])).explanation
    assert matmuls(kept) == 8


@pytest.mark.parametrize("spelling", ["addmm", "aten.addmm", "aten.addmm.default", "mm", "linear", "MatMul"])
@pytest.mark.parametrize("dims", [2, 3])
def test_spellings_of_a_product_with_bias(spelling: str, dims: int) -> None:
    h = x(4) if dims == 2 else x(2, 3)
    kept = check(stack(lambda: Mlp(bias=True), 2), [h], full("0-1", exclude_op=[spelling])).explanation
    assert matmuls(kept) == 8
    rows = [row for row in kept.values if row.rule == f"recompute.exclude_op['{spelling}']"]
    assert {row.layer for row in rows} == {0, 1}
    assert {row.action for row in rows} == {"save"}
    assert [(row.name, row.action) for row in kept.values] == kept_by_function(dims)


@functools.cache
def kept_by_function(dims: int) -> list[tuple[str, str]]:
    torch._dynamo.reset()
    h = x(4) if dims == 2 else x(2, 3)
    explanation = check(stack(lambda: Mlp(bias=True), 2), [h], full("0-1", exclude_op=["linear"])).explanation
    return [(row.name, row.action) for row in explanation.values]


@pytest.mark.parametrize(
    "spelling", ["scaled_dot_product_attention", "ScaledDotProductAttention", "attention", "FlashAttention"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_spellings_of_attention(spelling: str, dtype: torch.dtype) -> None:
    model = stack(lambda: Residual(Attention()), 2).to(dtype)
    h = x(2, 5).detach().to(dtype).requires_grad_()
    kept = check(model, [h], full("0-1", exclude_op=[spelling])).explanation
    backward = operators(kept.graphs[0].backward)
    forwards = [op for op in backward if "attention" in op and "backward" not in op]
    assert forwards == []


@pytest.mark.parametrize(
    "pattern", [r".*fc1\.linear", r".*fc1\.addmm", r".*fc1\.aten\.addmm", r".*fc1\.aten\.addmm\.default", r".*fc1\.matmul"]
)
def test_spellings_of_an_operator_to_recompute(pattern: str) -> None:
    recomputed = check(stack(lambda: Residual(Mlp()), 2), [x()], select({pattern: [0]})).explanation
    assert matmuls(recomputed) == 8 + 1
    assert {row.layer for row in recomputed.values if row.rule == f"recompute.select_module['{pattern}']"} == {0}


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_operator_to_recompute_by_function(bias: bool, dims: int) -> None:
    h = x(4) if dims == 2 else x(2, 3)
    recomputed = check(stack(lambda: Residual(Mlp(bias=bias)), 2), [h], select({r".*fc1\.linear": [0, 1]})).explanation
    assert matmuls(recomputed) == 8 + 2


def test_operators_that_match_nothing_are_named() -> None:
    check(
        stack(Mlp),
        [x()],
        full("0-1", exclude_op=["AllGather", "convolution", "mm"]),
        warns=[
            "recompute.exclude_op['AllGather'] did not match any operator of a recomputed region, and has no effect.",
            "recompute.exclude_op['convolution'] did not match any operator of a recomputed region, and has no effect.",
        ],
    )


def test_pattern_that_matches_nothing_names_the_nearest_paths() -> None:
    check(
        stack(Mlp),
        [x()],
        select({r"fc1": [0], r"fc3": [0, 1]}),
        "no-op",
        warns=["recompute.select_module['fc3'] did not match any module or operator, and has no effect. Nearest paths: fc1"],
    )


def test_helpers_count() -> None:
    """What the tests above count with: the crossing values of a layer that keeps everything."""
    trained = check(stack(lambda: Mlp(bias=False), 1), [x()], EMPTY)
    # A dropout of 0 is a copy.
    assert crossing(trained.explanation) == ["mm", "clone"]


CHAINS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expand": lambda h: h[:, :1].expand(-1, WIDTH) * 1,
    "as_strided": lambda h: h.contiguous().as_strided((4, 4), (8, 2)).repeat(1, 2),
    "flip": lambda h: h.flip(0),
    "complex": lambda h: torch.fft.rfft(h, dim=-1).abs().repeat(1, 2)[:, :WIDTH],
    "where": lambda h: torch.where(h > 0, h.exp(), h.sin()),
    "index_put": lambda h: h.clone().index_put_((torch.tensor([0, 2]),), h[1]),
    "in place": lambda h: h.clone().mul_(2).add_(h).clamp_(min=-1),
    "scatter": lambda h: torch.zeros_like(h).scatter_add(0, torch.zeros_like(h, dtype=torch.int64), h.exp()),
    "cumsum": lambda h: h.exp().cumsum(0),
    "einsum": lambda h: torch.einsum("ij,kj->ik", h, h.exp()) @ h,
    "0-d": lambda h: h * h.exp().sum(),
    "empty": lambda h: h + torch.cat([h[:0].exp(), h]),
    "norm": lambda h: h / h.norm(),
    "logsumexp": lambda h: h - torch.logsumexp(h, -1, keepdim=True),
}


class Chain(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return torch.tanh(CHAINS[self.name](torch.sin(self.fc(h))))


@pytest.mark.parametrize("name", CHAINS)
def test_kinds_of_operators(name: str) -> None:
    check(stack(lambda: Chain(name), 2), [x()], FULL)
