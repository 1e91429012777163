from __future__ import annotations

import torch
from memopt.passes.order_saved import order_saved
from torch.fx import Graph, GraphModule, Node

MESH = object()
TENSOR = torch.empty(2)


def _graph(names: dict[str, object], outputs: list[str] | None = None) -> GraphModule:
    graph = Graph()
    nodes: dict[str, Node] = {}
    for name, value in names.items():
        nodes[name] = graph.placeholder(name)
        nodes[name].meta["val"] = value
    graph.output(tuple(nodes[name] for name in outputs if name) if outputs is not None else ())
    return GraphModule({}, graph)


def _returned(module: GraphModule) -> list[str]:
    (output,) = module.graph.find_nodes(op="output")
    return [node.name for node in output.args[0]]


def _received(module: GraphModule) -> list[str]:
    return [node.name for node in module.graph.find_nodes(op="placeholder")]


def test_what_lies_behind_an_opaque_object_comes_before_it() -> None:
    values = {"out": TENSOR, "x": TENSOR, "mesh": MESH, "group": MESH, "state": TENSOR, "size": 3}
    forward = _graph(values, list(values))
    backward = _graph(
        {
            "size": 3,
            "x": TENSOR,
            "mesh": MESH,
            "group": MESH,
            "rng_state_output_0": TENSOR,
            "tangents_1": TENSOR,
            "seed": TENSOR,
        }
    )
    for _ in range(2):  # a second run changes nothing
        order_saved(forward, backward, 1)
        assert _returned(forward) == ["out", "x", "state", "mesh", "group", "size"]
        assert _received(backward) == ["size", "x", "rng_state_output_0", "mesh", "group", "tangents_1", "seed"]


def test_what_is_in_order_stays_as_it_is() -> None:
    names = ["out", "x", "y", "mesh", "size"]
    forward = _graph({"out": MESH, "x": TENSOR, "y": TENSOR, "mesh": MESH, "size": 3}, names)
    backward = _graph({"size": 3, "x": TENSOR, "y": TENSOR, "mesh": MESH, "tangents_1": TENSOR})
    order_saved(forward, backward, 1)
    assert _returned(forward) == names
    assert _received(backward) == ["size", "x", "y", "mesh", "tangents_1"]


def test_without_opaque_objects_nothing_moves() -> None:
    forward = _graph({"out": TENSOR, "x": TENSOR, "size": 3}, ["out", "x", "size"])
    backward = _graph({"size": 3, "x": TENSOR, "tangents_1": TENSOR})
    order_saved(forward, backward, 1)
    assert _returned(forward) == ["out", "x", "size"]
    assert _received(backward) == ["size", "x", "tangents_1"]
