"""What communicates, under one name each, whatever torch calls the variant."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.distributed._functional_collectives
import torch.distributed._symmetric_memory
import torch.distributed.tensor
from memopt.passes.communication import canonical_name, communicates, group_of, is_collective, is_message, waits_of
from memopt.passes.legalize.collectives import decide_collective_with_wait, keep_undecided_collectives
from memopt.passes.matched import Matched
from memopt.passes.operators import has_effect, target_names
from printer import Builder, actions, decided, save
from small_graphs import aten

NAMES = {
    "_c10d_functional.all_gather_into_tensor": "all_gather",
    "_c10d_functional.all_gather_into_tensor_out": "all_gather",
    "_c10d_functional.all_gather_into_tensor_coalesced": "all_gather",
    "_c10d_functional.reduce_scatter_tensor": "reduce_scatter",
    "_c10d_functional.reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_c10d_functional.all_reduce": "all_reduce",
    "_c10d_functional.all_reduce_": "all_reduce",
    "_c10d_functional.all_reduce_coalesced": "all_reduce",
    "_c10d_functional.all_to_all_single": "all_to_all",
    "_c10d_functional.broadcast": "broadcast",
    "_c10d_functional_autograd.all_gather_into_tensor": "all_gather",
    "_c10d_functional_autograd.reduce_scatter_tensor": "reduce_scatter",
    "_c10d_functional_autograd.all_to_all_single": "all_to_all",
    "_dtensor.shard_dim_alltoall": "all_to_all",
    "symm_mem.fused_all_gather_matmul": "all_gather",
    "symm_mem.fused_matmul_reduce_scatter": "reduce_scatter",
    "symm_mem._low_contention_all_gather": "all_gather",
    "symm_mem._low_contention_reduce_scatter": "reduce_scatter",
    "symm_mem.one_shot_all_reduce": "all_reduce",
    "symm_mem.two_shot_all_reduce_": "all_reduce",
    "symm_mem.multimem_all_gather_out": "all_gather",
    "symm_mem.all_to_all_vdev": "all_to_all",
}


def overload(name: str) -> torch._ops.OpOverload:
    namespace, _, bare = name.partition(".")
    packet = getattr(getattr(torch.ops, namespace), bare, None)
    if packet is None:
        pytest.skip(f"this torch has no {name}")
    return getattr(packet, packet.overloads()[0])


@pytest.mark.parametrize(("name", "canonical"), NAMES.items())
def test_every_variant_answers_to_one_name(name: str, canonical: str) -> None:
    assert canonical_name(overload(name)) == canonical


@pytest.mark.parametrize("name", ["_c10d_functional.wait_tensor", "aten.broadcast_to", "symm_mem.get_remote_tensors"])
def test_what_does_not_communicate_has_no_such_name(name: str) -> None:
    assert canonical_name(overload(name)) is None


def test_a_fused_collective_is_a_product_too() -> None:
    b = Builder()
    node = b.op("node", overload("_c10d_functional.all_reduce"), b.input("x", 4), "sum", "0")
    assert {"all_reduce"} <= set(target_names(node))
    from memopt.passes.operators import _target_names

    assert {"all_gather", "matmul"} <= set(_target_names(overload("symm_mem.fused_all_gather_matmul")))


def test_the_group_is_read_from_the_arguments() -> None:
    b = Builder()
    x = b.input("x", 4)
    c10d = torch.ops._c10d_functional
    assert group_of(b.op("a", c10d.all_gather_into_tensor.default, x, 2, "tp")) == "tp"
    assert group_of(b.op("b", c10d.reduce_scatter_tensor.default, x, "sum", 2, "dp")) == "dp"
    assert group_of(b.op("c", aten.exp.default, x)) is None


def test_a_message_to_one_rank_happens_once() -> None:
    send = overload("_c10d_functional.isend")
    b = Builder()
    node = b.graph.call_function(send, (b.input("x", 4), 1, 0, "0"))
    assert is_message(node)
    assert has_effect(node)
    assert not is_collective(node)


def coalesced():
    """Two tensors gathered by one collective: its outputs are waited for one by one."""
    b = Builder()
    x, y = b.input("x", 4), b.input("y", 4)
    raw = b.op("raw", torch.ops._c10d_functional.all_gather_into_tensor_coalesced.default, [x, y], 2, "0", at="layers.0.tp")
    outs = []
    for n in range(2):
        part = b.op(f"part{n}", operator.getitem, raw, n, at="layers.0.tp")
        full = b.op(f"full{n}", torch.ops._c10d_functional.wait_tensor.default, part, at="layers.0.tp")
        outs.append(b.op(f"out{n}", aten.exp.default, full, at="layers.0"))
    return raw, b.joint(outs)


def test_saving_a_coalesced_collective_attaches_behind_each_wait() -> None:
    raw, joint = coalesced()
    assert [wait.name for wait in waits_of(raw)] == ["full0", "full1"]
    save(raw, region=0, rule="exclude_op['AllGather']")
    decide_collective_with_wait(joint, Matched())
    assert actions(joint) == {"full0": "SAVE", "full1": "SAVE"}


def test_what_no_rule_decided_about_is_kept_behind_its_wait() -> None:
    _, joint = coalesced()
    keep_undecided_collectives(joint, Matched())
    assert decided(joint) == "".join(
        f"full{n} SAVE - legalize.collectives — communication is repeated only where a rule says so\n" for n in range(2)
    )


def test_a_collective_without_a_wait_is_kept_itself() -> None:
    b = Builder()
    node = b.graph.call_function(overload("_dtensor.shard_dim_alltoall"), (b.input("x", 4), 0, 1, "0"))
    assert communicates(node) == "all_to_all"
    assert list(waits_of(node)) == []
