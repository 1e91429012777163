"""The model stays what it was: keys, class, copies, pickles; and compiling again replaces what was compiled."""

from __future__ import annotations

import copy
import io
import pickle
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from harness import EMPTY, FULL, assert_same, check, full, memopt_warnings, operators, run_as_is, select, train_step
from numeric_models import Mlp, Residual, Stack, stack, x
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from memopt import MemoptConfig, MemoptWarning, compile_with_memopt, explain, load_config

NAMED_BACKEND = "aot_eager"


def model() -> Stack:
    return stack(lambda: Residual(Mlp()), 2)


def recomputed(module: nn.Module) -> set[int | None]:
    """The layers in which a rule made something be recomputed."""
    return {row.layer for row in explain(module).values if row.action == "recompute" and row.rule}


@pytest.fixture
def one_process(tmp_path: Path) -> object:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_compiling_returns_the_same_module() -> None:
    module = model()
    keys, names = list(module.state_dict()), [name for name, _ in module.named_modules()]
    parameters = dict(module.named_parameters())
    compiled = compile_with_memopt(module, FULL(module), backend=run_as_is)
    assert compiled is module
    assert type(compiled) is Stack
    train_step(compiled, [x()])
    assert list(compiled.state_dict()) == keys
    assert [name for name, _ in compiled.named_modules()] == names
    assert all(p is parameters[name] for name, p in compiled.named_parameters())


def test_state_dicts_load_both_ways() -> None:
    compiled = compile_with_memopt(model(), full(0), backend=run_as_is)
    plain = model()
    with torch.no_grad():
        for p in plain.parameters():
            p += 1
    assert compiled.load_state_dict(plain.state_dict()) == plain.load_state_dict(compiled.state_dict())
    wanted = train_step(plain, [x()])
    assert_same(train_step(compiled, [x()]), wanted, exact=True)


def test_optimizer_state_is_the_same() -> None:
    states = []
    for module in (model(), compile_with_memopt(model(), full("0-1"), backend=run_as_is)):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            module(x()).pow(2).sum().backward()
            optimizer.step()
        states.append(optimizer.state_dict())
    for number, values in states[0]["state"].items():
        for name, value in values.items():
            assert torch.equal(value, states[1]["state"][number][name])
    assert states[0]["param_groups"] == states[1]["param_groups"]


def test_module_hooks_run() -> None:
    counts = []
    for compiled in (False, True):
        module = model()
        seen: list[str] = []
        module.register_forward_pre_hook(lambda m, args, seen=seen: seen.append("before"))
        module.register_forward_hook(lambda m, args, out, seen=seen: seen.append("after"))
        module.register_full_backward_hook(lambda m, gi, go, seen=seen: seen.append("backward"))
        if compiled:
            compile_with_memopt(module, FULL(module), backend=run_as_is)
        train_step(module, [x()])
        counts.append(seen)
    assert counts[0] == counts[1] == ["before", "after", "backward"]


def test_hooks_on_layers_run() -> None:
    counts = []
    for compiled in (False, True):
        module = model()
        seen: list[str] = []
        module.layers[1].register_forward_hook(lambda m, args, out: out * 2)
        if compiled:
            compile_with_memopt(module, FULL(module), backend=run_as_is)
        counts.append(train_step(module, [x()]))
        del seen
    assert_same(counts[1], counts[0], exact=True)


def test_moving_to_another_dtype() -> None:
    plain = model()
    compiled = compile_with_memopt(model(), full("0-1"), backend=run_as_is)
    train_step(compiled, [x()])
    h = x().detach().float().requires_grad_()
    assert_same(train_step(compiled.float(), [h]), train_step(plain.float(), [h]), exact=True)


def test_deep_copy_trains_by_itself() -> None:
    original = model()
    compile_with_memopt(original, full(0), backend=NAMED_BACKEND)
    train_step(original, [x()], lr=0.01)
    weights = copy.deepcopy(original.state_dict())
    twin = copy.deepcopy(original)
    assert twin.forward is not original.forward
    assert twin.forward.model is twin
    for _ in range(2):
        train_step(twin, [x()], lr=0.1)
    assert all(torch.equal(original.state_dict()[k], v) for k, v in weights.items())
    assert not torch.equal(twin.state_dict()["layers.0.inner.fc1.weight"], weights["layers.0.inner.fc1.weight"])
    assert recomputed(twin) == recomputed(original) == {0}
    plain = model()
    plain.load_state_dict(weights)
    assert_same(train_step(original, [x()]), train_step(plain, [x()]), exact=True)


def test_deep_copy_of_what_contains_the_model() -> None:
    outer = nn.Module()
    outer.inner = compile_with_memopt(model(), full(0), backend=run_as_is)
    twin = copy.deepcopy(outer)
    assert twin.inner.forward.model is twin.inner
    train_step(twin.inner, [x()])
    assert recomputed(twin.inner) == {0}


def test_copy_compiled_with_another_configuration() -> None:
    original = compile_with_memopt(model(), full(0), backend=run_as_is)
    train_step(original, [x()])
    average = copy.deepcopy(original)
    compile_with_memopt(average, full(1), backend=run_as_is)
    train_step(average, [x()])
    assert recomputed(original) == {0}
    assert recomputed(average) == {1}


def test_saving_the_whole_model() -> None:
    original = compile_with_memopt(model(), full(0), backend=NAMED_BACKEND)
    train_step(original, [x()])
    file = io.BytesIO()
    torch.save(original, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert_same(train_step(loaded, [x()]), train_step(original, [x()]), exact=True)
    assert recomputed(loaded) == {0}


def test_saving_with_a_backend_that_cannot_be_pickled() -> None:
    original = compile_with_memopt(model(), full(0), backend=lambda graph, inputs: graph.forward)
    with pytest.raises(pickle.PicklingError, match=re.escape("Save model.state_dict() instead")):
        torch.save(original, io.BytesIO())


def test_configuration_is_plain_data() -> None:
    config = load_config(select({".*mlp": ["0-3"]}, exclude_op=["MatMul"]))
    assert pickle.loads(pickle.dumps(config)) == config
    assert copy.deepcopy(config) == config
    assert isinstance(config, MemoptConfig)


def test_result_of_torch_compile_is_refused() -> None:
    with pytest.raises(TypeError, match=re.escape("Pass model._orig_mod: compile_with_memopt compiles it.")):
        compile_with_memopt(torch.compile(model()), full(0))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"model: found function; allowed: a torch\.nn\.Module"):
        compile_with_memopt(lambda h: h, full(0))  # type: ignore[arg-type]


def test_compiled_in_place_before_is_replaced() -> None:
    module = model()
    module.compile(backend="aot_eager")
    module(x())
    message = "model.compile() was called before; compile_with_memopt replaces what it compiled."
    with pytest.warns(MemoptWarning, match=re.escape(message)):
        compile_with_memopt(module, full(0), backend=run_as_is)
    assert_same(train_step(module, [x()]), train_step(model(), [x()]), exact=True)
    assert recomputed(module) == {0}


def test_second_configuration_replaces_the_first() -> None:
    module = model()
    for config, layers in ((full(0), {0}), (full(1), {1}), (EMPTY, set()), (full("0-1"), {0, 1})):
        compile_with_memopt(module, config, backend=run_as_is)
        assert_same(train_step(module, [x()]), train_step(model(), [x()]), exact=True)
        assert recomputed(module) == layers
    assert module.forward.original is None


def test_second_configuration_may_be_wrong_and_leaves_the_first() -> None:
    module = compile_with_memopt(model(), full(0), backend=run_as_is)
    with pytest.raises(ValueError, match="full_recompute_layer"):
        compile_with_memopt(module, full(7), backend=run_as_is)
    train_step(module, [x()])
    assert recomputed(module) == {0}


def test_many_models_of_one_class_do_not_reach_a_limit() -> None:
    for layer in range(12):
        module = model()
        compile_with_memopt(module, full(layer % 2), backend=run_as_is)
        assert memopt_warnings(lambda module=module: train_step(module, [x()])) == []
        assert recomputed(module) == {layer % 2}


def test_explain_before_anything_ran() -> None:
    with pytest.raises(ValueError, match="it was not compiled by memopt"):
        explain(model())
    module = compile_with_memopt(model(), full(0), backend=run_as_is)
    with pytest.raises(ValueError, match="no graph with a backward has been compiled yet"):
        explain(module)
    with torch.no_grad():
        module(x())
    with pytest.raises(ValueError, match="no graph with a backward has been compiled yet"):
        explain(module)


def wrapped(kind: str, layer: nn.Module) -> nn.Module:
    if kind == "checkpoint":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        return checkpoint_wrapper(layer)
    return torch.compile(layer, backend="aot_eager") if kind == "compile" else layer


@pytest.mark.parametrize("config", [full("0-2"), select({"inner": ["0-2"]})], ids=["full", "select"])
@pytest.mark.parametrize("kinds", [("plain", "checkpoint", "plain"), ("plain", "checkpoint", "compile")], ids="+".join)
def test_wrapped_layers_have_their_plain_names(kinds: tuple[str, ...], config: object) -> None:
    torch.manual_seed(0)
    module = Stack([wrapped(kind, Residual(Mlp())) for kind in kinds])
    torch.manual_seed(0)
    plain = Stack([Residual(Mlp()) for _ in kinds])
    compile_with_memopt(module, config, backend=run_as_is)
    assert memopt_warnings(lambda: train_step(module, [x()])) == []
    found, wanted = train_step(module, [x()]), train_step(plain, [x()])
    assert torch.equal(found.tensors["output 0"], wanted.tensors["output 0"])  # type: ignore[arg-type]
    for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad)
    assert recomputed(module) == {0, 1, 2}


def test_wrapped_layers_that_match_nothing_are_named() -> None:
    module = Stack([wrapped("checkpoint", Residual(Mlp())) for _ in range(2)])
    compile_with_memopt(module, select({"_checkpoint_wrapped_module.*": [0]}), backend=run_as_is)
    said = memopt_warnings(lambda: train_step(module, [x()]))
    assert [text.split(",")[0] for text in said] == [
        "recompute.select_module['_checkpoint_wrapped_module.*'] did not match any module or operator"
    ]


@pytest.mark.parametrize("outside", [False, True], ids=["DDP(memopt(model))", "memopt(DDP(model))"])
@pytest.mark.parametrize("optimize_ddp", [True, False])
def test_data_parallel_with_one_process(
    outside: bool, optimize_ddp: bool, one_process: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch._dynamo.config as dynamo_config

    # Torch wants no bucket smaller than the first, which is 1 MB.
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 1000)
    plain = stack(lambda: Residual(Mlp()), 6)
    module = stack(lambda: Residual(Mlp()), 6)
    with dynamo_config.patch(optimize_ddp=optimize_ddp):
        if outside:
            parallel = DistributedDataParallel(module, bucket_cap_mb=0.002)
            compiled: nn.Module = compile_with_memopt(parallel, full("0-5"), backend=run_as_is)
        else:
            compiled = compile_with_memopt(module, full("0-5"), backend=run_as_is)
            parallel = DistributedDataParallel(module, bucket_cap_mb=0.002)
        said = memopt_warnings(lambda: train_step(parallel, [x()]))
        for seed in range(3):
            found = train_step(parallel, [x()], seed=seed, lr=0.01)
            wanted = train_step(plain, [x()], seed=seed, lr=0.01)
            for (name, mine), theirs in zip(module.named_parameters(), plain.parameters(), strict=True):
                assert torch.equal(mine, theirs), name
                assert torch.equal(mine.grad, theirs.grad), name
            assert torch.equal(found.tensors["output 0"], wanted.tensors["output 0"])  # type: ignore[arg-type]
    assert list(module.state_dict()) == list(plain.state_dict())
    assert [key.removeprefix("module.") for key in parallel.state_dict()] == list(plain.state_dict())
    if optimize_ddp:
        # Torch cuts the graph at the buckets, here within every layer: each part follows the rules, and that is told.
        (text,) = said
        assert text.startswith("layers 0-5 (layers.0, layers.1,")
        assert "the graph breaks inside" in text
        assert recomputed(compiled) == set(range(6))
        return
    assert said == []
    assert recomputed(compiled) == set(range(6))
    counts = [operators(graph.backward)["aten.gelu.default"] for graph in explain(compiled).graphs]
    assert sum(counts) == 6


def test_copy_keeps_what_it_says_of_itself() -> None:
    module = compile_with_memopt(model(), full(0), backend=run_as_is)
    assert module.forward.__name__ == "forward"
    check(model(), [x()], FULL)
