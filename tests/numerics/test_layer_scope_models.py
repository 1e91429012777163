"""``scope="layer"`` on layers as libraries write them: what they take, return, change and break."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from harness import check, full, memopt_warnings, run_as_is, select, train_step
from memopt.compiler.layer_calls import new_tensors
from numeric_models import WIDTH, Block, Mlp, stack, x
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memopt import PolicyNotApplied, compile_with_memopt, explain, swap_counters

DEPTH = 4


def swap(*layers: int | str) -> dict[str, Any]:
    return {"swap": {"enable": True, "layer_swap": [{"layers": list(layers)}], "min_bytes": 1}}


POLICIES = {"full": full("0-2"), "select": select({"mlp": ["0-2"]}), "swap": swap("0-2")}


class Layer(nn.Module):
    """A layer that knows its number, as many do."""

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.layer_idx = index
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = Mlp()

    def forward(self, h: Tensor) -> Any:
        return h + self.mlp(self.norm(h))


class Model(nn.Module):
    """Layers with numbers."""

    def __init__(self, layer: Callable[[int], nn.Module], depth: int = DEPTH) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(layer(index) for index in range(depth))
        self.double()

    def forward(self, h: Tensor) -> Any:
        for layer in self.layers:
            h = layer(h)
        return h


class Cache:
    """What layers write to, under their number."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}

    def update(self, key: Tensor, index: int) -> Tensor:
        self.keys[index] = torch.cat([self.keys[index], key]) if index in self.keys else key
        return self.keys[index]


class Caching(Layer):
    def forward(self, h: Tensor, cache: Cache | None = None) -> Tensor:
        key = torch.sin(self.norm(h))
        if cache is not None:
            key = cache.update(key, self.layer_idx)
        return h + self.mlp(key)[-len(h) :]


class WithCache(Model):
    def __init__(self, used: bool) -> None:
        super().__init__(Caching)
        self.used = used

    def forward(self, h: Tensor) -> Any:
        cache = Cache() if self.used else None
        for layer in self.layers:
            h = layer(h, cache=cache)
        return (h, list(cache.keys.values())) if cache else h


class ReturnsTuple(Layer):
    def forward(self, h: Tensor) -> Any:
        return h + self.mlp(self.norm(h)), None, self.layer_idx


class TakesFirst(Model):
    def forward(self, h: Tensor) -> Any:
        for layer in self.layers:
            h = layer(h)[0]
        return h


@dataclass
class Output:
    hidden: Tensor
    extra: Tensor | None = None


class ReturnsDataclass(Layer):
    def forward(self, h: Tensor) -> Any:
        return Output(h + self.mlp(self.norm(h)), h.mean())


class TakesHidden(Model):
    def forward(self, h: Tensor) -> Any:
        extras = []
        for layer in self.layers:
            output = layer(h)
            h = output.hidden
            extras.append(output.extra)
        return h, extras


class ReturnsDict(Layer):
    def forward(self, state: dict[str, Any]) -> Any:
        return {**state, "hidden": state["hidden"] + self.mlp(self.norm(state["hidden"])), "count": state["count"] + 1}


class TakesDict(Model):
    def forward(self, h: Tensor) -> Any:
        state = {"hidden": h, "count": 0, "nothing": None}
        for layer in self.layers:
            state = layer(state)
        return state


class Decoder(Layer):
    """Takes everything by keyword: encoded states, rotary tables, a bias that is passed on as it is."""

    def forward(
        self,
        *,
        hidden: Tensor,
        encoded: Tensor | None = None,
        rotary: tuple[Tensor, Tensor],
        bias: Tensor | None = None,
        **more: Any,
    ) -> Any:
        cos, sin = rotary
        if bias is None:
            bias = self.norm.weight * 2
        hidden = hidden * cos + hidden.roll(1, -1) * sin + bias
        if encoded is not None:
            hidden = hidden + torch.tanh(hidden @ encoded.mT) @ encoded
        return hidden + self.mlp(self.norm(hidden)), bias, encoded


class Decodes(Model):
    def __init__(self) -> None:
        super().__init__(Decoder)
        self.encoder = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, h: Tensor) -> Any:
        encoded, bias = self.encoder(h), None
        rotary = h.detach().cos(), h.detach().sin()
        for layer in self.layers:
            h, bias, _ = layer(hidden=h, encoded=encoded, rotary=rotary, bias=bias, mask=None, use_cache=True)
        return h


def instance_forwards(depth: int = DEPTH) -> nn.Module:
    """Layers whose ``forward`` lies on the instance, as some libraries wrap it."""
    model = Model(Layer, depth)
    for layer in model.layers:
        own = layer.forward

        def wrapped(h: Tensor, own: Callable[..., Any] = own) -> Any:
            return own(h) * 2

        layer.forward = wrapped
    return model


class Checkpoints(Model):
    """Layers that the model checkpoints by itself."""

    reentrant = False

    def forward(self, h: Tensor) -> Any:
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=self.reentrant)
        return h


class CheckpointsReentrant(Checkpoints):
    reentrant = True


class Twice(Model):
    """Every layer runs twice, one after the other."""

    def forward(self, h: Tensor) -> Any:
        for layer in self.layers:
            h = layer(layer(h).tanh())
        return h


class Drops(Model):
    """Layers that are left out by chance; the first always runs."""

    def forward(self, h: Tensor) -> Any:
        for layer in self.layers:
            if layer.layer_idx == 0 or torch.rand(()) > 0.1:
                h = layer(h)
        return h


def hooked() -> nn.Module:
    model = Model(Layer)
    for layer in model.layers:
        layer.register_forward_pre_hook(lambda _module, args: (args[0] * 1.5,))
        layer.register_forward_hook(lambda _module, _args, result: result.tanh())
        layer.mlp.register_forward_hook(lambda _module, _args, result: result * 0.5)
    return model


def shared() -> nn.Module:
    model = Model(Layer)
    model.layers = nn.ModuleList([model.layers[0]] * 3 + [model.layers[3]])
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "numbers": lambda: Model(Layer),
    "a cache": lambda: WithCache(True),
    "no cache": lambda: WithCache(False),
    "tuples": lambda: TakesFirst(ReturnsTuple),
    "dataclasses": lambda: TakesHidden(ReturnsDataclass),
    "dicts": lambda: TakesDict(ReturnsDict),
    "keywords": Decodes,
    "instance forwards": instance_forwards,
    "checkpoints": lambda: Checkpoints(Layer),
    "reentrant checkpoints": lambda: CheckpointsReentrant(Layer),
    "twice": lambda: Twice(Layer),
    "hooks": hooked,
    "one layer thrice": shared,
    "dropout": lambda: Model(lambda _: Block(dropout=0.3)),
}


def layers_under_policy(model: nn.Module) -> set[int | None]:
    return {row.layer for row in explain(model).values if row.rule.startswith(("recompute", "swap"))}


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
@pytest.mark.parametrize("policy", [full("0-2"), swap("0-2")])
def test_evaluation_between_steps(policy: dict[str, Any], make: Callable[[], nn.Module]) -> None:
    model = make()
    plain = copy.deepcopy(model)
    compile_with_memopt(model, policy, backend="aot_eager", scope="layer")
    for positions in (3, 5):
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
