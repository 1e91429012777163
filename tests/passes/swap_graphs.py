"""Joint graphs of which values are swapped, and the way from there to the pair of graphs that the passes of swap edit."""

from __future__ import annotations

import torch
from memopt.passes.joint import JointGraph, decision_of
from memopt.passes.legalize import legalize
from memopt.passes.mark_recompute import mark_recompute
from memopt.passes.matched import Matched
from memopt.passes.policy import Action, Plan
from memopt.passes.swap.choose_offload import Move, choose_offload
from memopt.passes.swap.hoist import hoist
from memopt.passes.swap.insert_offload import insert_offload
from memopt.passes.swap.journey import Journey, plan_journeys
from memopt.passes.swap.keep_borders import keep_borders
from memopt.passes.swap.mark_offload import mark_offload
from memopt.passes.swap.pair import Pair
from memopt.passes.swap.schedule_prefetch import schedule_prefetch
from printer import Builder, show_graph, split
from torch.fx import GraphModule, Node

aten = torch.ops.aten


def tower(*places: str, calls: tuple[int, ...] = (), layers: int = 8) -> JointGraph:
    """``a0 = mm(x, w)``, ``a1 = mm(a0, w)``, ...: a value at each place; the backward of each reads that value alone."""
    b = Builder(layers)
    value, w = b.input("x", 4, 4), b.parameter("w", 4, 4)
    nodes: list[Node] = []
    for i, place in enumerate(places):
        value = b.op(f"a{i}", aten.mm.default, value, w, at=place, call=calls[i] if calls else 0)
        nodes.append(value)
    out = b.op("out", aten.neg.default, value, at="head")
    gradient = b.back("g", aten.neg.default, b.tangent(out), of=out)
    for i, node in reversed(list(enumerate(nodes))):
        gradient = b.back(f"g{i}", aten.mul.Tensor, gradient, node, of=node)
    return b.joint([out], [gradient])


def paired(joint: JointGraph, plan: Plan, matched: Matched | None = None, *, views: bool = False) -> Pair:
    """Decide and split, as the pipeline does before anything is chosen to move; ``views``: see ``split``."""
    matched = matched if matched is not None else Matched()
    mark_recompute(joint, plan, matched)
    legalize(joint, matched, with_rules=True)
    mark_offload(joint, plan, matched)
    keep_borders(joint, plan)
    return Pair(joint, *split(joint, views=views), matched.swapped)


def chosen(joint: JointGraph, plan: Plan, matched: Matched | None = None, *, views: bool = False) -> tuple[Pair, list[Move]]:
    """Decide, split, and choose what moves."""
    assert plan.swap is not None
    matched = matched if matched is not None else Matched()
    pair = paired(joint, plan, matched, views=views)
    return pair, choose_offload(pair, plan.swap, matched)


def moving(joint: JointGraph, plan: Plan, matched: Matched | None = None, *, views: bool = False) -> dict[str, list[str]]:
    """What moves -> what crosses of it."""
    return {move.value.name: [c.own.name for c in move.crossings] for move in chosen(joint, plan, matched, views=views)[1]}


def staying(joint: JointGraph) -> dict[str, str]:
    """What was looked at and stays -> why."""
    found = ((n.name, decision_of(n)) for n in joint.graph.nodes)
    return {
        name: decision.reason.removeprefix("it stays: ")
        for name, decision in found
        if decision is not None and decision.action is Action.SAVE and decision.reason.startswith("it stays: ")
    }


def travelled(joint: JointGraph, plan: Plan, *, views: bool = False) -> tuple[Pair, list[Journey]]:
    """Run all passes of swap but the last, which verifies."""
    assert plan.swap is not None
    pair, moves = chosen(joint, plan, views=views)
    hoist(pair, moves)
    journeys = plan_journeys(pair, moves, plan.swap.prefetch)
    travel(pair, journeys, plan)
    return pair, journeys


def travel(pair: Pair, journeys: list[Journey], plan: Plan) -> None:
    """Edit both graphs as planned."""
    assert plan.swap is not None
    insert_offload(pair, journeys, plan.swap, asynchronous=True)
    schedule_prefetch(pair, journeys)


def show_pair(pair: Pair) -> str:
    """Both graphs, one node a line."""
    return f"forward\n{show_graph(pair.forward)}\nbackward\n{show_graph(pair.backward)}"


def node_of(module: GraphModule, name: str) -> Node:
    """The node of this name in one of the two graphs."""
    return next(n for n in module.graph.nodes if n.name == name)
