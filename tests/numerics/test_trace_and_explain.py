"""What was decided, with bytes: before running, and after."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from harness import BACKENDS, EMPTY, FULL, check, crossing, full, memopt_warnings, operators, run_as_is, select, train_step
from numeric_models import WIDTH, Block, Mlp, Residual, stack, x
from torch import nn
from torch.utils.checkpoint import checkpoint

from memopt import MemoptWarning, PolicyNotApplied, compile_with_memopt, explain, trace


def block(depth: int = 2) -> nn.Module:
    return stack(lambda: Block(dropout=0.1), depth)


def facts(explanation: object) -> list[tuple[object, ...]]:
    return [
        (r.graph, r.name, r.layer, r.path, r.op, r.shape, r.dtype, r.bytes, r.kind, r.action, r.rule, r.reason)
        for r in explanation.values  # type: ignore[attr-defined]
    ]


def test_trace_leaves_the_model_and_the_random_state_alone() -> None:
    model = block()
    before = {name: (id(t), t.clone()) for name, t in [*model.named_parameters(), *model.named_buffers()]}
    h = x(2, 5)
    torch.manual_seed(4)
    wanted = torch.rand(3)
    torch.manual_seed(4)
    trace(model, FULL(model), [h])
    assert torch.equal(torch.rand(3), wanted)
    assert "forward" not in model.__dict__
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        assert id(tensor) == before[name][0]
        assert torch.equal(tensor, before[name][1])
        assert tensor.grad is None
    assert h.grad is None
    assert torch.equal(train_step(model, [h]).tensors["output 0"], train_step(block(), [h]).tensors["output 0"])  # type: ignore[arg-type]


def test_trace_does_not_touch_buffers_that_the_forward_changes() -> None:
    model = stack(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)), 2)
    state = copy.deepcopy(model.state_dict())
    trace(model, FULL(model), [x()])
    assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items())


def test_trace_of_a_model_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = stack(lambda: Block(width=4096, dropout=0.1), 3)
        h = torch.empty(64, 2048, 4096, dtype=torch.float64)
    explanation = trace(model, FULL(model), [h])
    assert all(p.device.type == "meta" for p in model.parameters())
    rows = [row for row in explanation.values if row.action == "save" and row.kind == "activation"]
    assert {row.bytes for row in rows if row.shape == (64, 2048, 4096)} == {64 * 2048 * 4096 * 8}
    assert explanation.saved_after < explanation.saved_before
    assert explanation.saved_after >= 2 * 64 * 2048 * 4096 * 8


def test_trace_of_a_meta_model_is_trace_of_the_model() -> None:
    real = trace(block(), full(0), [x(2, 5)])
    with torch.device("meta"):
        torch.manual_seed(3)
        model = block()
    meta = trace(model, full(0), [x(2, 5).detach().to("meta").requires_grad_()])
    assert [row[1:] for row in facts(meta)] == [row[1:] for row in facts(real)]


@pytest.mark.parametrize("backend", ["no-op", "aot_eager"])
def test_trace_says_what_explain_says(backend: str) -> None:
    traced = trace(block(), full(0), [x(2, 5)], backend=BACKENDS[backend])
    torch._dynamo.reset()
    trained = check(block(), [x(2, 5)], full(0), backend)
    assert facts(traced) == facts(trained.explanation)
    assert traced.totals == trained.explanation.totals


@pytest.mark.inductor
def test_trace_says_what_explain_says_under_inductor() -> None:
    def model() -> nn.Module:
        return stack(lambda: Residual(Mlp(dropout=0.1)))

    traced = trace(model(), full(0), [x()], backend="inductor")
    torch._dynamo.reset()
    trained = check(model(), [x()], full(0), "inductor")
    assert facts(traced) == facts(trained.explanation)
    assert traced.totals == trained.explanation.totals


def test_trace_of_a_compiled_model_shows_another_configuration() -> None:
    model = block()
    compile_with_memopt(model, full(0), backend=run_as_is)
    train_step(model, [x(2, 5)])
    other = trace(model, full(1), [x(2, 5)])
    assert {row.layer for row in other.values if row.rule == "recompute.full_recompute_layer"} == {1}
    assert {row.layer for row in explain(model).values if row.rule == "recompute.full_recompute_layer"} == {0}


def test_trace_with_keywords() -> None:
    class TakesMask(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(2)])

        def forward(self, h: torch.Tensor, *, mask: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                h = torch.sin(layer(h)) * mask
            return h

    explanation = trace(TakesMask(), full("0-1"), kwargs={"h": x(), "mask": torch.ones(WIDTH, dtype=torch.float64)})
    assert len(explanation.graphs) == 1


def test_trace_warns_and_is_strict() -> None:
    config = select({"nothing": [0], "mlp": [0]})
    with pytest.warns(MemoptWarning, match=r"select_module\['nothing'\] did not match any module or operator"):
        explanation = trace(block(), config, [x(2, 5)])
    assert any("'nothing'" in text for text in explanation.warnings)
    with pytest.raises(PolicyNotApplied, match="'nothing'"):
        trace(block(), config, [x(2, 5)], strict=True)


def test_rows_without_a_configuration_name_torch() -> None:
    explanation = check(stack(lambda: Mlp(bias=False), 2), [x()], EMPTY).explanation
    rows = [row for row in explanation.values if row.kind == "activation"]
    assert {(row.action, row.rule, row.reason) for row in rows if row.action == "save"} == {
        ("save", "", "no rule: torch's partitioner saves it")
    }
    assert {row.reason for row in rows if row.action == "recompute"} <= {"no rule: torch's partitioner recomputes it"}
    assert explanation.saved_after == explanation.saved_before


def test_bytes_of_every_row_are_those_of_its_elements() -> None:
    explanation = check(block(), [x(2, 5)], full(0, exclude_op=["addmm"])).explanation
    sizes = {"float64": 8, "float32": 4, "bool": 1, "int64": 8, "uint8": 1}
    for row in explanation.values:
        if row.kind == "random state":
            assert row.bytes == torch.get_rng_state().numel()
            continue
        elements = 1
        for size in row.shape:
            assert isinstance(size, int)
            elements *= size
        assert row.bytes == elements * sizes[row.dtype], row
        assert row.kind in ("activation", "parameter", "input", "random state")
        assert row.reason


def test_totals_are_the_sums_of_the_saved_storages() -> None:
    explanation = check(stack(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()), 3), [x()], FULL).explanation
    by_layer = {total.layer: total for total in explanation.totals}
    size = 4 * WIDTH * 8
    # Saved before: what each GELU reads, and its result as the next layer's input. After: the latter.
    assert [by_layer[n].saved_before for n in range(3)] == [2 * size, 2 * size, size]
    assert [by_layer[n].saved_after for n in range(3)] == [size, size, 0]
    # The product, and the transposed weight that it reads.
    assert [by_layer[n].recomputed for n in range(3)] == [2, 2, 2]
    assert [by_layer[n].recomputed_flops for n in range(3)] == [2 * 4 * WIDTH * WIDTH] * 3
    assert [by_layer[n].unknown for n in range(3)] == [0, 0, 0]
    assert (explanation.saved_before, explanation.saved_after) == (5 * size, 2 * size)


def test_less_is_saved_with_every_layer() -> None:
    saved = []
    for config in [EMPTY, *(full(f"0-{k}") for k in range(4))]:
        torch._dynamo.reset()
        explanation = check(stack(lambda: Residual(Mlp(dropout=0.1)), 4), [x()], config, steps=1).explanation
        saved.append(explanation.saved_after)
        assert explanation.saved_before == saved[0]
    assert all(b < a for a, b in itertools.pairwise(saved)), saved


def test_kept_operators_lie_between() -> None:
    """More kept is more saved; and nothing is saved that the backward does not read."""
    saved = {}
    for name, config in {"full": FULL, "attention": full("0-1", exclude_op=["attention"]), "empty": EMPTY}.items():
        torch._dynamo.reset()
        explanation = check(block(), [x(2, 5)], config, steps=1).explanation
        saved[name] = explanation.saved_after
        for graph in explanation.graphs:
            placeholders = graph.backward.graph.find_nodes(op="placeholder")
            assert [n.name for n in placeholders if not n.users and "tangents" not in n.name] == []
    assert saved["full"] < saved["attention"] < saved["empty"]


def test_decisions_lie_on_the_nodes_of_the_joint_graph() -> None:
    graph = check(block(), [x(2, 5)], full(1)).explanation.graphs[0]
    decided = [n for n in graph.joint.graph.nodes if n.meta.get("memopt")]
    named = [n for n in decided if n.meta["memopt"].rule == "recompute.full_recompute_layer"]
    assert {n.meta["memopt"].layer for n in named} == {1}
    assert {n.meta["memopt"].action.value for n in named} == {"recompute"}
    names = {n.name for n in graph.backward.graph.nodes}
    # What draws random numbers runs in a wrapper that sets their state, under another name.
    assert {str(n.target) for n in named if n.name not in names} == {"aten.native_dropout.default"}


def test_table_names_every_layer_and_rule() -> None:
    text = str(check(block(3), [x(2, 5)], full(0, exclude_op=["attention"])).explanation)
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines()]
    rows: list[list[str]] = []
    for line in cells:
        if line and line[0]:
            rows.append(line)
        elif line and rows and len(line) == len(rows[-1]):
            # A cell that is too narrow goes on in the next line.
            rows[-1] = [above + below for above, below in zip(rows[-1], line, strict=True)]
    rules = {(row[0], row[-2]) for row in rows if len(row) > 6}
    assert ("0", "recompute.full_recompute_layer") in rules
    assert ("0", "recompute.exclude_op['attention']") in rules
    assert ("1-2", "") in rules


def test_explain_does_not_change_what_runs() -> None:
    model = block()
    compile_with_memopt(model, FULL(model), backend=run_as_is)
    first = train_step(model, [x(2, 5)])
    once, twice = explain(model), explain(model)
    assert facts(once) == facts(twice)
    assert str(once) == str(twice)
    second = train_step(model, [x(2, 5)])
    assert all(torch.equal(a, b) for a, b in zip(first.tensors.values(), second.tensors.values(), strict=True))  # type: ignore[arg-type]


def test_warnings_are_given_once_and_kept() -> None:
    model = stack(Mlp)
    compile_with_memopt(model, select({"fc3": [0]}), backend=run_as_is)
    said = memopt_warnings(lambda: [train_step(model, [x(b)]) for b in (2, 3, 4)])
    assert len(said) == 1
    assert list(explain(model).warnings) == said


def test_crossing_under_full_recompute() -> None:
    explanation = check(stack(lambda: Residual(Mlp(bias=False)), 3), [x()], FULL).explanation
    assert crossing(explanation) == ["add", "add"]
    assert operators(explanation.graphs[0].backward)["aten.gelu.default"] == 3


class Checkpoints(nn.Module):
    """The user's own checkpoints, around layers that draw."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = stack(lambda: Mlp(dropout=0.1)).layers

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=False)
        return h


@pytest.mark.parametrize("backend", ["no-op", "aot_eager"])
def test_totals_with_the_users_own_checkpoints_around_random_layers(backend: str) -> None:
    size = 4 * WIDTH * 8
    trained = check(Checkpoints(), [x()], EMPTY, backend)
    torch._dynamo.reset()
    for explanation in (trained.explanation, trace(Checkpoints(), EMPTY, [x()], backend=BACKENDS[backend])):
        assert (explanation.saved_before, explanation.saved_after) == (size, size)
        assert [total.recomputed > 0 for total in explanation.totals if total.layer is not None] == [True, True]
