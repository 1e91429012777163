from __future__ import annotations

import operator

import pytest
import torch
from memopt.passes.joint import decision_of
from memopt.passes.mark_comm import mark_comm
from memopt.passes.mark_exclude import mark_exclude
from memopt.passes.mark_recompute import mark_recompute
from memopt.passes.matched import Matched
from printer import Builder, actions, named, plan, save
from small_graphs import aten

c10d = torch.ops._c10d_functional
PATTERN = r".*\.all_gather"
GATHERS = {PATTERN: [0]}
FIELD = f"recompute_comm.select_module[{PATTERN!r}]"


def gathered_by_columns():
    """An all_gather over columns, as functional collectives write it: gathered by rows, cut, put side by side, cast."""
    b = Builder()
    x = b.input("x", 4, 4)
    raw = b.op("raw", c10d.all_gather_into_tensor.default, x, 2, "0", at="layers.0.tp")
    full = b.op("full", c10d.wait_tensor.default, raw, at="layers.0.tp")
    parts = b.op("parts", aten.split.Tensor, full, 4, at="layers.0.tp")
    left = b.op("left", operator.getitem, parts, 0, at="layers.0.tp")
    right = b.op("right", operator.getitem, parts, 1, at="layers.0.tp")
    wide = b.op("wide", aten.cat.default, [left, right], 1, at="layers.0.tp")
    half = b.op("half", aten._to_copy.default, wide, dtype=torch.bfloat16, at="layers.0.tp")
    out = b.op("out", aten.exp.default, half, at="layers.0.act")
    return b.joint([out])


def run(joint, rules, matched=None) -> Matched:
    matched = matched or Matched()
    mark_recompute(joint, rules, matched)
    mark_exclude(joint, rules, matched)
    mark_comm(joint, rules, matched)
    return matched


def test_a_collective_is_marked_with_what_follows_it(golden) -> None:
    rules, matched = plan(comm=GATHERS), Matched()
    joint = gathered_by_columns()
    golden("mark_comm", joint, lambda joint: mark_comm(joint, rules, matched))
    assert (FIELD, 0) in matched.met
    regions = {d.region for n in joint.graph.nodes if (d := decision_of(n)) is not None}
    assert len(regions) == 1


@pytest.mark.parametrize("pattern", [r".*\.all_gather", r"tp\.all_gather_into_tensor", r"tp\..*gather.*", ".*"])
def test_every_name_of_a_collective_finds_it(pattern: str) -> None:
    joint = gathered_by_columns()
    run(joint, plan(comm={pattern: [0]}))
    assert actions(joint) == dict.fromkeys(["raw", "full", "parts", "left", "right", "wide", "half"], "RECOMPUTE")


@pytest.mark.parametrize("comm", [None, {r".*\.all_gather": [1]}, {r".*\.reduce_scatter": [0]}, {"all_gather": [0]}])
def test_what_is_not_named_is_left_alone(comm, unchanged) -> None:
    matched = Matched()
    unchanged(gathered_by_columns(), lambda joint: mark_comm(joint, plan(comm=comm), matched))
    assert matched.met == set()


def test_a_recomputed_region_has_it_already() -> None:
    joint = gathered_by_columns()
    matched = run(joint, plan(select={"tp": [0]}, comm=GATHERS))
    assert {d.rule for n in joint.graph.nodes if (d := decision_of(n))} == {"recompute.select_module['.*tp']"}
    assert matched.fulfilled == {FIELD}


def test_exclude_op_keeps_it_and_that_is_told() -> None:
    joint = gathered_by_columns()
    matched = run(joint, plan(select={"tp": [0]}, exclude=["AllGather"], comm=GATHERS))
    assert actions(joint)["raw"] == "SAVE"
    assert matched.ineffective == {
        FIELD: "recomputes nothing: recompute.exclude_op['AllGather'] keeps raw, which lies in a recomputed region"
    }


def test_exclude_op_does_not_reach_beyond_recomputed_regions() -> None:
    joint = gathered_by_columns()
    run(joint, plan(exclude=["AllGather"], comm=GATHERS))
    assert actions(joint)["raw"] == "RECOMPUTE"


def test_an_operator_that_does_not_communicate_is_told() -> None:
    joint = gathered_by_columns()
    pattern = r"act\.exp"
    matched = run(joint, plan(comm={pattern: [0]}))
    assert actions(joint) == {}
    assert matched.ineffective == {
        f"recompute_comm.select_module[{pattern!r}]": "recomputes nothing: act.exp, which it names, does not communicate"
    }


def test_what_reads_something_else_too_does_not_follow() -> None:
    b = Builder()
    x, y = b.input("x", 4), b.input("y", 8)
    raw = b.op("raw", c10d.all_gather_into_tensor.default, x, 2, "0", at="layers.0.tp")
    full = b.op("full", c10d.wait_tensor.default, raw, at="layers.0.tp")
    both = b.op("both", aten.cat.default, [full, y], 0, at="layers.0.tp")
    joint = b.joint([both])
    run(joint, plan(comm=GATHERS))
    assert actions(joint) == {"raw": "RECOMPUTE", "full": "RECOMPUTE"}


def test_a_decision_behind_it_stays() -> None:
    joint = gathered_by_columns()
    save(named(joint, "wide"))
    run(joint, plan(comm=GATHERS))
    assert actions(joint)["wide"] == "SAVE"
    assert "half" not in actions(joint)


def test_two_calls_are_two_regions() -> None:
    b = Builder()
    x = b.input("x", 4)
    for name in ("one", "two"):
        x = b.op(f"{name}_raw", c10d.all_gather_into_tensor.default, x, 2, "0", at="layers.0.tp")
        x = b.op(f"{name}_full", c10d.wait_tensor.default, x, at="layers.0.tp")
    joint = b.joint([x])
    run(joint, plan(comm=GATHERS))
    regions = [d.region for n in joint.graph.nodes if (d := decision_of(n)) is not None]
    assert regions[0] == regions[1] != regions[2] == regions[3]
