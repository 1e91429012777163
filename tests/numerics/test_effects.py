"""Operators that are seen from outside, operators of the user's own, and attributes that a layer writes."""

from __future__ import annotations

import pytest
import torch
from harness import BACKENDS, FULL, check, operators, run_as_is, train_step
from numeric_models import WIDTH, Stack, stack, x
from torch import nn

from memopt import PolicyNotApplied, compile_with_memopt

PLAIN_BACKENDS = ["no-op", "aot_eager"]
SEEN: list[float] = []


@torch.library.custom_op("memopt_tests::record", mutates_args=())
def record(value: torch.Tensor) -> torch.Tensor:
    SEEN.append(round(float(value.sum()), 6))
    return value.clone()


@record.register_fake
def _(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value)


record.register_autograd(lambda ctx, grad: grad * 2)


@torch.library.custom_op("memopt_tests::announce", mutates_args=())
def announce(value: torch.Tensor) -> None:
    SEEN.append(round(float(value.sum()), 6))


@announce.register_fake
def _(value: torch.Tensor) -> None:
    return None


@torch.library.custom_op("memopt_tests::ordered", mutates_args=())
def ordered(value: torch.Tensor) -> torch.Tensor:
    SEEN.append(round(float(value.sum()), 6))
    return value * 2


@ordered.register_fake
def _(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value)


ordered.register_autograd(lambda ctx, grad: grad * 2)
for name in ("ordered", "announce"):
    torch.library._register_effectful_op(f"memopt_tests::{name}", torch._higher_order_ops.effects._EffectType.ORDERED)


class Prints(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        torch.ops.aten._print("layer")
        return torch.tanh(self.fc(h))


@pytest.mark.parametrize("backend", BACKENDS)
def test_printing_happens_once(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    model = stack(Prints)
    compile_with_memopt(model, FULL(model), backend=BACKENDS[backend])
    train_step(model, [x()])
    capfd.readouterr()
    train_step(model, [x()])
    assert capfd.readouterr().out.split() == ["layer", "layer"]


class Orders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return torch.tanh(ordered(torch.sin(self.fc(h))))


class Announces(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = torch.sin(self.fc(h))
        announce(h.detach())
        return torch.tanh(h)


@pytest.mark.parametrize("layer", [Orders, Announces])
@pytest.mark.parametrize("backend", BACKENDS)
def test_effect_happens_once_and_in_order(layer: type[nn.Module], backend: str) -> None:
    model = stack(layer, 3)
    wanted: list[float] = []
    SEEN.clear()
    train_step(stack(layer, 3), [x()])
    wanted[:] = SEEN
    assert len(wanted) == 3
    compile_with_memopt(model, FULL(model), backend=BACKENDS[backend])
    for _ in range(2):
        SEEN.clear()
        train_step(model, [x()])
        assert pytest.approx(wanted, abs=1e-5) == SEEN


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.last = 0
        self.calls = 0

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        self.last = h.shape[0]
        self.kept = torch.sin(self.fc(h)).detach()
        return torch.tanh(self.fc(h)) + self.kept


@pytest.mark.parametrize("backend", PLAIN_BACKENDS)
def test_attribute_writes_keep_working(backend: str) -> None:
    trained = check(stack(Remembers), [x()], FULL, backend)
    assert [layer.last for layer in trained.model.layers] == [4, 4]
    plain = trained.plain.layers[1].kept
    assert torch.equal(trained.model.layers[1].kept, plain)


class UsesOwnOperator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return torch.sin(record(torch.sin(self.fc(h))))


@pytest.mark.parametrize("backend", BACKENDS)
def test_own_operator_is_recomputed_with_its_value(backend: str) -> None:
    """Without a word about effects, an operator may run again: it runs once more per layer, on the same values."""
    model = stack(UsesOwnOperator)
    trained = check(model, [x()], FULL, backend)
    SEEN.clear()
    train_step(trained.model, [x()])
    assert sorted(SEEN[2:]) == pytest.approx(sorted(SEEN[:2]), abs=1e-5)
    assert operators(trained.explanation.graphs[0].backward)["memopt_tests.record.default"] == 2


LIBRARY = torch.library.Library("memopt_tests_bare", "FRAGMENT")
LIBRARY.define("shapeless(Tensor x) -> Tensor")
LIBRARY.impl("shapeless", lambda value: value * 2, "CPU")


class UsesShapeless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = torch.sin(self.fc(h))
        return h + torch.ops.memopt_tests_bare.shapeless(h.detach())


def test_operator_without_shape_function_is_refused_by_name() -> None:
    model = stack(UsesShapeless)
    compile_with_memopt(model, FULL(model), backend=run_as_is, fullgraph=True)
    with pytest.raises(Exception, match="shapeless"):
        train_step(model, [x()])


@pytest.mark.parametrize("backend", PLAIN_BACKENDS)
def test_operator_without_shape_function_costs_named_layers(backend: str) -> None:
    check(
        stack(UsesShapeless),
        [x()],
        FULL,
        backend,
        warns=["layers 0-1 (layers.0, layers.1): no captured graph names them, so their rules have no effect"],
    )


def test_operator_without_shape_function_raises_when_strict() -> None:
    model = stack(UsesShapeless)
    compile_with_memopt(model, FULL(model), backend=run_as_is, strict=True)
    with pytest.raises(PolicyNotApplied, match=r"layers 0-1 \(layers\.0, layers\.1\): no captured graph"):
        train_step(model, [x()])


LIBRARY.define("same(Tensor x) -> Tensor")
LIBRARY.impl("same", lambda value: value, "CompositeExplicitAutograd")


class UsesAliasing(nn.Module):
    """The operator returns its input as its output, which its schema denies."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = torch.sin(self.fc(h))
        return torch.tanh(h * torch.ops.memopt_tests_bare.same(h.detach()))


@pytest.mark.parametrize("backend", PLAIN_BACKENDS)
def test_operator_that_returns_its_input(backend: str) -> None:
    # Torch makes an error of it where the environment variable CI is set, and elsewhere lets it pass.
    with torch._functorch.config.patch(error_on_custom_op_aliasing=False):
        check(stack(UsesAliasing), [x()], FULL, backend)


@torch.library.custom_op("memopt_tests::returned", mutates_args=())
def returned(value: torch.Tensor) -> torch.Tensor:
    return value


@returned.register_fake
def _(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value)


class UsesReturned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        h = torch.sin(self.fc(h))
        return torch.tanh(h * returned(h.detach()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_checked_operator_that_returns_its_input_is_refused_by_name(backend: str) -> None:
    model = stack(UsesReturned)
    compile_with_memopt(model, FULL(model), backend=BACKENDS[backend])
    with pytest.raises(RuntimeError, match=r"returned .*may not alias any inputs"):
        train_step(model, [x()])


class Asserts(Stack):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        torch._assert_async((h.detach() ** 2).sum() < 1e6, "too large")
        return super().forward(h)


@pytest.mark.parametrize("backend", PLAIN_BACKENDS)
def test_asserts_hold_in_the_forward_only(backend: str) -> None:
    torch.manual_seed(0)
    trained = check(Asserts([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)]), [x()], FULL, backend)
    assert not [op for op in operators(trained.explanation.graphs[0].backward) if "assert" in op]
