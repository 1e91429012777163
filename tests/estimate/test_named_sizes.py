"""Sizes with names: which dimensions they are, what is refused, and what is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import sympy
import torch
from estimate_models import gpt
from memopt.compiler.estimate.named_sizes import NamedSizes, SizesAt, SizesError, usual_dims
from torch import Tensor, nn
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from memopt import estimate


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@pytest.mark.parametrize(
    ("args", "kwargs", "dims"),
    [
        ((torch.zeros(4, 8),), {}, {"batch": [(0, 0)]}),
        ((ids(4, 8),), {}, {"batch": [(0, 0)], "seq": [(0, 1)]}),
        ((ids(4, 8), ids(4)), {"mask": torch.zeros(4, 8)}, {"batch": [(0, 0), (1, 0), ("mask", 0)], "seq": [(0, 1)]}),
        ((ids(4, 8), ids(4, 9)), {}, {"batch": [(0, 0), (1, 0)], "seq": [(0, 1)]}),
        ((torch.zeros(4, 8), torch.zeros(3, 8)), {}, {"batch": [(0, 0)]}),
        ((3, None, torch.tensor(2.0)), {}, {}),
        ((), {}, {}),
    ],
)
def test_the_usual_names(args: tuple[Any, ...], kwargs: Mapping[str, Any], dims: Any) -> None:
    assert usual_dims(args, kwargs) == dims


def test_sizes_are_looked_up() -> None:
    found = NamedSizes.of((ids(4, 8),), {"mask": torch.zeros(4, 9)}, {"n": [(0, 0), ("mask", 0)], "m": [("mask", 1)]})
    assert found.given == {"n": 4, "m": 9}


@pytest.mark.parametrize(("shape", "given"), [((1, 8), {"seq": 8}), ((8, 8), {"seq": 8}), ((4, 1), {"batch": 4})])
def test_usual_names_that_nobody_asked_for_are_left_out_where_they_cannot_be_had(shape: Any, given: Any) -> None:
    found = NamedSizes.of((ids(*shape),), {}, None)
    assert found.given == given
    assert found.dims.keys() == given.keys()


@pytest.mark.parametrize(
    ("args", "dims", "asked", "message"),
    [
        ((ids(1, 8),), None, {"batch"}, "batch: found the size 1 in the inputs; allowed: 2 or more, so that it can be varied."),
        (
            (ids(8, 8),),
            None,
            {"seq", "batch"},
            "batch: found 8, as seq has; allowed: inputs in which every named size is another",
        ),
        ((ids(8, 8),), {"a": [(0, 0)], "b": [(0, 1)]}, (), "a: found 8, as b has; allowed: inputs in which every named size"),
        (
            (ids(1, 1),),
            None,
            (),
            "dims: found no dimension of the inputs that can be varied; allowed: tensors of sizes from 2.",
        ),
        ((), None, (), "dims: found no dimension of the inputs that can be varied"),
        (
            (ids(4, 8),),
            {"a": [(0, 2)]},
            (),
            r"dims['a']: found dimension 2 of argument 0, which is (4, 8); allowed: one it has.",
        ),
        ((ids(4, 8),), {"a": [(0, -1)]}, (), "dims['a']: found dimension -1 of argument 0, which is (4, 8)"),
        ((ids(4, 8),), {"a": [(0, True)]}, (), "dims['a']: found dimension True of argument 0"),
        ((ids(4, 8),), {"a": [(1, 0)]}, (), "dims['a']: found the argument 1; allowed: 0."),
        ((ids(4, 8),), {"a": [("x", 0)]}, (), "dims['a']: found the argument 'x'; allowed: 0."),
        (
            (ids(4), ids(5)),
            {"a": [(0, 0), (1, 0)]},
            (),
            "dims['a']: found the sizes {(0, 0): 4, (1, 0): 5}; allowed: tensors that",
        ),
        ((ids(4),), {"a": []}, (), "dims['a']: found the sizes of no tensor; allowed: tensors that agree in it."),
    ],
)
def test_refusals(args: tuple[Any, ...], dims: Any, asked: Any, message: str) -> None:
    with pytest.raises(SizesError) as caught:
        NamedSizes.of(args, {}, dims, asked)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ({"bacth": 8}, "at: found the name 'bacth'; allowed: batch, seq, and what dims names. Did you mean 'batch'?"),
        ({"x": 8}, "at: found the name 'x'; allowed: batch, seq, and what dims names."),
        ({"batch": 0}, "at: found batch=0; allowed: a whole number from 1 to 2147483647."),
        ({"batch": True}, "at: found batch=True; allowed: a whole number from 1 to 2147483647."),
        ({"batch": 2**40}, "at: found batch=1099511627776; allowed: a whole number from 1 to 2147483647."),
        ({"batch": 2.0}, "at: found batch=2.0; allowed: a whole number from 1 to 2147483647."),
        ({"seq": 9}, "at: found seq=9, but the model fixes it at 8 while it is traced; allowed: inputs of that size."),
    ],
)
def test_sizes_that_cannot_be_asked_for(at: Any, message: str) -> None:
    named = NamedSizes.of((ids(4, 8),), {}, None)
    with pytest.raises(SizesError) as caught:
        named.checked(at, {sympy.Symbol("s0"): "batch"})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"at": [("batch", 8)]},
            r"at: found \[\('batch', 8\)\]; allowed: a mapping of names to sizes, such as \{'batch': 8\}\.",
        ),
        ({"dims": ["batch"]}, r"dims: found \['batch'\]; allowed: a mapping of names to lists of \(argument, dimension\)"),
        ({"dims": {"n": 3}}, r"dims\['n'\]: found 3; allowed: a mapping"),
        ({"dims": {"n": [0, 0]}}, r"dims\['n'\]: found \[0, 0\]; allowed: a mapping"),
        ({"dims": {"n": []}}, r"dims\['n'\]: found \[\]; allowed: a mapping"),
    ],
)
def test_what_has_another_form(options: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        estimate(FixesBatch(), {}, (torch.zeros(4, 8),), backend="aot_eager", **options)


def test_sizes_that_can() -> None:
    named = NamedSizes.of((ids(4, 8),), {}, None)
    symbols = {sympy.Symbol("s0"): "batch"}
    assert named.checked({}, symbols) == {"batch": 4, "seq": 8}
    assert named.checked({"batch": 1, "seq": 8}, symbols) == {"batch": 1, "seq": 8}


def test_marking_leaves_the_tensors_as_they_were() -> None:
    given, wanted = ids(4, 8), torch.zeros(4, requires_grad=True)
    (one, two), more = NamedSizes.of((given, wanted), {}, None).marked((given, wanted), {"n": 3})
    assert (one.data_ptr(), two.data_ptr()) == (given.data_ptr(), wanted.data_ptr())
    assert two.requires_grad
    assert more == {"n": 3}
    assert not [name for tensor in (given, wanted) for name in vars(tensor) if "dynamic" in name]
    assert [name for name in vars(one) if "dynamic" in name]


def test_every_size_follows_from_the_named_ones() -> None:
    env = ShapeEnv()
    expression = env.create_symbol(6, ConstantSource("n"), positive=True)
    size = env.create_symintnode(expression, hint=6)
    unknown = env.create_unbacked_symint()
    at = SizesAt({expression: 10})
    assert (at(3), at(size), at(2 * size + 1), at(size * size)) == (3, 10, 21, 100)
    assert at(unknown) is None
    assert SizesAt({})(size) == 6


class FixesBatch(nn.Module):
    """A model that only takes four rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[0] == 4
        for layer in self.layers:
            x = layer(x).relu()
        return x


def test_a_size_that_the_model_fixes() -> None:
    args = (torch.zeros(4, 8),)
    assert estimate(FixesBatch(), {}, args, at={"batch": 4}, backend="aot_eager").sizes == {"batch": 4}
    with pytest.raises(SizesError, match="at: found batch=8, but the model fixes it at 4 while it is traced"):
        estimate(FixesBatch(), {}, args, at={"batch": 8}, backend="aot_eager")


def test_an_unknown_name_is_refused_by_the_estimate() -> None:
    model, args = gpt(width=16, layers=2)
    with pytest.raises(
        SizesError, match=r"at: found the name 'sequ'; allowed: batch, seq, and what dims names\. Did you mean 'seq'\?"
    ):
        estimate(model, {}, args, at={"sequ": 3}, backend="aot_eager")


def test_an_estimate_for_other_sizes_is_that_of_inputs_of_these_sizes() -> None:
    model, args = gpt(batch=4, seq=24, width=16, layers=2)
    config = {"recompute": {"mode": "full", "full_recompute_layer": [0]}}
    found = estimate(model, config, args, at={"batch": 6, "seq": 40}, backend="aot_eager")
    wanted = estimate(model, config, gpt(batch=6, seq=40, width=16, layers=2)[1], backend="aot_eager")
    assert found.sizes == {"batch": 6, "seq": 40}
    assert [(m.phase, m.operator, m.layer, m.bytes) for m in found.timeline] == [
        (m.phase, m.operator, m.layer, m.bytes) for m in wanted.timeline
    ]
    assert (found.layers, found.work, found.peak_bytes) == (wanted.layers, wanted.work, wanted.peak_bytes)
    assert found.peak_bytes > estimate(model, config, args, backend="aot_eager").peak_bytes
