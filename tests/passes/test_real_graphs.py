"""What holds on graphs that torch really traces, in the order in which the backward runs."""

from __future__ import annotations

import sys
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from memopt.compiler import capture as capture_module
from memopt.compiler.pipeline import Source, rewrite, snapshot
from memopt.passes import joint as joint_module
from memopt.passes import matched as matched_module
from memopt.passes.joint import decision_of
from memopt.passes.legalize import legalize
from memopt.passes.mark_exclude import mark_exclude
from memopt.passes.mark_recompute import mark_recompute
from memopt.passes.matched import Matched
from memopt.passes.operators import viewed
from memopt.passes.scopes import module_path
from memopt.passes.tag import tag
from memopt.passes.verify import computed_again
from printer import Builder, plan, show_graph
from small_graphs import aten
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import memopt
from memopt.demo.gpt import GPT, GPTConfig

BACKENDS = ("aot_eager", "inductor")
LAYERS = 3
FULL = {"recompute": {"mode": "full", "full_recompute_layer": [0, 1, 2]}}


class MLP(nn.Module):
    """fc1 gives [4, 32], act the same, fc2 and the sum give [4, 8]."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 32)
        self.fc2 = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(F.gelu(self.fc1(x)))


class Stack(nn.Module):
    """Layers, then tanh (which saves its own result and does not read its input again), then a sum."""

    def __init__(self, layer: type[nn.Module] = MLP, layers: int = LAYERS, squares: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(layers))
        self.squares = squares

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return (x.square() if self.squares else x.tanh()).sum()


@lru_cache
def gpt(backend: str, config: str, dropout: float = 0.1) -> memopt.Explanation:
    model = GPT(GPTConfig(vocabulary=16, context=8, layers=LAYERS, heads=2, width=16, dropout=dropout))
    symbols = torch.zeros(2, 8, dtype=torch.long)
    return memopt.trace(model, config, (symbols, symbols), backend=backend)


@lru_cache
def stack(backend: str, config: str, squares: bool = False) -> memopt.Explanation:
    return memopt.trace(Stack(squares=squares), config, (torch.randn(4, 8),), backend=backend)


FULL_TEXT = "recompute: {mode: full, full_recompute_layer: [0-2]}"
EXCLUDE_TEXT = "recompute: {mode: full, full_recompute_layer: [0-2], exclude_op: [MatMul]}"
NOTHING = "recompute: {mode: None}"


def only(explanation: memopt.Explanation) -> memopt.GraphExplanation:
    (graph,) = explanation.graphs
    return graph


def crossing(explanation: memopt.Explanation) -> list[memopt.ValueRow]:
    return [r for r in explanation.values if r.action == "save" and r.kind == "activation"]


def layer_of(node: Node) -> int | None:
    stack = node.meta.get("fwd_nn_module_stack") or node.meta.get("nn_module_stack") or {}
    paths = {f"layers.{i}": i for i in range(LAYERS)}
    return next((paths[path] for source, _ in stack.values() if (path := module_path(source)) in paths), None)


# ---------------------------------------------------------------- what crosses


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_full_only_the_values_between_layers_cross(backend: str) -> None:
    explanation = gpt(backend, FULL_TEXT)
    inside = [r for r in crossing(explanation) if r.layer is not None and "seed" not in r.op]
    # The last layer's output is the final norm's input: inductor saves what it computes from that instead.
    assert {(r.layer, r.path, r.op) for r in inside} - {(LAYERS - 1, "", "add")} == {(i, "", "add") for i in range(LAYERS - 1)}
    joint = only(explanation).joint
    for row in inside:
        node = next(n for n in joint.graph.nodes if n.name == row.name)
        readers = {layer_of(u) for u in node.users if u.meta.get("partitioner_tag") != "is_backward"}
        assert row.layer + 1 in readers or (row.layer == LAYERS - 1 and None in readers)
        assert row.rule == "legalize.boundaries"


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_value_of_a_recomputed_layer_says_why(backend: str) -> None:
    for row in gpt(backend, FULL_TEXT).values:
        assert row.reason
        if row.layer is not None and row.action == "recompute" and row.kind == "activation":
            assert row.rule == "recompute.full_recompute_layer"


@pytest.mark.parametrize("backend", BACKENDS)
def test_exclude_keeps_exactly_the_matmuls_that_the_backward_needs(backend: str) -> None:
    """fc2's product is only added to the residual: nothing reads it again, so it is not kept."""
    kept = {(r.layer, r.path, r.op) for r in crossing(gpt(backend, EXCLUDE_TEXT, 0.0)) if r.layer is not None and r.path}
    assert kept == {(i, p, "addmm") for i in range(LAYERS) for p in ("attention.qkv", "attention.out", "mlp.fc1")}


class ThreeProjections(nn.Module):
    """q, k and v read one norm: common-subexpression removal makes its view once, in q's call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.q(y).tanh() * self.k(y).tanh() * self.v(y)


@pytest.mark.parametrize("backend", BACKENDS)
def test_exclude_keeps_matmuls_alone_where_three_projections_share_their_input(backend: str) -> None:
    explanation = memopt.trace(Stack(ThreeProjections), EXCLUDE_TEXT, (torch.randn(2, 4, 8),), backend=backend)
    kept = {(r.layer, r.path) for r in crossing(explanation) if r.layer is not None and r.path}
    assert kept == {(i, p) for i in range(LAYERS) for p in "qkv"}


class NamedOperator(nn.Module):
    """The product is read by undecided operators alone, and is smaller than what they make of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 1)
        self.bias = nn.Parameter(torch.randn(64))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sigmoid(self.fc(x) + self.bias).sum(-1, keepdim=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_an_operator_rule_names_never_crosses(backend: str) -> None:
    config = r"recompute: {mode: select, select_module: {'.*\.linear': [0-2]}}"
    explanation = memopt.trace(Stack(NamedOperator), config, (torch.randn(128, 8),), backend=backend)
    assert [r for r in crossing(explanation) if r.path == "fc"] == []


class Gated(nn.Module):
    """A layer as Llama has it: torch recomputes the gate's activation and the product by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.act = nn.RMSNorm(8), nn.SiLU()
        self.gate, self.up = nn.Linear(8, 32, bias=False), nn.Linear(8, 32, bias=False)
        self.down = nn.Linear(32, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.down(self.act(self.gate(h)) * self.up(h))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pattern", ["act", "gate|up|act", "norm|gate|up|act|down"])
@pytest.mark.filterwarnings("ignore")
def test_rules_within_a_gated_layer_save_no_more_than_torch(pattern: str, backend: str) -> None:
    config = f"recompute: {{mode: select, select_module: {{'{pattern}': [0-2]}}}}"
    explanation = memopt.trace(Stack(Gated), config, (torch.randn(4, 8),), backend=backend)
    assert explanation.saved_after <= explanation.saved_before
    if pattern != "norm|gate|up|act|down":
        assert [w for w in explanation.warnings if "recomputes nothing" in w] == list(explanation.warnings) != []
        assert all(t.saved_after == t.saved_before for t in explanation.totals)


class Dropped(MLP):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.fc2(F.gelu(self.fc1(x))))


def test_a_rule_that_raises_memory_is_told_with_both_numbers() -> None:
    """The mask (a byte an element) is not kept, but what it is drawn for is: 4 bytes an element."""
    config = "recompute: {mode: select, select_module: {drop: [0-2]}}"
    with pytest.warns(memopt.MemoptWarning):
        explanation = memopt.trace(Stack(Dropped), config, (torch.randn(4, 8),), backend="aot_eager")
    totals = [t for t in explanation.totals if t.layer is not None]
    less, more = sum(t.saved_before for t in totals), sum(t.saved_after for t in totals)
    assert less < more
    (said,) = explanation.warnings
    assert said.startswith(
        f"recompute.select_module['drop'] raises memory: layers 0-2 save {more:,} bytes for the backward, "
        f"and {less:,} without memopt."
    )


# ---------------------------------------------------------------- when it runs


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("config", [FULL_TEXT, EXCLUDE_TEXT, "recompute: {mode: select, select_module: {'.*mlp': [0-2]}}"])
def test_a_layer_is_recomputed_after_the_backward_of_the_next_layer_and_just_before_its_own(backend: str, config: str) -> None:
    graph = only(gpt(backend, config))
    again = {n.name for n in computed_again(graph.facts, graph.backward)}
    position: dict[tuple[str, int], list[int]] = {}
    nodes = [n for n in graph.backward.graph.nodes if n.op == "call_function"]
    for place, node in enumerate(nodes):
        layer = layer_of(node)
        if layer is not None and viewed(node) is None:
            position.setdefault(("again" if node.name in again else "backward", layer), []).append(place)
    for layer in range(LAYERS):
        own = position["again", layer]
        assert own[0] < position["backward", layer][-1]
        if layer + 1 < LAYERS:
            # Nothing of this layer runs again before the next layer's backward, recomputation included, has ended.
            assert max(*position["backward", layer + 1], *position["again", layer + 1]) < own[0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_recomputed_values_of_one_layer_are_alive_at_a_time(backend: str) -> None:
    graph = only(gpt(backend, FULL_TEXT))
    again = {n.name for n in computed_again(graph.facts, graph.backward)}
    nodes = list(graph.backward.graph.nodes)
    place = {n: i for i, n in enumerate(nodes)}
    alive: list[set[int]] = [set() for _ in nodes]
    for node in nodes:
        layer = layer_of(node)
        if node.name not in again or layer is None or not isinstance(node.meta.get("val"), Tensor):
            continue
        root = node
        while (base := viewed(root)) is not None:
            root = base
        if root.op == "placeholder":
            continue
        for step in range(place[node], max(place[u] for u in node.users) + 1):
            alive[step].add(layer)
    assert max(len(layers) for layers in alive) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_only_what_the_backward_needs_runs_again(backend: str) -> None:
    graph = only(stack(backend, FULL_TEXT))
    names = Counter((layer_of(n), str(n.target)) for n in computed_again(graph.facts, graph.backward))
    assert [names[i, "aten.addmm.default"] for i in range(LAYERS)] == [1, 1, 1]  # fc1; nothing reads fc2 again
    users = {n.name: n.users for n in graph.backward.graph.nodes}
    assert all(users[n.name] for n in computed_again(graph.facts, graph.backward))


# ---------------------------------------------------------------- numbers, by hand


@pytest.mark.parametrize("backend", BACKENDS)
def test_bytes_and_flops_of_a_hand_computed_model(backend: str) -> None:
    """Batch 4, float32: fc1 and its gelu are [4, 32]: 512 bytes each; a layer's output is [4, 8]: 128. FLOPs: 2*4*8*32."""
    totals = {t.layer: t for t in stack(backend, "recompute: {mode: full, full_recompute_layer: [0, 1]}").totals}
    assert [totals[i].saved_before for i in range(LAYERS)] == [1152, 1152, 1024]
    assert [totals[i].saved_after for i in range(LAYERS)] == [128, 128, 1024]
    assert [totals[i].recomputed_flops for i in range(LAYERS)] == [2048, 2048, 0]
    assert (totals[None].saved_before, totals[None].saved_after) == (128, 128)
    assert {t.unknown for t in totals.values()} == {0}


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_of_a_hand_computed_model(backend: str) -> None:
    explanation = stack(backend, FULL_TEXT)
    assert (explanation.saved_before, explanation.saved_after) == (3 * 1024 + 2 * 128 + 128, 2 * 128 + 128)
    rows = {(r.layer, r.path, r.op): r for r in explanation.values}
    for i in range(LAYERS):
        row = rows[i, "fc1", "addmm"]
        assert (row.shape, row.dtype, row.bytes, row.action) == ((4, 32), "float32", 512, "recompute")
    assert [rows[i, "", "add"].bytes for i in range(LAYERS - 1)] == [128, 128]
    assert sum(r.bytes for r in crossing(explanation)) == explanation.saved_after


@pytest.mark.parametrize("backend", BACKENDS)
def test_recomputed_operators_are_counted_as_they_run(backend: str) -> None:
    explanation = stack(backend, FULL_TEXT)
    graph = only(explanation)
    ran = Counter(layer_of(n) for n in computed_again(graph.facts, graph.backward))
    assert {t.layer: t.recomputed for t in explanation.totals if t.recomputed} == ran


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("config", [NOTHING, FULL_TEXT])
def test_a_gradient_that_torch_computes_in_the_forward_is_no_random_state(backend: str, config: str) -> None:
    """``2 * x`` of ``x.square()`` depends on no tangent: torch computes it in the forward and saves it."""
    explanation = stack(backend, config, squares=True)
    assert "random state" not in {r.kind for r in explanation.values}
    assert sum(r.bytes for r in crossing(explanation)) == explanation.saved_after


# ---------------------------------------------------------------- names


NAMES = {
    r"mlp\.fc1\.linear": (1, {"mlp.fc1"}),
    r"mlp\.act\.gelu": (1, {"mlp.act"}),
    r"attention\.scaled_dot_product_attention": (1, {"attention"}),
    r"norm1\.layer_norm": (1, {"norm1"}),
    r"add": (1, {""}),
    r".*\.linear": (2, {"attention.qkv", "attention.out", "mlp.fc1", "mlp.fc2"}),
}
"""A pattern, the layer in which it stands, and the module paths of what it names."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_operators_answer_to_the_functions_that_the_user_called(backend: str) -> None:
    patterns = ", ".join(f"'{pattern}': [{layer}]" for pattern, (layer, _) in NAMES.items())
    explanation = gpt(backend, f"recompute: {{mode: select, select_module: {{{patterns}}}}}", 0.0)
    found: dict[str, set[tuple[int | None, str]]] = {}
    for node in only(explanation).joint.graph.nodes:
        decision = decision_of(node)
        if decision is not None and decision.rule.startswith("recompute.select_module"):
            found.setdefault(decision.rule, set()).add((decision.layer, decision.path))
    named = {f"recompute.select_module['{p}']": {(layer, path) for path in paths} for p, (layer, paths) in NAMES.items()}
    assert found == named


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operator_that_is_not_there_is_told(backend: str) -> None:
    config = r"recompute: {mode: select, select_module: {'.*\.gelU': [1], '.*mlp': [0]}}"
    with pytest.warns(memopt.MemoptWarning, match="did not match any module or operator"):
        gpt(backend, config, 0.0)


# ---------------------------------------------------------------- no configuration


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_without_a_configuration_the_split_is_torchs_own(backend: str, dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs: list[tuple[Any, Any]] = []

    def both(source: Source, *rest: Any, **more: Any) -> Any:
        copy = snapshot(source.module)
        static = source.static_lifetime_input_indices
        stock = min_cut_rematerialization_partition(
            copy, source.inputs, num_fwd_outputs=source.num_fwd_outputs, static_lifetime_input_indices=static
        )
        texts = tuple(map(show_graph, stock))
        made, forward, backward = rewrite(source, *rest, **more)
        pairs.append((texts, (show_graph(forward), show_graph(backward))))
        return made, forward, backward

    monkeypatch.setattr(capture_module, "rewrite", both)
    gpt.__wrapped__(backend, NOTHING, dropout)
    assert len(pairs) == 1
    assert pairs[0][0] == pairs[0][1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_a_configuration_nothing_is_saved_that_torch_would_not_save(backend: str) -> None:
    explanation = gpt(backend, NOTHING)
    assert all(t.saved_before == t.saved_after for t in explanation.totals)
    assert explanation.warnings == ()


def keep_gelu(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op == aten.gelu.default else CheckpointPolicy.MUST_RECOMPUTE


def contexts() -> Any:
    return create_selective_checkpoint_contexts(keep_gelu)


class Checkpointed(MLP):
    """The user's own selective checkpoint around the whole layer but its residual sum."""

    def forward(self, x: Tensor) -> Tensor:
        return x + checkpoint(self.inner, x, use_reentrant=False, context_fn=contexts)

    def inner(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x))).exp()


class CheckpointedWhole(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layer", [Checkpointed, CheckpointedWhole])
def test_without_a_configuration_the_users_checkpoints_save_what_they_save_under_torch(layer: type[nn.Module]) -> None:
    explanation = memopt.trace(Stack(layer), NOTHING, (torch.randn(4, 8),), backend="aot_eager")
    stock: list[list[str]] = []

    def partition(joint: Any, inputs: Any, **kwargs: Any) -> Any:
        pair = min_cut_rematerialization_partition(joint, inputs, **kwargs)
        stock.append([n.name for n in pair[0].graph.find_nodes(op="output")[0].args[0] if isinstance(n, Node)])
        return pair

    torch._dynamo.reset()
    compiled = torch.compile(Stack(layer), backend=aot_autograd(fw_compiler=make_boxed_compiler, partition_fn=partition))
    compiled(torch.randn(4, 8))
    (own,) = (n.args[0] for n in only(explanation).forward.graph.find_nodes(op="output"))
    assert sorted(n.name for n in own if isinstance(n, Node)) == sorted(stock[0])


@pytest.mark.parametrize("rules", ["full, full_recompute_layer: [0-2]", "select, select_module: {'fc.*': [0-2]}"])
@pytest.mark.filterwarnings("error::memopt.MemoptWarning")
def test_rules_for_what_the_model_checkpoints_itself_change_nothing_and_are_fulfilled(rules: str) -> None:
    config = f"recompute: {{mode: {rules}}}"
    explanation = memopt.trace(Stack(CheckpointedWhole), config, (torch.randn(4, 8),), backend="aot_eager", strict=True)
    assert explanation.saved_after == explanation.saved_before
    assert explanation.warnings == ()


def make_boxed_compiler(graph: Any, _: Any) -> Any:
    return make_boxed_func(graph.forward)


# ---------------------------------------------------------------- time, by counting


def many_layers(layers: int) -> Any:
    """Per layer: a product with its own weight, a shared mask, a view, a sum."""
    b = Builder(layers)
    x, mask = b.input("x", 4, 4), b.input("mask", 4, 4)
    shared = b.op("shared", aten.exp.default, mask)
    value, needed = x, []
    for i in range(layers):
        weight = b.parameter(f"w{i}", 4, 4)
        product = b.op(f"product{i}", aten.mm.default, value, weight, at=f"layers.{i}.mlp.fc", fn=F.linear)
        masked = b.op(f"masked{i}", aten.mul.Tensor, product, shared, at=f"layers.{i}.mlp")
        flat = b.op(f"flat{i}", aten.view.default, masked, [16], at=f"layers.{i}.mlp", fn=torch.reshape)
        back = b.op(f"back{i}", aten.view.default, flat, [4, 4], at=f"layers.{i}.mlp", fn=torch.reshape)
        needed += [product, back]
        value = b.op(f"value{i}", aten.add.Tensor, value, back, at=f"layers.{i}")
    gradient = b.tangent(value)
    for i, node in enumerate(reversed(needed)):
        gradient = b.back(f"grad{i}", aten.mul.Tensor, gradient, node)
    return b.joint([value], [gradient])


def work(layers: int) -> tuple[int, int]:
    """Lines that the passes execute, and patterns they match, on a graph of so many layers."""
    joint = many_layers(layers)
    every = range(layers)
    rules = plan(layers, select={"mlp": [0]}, operators={r".*\.linear": every, r".*\.gelu": every}, exclude={r".*\.mul": every})
    folder = str(Path(joint_module.__file__).parent)
    lines = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(folder):
            return None
        lines += event == "line"
        return trace

    matches = 0
    real = matched_module.fullmatch

    def counted(pattern: str, text: str) -> bool:
        nonlocal matches
        matches += 1
        return real(pattern, text)

    before = sys.gettrace()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matched_module, "fullmatch", counted)
        sys.settrace(trace)
        try:
            joint.__post_init__()
            matched = Matched()
            mark_recompute(joint, rules, matched)
            mark_exclude(joint, rules, matched)
            legalize(joint, matched, with_rules=True)
            tag(joint, lambda node, value: None)
        finally:
            sys.settrace(before)
    return lines, matches


def test_the_work_of_the_passes_grows_as_the_graph_does() -> None:
    (lines, matches), (lines2, matches2), (lines4, matches4) = work(8), work(16), work(32)
    assert lines > 1000
    assert lines4 - lines2 == pytest.approx(2 * (lines2 - lines), rel=0.02)
    assert 0 < matches == matches2 == matches4  # equal paths are matched once
