"""The passes in their order, from a joint graph to a verified pair of forward and backward graphs.

Read :func:`rewrite` from top to bottom: it is the whole compiler. To add a pass, add a line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.fx import Graph, GraphModule, Node

from ..passes.joint import JointGraph, decision_of
from ..passes.legalize import legalize
from ..passes.liveness.kernels import node_by_node
from ..passes.mark_checkpoint import mark_checkpoint
from ..passes.mark_comm import mark_comm
from ..passes.mark_exclude import mark_exclude
from ..passes.mark_recompute import mark_recompute
from ..passes.matched import Matched
from ..passes.order_saved import order_saved
from ..passes.pin_mutated_inputs import pin_mutated_inputs
from ..passes.policy import Plan
from ..passes.swap.choose_offload import choose_offload
from ..passes.swap.course import Kernels
from ..passes.swap.hoist import hoist
from ..passes.swap.insert_offload import insert_offload
from ..passes.swap.journey import Journey, plan_journeys
from ..passes.swap.keep_borders import keep_borders
from ..passes.swap.mark_offload import mark_offload
from ..passes.swap.pair import Pair
from ..passes.swap.schedule_prefetch import schedule_prefetch
from ..passes.swap.verify_swap import verify_swap
from ..passes.tag import tag
from ..passes.turns import note_turns
from ..passes.verify import verify
from . import torch_bridge
from .clock import Clock


@dataclass(frozen=True)
class Source:
    """A joint graph as AOTAutograd hands it over.

    Attributes:
        module: the joint graph. It is taken over and changed.
        inputs: its example inputs.
        num_fwd_outputs: how many of its outputs the forward returns.
        static_lifetime_input_indices: which inputs are parameters and buffers; None when unknown.
        layer_input_indices: where the graph is a layer's, which inputs receive what the layer was given.
        layer_inputs_move: these may be swapped with the layer.
    """

    module: GraphModule
    inputs: Sequence[Any]
    num_fwd_outputs: int
    static_lifetime_input_indices: list[int] | None = None
    layer_input_indices: tuple[int, ...] = ()
    layer_inputs_move: bool = False


@dataclass(frozen=True)
class Rewritten:
    """What the pipeline made of one joint graph: copies for reading, which no lowering changes.

    Attributes:
        joint: the decided joint graph: decisions lie in ``node.meta["memopt"]``.
        forward: the forward graph; it returns the model's outputs, then the saved values.
        backward: the backward graph.
        matched: which rules met something, and warnings.
        seconds: the time each part took; ``torch`` is what torch's partitioner would have taken anyway.
        journeys: the values that are swapped: where each goes, when it leaves and when it returns.
    """

    joint: JointGraph
    forward: GraphModule
    backward: GraphModule
    matched: Matched
    seconds: Mapping[str, float]
    journeys: tuple[Journey, ...] = ()


def rewrite(
    source: Source,
    plan: Plan,
    layer_of_path: Mapping[str, int],
    *,
    asynchronous: bool = True,
    kernels_of: Kernels = node_by_node,
) -> tuple[Rewritten, GraphModule, GraphModule]:
    """Decide, split and verify.

    Args:
        source: the joint graph.
        plan: which rule holds in which layer.
        layer_of_path: module path of a layer -> its number, as the names in this graph have it.
        asynchronous: the backend does not reuse a value's memory while something holds the value.
        kernels_of: what the backend makes of a graph.

    Returns:
        What was made, for reading; the forward and the backward graph, to be lowered.

    Raises:
        VerificationError: the split does not honour a decision.
    """
    matched = Matched()
    clock = Clock()
    _refuse_budgets(source.module, matched)
    with clock.measure("torch"):
        torch_bridge.simplify(source.module)
    with clock.measure("decide"):
        joint = facts(source, layer_of_path)
        if pin_mutated_inputs(joint):
            joint = facts(source, layer_of_path)
        mark_checkpoint(joint, torch_bridge.checkpoint_tag)
        mark_recompute(joint, plan, matched)
        mark_exclude(joint, plan, matched)
        mark_comm(joint, plan, matched)
        legalize(joint, matched, with_rules=plan.swap is not None or any(decision_of(n) for n in joint.graph.nodes))
        mark_offload(joint, plan, matched)
        keep_borders(joint, plan)
    with clock.measure("record"):
        decided = facts(replace(source, module=snapshot(source.module)), layer_of_path)
    with clock.measure("decide"):
        tag(joint, _write_tag)
    with clock.measure("torch"):
        forward, backward = torch_bridge.min_cut(
            source.module, source.inputs, source.num_fwd_outputs, source.static_lifetime_input_indices
        )
    with clock.measure("verify"):
        order_saved(forward, backward, source.num_fwd_outputs)
        note_turns(decided, backward)
        verify(decided, forward, backward)
    journeys: list[Journey] = []
    if matched.swapped and plan.swap is not None:
        with clock.measure("swap"):
            pair = Pair(decided, forward, backward, matched.swapped)
            moves = choose_offload(pair, plan.swap, matched)
            hoist(pair, moves)
            # What one layer's graph cannot do for another, the runtime does: it issues the reloads ahead.
            journeys = plan_journeys(pair, moves, 0 if "" in layer_of_path else plan.swap.prefetch, kernels_of)
            insert_offload(pair, journeys, plan.swap, asynchronous=asynchronous)
            schedule_prefetch(pair, journeys)
            verify_swap(pair, journeys)
    with clock.measure("record"):
        made = Rewritten(decided, snapshot(forward), snapshot(backward), matched, clock.seconds, tuple(journeys))
    return made, forward, backward


def split_without_memopt(joint: JointGraph) -> tuple[GraphModule, GraphModule]:
    """Split a copy of a decided joint graph as torch would have without memopt."""
    copy = snapshot(joint.module)
    placeholders = copy.graph.find_nodes(op="placeholder")
    names = {n.name for n in joint.parameters}
    static = [i for i, n in enumerate(placeholders) if n.name in names]
    return torch_bridge.min_cut(copy, (), joint.num_fwd_outputs, static)


def facts(source: Source, layer_of_path: Mapping[str, int]) -> JointGraph:
    """Find what passes ask of a joint graph."""
    placeholders = source.module.graph.find_nodes(op="placeholder")
    tangents = frozenset(n for n in placeholders if torch_bridge.is_tangent(n))
    primals = [n for n in placeholders if n not in tangents]
    static = source.static_lifetime_input_indices or []
    return JointGraph(
        module=source.module,
        layer_of_path=layer_of_path,
        parameters=frozenset(primals[i] for i in static if i < len(primals)),
        mutated=frozenset(torch_bridge.mutated_inputs(source.module, source.num_fwd_outputs)),
        tangents=tangents,
        num_fwd_outputs=source.num_fwd_outputs,
        layer_inputs=frozenset(primals[i] for i in source.layer_input_indices if i < len(primals)),
        layer_inputs_move=source.layer_inputs_move,
    )


def snapshot(module: GraphModule) -> GraphModule:
    """A copy of a graph with the same node names, for reading after the original was lowered."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    copy = GraphModule(module, graph)
    torch_bridge.copy_sources(module, copy, copies)
    return copy


def _refuse_budgets(joint: GraphModule, matched: Matched) -> None:
    budget = torch_bridge.memory_budget_in_force(joint)
    if budget is None:
        return
    matched.warnings.append(
        f"activation_memory_budget is {budget}, and has no effect: memopt decides from its configuration, and torch decides "
        "about the rest as with a budget of 1."
    )
    torch_bridge.drop_memory_budgets(joint)


def _write_tag(node: Node, recompute: bool | None) -> None:
    if recompute is None:
        torch_bridge.clear_tag(node)
    else:
        torch_bridge.write_tag(node, recompute=recompute)
