from __future__ import annotations

import pytest
import torch
from memopt.passes.communication import is_collective
from memopt.passes.legalize.collectives import decide_collective_with_wait
from memopt.passes.matched import Matched
from printer import Builder, named, recompute, save
from small_graphs import aten

c10d = torch.ops._c10d_functional


def gathered():
    b = Builder()
    x = b.input("x", 4)
    raw = b.op("raw", c10d.all_gather_into_tensor.default, x, 2, "0", at="layers.0.tp")
    full = b.op("full", c10d.wait_tensor.default, raw, at="layers.0.tp")
    out = b.op("out", aten.exp.default, full, at="layers.0")
    return b.joint([out])


def run(joint) -> None:
    decide_collective_with_wait(joint, Matched())


def test_saving_attaches_behind_the_wait(golden) -> None:
    joint = gathered()
    recompute(*(named(joint, n) for n in ("full", "out")))
    save(named(joint, "raw"), region=0, rule="exclude_op['AllGather']")
    golden("legalize_collectives", joint, run)


def test_a_recomputed_collective_is_left_alone(unchanged) -> None:
    joint = gathered()
    unchanged(joint, run)
    recompute(*(named(joint, n) for n in ("raw", "full", "out")))
    unchanged(joint, run)


def test_a_collective_that_nobody_waits_for_keeps_its_decision(unchanged) -> None:
    b = Builder()
    raw = b.op("raw", c10d.all_reduce.default, b.input("x", 4), "sum", "0", at="layers.0")
    joint = b.joint([raw])
    save(raw)
    unchanged(joint, run)


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        ("all_reduce", ("sum", "0")),
        ("all_gather_into_tensor", (2, "0")),
        ("reduce_scatter_tensor", ("sum", 2, "0")),
        ("all_to_all_single", ([2, 2], [2, 2], "0")),
        ("broadcast", (0, "0")),
    ],
)
def test_every_collective_is_known(operator: str, arguments: tuple[object, ...]) -> None:
    b = Builder()
    node = b.op("raw", getattr(c10d, operator).default, b.input("x", 4), *arguments, at="layers.0")
    assert is_collective(node)
