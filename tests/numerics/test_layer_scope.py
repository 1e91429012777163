"""``scope="layer"``: every layer compiled by itself, with its own rules, and the same numbers as in eager."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from harness import BACKENDS, check, full, memopt_warnings, operators, select, train_step
from memopt.compiler import torch_bridge
from numeric_models import WIDTH, Block, Mlp, Residual, Stack, stack, x
from torch import nn

from memopt import LayersError, MemoptWarning, PolicyNotApplied, compile_with_memopt, explain, swap_counters

SWAP = {"swap": {"enable": True, "min_bytes": 0, "layer_swap": [{"layers": ["0-2"]}]}}
MIXED = {
    **full("0-1"),
    "swap": {"enable": True, "min_bytes": 0, "layer_swap": [{"layers": [2]}]},
}


def served(model: nn.Module) -> list[list[int]]:
    """For each graph with a backward, the layers that ran it."""
    return [sorted(seen.served) for seen in model.forward.session.captures if seen.trains]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "config",
    [
        {},
        full("0-4"),
        full("1-2", exclude_op=["MatMul"]),
        select({".*mlp": ["0-4"], r".*\.attention": [2]}),
        SWAP,
        MIXED,
        {"swap": {"enable": True, "min_bytes": 0, "default_prefetch": 2, "op_swap": [{"op_name": ".*mlp", "layers": ["0-2"]}]}},
    ],
    ids=["none", "full", "exclude", "select", "swap", "mixed", "op_swap"],
)
def test_every_policy_gives_the_numbers_of_eager(config: dict[str, Any], backend: str) -> None:
    check(stack(lambda: Block(dropout=0.1), 5), [x(2, 6)], config, backend, scope="layer", warns=None)


def test_layers_with_one_policy_share_a_compilation() -> None:
    trained = check(stack(Block, 6), [x(2, 6)], MIXED, "aot_eager", scope="layer")
    assert served(trained.model) == [[0, 1], [2], [3, 4, 5]]


def test_layers_of_another_structure_get_a_compilation_of_their_own() -> None:
    torch.manual_seed(3)
    layers = [Residual(Mlp()), Residual(Mlp(bias=False)), Residual(Mlp()), Residual(Mlp(hidden=24))]
    trained = check(Stack(layers), [x()], full("0-3"), "aot_eager", scope="layer")
    assert served(trained.model) == [[0, 2], [1], [3]]


def test_ten_policies_over_forty_layers() -> None:
    patterns = {f"inner(?:|.drop{n})": [4 * n, 4 * n + 1, 4 * n + 2] for n in range(9)}
    trained = check(stack(lambda: Residual(Mlp()), 40), [x()], select(patterns), "aot_eager", scope="layer", steps=1)
    ruled = [[4 * n, 4 * n + 1, 4 * n + 2] for n in range(9)]
    free = [3, 7, 11, 15, 19, 23, 27, 31, 35, 36, 37, 38, 39]
    assert served(trained.model) == [ruled[0], free, *ruled[1:]]
    rules = {row.layer: row.rule for row in trained.explanation.values if row.action == "recompute" and "drop" in row.rule}
    assert sorted(rules) == sorted(set(range(40)) - set(free))
    assert all(f"drop{layer // 4})" in rule for layer, rule in rules.items())


class Numbered(nn.Module):
    """A layer that reads a number of its own: torch compiles it for each number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.inner = Mlp()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.inner(h) * self.number


def test_a_number_in_every_layer_does_not_cost_the_policy() -> None:
    torch.manual_seed(3)
    trained = check(Stack([Numbered(n + 1) for n in range(12)]), [x()], full("0-11"), "aot_eager", scope="layer", steps=1)
    assert served(trained.model) == [[n] for n in range(12)]
    assert all(total.recomputed for total in trained.explanation.totals)


def test_explain_tells_every_layer() -> None:
    trained = check(stack(Block, 5), [x(2, 6)], MIXED, "aot_eager", scope="layer")
    totals = {t.layer: t for t in trained.explanation.totals}
    assert list(totals) == [0, 1, 2, 3, 4]
    assert len({t.saved_before for t in totals.values()}) == 1
    assert totals[0].saved_after == totals[1].saved_after == 2 * 6 * WIDTH * 8  # the layer's input
    assert totals[2].swapped == totals[2].saved_before
    assert totals[3].swapped == totals[4].swapped == 0
    assert totals[4].saved_after == totals[4].saved_before
    moved = [row for row in trained.explanation.values if row.action == "offload"]
    assert {(row.leaves, row.issued, row.returns) for row in moved} == {(2, 3, 2)}
    assert trained.explanation.shares == dict.fromkeys(range(5), 1.0)


def test_the_same_moves_as_in_one_graph() -> None:
    alone = check(stack(Block, 5), [x(2, 6)], SWAP, "aot_eager", scope="layer").explanation
    whole = check(stack(Block, 5), [x(2, 6)], SWAP, "aot_eager").explanation
    assert alone.swapped == whole.swapped  # the first layer's input is the model's, and stays in both


def test_operators_run_again_once_for_each_layer() -> None:
    trained = check(stack(Block, 3), [x(2, 6)], full("0-2"), "aot_eager", scope="layer")
    (graph,) = trained.explanation.graphs
    assert graph.layers == (0, 1, 2)
    again = operators(graph.backward)
    assert again["aten.gelu.default"] == 1
    assert sum(t.recomputed for t in trained.explanation.totals) == 3 * trained.explanation.totals[0].recomputed


def moved(step: Any) -> tuple[int, int, int]:
    """What a step moved: offloads, prefetches, and how many tickets are still held."""
    before = swap_counters()
    step()
    after = swap_counters()
    return after.offloads - before.offloads, after.prefetches - before.prefetches, after.live_tickets


def issued_early(model: nn.Module, run: Any) -> list[tuple[int, int]]:
    """The layers whose backward began, each with how many reloads were then under way, as the runtime issues them."""
    from memopt.runtime.calls import Pass

    found: list[tuple[int, int]] = []
    original = Pass.begin_backward

    def begin(self: Pass, number: int) -> None:
        original(self, number)
        early = [sum(_is_early(handle()) for handle in call().left) for call in self._calls]
        found.append((number, sum(early)))

    Pass.begin_backward = begin  # type: ignore[method-assign]
    try:
        run()
    finally:
        Pass.begin_backward = original  # type: ignore[method-assign]
    return found


def _is_early(handle: Any) -> bool:
    return handle is not None and handle.owned.early is not None


@pytest.mark.parametrize("ahead", [1, 2])
def test_reloads_begin_when_the_backward_of_a_later_layer_does(ahead: int) -> None:
    model = stack(Block, 5)
    config = {"swap": {**SWAP["swap"], "default_prefetch": ahead, "layer_swap": [{"layers": ["0-1"]}]}}
    compile_with_memopt(model, config, backend="aot_eager", scope="layer")
    model(x(2, 6)).sum().backward()
    loss = model(x(2, 6)).sum()
    found = dict(issued_early(model, loss.backward))
    assert list(found) == [4, 3, 2, 1, 0]
    none = [number for number, early in found.items() if early == 0]
    # Layer 1 comes back when the backward of layer 1 + ahead begins, not earlier.
    assert none == ([4, 3] if ahead == 1 else [4])


def test_several_forwards_in_flight_in_any_order() -> None:
    model = stack(lambda: Block(dropout=0.1), 4)
    plain = copy.deepcopy(model)
    compile_with_memopt(model, SWAP, backend="aot_eager", scope="layer")
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        got = []
        for m in (plain, model):
            m.zero_grad()
            torch.manual_seed(3)
            losses = [m(x(n + 1, 6)).sin().sum() for n in range(3)]
            for n in order:
                losses[n].backward()
            got.append([p.grad.clone() for p in m.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*got, strict=True))
    assert swap_counters().live_tickets == 0


class Winding(nn.Module):
    """Layers in another order, one twice, some skipped by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.double()

    def forward(self, h: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
        for n in order:
            h = self.layers[n](h)
        return h


def test_layers_in_another_order_twice_and_skipped() -> None:
    torch.manual_seed(3)
    model = Winding()
    plain = copy.deepcopy(model)
    compile_with_memopt(model, SWAP, backend="aot_eager", scope="layer")
    for order in ((0, 1, 2, 3), (2, 0, 3, 1), (1, 1, 3), (3,), (0, 2, 2, 0, 3), (0,)):
        got = []
        for m in (plain, model):
            m.zero_grad()
            m(x(2, 6), order).sin().sum().backward()
            got.append([None if p.grad is None else p.grad.clone() for p in m.parameters()])
        assert all(a is b or torch.equal(a, b) for a, b in zip(*got, strict=True)), order
    assert swap_counters().live_tickets == 0


def test_retained_graphs_evaluation_and_forwards_without_backward() -> None:
    model = stack(Block, 4)
    plain = copy.deepcopy(model)
    compile_with_memopt(model, SWAP, backend="aot_eager", scope="layer")
    given = x(2, 6)
    for m in (plain, model):
        with torch.no_grad():
            m(given)
        loss = m(given).sin().sum()
        loss.backward(retain_graph=True)
        m(given)  # no backward
        loss.backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    del loss
    assert moved(lambda: model(given).sum().backward())[2] == 0


def test_an_exception_in_the_backward_leaves_nothing() -> None:
    model = stack(Block, 4)
    compile_with_memopt(model, SWAP, backend="aot_eager", scope="layer")
    loss = model(x(2, 6)).sum()
    # In the last backward: of a graph that an exception leaves half-way, torch itself keeps the rest.
    next(model.layers[0].parameters()).register_post_accumulate_grad_hook(_fail)
    with contextlib.suppress(ZeroDivisionError):  # which, unlike pytest.raises, keeps no frame alive
        loss.backward()
    del loss
    assert swap_counters().live_tickets == 0


def _fail(_: torch.Tensor) -> None:
    raise ZeroDivisionError


class Talkative(nn.Module):
    """A layer that takes keyword tensors and returns more than a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Mlp()

    def forward(self, h: torch.Tensor, *, bias: torch.Tensor, mask: torch.Tensor | None = None, meta: Any = None) -> Any:
        h = h + self.inner(h) * bias
        return h, mask, {"mean": h.mean(), "meta": meta}


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Talkative() for _ in range(4))
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.double()

    def forward(self, h: torch.Tensor) -> Any:
        means = []
        for layer in self.layers:
            h, _, more = layer(h, bias=self.scale.exp(), meta=("a", 1))
            means.append(more["mean"])
        return h, torch.stack(means)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("config", [full("0-3"), SWAP], ids=["full", "swap"])
def test_keyword_tensors_and_nested_outputs(config: dict[str, Any], backend: str) -> None:
    check(Around(), [x()], config, backend, scope="layer")


class ChangedBetween(nn.Module):
    """The model changes in place what a layer was given, after the layer has returned."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual(Mlp()) for _ in range(4))
        self.double()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        kept = h * 1
        for layer in self.layers:
            out = layer(kept)
            if layer is self.layers[1] or layer is self.layers[2]:  # of these, what they were given left with them
                kept.detach().mul_(2)
            kept = out
        return out


def test_what_a_layer_was_given_may_change_when_it_has_returned() -> None:
    # Eager saves the tensor itself, and reads what it was changed to: what leaves is what the layer saw.
    model = ChangedBetween()
    steady = copy.deepcopy(model)
    compile_with_memopt(model, SWAP, backend="aot_eager", scope="layer")
    given = x()
    model(given).sum().backward()
    h = given.detach().requires_grad_()
    kept = h * 1
    for layer in steady.layers:
        kept = layer(kept)
    kept.sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), steady.parameters(), strict=True))


def test_the_model_stays_what_it_was(tmp_path: Any) -> None:
    model = stack(Block, 4)
    keys = list(model.state_dict())
    compile_with_memopt(model, MIXED, backend="aot_eager", scope="layer")
    given = x(2, 6)
    wanted = train_step(model, [given])
    assert list(model.state_dict()) == keys
    assert type(model.layers[0]) is Block
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert again.layers[0].forward.owner is again.forward is not model.forward
        found = train_step(again, [given])
        pairs = zip(found.tensors.values(), wanted.tensors.values(), strict=True)
        assert all(a is b or torch.equal(a, b) for a, b in pairs)
        assert served(again) == [[0, 1], [2], [3]]
    alone = copy.deepcopy(model.layers[0])
    assert torch.equal(alone(given), model.layers[0](given))


def test_a_copy_does_not_train_the_original() -> None:
    model = stack(Block, 3)
    compile_with_memopt(model, full("0-2"), backend="aot_eager", scope="layer")
    model(x(2, 6)).sum().backward()
    model.zero_grad()
    other = copy.deepcopy(model)
    other(x(2, 6)).sum().backward()
    assert all(p.grad is None for p in model.parameters())
    assert all(p.grad is not None for p in other.parameters())


def test_compiling_again_replaces_what_was_there() -> None:
    model = stack(Block, 3)
    compile_with_memopt(model, full("0-2"), backend="aot_eager", scope="layer")
    model(x(2, 6)).sum().backward()
    compile_with_memopt(model, full("0"), backend="aot_eager")
    assert "forward" not in model.layers[0].__dict__
    model(x(2, 6)).sum().backward()
    assert {row.layer for row in explain(model).values if row.rule == "recompute.full_recompute_layer"} == {0}
    compile_with_memopt(model, full("1"), backend="aot_eager", scope="layer")
    model(x(2, 6)).sum().backward()
    assert {row.layer for row in explain(model).values if row.rule == "recompute.full_recompute_layer"} == {1}


def test_a_forward_of_the_layers_own_is_kept() -> None:
    model = stack(Block, 3)
    plain = copy.deepcopy(model)
    for m in (model, plain):
        inner = m.layers[1].forward
        m.layers[1].forward = lambda h, inner=inner: inner(h) * 2
    before = model.layers[1].forward
    compile_with_memopt(model, full("0-2"), backend="aot_eager", scope="layer")
    given = x(2, 6)
    assert torch.equal(model(given), plain(given))
    compile_with_memopt(model, {}, backend="aot_eager")
    assert model.layers[1].forward is before


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Mlp(), Mlp()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = h + self.one(h)
        torch._dynamo.graph_break()
        return h + self.two(h)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_graph_break_in_a_layer_leaves_its_parts_their_rules(backend: str) -> None:
    config = {**full("0-1"), "swap": {"enable": True, "min_bytes": 0, "layer_swap": [{"layers": [2]}]}}
    told = ["layers 0-2 (layers.0, layers.1, layers.2): the graph breaks inside"]
    trained = check(stack(Breaks, 4), [x()], config, backend, scope="layer", warns=told)
    assert "test_layer_scope.py" in trained.warnings[0]
    assert served(trained.model) == [[0, 1], [0, 1], [2], [2], [3], [3]]
    totals = {t.layer: t for t in trained.explanation.totals}
    assert totals[0].recomputed > totals[3].recomputed
    assert totals[2].swapped > 0 == totals[3].swapped


class InnerBreaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = BreakingMlp()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.mlp(h)


class BreakingMlp(Mlp):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = self.act(self.fc1(h))
        torch._dynamo.graph_break()
        return self.fc2(self.act(h))


def test_a_graph_break_in_a_module_of_a_layer_keeps_the_names() -> None:
    told = ["layers 0-1 (layers.0, layers.1): the graph breaks inside"]
    trained = check(stack(InnerBreaks, 3), [x()], select({"mlp": ["0-1"]}), "aot_eager", scope="layer", warns=told)
    rows = [row for row in trained.explanation.values if row.rule == "recompute.select_module['mlp']"]
    assert {(row.layer, row.path) for row in rows} >= {(n, path) for n in (0, 1) for path in ("mlp.fc1", "mlp.act")}


def test_strict_refuses_a_layer_that_is_split() -> None:
    model = stack(Breaks, 2)
    compile_with_memopt(model, full("0-1"), backend="aot_eager", scope="layer", strict=True)
    with pytest.raises(PolicyNotApplied, match="the graph breaks inside"):
        model(x())
    with pytest.raises(PolicyNotApplied, match="the graph breaks inside"):
        model.layers[0](x())


class Eager(nn.Module):
    @torch.compiler.disable
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h.sin()


def test_a_layer_that_is_not_compiled_is_named() -> None:
    torch.manual_seed(3)
    model = Stack([Residual(Mlp()), Eager(), Residual(Mlp())])
    compile_with_memopt(model, full("0-2"), backend="aot_eager", scope="layer", layers="layers")
    said = memopt_warnings(lambda: model(x()).sum().backward())
    assert any("layer 1 (layers.1)" in text for text in said), said


def test_one_module_with_two_policies_is_told() -> None:
    torch.manual_seed(3)
    shared = Residual(Mlp())
    model = Stack([shared, Residual(Mlp()), shared])
    with pytest.warns(MemoptWarning, match="layers 0 and 2 are one module"):
        compile_with_memopt(model, full("0-1"), backend="aot_eager", scope="layer")


def test_frozen_layers_are_not_called_lost() -> None:
    model = stack(lambda: Residual(Mlp()), 4)
    for layer in model.layers[:2]:
        layer.requires_grad_(False)
    compile_with_memopt(model, full("0-3"), backend="aot_eager", scope="layer")
    (text,) = memopt_warnings(lambda: model(x().detach()).sum().backward())
    assert text.startswith("layers 0-1 (layers.0, layers.1): nothing that they compute needs a gradient")
    assert [t.layer for t in explain(model).totals] == [2, 3]


def test_layers_called_without_the_model() -> None:
    model = stack(lambda: Block(dropout=0.1), 4)
    plain = copy.deepcopy(model)
    compile_with_memopt(model, MIXED, backend="aot_eager", scope="layer")
    for _ in range(2):
        got = []
        for m in (plain, model):
            m.zero_grad()
            torch.manual_seed(3)
            h = x(2, 6)
            for layer in m.layers:
                h = layer(h)
            h.sin().sum().backward()
            got.append([p.grad.clone() for p in m.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*got, strict=True))


def test_sizes_that_change() -> None:
    model = stack(Block, 4)
    plain = copy.deepcopy(model)
    compile_with_memopt(model, MIXED, backend="aot_eager", scope="layer")
    for batch in (2, 3, 5, 7):
        for m in (plain, model):
            m.zero_grad()
            m(x(batch, 6)).sin().sum().backward()
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    assert len(served(model)) == 6  # fixed, then dynamic, for each of three policies


class Doubled:
    """A user's own forward: an object with attributes named as ours are."""

    def __init__(self, module: nn.Module) -> None:
        self.original = module.forward
        self.layer = self.model = self.owner = self.session = "the user's"

    def __call__(self, h: torch.Tensor) -> torch.Tensor:
        return self.original(h) * 2


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_a_forward_that_is_an_object_stays_in_force(scope: str) -> None:
    model = stack(Block, 3)
    plain = copy.deepcopy(model)
    for m in (model, plain):
        m.layers[1].forward = Doubled(m.layers[1])
        m.forward = Doubled(m)
    compile_with_memopt(model, full("0-2"), backend="aot_eager", scope=scope)
    given = x(2, 6)
    assert torch.equal(model(given), plain(given))
    compile_with_memopt(model, full("0"), backend="aot_eager", scope=scope)
    assert torch.equal(model(given), plain(given))


def test_a_model_around_a_compiled_one_has_its_own_rules() -> None:
    inner = stack(Block, 3)
    outer = nn.Sequential(nn.Linear(WIDTH, WIDTH).double(), inner)
    compile_with_memopt(inner, full("0"), backend="aot_eager", scope="layer")
    compile_with_memopt(outer, full("1-2"), backend="aot_eager", scope="layer", layers="1.layers")
    outer(x(2, 6)).sum().backward()
    assert {row.layer for row in explain(outer).values if row.rule == "recompute.full_recompute_layer"} == {1, 2}


def test_reloads_that_nobody_asks_for_are_freed_without_a_collector() -> None:
    from memopt.runtime.calls import Call, Pass
    from memopt.runtime.engine import Reload

    model = stack(Block, 4)
    compile_with_memopt(model, SWAP, backend="aot_eager", scope="layer")
    inner: list[torch.Tensor] = []
    model.layers[2].register_forward_hook(lambda _module, _args, out: inner.append(out))

    def alive() -> int:
        deadline = time.monotonic() + 10
        while True:  # copies that have begun are ended first
            swap_counters()
            count = sum(type(o) in (Reload, Pass, Call) for o in gc.get_objects())
            if count <= 1 or time.monotonic() > deadline:
                return count
            time.sleep(0.01)

    gc.collect()
    gc.disable()
    try:
        counts = []
        for _ in range(6):
            out = model(x(2, 6))
            torch.autograd.grad(out.sum(), inner.pop())  # the reloads of layer 2 begin, and are never used
            del out
            counts.append(alive())
    finally:
        gc.enable()
    assert counts[5] <= counts[1]


def test_explain_of_layers_called_by_themselves_tells_the_latest_pass() -> None:
    model = stack(Block, 3)
    compile_with_memopt(model, full("0"), backend="aot_eager", scope="layer")

    def by_hand(batch: int) -> Any:
        h = x(batch, 6)
        for layer in model.layers:
            h = layer(h)
        h.sum().backward()
        return explain(model).totals

    first, second = by_hand(2), by_hand(3)
    assert [t.saved_before for t in second] == [t.saved_before // 2 * 3 for t in first]
    assert [t.saved_after for t in second] == [t.saved_after // 2 * 3 for t in first]


class Crossing(nn.Module):
    """Every layer is given the same memory first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CrossLayer() for _ in range(4))
        self.into = nn.Linear(WIDTH, WIDTH)
        self.double()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        memory = self.into(h)
        for layer in self.layers:
            h = layer(memory, h)
        return h


class CrossLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, memory: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return h.sin() + self.fc(memory).cos()


def test_what_all_layers_are_given_stays_and_counts_once() -> None:
    trained = check(Crossing(), [x()], SWAP, "aot_eager", scope="layer", exact=False)
    given = [row for row in trained.explanation.values if row.op == "input"]
    assert [(row.layer, row.action, bool(row.bytes)) for row in given] == [(n, "save", n == 0) for n in range(4)]


def test_what_the_layer_before_saves_too_stays_and_counts_once() -> None:
    trained = check(
        stack(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), 4), [x()], SWAP, "aot_eager", scope="layer", warns=None
    )
    whole = check(stack(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), 4), [x()], SWAP, "aot_eager", warns=None)
    assert trained.explanation.swapped == 0
    assert trained.explanation.saved_before == whole.explanation.saved_before + 4 * WIDTH * 8  # the model's input


@dataclass
class Context:
    value: torch.Tensor
    back: Any = None


class WithContext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Mlp()

    def forward(self, h: torch.Tensor, context: Context) -> Context:
        made = Context(h + self.inner(context.value))
        made.back = made
        return made


class OfContexts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(WithContext() for _ in range(4))
        self.double()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            context = Context(h)
            context.back = context
            h = layer(h, context).value
        return h


def test_dataclasses_that_lead_back_to_themselves() -> None:
    check(OfContexts(), [x()], SWAP, "aot_eager", scope="layer", warns=None)


def test_threads_do_not_mix_up_layers() -> None:
    model = stack(Block, 6)
    compile_with_memopt(model, full("0-2"), backend="aot_eager", scope="layer")
    gate = threading.Barrier(3)

    def run() -> None:
        gate.wait()
        for _ in range(3):
            model(x(2, 6)).sum().backward()

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seen in model.forward.session.captures:
        assert set(seen.served) <= {0, 1, 2} or set(seen.served) <= {3, 4, 5}
    assert model.forward.session.place is None


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(LayersError):
        compile_with_memopt(nn.Linear(WIDTH, WIDTH), {}, backend="aot_eager", scope="layer")


def test_a_layer_that_is_replaced_is_told_in_the_end() -> None:
    model = stack(lambda: Residual(Mlp()), 3)
    compile_with_memopt(model, full("0-2"), backend="aot_eager", scope="layer")
    model(x()).sum().backward()
    model.layers[1] = Residual(Mlp()).double()
    said = memopt_warnings(lambda: [model(x()).sum().backward() for _ in range(25)])
    assert len(said) == 1
    assert said[0].startswith("layer 1 (layers.1): the model did not call them")


def test_exclude_op_is_judged_when_every_ruled_layer_has_run() -> None:
    model = stack(Block, 4)
    compile_with_memopt(model, full("2-3", exclude_op=["MatMul"]), backend="aot_eager", scope="layer", strict=True)
    h = x(2, 6)
    for layer in model.layers:
        h = layer(h)
    h.sum().backward()
    assert {row.layer for row in explain(model).values if "exclude_op" in row.rule} == {2, 3}


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_values_of_another_type_than_torch_tells(scope: str) -> None:
    """Fake kernels tell bfloat16 for what a layer norm returns under autocast, and real ones make float32."""
    model = stack(Block, 4).float()
    plain = copy.deepcopy(model)
    compile_with_memopt(model, SWAP, backend="aot_eager", scope=scope)
    for m in (model, plain):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = m(x(2, 6).float())
        out.float().square().mean().backward()
    wanted = [p.grad for p in plain.parameters()]
    largest = max(float(g.abs().max()) for g in wanted)
    assert all(float((a.grad - b).abs().max()) <= 2e-2 * largest for a, b in zip(model.parameters(), wanted, strict=True))


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_an_empty_batch_with_dropout(scope: str) -> None:
    model = stack(lambda: Residual(Mlp(dropout=0.1)), 4)
    compile_with_memopt(model, SWAP, backend="aot_eager", scope=scope)
    model(x(0)).sum().backward()


def test_limits_of_recompilation_rise_within_each_other_and_come_back() -> None:
    import torch._dynamo.config as dynamo_config

    before = dynamo_config.recompile_limit
    with torch_bridge.recompilations(before + 1):
        with torch_bridge.recompilations(before + 50):
            assert dynamo_config.recompile_limit == before + 50
        with torch_bridge.recompilations(1):
            assert dynamo_config.recompile_limit >= before + 1
    assert dynamo_config.recompile_limit == before
