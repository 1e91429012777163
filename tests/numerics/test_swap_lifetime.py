"""Swapped values live as long as the graph that saved them: nothing leaks, nothing is shared between forwards."""

from __future__ import annotations

import contextlib
import copy
import os
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import run_as_is
from memopt.runtime import registry
from numeric_models import Block, Stack, stack, x
from torch import nn

from memopt import ConfigError, MemoptWarning, SwapError, compile_with_memopt, explain, swap_counters, trace

SWAP = {"enable": True, "min_bytes": 0, "layer_swap": [{"layers": ["0-1"]}]}


def compiled(backend: Any = "aot_eager", **more: Any) -> tuple[Stack, Stack]:
    """A model that swaps, and its plain twin."""
    model = stack(Block, 3)
    plain = copy.deepcopy(model)
    compile_with_memopt(model, {"swap": {**SWAP, **more}}, backend=backend)
    return model, plain


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def held() -> tuple[int, int, int, int]:
    """What is held once copies have ended: tickets, bytes of their values, size of the files, open files."""
    deadline = time.monotonic() + 10
    while (now := swap_counters()).disk_bytes and time.monotonic() < deadline:
        time.sleep(0.01)  # what was dropped while it was being copied
    return now.live_tickets, now.disk_bytes, now.disk_capacity, len(os.listdir("/proc/self/fd"))


def test_what_left_last_is_gone_when_the_forward_ends() -> None:
    model, _ = compiled()
    forward, run = model.forward, model.forward._compiled
    seen = []

    def runs_until_all_has_left(*args: Any) -> torch.Tensor:
        result = run(*args)
        for engine in registry._engines.values():
            seen.extend(engine._leaving)
            for leaving in engine._leaving:
                leaving.parcel.sent.wait()
        return result

    forward._compiled = runs_until_all_has_left
    loss = model(x(2, 6)).sum()
    assert seen, "nothing to free"
    assert all(not engine._leaving for engine in registry._engines.values())
    loss.backward()


class _Head(nn.Module):
    """Keeps the forward going until all copies have ended."""

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        self.seen = [leaving for engine in registry._engines.values() for leaving in engine._leaving]
        for leaving in self.seen:
            leaving.parcel.sent.wait()
        return h


def test_what_left_last_is_gone_when_a_forward_of_single_layers_ends() -> None:
    model = stack(Block, 3)
    run, head = type(model).forward, _Head()
    model.forward = lambda h: head(run(model, h))
    rules = {"enable": True, "min_bytes": 0, "op_swap": [{"op_name": ".*fc2", "layers": ["0-1"]}]}
    compile_with_memopt(model, {"swap": rules}, backend="aot_eager", scope="layer")
    loss = model(x(2, 6)).sum()
    assert head.seen, "nothing to free"
    assert all(not engine._leaving for engine in registry._engines.values())
    loss.backward()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_thousand_steps_hold_what_the_second_held(backend: str) -> None:
    model, _ = compiled(backend)
    given = x(2, 6).detach()
    after_second = None
    for step in range(1000 if backend == "aot_eager" else 100):
        model.zero_grad()
        loss = model(given).sum()
        if step % 5 == 4:
            del loss
        elif step % 7 == 6:
            loss.register_hook(_fails)
            with contextlib.suppress(ZeroDivisionError):  # which, unlike pytest.raises, keeps no frame alive
                loss.backward()
            del loss
        else:
            loss.backward()
            del loss
        if step == 1:
            after_second = held()
    assert after_second is not None
    assert after_second[:2] == (0, 0)
    assert held() == after_second


def _fails(_: torch.Tensor) -> None:
    raise ZeroDivisionError


def test_a_step_after_the_second_allocates_nothing_more() -> None:
    model, _ = compiled()
    for step in range(6):
        model(x(2, 6)).sum().backward()
        if step == 1:
            capacity = swap_counters().disk_capacity
    assert swap_counters().disk_capacity == capacity


def test_counters_tell_what_a_step_moved() -> None:
    model, _ = compiled()
    model(x(2, 6)).sum().backward()
    before = swap_counters()
    model(x(2, 6)).sum().backward()
    step = swap_counters() - before
    assert step.bytes_out == step.bytes_in == explain(model).swapped > 0
    assert step.offloads == step.prefetches > 0


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_several_forwards_in_flight(order: tuple[int, ...]) -> None:
    model, plain = compiled()
    inputs = [x(2, 6).detach() * (1 + i) for i in range(3)]
    for one in (model, plain):
        losses = [(one(h) ** 2).sum() for h in inputs]
        with torch.no_grad():
            one(inputs[0])
        for i in order:
            losses[i].backward()
    for ours, theirs in zip(gradients(model), gradients(plain), strict=True):
        assert torch.equal(ours, theirs)
    del losses
    assert swap_counters().live_tickets == 0


@pytest.mark.parametrize("backend", [run_as_is, "aot_eager"])
def test_retain_graph_gives_every_value_again(backend: Any) -> None:
    model, plain = compiled(backend)
    given = x(2, 6)
    for one in (model, plain):
        loss = (one(given) ** 2).sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
    for ours, theirs in zip(gradients(model), gradients(plain), strict=True):
        assert torch.equal(ours, theirs)


def test_retain_graph_under_inductor() -> None:
    model, plain = compiled("inductor")
    given = x(2, 6)
    for one in (model, plain):
        loss = (one(given) ** 2).sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
    for ours, theirs in zip(gradients(model), gradients(plain), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_gradients_accumulate() -> None:
    model, plain = compiled()
    for one in (model, plain):
        for i in range(3):
            (one(x(2, 6) * (i + 1)) ** 2).sum().backward()
    for ours, theirs in zip(gradients(model), gradients(plain), strict=True):
        assert torch.equal(ours, theirs)


def test_evaluation_in_between_and_a_deep_copy() -> None:
    model, plain = compiled()
    other = copy.deepcopy(model)
    for one in (model, plain, other):
        loss = one(x(2, 6)).sum()
        one.eval()
        with torch.no_grad():
            one(x(2, 6))
        one.train()
        loss.backward()
    assert [r.action for r in explain(other).values].count("offload") > 0
    for ours, copied, theirs in zip(gradients(model), gradients(other), gradients(plain), strict=True):
        assert torch.equal(ours, theirs)
        assert torch.equal(copied, theirs)


def test_threads_run_backwards_at_once() -> None:
    model, plain = compiled()
    model(x(2, 6)).sum().backward()
    inputs = [x(2, 6).detach() * (1 + i) for i in range(4)]
    wanted = [torch.autograd.grad((plain(h) ** 2).sum(), list(plain.parameters())) for h in inputs]
    losses = [(model(h) ** 2).sum() for h in inputs]
    found: dict[int, Any] = {}

    def run(i: int) -> None:
        found[i] = torch.autograd.grad(losses[i], list(model.parameters()))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, want in enumerate(wanted):
        assert all(torch.equal(a, b) for a, b in zip(found[i], want, strict=True))


def test_a_backend_that_nobody_knows_waits_for_each_copy() -> None:
    model, _ = compiled(run_as_is)
    model(x(2, 6)).sum().backward()
    (graph,) = explain(model).graphs
    offloads = [n for n in graph.forward.graph.nodes if n.target is torch.ops.memopt.offload.default]
    assert offloads
    assert {n.args[-1] for n in offloads} == {False}
    other, _ = compiled("aot_eager")
    other(x(2, 6)).sum().backward()
    (graph,) = explain(other).graphs
    assert {n.args[-1] for n in graph.forward.graph.nodes if n.target is torch.ops.memopt.offload.default} == {True}


def test_a_missing_directory_is_named_and_another_configuration_works(tmp_path: Path) -> None:
    model = stack(Block, 3)
    missing = tmp_path / "missing"
    config = {"swap": {**SWAP, "dir": str(missing)}}
    with pytest.raises(ConfigError, match=r"swap\.dir: found '.*missing'; allowed: a directory that exists"):
        compile_with_memopt(model, config, backend="aot_eager")
    assert "forward" not in model.__dict__
    missing.mkdir()
    compile_with_memopt(model, config, backend="aot_eager")
    missing.rmdir()
    with pytest.raises(SwapError, match=r"swap\.dir"):
        model(x(2, 6)).sum().backward()
    compile_with_memopt(model, {"swap": {**SWAP, "dir": str(tmp_path)}}, backend="aot_eager")
    model(x(2, 6)).sum().backward()
    assert list(tmp_path.iterdir()) == []


def test_hooks_that_copy_saved_tensors_are_told() -> None:
    model, _ = compiled()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        loss = model(x(2, 6)).sum()
    with pytest.raises(SwapError, match="hooks"):
        loss.backward()


def test_explain_is_complete_after_a_warm_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    shown = []
    for _ in range(2):
        torch._dynamo.reset()
        model, _plain = compiled("inductor")
        model(x(2, 6)).sum().backward()
        shown.append([(r.name, r.action, r.store, r.leaves, r.issued, r.returns) for r in explain(model).values])
    assert shown[0] == shown[1]
    assert "offload" in {row[1] for row in shown[0]}


def test_trace_shows_the_same_without_running() -> None:
    model, _ = compiled()
    model(x(2, 6)).sum().backward()
    ran = [(r.name, r.action, r.bytes, r.returns) for r in explain(model).values]
    traced = trace(stack(Block, 3), {"swap": SWAP}, [x(2, 6)], backend="aot_eager")
    assert [(r.name, r.action, r.bytes, r.returns) for r in traced.values] == ran
    with torch.device("meta"):
        empty = stack(Block, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MemoptWarning)
        on_meta = trace(empty, {"swap": SWAP}, [x(2, 6).detach().to("meta")], backend="aot_eager")
    assert on_meta.swapped == traced.swapped
