from __future__ import annotations

import pytest
import torch
from memopt.passes.joint import JointGraph
from memopt.passes.policy import Plan
from memopt.passes.swap.insert_offload import IN_FLIGHT_CPU, insert_offload
from memopt.passes.swap.journey import plan_journeys
from memopt.passes.swap.pair import Pair
from memopt.passes.swap.schedule_prefetch import schedule_prefetch
from memopt.passes.swap.targets import OFFLOAD, PREFETCH, WAIT
from memopt.passes.swap.verify_swap import verify_swap
from printer import Builder, plan, show_graph
from swap_graphs import aten, chosen, node_of, paired, show_pair, tower, travel, travelled


def check(golden, name: str, joint: JointGraph, rules: Plan, *, views: bool = False) -> None:
    """Compare both graphs before and after with the golden text, and verify them."""
    pair, moves = chosen(joint, rules, views=views)
    journeys = plan_journeys(pair, moves, rules.swap.prefetch)

    def run(pair: Pair) -> None:
        insert_offload(pair, journeys, rules.swap, asynchronous=True)
        schedule_prefetch(pair, journeys)

    golden(name, pair, run, twice=False, printed=show_pair)
    verify_swap(pair, journeys)


def test_values_leave_after_their_last_use_and_return_a_layer_ahead(golden) -> None:
    check(golden, "swap_layers", tower("layers.0", "layers.1", "layers.2"), plan(3, swap=[0, 1]))


def test_two_layers_ahead(golden) -> None:
    check(golden, "swap_two_ahead", tower("layers.0", "layers.1", "layers.2"), plan(3, swap=[0], prefetch=2))


def test_without_prefetch_a_value_is_fetched_where_it_is_used(golden) -> None:
    check(golden, "swap_none_ahead", tower("layers.0", "layers.1"), plan(swap=[0], prefetch=0))


def views(*makes: str) -> JointGraph:
    """``v = mm(x, w)`` and views of it, of which the backward of layer 0 reads those that are named."""
    b = Builder()
    v = b.op("v", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4), at="layers.0")
    made = {
        "v": lambda: v,
        "turned": lambda: b.op("turned", aten.t.default, v, at="layers.0"),
        "right": lambda: b.op("right", aten.slice.Tensor, v, 1, 1, 4, at="layers.0"),
        "low": lambda: b.item("low", b.op("parts", aten.split.Tensor, v, 2, at="layers.0"), 1, at="layers.0"),
        "wide": lambda: b.op("wide", aten.expand.default, v, [2, 4, 4], at="layers.0"),
    }
    read = [made[name]() for name in makes]
    out = b.op("out", aten.exp.default, v, at="layers.0")
    gradient = b.tangent(out)
    return b.joint([out], [b.back(f"g_{n.name}", aten.sub.Tensor, n, n, of=out) for n in read] + [gradient])


def test_views_share_one_copy_and_are_made_again(golden) -> None:
    check(golden, "swap_views", views("turned", "low", "wide", "v"), plan(swap=[0]), views=True)


def test_a_slice_moves_alone(golden) -> None:
    check(golden, "swap_slice", views("right"), plan(swap=[0]), views=True)


def test_what_is_recomputed_reads_what_came_back(golden) -> None:
    b = Builder()
    h = b.op("h", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4), at="layers.0.norm")
    fc = b.op("fc", aten.mm.default, h, b.parameter("w1", 4, 4), at="layers.0.mlp.fc")
    act = b.op("act", aten.gelu.default, fc, at="layers.0.mlp.act")
    out = b.op("out", aten.neg.default, act, at="layers.1")
    g_out = b.back("g_out", aten.neg.default, b.tangent(out), of=out)
    g_act = b.back("g_act", aten.gelu_backward.default, g_out, fc, of=act)
    joint = b.joint([out], [b.back("g_fc", aten.mm.default, h, g_act, of=fc)])
    check(golden, "swap_recompute", joint, plan(select={"mlp": [0]}, swap_operators={r"mlp\.fc\.mm": [0]}))


def test_when_nothing_moves_nothing_changes() -> None:
    joint, rules = tower("layers.0", "layers.1"), plan(swap=[0], min_bytes=1000)
    pair = paired(joint, rules)
    before = show_pair(pair)
    insert_offload(pair, [], rules.swap, asynchronous=True)
    schedule_prefetch(pair, [])
    verify_swap(pair, [])
    assert show_pair(pair) == before


@pytest.mark.parametrize(
    ("travel", "asynchronous", "arguments"),
    [
        ({}, True, ("disk", None, IN_FLIGHT_CPU, None, True)),
        ({"store": "disk", "directory": "/scratch"}, False, ("disk", "/scratch", IN_FLIGHT_CPU, None, False)),
        ({"in_flight_bytes": 4096, "host_limit": 8192}, True, ("disk", None, 4096, 8192, True)),
    ],
)
def test_an_offload_carries_how_its_value_travels(travel, asynchronous: bool, arguments: tuple[object, ...]) -> None:
    rules = plan(3, swap=[0], **travel)
    pair, moves = chosen(tower("layers.0.mlp", "layers.1"), rules)
    insert_offload(pair, plan_journeys(pair, moves, 1), rules.swap, asynchronous=asynchronous)
    (offload,) = pair.forward.graph.find_nodes(op="call_function", target=OFFLOAD)
    assert offload.args == (node_of(pair.forward, "a0"), "a0 of layer 0, mlp", *arguments)


@pytest.mark.parametrize(
    ("place", "layer", "title"),
    [("layers.0.mlp.act", 0, "a0 of layer 0, mlp.act"), ("layers.1", 1, "a0 of layer 1"), ("embedding", 0, "a0, embedding")],
)
def test_a_value_is_called_by_where_it_comes_from(place: str, layer: int, title: str) -> None:
    b = Builder()
    value = b.op("a0", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4), at=place)
    out = b.op("out", aten.neg.default, value, at=f"layers.{layer}")
    joint = b.joint([out], [b.back("g", aten.mul.Tensor, b.tangent(out), value, of=out)])
    (move,) = chosen(joint, plan(swap=[layer]))[1]
    assert move.title == title


def test_tickets_and_tokens_are_one_integer_in_host_memory_and_values_have_the_form_they_had() -> None:
    pair, _ = travelled(tower("layers.0", "layers.1"), plan(swap=[0]))
    for module, name in ((pair.forward, "a0_ticket"), (pair.backward, "a0_ticket"), (pair.backward, "a0_prefetch")):
        stands = node_of(module, name).meta["val"]
        assert (stands.shape, stands.dtype, stands.device.type) == ((1,), torch.int64, "cpu")
    back = node_of(pair.backward, "a0_wait").meta["val"]
    assert (back.shape, back.stride(), back.dtype) == ((4, 4), (4, 1), torch.float32)


def turned_value(dtype: torch.dtype) -> JointGraph:
    """``v`` is not contiguous by itself: its strides are those of what it is computed from."""
    b = Builder()
    turned = b.op("turned", aten.t.default, b.input("x", 6, 4, dtype=dtype), at="layers.0")
    v = b.op("v", aten.exp.default, turned, at="layers.0")
    out = b.op("out", aten.neg.default, v, at="layers.0")
    return b.joint([out], [b.back("g", aten.mul.Tensor, b.tangent(out), v, of=v)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.float64], ids=str)
def test_a_value_returns_with_its_own_size_stride_and_type(dtype: torch.dtype) -> None:
    pair, _ = travelled(turned_value(dtype), plan(swap=[0]))
    wait = node_of(pair.backward, "v_wait")
    assert wait.args[1:] == ([4, 6], [1, 4], dtype, torch.device("cpu"))
    assert wait.meta["val"].stride() == (1, 4)
    given, _ = node_of(pair.forward, "v_ticket").meta["eager_input_vals"]  # for inductor, which may choose other strides
    assert (given[0].stride(), given[1:]) == ((1, 4), node_of(pair.forward, "v_ticket").args[1:])


def test_views_made_only_to_cross_are_gone_from_the_forward() -> None:
    pair, _ = travelled(views("turned", "low", "wide", "v"), plan(swap=[0]), views=True)
    assert [n.name for n in pair.forward.graph.nodes if n.op == "call_function"] == ["v", "out", "v_ticket"]


def test_descriptions_of_what_is_returned_keep_their_places() -> None:
    rules = plan(swap=[0])
    pair, moves = chosen(views("turned", "low", "v"), rules, views=True)
    (output,) = pair.forward.graph.find_nodes(op="output")
    output.meta["desc"] = [n.name for n in output.args[0]]
    first = moves[0].crossings[0]
    first.loaded.meta["desc"] = "where it comes from"
    travel(pair, plan_journeys(pair, moves, 1), rules)
    assert [n.name for n in output.args[0]] == ["out", "v_ticket"]
    assert output.meta["desc"] == ["out", first.own.name]
    assert node_of(pair.backward, "v_ticket").meta["desc"] == "where it comes from"


def test_of_several_values_after_one_use_all_leave_in_the_order_of_their_return() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    left, right = (b.op(n, aten.mm.default, x, b.parameter(f"w_{n}", 4, 4), at="layers.0") for n in ("left", "right"))
    out = b.op("out", aten.mul.Tensor, left, right, at="layers.0")
    gradient = b.tangent(out)
    backs = [b.back(f"g_{n.name}", aten.mul.Tensor, gradient, n, of=out) for n in (right, left)]
    pair, journeys = travelled(b.joint([out], backs), plan(swap=[0]))
    assert [j.move.value.name for j in journeys] == ["right", "left"]
    names = [n.name for n in pair.forward.graph.nodes if n.op == "call_function"]
    assert names == ["left", "right", "out", "right_ticket", "left_ticket"]


def test_every_reload_depends_on_its_ticket_and_every_use_on_its_reload() -> None:
    pair, journeys = travelled(tower("layers.0", "layers.1", "layers.2"), plan(3, swap=[0, 1, 2]))
    assert len(journeys) == 3
    for wait in pair.backward.graph.find_nodes(op="call_function", target=WAIT):
        token = wait.args[0]
        assert token.target is PREFETCH
        assert token.args[0].op == "placeholder"
        assert [u.name for u in wait.users] == [wait.name.replace("a", "g", 1).removesuffix("_wait")]


def test_the_edited_graphs_are_recompiled() -> None:
    pair, _ = travelled(tower("layers.0", "layers.1"), plan(swap=[0]))
    assert "memopt.offload" in pair.forward.code
    assert "memopt.wait" in pair.backward.code
    assert show_graph(pair.backward).count("memopt.") == 2
