from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from memopt.passes.joint import JointGraph, decision_of
from memopt.passes.matched import Matched
from memopt.passes.policy import Action, Plan
from printer import Builder, actions, named, plan
from swap_graphs import aten, chosen, moving, staying
from torch.fx import Node

LAYER = plan(swap=[0])
MODULE = plan(swap_modules={"mlp": [0]})


def read_by(*readers: str | None, at: str = "layers.0.mlp", returned: bool = False) -> JointGraph:
    """``v = mm(x, w)``, and ``mul(v, out)`` at each place, whose backward reads v; None: torch does not say of what it is."""
    b = Builder()
    value = b.op("v", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4), at=at)
    outs = [b.op(f"r{i}", aten.mul.Tensor, value, value, at=place or "head") for i, place in enumerate(readers)]
    gradients = [b.tangent(out) for out in outs]
    pairs = zip(outs, gradients, readers, strict=True)
    backs = [b.back(f"g{i}", aten.mul.Tensor, g, value, of=out if place else None) for i, (out, g, place) in enumerate(pairs)]
    return b.joint([*outs, value] if returned else outs, backs)


@pytest.mark.parametrize(
    ("readers", "rules", "reason"),
    [
        (("layers.0.mlp", "layers.1"), LAYER, "the backward of layer 1, which is not swapped, reads it"),
        (("layers.1.mlp", "layers.0.mlp"), MODULE, "the backward of layer 1, which is not swapped, reads it"),
        (("layers.0.mlp", "head"), LAYER, "the backward outside the layers (g1) reads it"),
        (("layers.0.mlp", "layers.0.attention"), MODULE, "the backward of layer 0 outside what is swapped there (g1) reads it"),
        (("layers.0.mlp", None), LAYER, "a node of the backward that torch attributes to no layer (g1) reads it"),
    ],
    ids=["other layer", "other layer first", "outside the layers", "rest of the layer", "unattributed"],
)
def test_a_value_that_something_else_reads_stays(readers, rules: Plan, reason: str) -> None:
    joint, matched = read_by(*readers), Matched()
    assert moving(joint, rules, matched) == {}
    assert staying(joint) == {"v": reason}
    (rule,) = {r.field for r in matched.swapped.values()}
    assert matched.ineffective == {rule: f"swaps nothing: v stays: {reason}"}
    assert matched.effective == set()
    assert decision_of(named(joint, "v")).rule == rule


@pytest.mark.parametrize(
    ("readers", "at", "rules"),
    [
        (("layers.0.mlp",), "layers.0.mlp", LAYER),
        (("layers.0.mlp", "layers.0.attention"), "layers.0.mlp", LAYER),
        (("layers.0.mlp", "layers.0.mlp.act"), "layers.0", MODULE),
        (("layers.0", "layers.1"), "layers.0", plan(swap=[0, 1])),
        (("layers.1",), "layers.0", plan(swap=[1])),
        (("layers.0",), "embedding", LAYER),
        (("layers.0.mlp",), "layers.0.mlp", plan(swap_operators={r".*\.mul": [0]})),
    ],
    ids=["one reader", "two", "a module", "two swapped layers", "input of a layer", "input of the first layer", "operator"],
)
def test_a_value_that_only_swapped_things_read_moves(readers, at: str, rules: Plan) -> None:
    joint, matched = read_by(*readers, at=at), Matched()
    assert moving(joint, rules, matched) == {"v": ["v"]}
    decision = decision_of(named(joint, "v"))
    (rule,) = {r.field for r in matched.swapped.values()}
    assert (decision.action, decision.rule) == (Action.OFFLOAD, rule)
    assert decision.reason == "it waits for its backward on the disk"
    assert (matched.effective, matched.ineffective) == ({rule}, {})


@pytest.mark.parametrize(
    ("made", "read", "moves"),
    [("layers.1", "layers.0", {"v": ["v"]}), ("layers.0", "layers.1", {}), ("layers.1", "layers.1", {})],
)
def test_who_reads_a_view_reads_and_who_makes_it_does_not(made: str, read: str, moves) -> None:
    b = Builder()
    v = b.op("v", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4), at="layers.0")
    turned = b.op("turned", aten.t.default, v, at=made)
    out = b.op("out", aten.mul.Tensor, turned, turned, at=read)
    joint = b.joint([out], [b.back("g", aten.mul.Tensor, b.tangent(out), turned, of=out)])
    assert moving(joint, LAYER) == moves
    assert staying(joint) == {}


def test_what_no_swapped_thing_reads_is_not_spoken_of() -> None:
    joint = read_by("layers.1", at="layers.1")
    assert moving(joint, LAYER) == {}
    assert actions(joint) == {}


# Each makes what layer 0 saves: one value or more, each read by the backward of layer 0 and by nothing else there.
Make = Callable[[Builder], list[Node]]


def op(b: Builder, name: str, target: Callable[..., object], *args: object) -> Node:
    return b.op(name, target, *args, at="layers.0")


def mm(b: Builder) -> Node:
    return op(b, "v", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4))


def indices(b: Builder) -> Node:
    return b.input("ids", 4, 4, dtype=torch.long)


def view(b: Builder, base: Node) -> Node:
    return op(b, "flat", aten.view.default, base, [16])


def turned(b: Builder, base: Node) -> Node:
    return op(b, "turned", aten.t.default, base)


def part(b: Builder, base: Node, start: int = 1, end: int = 3) -> Node:
    return op(b, f"part{start}", aten.slice.Tensor, base, 1, start, end)


def halves(b: Builder, base: Node, *which: int) -> list[Node]:
    parts = op(b, "halves", aten.split.Tensor, base, 2)
    return [b.item(f"half{i}", parts, i, at="layers.0") for i in which]


def sorted_values(b: Builder, base: Node) -> list[Node]:
    both = op(b, "both", aten.sort.default, base)
    return [b.item(name, both, i, at="layers.0") for i, name in enumerate(("values", "places"))]


def several(b: Builder, base: Node, *views: Callable[[Builder, Node], Node]) -> list[Node]:
    return [v(b, base) for v in views]


def joined(b: Builder, *parts: Node, by: Callable[..., object] = aten.cat.default) -> Node:
    return op(b, "whole", by, list(parts), 0)


def part_of(b: Builder, whole: Callable[[Node], Node]) -> list[Node]:
    """A value, and what contains it, which nothing saves."""
    v = mm(b)
    whole(v)
    return [v]


def saved_in_layer_0(make: Make, returned: tuple[str, ...] = ()) -> JointGraph:
    """A graph in which layer 0 saves what ``make`` makes; ``returned``: what the model returns besides."""
    b = Builder()
    values = make(b)
    outs = [op(b, f"out_{v.name}", aten.mul.Tensor, v, 2.0) for v in values]
    gradients = [b.tangent(out) for out in outs]
    zipped = zip(outs, gradients, values, strict=True)
    backs = [b.back(f"grad_{v.name}", aten.mul.Tensor, gradient, v, of=out) for out, gradient, v in zipped]
    given = [n for n in b.graph.nodes if n.name in returned]
    return b.joint([*outs, *given], backs)


MOVING: dict[str, tuple[Make, dict[str, list[str]]]] = {
    "a value": (lambda b: [mm(b)], {"v": ["v"]}),
    "a part of what nobody is given": (lambda b: part_of(b, lambda v: joined(b, v, v)), {"v": ["v"]}),
    "a mask of an activation": (lambda b: [op(b, "mask", aten.gt.Scalar, mm(b), 0.5)], {"mask": ["mask"]}),
    "a random mask": (lambda b: [op(b, "mask", aten.randint_like.default, indices(b), 2)], {"mask": ["mask"]}),
    "indices of an activation": (lambda b: sorted_values(b, mm(b))[1:], {"places": ["places"]}),
    "two outputs, each for itself": (lambda b: sorted_values(b, mm(b)), {"values": ["values"], "places": ["places"]}),
    "two views: the storage": (lambda b: several(b, mm(b), view, turned), {"v": ["flat", "turned"]}),
    "a value and its view: the storage": (lambda b: (lambda v: [v, turned(b, v)])(mm(b)), {"v": ["v", "turned"]}),
    "a view of all: the storage": (lambda b: [turned(b, mm(b))], {"v": ["turned"]}),
    "a smaller slice: alone": (lambda b: [part(b, mm(b))], {"part1": ["part1"]}),
    "a view of a slice: alone": (lambda b: [turned(b, part(b, mm(b)))], {"turned": ["turned"]}),
    "two slices: the storage": (
        lambda b: (lambda v: [part(b, v, 0, 1), part(b, v, 1, 2)])(mm(b)),
        {"v": ["part0", "part1"]},
    ),
    "a slice of all: the storage": (lambda b: [part(b, mm(b), 0, 4)], {"v": ["part0"]}),
    "expanded: its base": (
        lambda b: [op(b, "wide", aten.expand.default, op(b, "total", aten.sum.dim_IntList, mm(b), [1], True), [4, 4])],
        {"total": ["wide"]},
    ),
    "one part of a split: alone": (lambda b: halves(b, mm(b), 1), {"half1": ["half1"]}),
    "both parts of a split: the storage": (lambda b: halves(b, mm(b), 0, 1), {"v": ["half0", "half1"]}),
}


@pytest.mark.parametrize(("make", "moves"), MOVING.values(), ids=MOVING)
def test_one_copy_per_storage_moves(make: Make, moves: dict[str, list[str]]) -> None:
    joint = saved_in_layer_0(make)
    assert moving(joint, LAYER, views=True) == moves
    told = {name for name, action in actions(joint).items() if action == "OFFLOAD"}
    assert told >= set(moves).union(*moves.values())
    assert staying(joint) == {}


PART = "the model returns whole, in whose memory it may lie, and its caller may keep or change that"
STAYING: dict[str, tuple[Make, tuple[str, ...], dict[str, str]]] = {
    "a parameter": (lambda b: [b.parameter("p", 4, 4)], (), {}),
    "an input": (lambda b: [b.input("i", 4, 4)], (), {}),
    "a view of a parameter": (
        lambda b: [view(b, b.parameter("p", 4, 4))],
        (),
        {"flat": "a parameter or buffer of the model"},
    ),
    "a view of an input": (lambda b: [view(b, b.input("i", 4, 4))], (), {"flat": "an input of the model"}),
    "an output": (lambda b: [mm(b)], ("v",), {"v": "the model returns it, and its caller may keep or change it"}),
    "a view of an output": (
        lambda b: [turned(b, mm(b))],
        ("v",),
        dict.fromkeys(("v", "turned"), "the model returns it, and its caller may keep or change it"),
    ),
    "a view that is an output": (
        lambda b: several(b, mm(b), view, turned),
        ("flat",),
        dict.fromkeys(("v", "flat", "turned"), "the model returns it, and its caller may keep or change it"),
    ),
    "a part of an output": (lambda b: part_of(b, lambda v: joined(b, v, v)), ("whole",), {"v": PART}),
    "a part of a stack": (lambda b: part_of(b, lambda v: joined(b, v, v, by=aten.stack.default)), ("whole",), {"v": PART}),
    "a view in an output": (lambda b: part_of(b, lambda v: joined(b, turned(b, v))), ("whole",), {"v": PART}),
    "padded": (
        lambda b: part_of(b, lambda v: op(b, "whole", aten.constant_pad_nd.default, v, [0, 0, 0, 2])),
        ("whole",),
        {"v": PART},
    ),
    "a part of a part": (
        lambda b: part_of(b, lambda v: turned(b, joined(b, op(b, "inner", aten.cat.default, [v, v]), indices(b)))),
        ("turned",),
        {"v": PART.replace("whole", "turned")},
    ),
    "a mask": (
        lambda b: [op(b, "mask", aten.ge.Scalar, indices(b), 1)],
        (),
        {"mask": "a mask or table of indices that no activation went into"},
    ),
    "a table of indices": (
        lambda b: [turned(b, op(b, "table", aten.add.Tensor, indices(b), 1))],
        (),
        dict.fromkeys(("table", "turned"), "a mask or table of indices that no activation went into"),
    ),
}


@pytest.mark.parametrize(
    ("make", "returned", "stays"),
    STAYING.values(),
    ids=STAYING,
)
def test_what_is_not_the_backwards_own_stays(make: Make, returned: tuple[str, ...], stays: dict[str, str]) -> None:
    joint, matched = saved_in_layer_0(make, returned), Matched()
    assert moving(joint, LAYER, matched, views=True) == {}
    assert staying(joint) == stays
    assert matched.effective == set()


def test_a_value_moves_of_which_only_a_slice_is_in_what_the_model_returns() -> None:
    joint = saved_in_layer_0(lambda b: part_of(b, lambda v: joined(b, part(b, v), part(b, v, 0, 2))), ("whole",))
    assert moving(joint, LAYER, views=True) == {"v": ["v"]}


def test_only_values_of_the_model_itself_are_told_as_what_kept_a_rule_from_working() -> None:
    matched = Matched()
    moving(saved_in_layer_0(lambda b: [view(b, b.parameter("p", 4, 4)), b.input("i", 4, 4)]), LAYER, matched, views=True)
    assert matched.ineffective == {"swap.layer_swap[0]": "swaps nothing: no backward of what it names reads a saved value"}


def test_of_several_values_that_stay_the_largest_is_told() -> None:
    matched = Matched()
    joint = saved_in_layer_0(lambda b: [mm(b), op(b, "mask", aten.ge.Scalar, indices(b), 1)])
    moving(joint, plan(swap=[0], min_bytes=65), matched, views=True)
    assert staying(joint) == {
        "v": "smaller than swap.min_bytes (65)",
        "mask": "a mask or table of indices that no activation went into",
    }
    assert matched.ineffective == {"swap.layer_swap[0]": "swaps nothing: v stays: smaller than swap.min_bytes (65)"}


@pytest.mark.parametrize(
    ("make", "min_bytes", "moves"),
    [
        (lambda b: [mm(b)], 64, {"v"}),
        (lambda b: [mm(b)], 65, set()),
        (lambda b: [part(b, mm(b))], 32, {"part1"}),
        (lambda b: [part(b, mm(b))], 33, set()),
        (lambda b: several(b, mm(b), view, turned), 64, {"v"}),
        (lambda b: [op(b, "wide", aten.expand.default, mm(b), [9, 4, 4])], 65, set()),
    ],
    ids=["as large", "a byte less", "slice as large", "slice smaller", "views count once", "expanded elements count once"],
)
def test_smaller_values_than_min_bytes_stay(make: Make, min_bytes: int, moves: set[str]) -> None:
    assert set(moving(saved_in_layer_0(make), plan(swap=[0], min_bytes=min_bytes), views=True)) == moves


def test_what_lies_in_host_memory_does_not_move_there() -> None:
    joint = saved_in_layer_0(lambda b: [mm(b)])
    assert moving(joint, plan(swap=[0], store="host")) == {}
    assert staying(joint) == {"v": "it is in host memory already"}


@pytest.mark.parametrize(
    ("store", "device", "chosen_store"),
    [("auto", "cpu", "disk"), ("auto", "meta", "host"), ("disk", "meta", "disk"), ("host", "meta", "host")],
)
def test_the_store_follows_the_device_unless_it_is_said(store: str, device: str, chosen_store: str) -> None:
    joint = saved_in_layer_0(lambda b: [mm(b)])
    for node in joint.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = node.meta["val"].to(device)
    (move,) = chosen(joint, plan(swap=[0], store=store))[1]
    assert (move.store, move.size) == (chosen_store, 64)
    assert decision_of(named(joint, "v")).reason == f"it waits for its backward on the {chosen_store}"


def test_a_value_of_another_layout_stays() -> None:
    joint = saved_in_layer_0(lambda b: [op(b, "v", aten._to_sparse.default, b.input("x", 4, 4))])
    assert moving(joint, LAYER) == {}
    assert staying(joint) == {"v": "its layout is torch.sparse_coo, not that of a plain tensor"}


def mlp_beside_attention() -> JointGraph:
    """``h`` is read by ``fc`` and by ``q``, and the backward of both reads it; that of ``act`` reads ``fc``."""
    b = Builder()
    x, w = b.input("x", 4, 4), b.parameter("w", 4, 4)
    h = b.op("h", aten.mm.default, x, w, at="layers.0.norm")
    fc = b.op("fc", aten.mm.default, h, w, at="layers.0.mlp.fc")
    act = b.op("act", aten.gelu.default, fc, at="layers.0.mlp.act")
    q = b.op("q", aten.mm.default, h, act, at="layers.0.attention.q")
    out = b.op("out", aten.neg.default, q, at="layers.1")
    g = b.back("g", aten.neg.default, b.tangent(out), of=out)
    g_q = b.back("g_q", aten.mm.default, g, h, of=q)
    g_act = b.back("g_act", aten.gelu_backward.default, g_q, fc, of=act)
    return b.joint([out], [b.back("g_fc", aten.mm.default, g_act, h, of=fc), b.back("g_h", aten.mm.default, x, g_act, of=h)])


@pytest.mark.parametrize(
    ("rules", "moves", "stays"),
    [
        (
            {"select": {"mlp": [0]}, "swap_modules": {"attention": [0]}},
            set(),
            {"h": "the backward of layer 0 outside what is swapped there (fc) reads it"},
        ),
        ({"select": {"mlp": [0]}, "swap_operators": {r"attention\.q\.mm|mlp\.fc\.mm": [0]}}, {"h"}, {}),
        ({"full": [1], "swap": [0]}, {"h", "fc"}, {}),
        ({"swap_modules": {"mlp.act": [0]}}, {"fc"}, {}),
        ({"swap_operators": {r"mlp\.act\.gelu": [0]}}, {"fc"}, {}),
        ({"swap_modules": {"mlp": [0], "attention": [0]}}, {"fc", "h"}, {}),
    ],
    ids=["recomputed module", "recomputed and swapped", "next layer recomputed", "child", "operator", "two modules"],
)
def test_whoever_computes_again_reads_too(rules, moves: set[str], stays: dict[str, str]) -> None:
    joint = mlp_beside_attention()
    assert set(moving(joint, plan(**rules))) == moves
    assert {name: reason for name, reason in staying(joint).items() if name != "act"} == stays


def test_each_rule_is_told_whether_it_moves_anything() -> None:
    matched = Matched()
    rules = plan(swap_modules={"mlp.act": [0], "attention": [0]}, swap_operators={".*neg": [0, 1]})
    assert moving(mlp_beside_attention(), rules, matched) == {"fc": ["fc"]}
    assert matched.met == {("swap.op_swap['.*mlp.act']", 0), ("swap.op_swap['.*attention']", 0), ("swap.op_swap['.*neg']", 1)}
    assert matched.effective == {"swap.op_swap['.*mlp.act']"}
    outside = "the backward of layer 0 outside what is swapped there (g_fc) reads it"
    assert matched.ineffective == {
        "swap.op_swap['.*attention']": f"swaps nothing: h stays: {outside}",
        "swap.op_swap['.*neg']": "swaps nothing: no backward of what it names reads a saved value",
    }
