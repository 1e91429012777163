"""Backward more than once, gradients of gradients, accumulation, and backward that never comes."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from harness import BACKENDS, EMPTY, FULL, assert_same, check, run_as_is, train_step
from numeric_models import Mlp, Residual, stack, x
from torch import nn

from memopt import compile_with_memopt

PLAIN_BACKENDS = ["no-op", "aot_eager"]
configs_and_backends = pytest.mark.parametrize(
    ("config", "backend"),
    [(EMPTY, "no-op"), (FULL, "no-op"), (FULL, "aot_eager"), (FULL, "inductor")],
    ids=["empty-no-op", "full-no-op", "full-aot_eager", "full-inductor"],
)
both_configs = pytest.mark.parametrize("config", [EMPTY, FULL], ids=["empty", "full"])


def pair(config: object, backend: str, dropout: float = 0.5) -> tuple[nn.Module, nn.Module]:
    model = stack(lambda: Residual(Mlp(dropout=dropout)), 2)
    plain = copy.deepcopy(model)
    compile_with_memopt(model, config(model) if callable(config) else config, backend=BACKENDS[backend])
    return plain, model


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def close(left: list[torch.Tensor], right: list[torch.Tensor], backend: str) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        torch.testing.assert_close(a, b, rtol=0 if backend != "inductor" else 1e-10, atol=0 if backend != "inductor" else 1e-12)


@configs_and_backends
def test_retained_twice_is_twice_the_gradient(config: object, backend: str) -> None:
    results = []
    for module in pair(config, backend):
        torch.manual_seed(1)
        loss = module(x()).sum()
        loss.backward(retain_graph=True)
        once = [g.clone() for g in gradients(module)]
        torch.rand(3)
        loss.backward(retain_graph=True)
        for g, first in zip(gradients(module), once, strict=True):
            assert torch.equal(g, first * 2)
        results.append(gradients(module))
    close(results[1], results[0], backend)


@configs_and_backends
def test_plain_backward_and_then_a_retained_one(config: object, backend: str) -> None:
    results = []
    # Inductor reuses saved buffers in the backward unless it is told not to.
    with torch._functorch.config.patch(donated_buffer=backend != "inductor"):
        for module in pair(config, backend):
            torch.manual_seed(1)
            module(x()).sum().backward()
            loss = (module(x()) ** 2).sum()
            loss.backward(retain_graph=True)
            loss.backward()
            results.append([*gradients(module), torch.rand(2)])
    close(results[1], results[0], backend)


@pytest.mark.inductor
def test_retaining_after_a_plain_backward_is_refused_where_buffers_were_reused() -> None:
    _, model = pair(EMPTY, "inductor")
    model(x()).sum().backward()
    with pytest.raises(RuntimeError, match=r"set torch\._functorch\.config\.donated_buffer=False"):
        model(x()).sum().backward(retain_graph=True)


@pytest.mark.parametrize("backend", PLAIN_BACKENDS)
@both_configs
def test_backward_twice_without_retaining_is_refused(config: object, backend: str) -> None:
    _, model = pair(config, backend)
    loss = model(x()).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@configs_and_backends
def test_double_backward_is_refused(config: object, backend: str) -> None:
    _, model = pair(config, backend)
    h = x()
    (gradient,) = torch.autograd.grad((model(h) ** 2).sum(), [h], create_graph=True)
    with pytest.raises(RuntimeError, match=r"torch\.compile with aot_autograd does not currently support double backward"):
        (gradient**2).sum().backward()


@pytest.mark.parametrize("backend", PLAIN_BACKENDS)
@both_configs
def test_accumulated_gradients(config: object, backend: str) -> None:
    results = []
    for module in pair(config, backend):
        torch.manual_seed(1)
        for batch in (4, 4, 3):
            (module(x(batch)).pow(2).mean() / 3).backward()
        results.append([*gradients(module), torch.rand(2)])
    close(results[1], results[0], backend)


@pytest.mark.inductor
def test_accumulated_gradients_under_inductor() -> None:
    results = []
    for module in pair(FULL, "inductor"):
        torch.manual_seed(1)
        for _ in range(3):
            (module(x()).pow(2).mean() / 3).backward()
        results.append([*gradients(module), torch.rand(2)])
    close(results[1], results[0], "inductor")


@pytest.mark.parametrize("backend", PLAIN_BACKENDS)
def test_four_forwards_and_then_four_backwards(backend: str) -> None:
    results = []
    for module in pair(FULL, backend):
        torch.manual_seed(1)
        losses = [module(x()).pow(k + 1).sum() for k in range(4)]
        for loss in reversed(losses):
            loss.backward()
        results.append([*gradients(module), torch.rand(2)])
    close(results[1], results[0], backend)


@pytest.mark.parametrize("backend", PLAIN_BACKENDS)
def test_error_in_backward_leaves_nothing_behind(backend: str) -> None:
    plain, model = pair(FULL, backend)

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            raise ValueError("no gradient here")

    with pytest.raises(ValueError, match="no gradient here"):
        Fails.apply(model(x())).sum().backward()
    assert_same(train_step(model, [x()]), train_step(plain, [x()]), exact=True)


def test_forward_without_backward_frees_its_values() -> None:
    _, model = pair(FULL, "no-op")
    train_step(model, [x()])

    def tensors() -> int:
        gc.collect()
        return sum(1 for o in gc.get_objects() if type(o) is torch.Tensor)

    for p in model.parameters():
        p.grad = None
    before = tensors()
    for _ in range(5):
        model(x())
    assert tensors() <= before


@pytest.mark.parametrize("backend", PLAIN_BACKENDS)
@both_configs
def test_gradient_of_some_outputs_only(config: object, backend: str) -> None:
    results = []
    for module in pair(config, backend, dropout=0.0):
        h = x()
        y = module(h)
        results.append(torch.autograd.grad(y[1].sum(), [h, module.layers[0].inner.fc1.weight]))
    close(list(results[1]), list(results[0]), backend)


@pytest.mark.parametrize("backend", PLAIN_BACKENDS)
def test_hooks_on_gradients(backend: str) -> None:
    results = []
    for module in pair(FULL, backend, dropout=0.0):
        seen: list[torch.Tensor] = []
        handle = module.layers[1].inner.fc1.weight.register_hook(lambda g, seen=seen: seen.append(g.clone()))
        module(x()).sum().backward()
        handle.remove()
        results.append(seen)
    close(results[1], results[0], backend)


EVALUATIONS = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "with gradients": torch.enable_grad}


@pytest.mark.parametrize("backend", BACKENDS)
def test_evaluation_between_steps(backend: str) -> None:
    plain, model = pair(FULL, backend)
    exact = backend != "inductor"
    for mode in EVALUATIONS.values():
        values = []
        for module in (plain, model):
            module.eval()
            with mode():
                values.append(module(x()).detach().clone())
            module.train()
        close([values[1]], [values[0]], backend)
        assert_same(train_step(model, [x()], lr=0.01), train_step(plain, [x()], lr=0.01), exact=exact)
    trains = [seen.trains for seen in model.forward.session.captures]
    assert trains[0] is False
    assert True in trains


@pytest.mark.parametrize("backend", PLAIN_BACKENDS)
def test_evaluation_first_in_training_mode(backend: str) -> None:
    """A forward without gradients, but with dropout, and then training: an inference graph must not serve it."""
    plain, model = pair(FULL, backend)
    for module in (plain, model):
        torch.manual_seed(3)
        with torch.no_grad():
            module.seen = module(x())
    assert torch.equal(plain.seen, model.seen)
    assert_same(train_step(model, [x()]), train_step(plain, [x()]), exact=True)


def test_no_grad_costs_nothing() -> None:
    """The graph of an evaluation holds what the model computes, and nothing that keeps or repeats."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return graph.forward

    model = stack(lambda: Residual(Mlp(dropout=0.5)), 2)
    plain = copy.deepcopy(model)
    compile_with_memopt(model, FULL(model), backend=backend)
    with torch.no_grad():
        model(x())
    with torch.inference_mode():
        model(x())
    from harness import operators

    torch._dynamo.reset()
    theirs: list[torch.fx.GraphModule] = []
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    compiled = torch.compile(
        plain, backend=aot_autograd(fw_compiler=lambda g, i: theirs.append(g) or make_boxed_func(g.forward))
    )
    with torch.no_grad():
        compiled(x())
    assert operators(graphs[0]) == operators(theirs[0])
    assert operators(graphs[-1]) == operators(theirs[0])


def test_evaluation_does_not_warn_about_the_configuration() -> None:
    from harness import memopt_warnings

    model = stack(Mlp)
    compile_with_memopt(model, {"recompute": {"mode": "select", "select_module": {"nothing": [0]}}}, backend=run_as_is)

    def evaluate() -> None:
        with torch.no_grad():
            model(x())

    assert memopt_warnings(evaluate) == []
    said = memopt_warnings(lambda: train_step(model, [x()]))
    assert [text.split(",")[0] for text in said] == ["recompute.select_module['nothing'] did not match any module or operator"]


@pytest.mark.parametrize("backend", PLAIN_BACKENDS)
def test_frozen_between_steps(backend: str) -> None:
    plain, model = pair(FULL, backend)
    for step, frozen in enumerate([False, True, False]):
        for module in (plain, model):
            for p in module.layers[0].parameters():
                p.requires_grad_(not frozen)
        assert_same(train_step(model, [x()], seed=step), train_step(plain, [x()], seed=step), exact=True)


@pytest.mark.parametrize("backend", PLAIN_BACKENDS)
def test_checkpoint_of_the_users_own(backend: str) -> None:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Residual(Mlp(dropout=0.5))

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, h, use_reentrant=False)

    trained = check(stack(Checkpointed, 3), [x()], EMPTY, backend)
    assert any(row.rule == "torch.utils.checkpoint" for row in trained.explanation.values)
    torch._dynamo.reset()
    check(stack(Checkpointed, 3), [x()], {"recompute": {"mode": "full", "full_recompute_layer": [1]}}, backend)
