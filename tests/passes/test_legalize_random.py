from __future__ import annotations

import pytest
import torch
from memopt.passes.joint import decision_of
from memopt.passes.legalize.random import keep_or_replay_random
from memopt.passes.matched import Matched
from printer import Builder, actions, named, recompute, save
from small_graphs import aten, mlp_layer


def dropout(**kwargs: object):
    b = Builder()
    x = b.input("x", 4, 4)
    mask = b.op("mask", aten.bernoulli.p, x, 0.5, at="layers.0.dropout", **kwargs)
    out = b.op("out", aten.mul.Tensor, x, mask, at="layers.0.dropout")
    gradient = b.tangent(out)
    return b.joint([out], [b.back("grad", aten.mul.Tensor, gradient, mask)])


def attention(dropout_p: float):
    b = Builder()
    q, k, v = (b.input(n, 1, 2, 4, 4) for n in "qkv")
    sdpa = b.op("sdpa", aten._scaled_dot_product_flash_attention_for_cpu.default, q, k, v, dropout_p, at="layers.0")
    return b.joint([b.item("out", sdpa, 0, at="layers.0")])


def run(joint) -> None:
    keep_or_replay_random(joint, Matched())


def test_outside_regions_a_random_value_is_saved(golden) -> None:
    golden("legalize_random_outside", dropout(), run)


def test_in_a_region_it_is_replayed(golden) -> None:
    joint = dropout()
    recompute(named(joint, "mask"), named(joint, "out"))
    golden("legalize_random_replayed", joint, run)


def test_with_a_generator_of_its_own_it_is_saved() -> None:
    joint = dropout()
    mask = named(joint, "mask")
    mask.kwargs = {"generator": torch.Generator()}
    recompute(mask)
    run(joint)
    assert decision_of(mask).reason == "its generator's state cannot be replayed"
    assert actions(joint) == {"mask": "SAVE"}


def test_on_a_device_whose_state_torch_does_not_replay_it_is_saved() -> None:
    joint = dropout()
    mask = named(joint, "mask")
    mask.meta["val"] = torch.empty(4, 4, device="meta")
    recompute(mask)
    run(joint)
    assert actions(joint) == {"mask": "SAVE"}


def test_what_is_not_random_or_saved_already_is_left_alone(unchanged) -> None:
    unchanged(mlp_layer(), run)
    joint = dropout()
    save(named(joint, "mask"))
    unchanged(joint, run)


def test_attention_is_random_only_with_dropout(unchanged) -> None:
    unchanged(attention(0.0), run)
    joint = attention(0.5)
    run(joint)
    assert actions(joint) == {"sdpa": "SAVE", "out": "SAVE"}


@pytest.mark.parametrize(
    ("target", "arguments"),
    [
        (aten.bernoulli.default, ()),
        (aten.poisson.default, ()),
        (aten.multinomial.default, (2,)),
        (aten.rand_like.default, ()),
        (aten.randn_like.default, ()),
        (aten.randint_like.default, (5,)),
        (aten.normal.Tensor_float, (1.0,)),
        (aten.exponential.default, ()),
        (aten.native_dropout.default, (0.5, True)),
    ],
    ids=lambda value: str(value) if not isinstance(value, tuple) else "",
)
def test_random_is_what_torch_tags_so(target, arguments: tuple[object, ...]) -> None:
    b = Builder()
    node = b.op("drawn", target, b.input("x", 4, 4), *arguments, at="layers.0")
    joint = b.joint([b.item("first", node, 0, at="layers.0") if target is aten.native_dropout.default else node])
    run(joint)
    assert actions(joint)["drawn"] == "SAVE"
