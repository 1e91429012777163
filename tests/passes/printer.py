"""Graphs as text, and text from graphs: what the tests of passes are written in.

``Builder`` makes a joint graph of a few nodes by hand; ``show`` prints a joint graph with its decisions, one node a line:

    gelu = aten.gelu(fc1)  layers.0.mlp.act  RECOMPUTE 0 — module mlp is recomputed

Nothing printed depends on where the files lie, on addresses or on a device.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from memopt.compiler import torch_bridge
from memopt.passes.joint import JointGraph, decide, decision_of
from memopt.passes.operators import viewed
from memopt.passes.policy import Action, Decision, LayerPlan, Plan, Rule, RuleKind, SwapPolicy
from memopt.passes.tag import tag
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

_COLUMN = 44
_SECTIONS = {RuleKind.EXCLUDE_OP: "recompute.exclude_op", RuleKind.SWAP_OP: "swap.op_swap"}


def show(joint: JointGraph) -> str:
    """The whole graph, one node a line, with each node's place and decision."""
    return "\n".join(_line(node, joint) for node in joint.graph.nodes) + "\n"


def decided(joint: JointGraph) -> str:
    """Only the nodes about which something was decided: ``name ACTION region rule — reason``."""
    lines = []
    for node in joint.graph.nodes:
        decision = decision_of(node)
        if decision is not None:
            region = "-" if decision.region is None else decision.region
            lines.append(f"{node.name} {decision.action.name} {region} {decision.rule} — {decision.reason}")
    return "\n".join(lines) + ("\n" if lines else "")


def actions(joint: JointGraph) -> dict[str, str]:
    """Node name -> the action decided for it."""
    found = ((n.name, decision_of(n)) for n in joint.graph.nodes)
    return {name: decision.action.name for name, decision in found if decision is not None}


def show_graph(module: GraphModule) -> str:
    """The nodes of any graph, one a line, without places or decisions."""
    return "\n".join(_formula(node) for node in module.graph.nodes) + "\n"


def _line(node: Node, joint: JointGraph) -> str:
    text = _formula(node)
    place = _place(node, joint)
    decision = decision_of(node)
    verdict = ""
    if decision is not None:
        region = "" if decision.region is None else f" {decision.region}"
        verdict = f"{decision.action.name}{region} — {decision.reason}"
    if not place and not verdict:
        return text
    return f"{text:<{_COLUMN}}  {place:<18}  {verdict}".rstrip()


def _formula(node: Node) -> str:
    if node.op == "placeholder":
        return f"{node.name} = placeholder"
    arguments = [_argument(a) for a in node.args] + [f"{k}={_argument(v)}" for k, v in node.kwargs.items()]
    if node.op == "output":
        return f"return {_argument(node.args[0])}"
    return f"{node.name} = {_target(node.target)}({', '.join(arguments)})"


def _target(target: object) -> str:
    if target is operator.getitem:
        return "getitem"
    if isinstance(target, torch._ops.OpOverload):
        return str(target.overloadpacket)
    return str(getattr(target, "__name__", target))


def _argument(value: object) -> str:
    if isinstance(value, Node):
        return value.name
    if isinstance(value, list | tuple):
        return f"[{', '.join(_argument(v) for v in value)}]"
    return str(value)


def _place(node: Node, joint: JointGraph) -> str:
    if node.op == "call_function" and node in joint.backward:
        return "backward"
    scope = joint.scopes.get(node)
    if node.op != "call_function" or scope is None:
        return ""
    if scope.layer is None:
        return scope.path
    return f"layers.{scope.layer}.{scope.path}".rstrip(".")


class Builder:
    """Makes a small joint graph by hand: operators run on fake tensors, so that every node has its shape.

    Layers are called ``layers.0``, ``layers.1``, ...; a place such as ``layers.0.mlp`` becomes an ``nn_module_stack``.
    """

    def __init__(self, layers: int = 2) -> None:
        self.graph = Graph()
        self.layer_of_path = {f"layers.{i}": i for i in range(layers)}
        self.parameters: list[Node] = []
        self.mutated: list[Node] = []
        self.tangents: list[Node] = []
        self._mode = FakeTensorMode()
        self._last: Node | None = None

    def input(self, name: str, *shape: int, dtype: torch.dtype = torch.float32, mutated: bool = False) -> Node:
        """An input of the model; ``mutated``: the forward changes it in place."""
        node = self._placeholder(f"primals_{name}", shape, dtype)
        if mutated:
            self.mutated.append(node)
        return node

    def parameter(self, name: str, *shape: int, dtype: torch.dtype = torch.float32, mutated: bool = False) -> Node:
        """A parameter or buffer of the model."""
        node = self.input(name, *shape, dtype=dtype, mutated=mutated)
        self.parameters.append(node)
        return node

    def tangent(self, of: Node) -> Node:
        """The gradient that arrives for a value."""
        node = self._placeholder(f"tangents_{of.name}", tuple(of.meta["val"].shape), of.meta["val"].dtype)
        self.tangents.append(node)
        return node

    def op(
        self,
        name: str,
        target: Callable[..., Any],
        *args: Any,
        at: str = "",
        fn: object = None,
        call: int = 0,
        call_of_function: str = "",
        **kwargs: Any,
    ) -> Node:
        """An operator of the forward.

        Args:
            at: the module path; empty where torch recorded none.
            fn: the function the user called.
            call: which call of the layer this is.
            call_of_function: tells two calls of ``fn`` in one module apart.
        """
        node = self._call(name, target, args, kwargs, "is_forward")
        node.meta["seq_nr"] = len(self.graph.nodes)
        if at:
            node.meta["nn_module_stack"] = _module_stack(at, call)
        if fn is not None:
            function = getattr(fn, "__name__", str(fn))
            node.meta["source_fn_stack"] = [(call_of_function or f"{function}@{at}#{call}", fn)]
        return node

    def back(self, name: str, target: Callable[..., Any], *args: Any, of: Node | None = None, **kwargs: Any) -> Node:
        """An operator of the backward; ``of``: the operator of the forward that it differentiates."""
        node = self._call(name, target, args, kwargs, "is_backward")
        if of is not None:
            node.meta["seq_nr"] = of.meta["seq_nr"]
        return node

    def item(self, name: str, source: Node, index: int, **place: Any) -> Node:
        """One output of a tuple-valued operator."""
        return self.op(name, operator.getitem, source, index, **place)

    def joint(self, forward: Sequence[Node], gradients: Sequence[Node | None] = ()) -> JointGraph:
        """The finished graph: what the forward returns, then the gradients."""
        self.graph.output([*forward, *gradients])
        self.graph.lint()
        return JointGraph(
            module=GraphModule(nn.Module(), self.graph),
            layer_of_path=self.layer_of_path,
            parameters=frozenset(self.parameters),
            mutated=frozenset(self.mutated),
            tangents=frozenset(self.tangents),
            num_fwd_outputs=len(forward),
        )

    def _placeholder(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Node:
        with self.graph.inserting_after(self._last):
            node = self._last = self.graph.placeholder(name)
        with self._mode:
            node.meta["val"] = torch.empty(shape, dtype=dtype)
        return node

    def _call(self, name: str, target: Callable[..., Any], args: Any, kwargs: Any, tag_name: str) -> Node:
        node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        assert node.name == name, f"{name} is taken"
        values = map_arg((args, kwargs), lambda n: n.meta["val"])
        with self._mode:
            node.meta["val"] = target(*values[0], **values[1])
        node.meta["partitioner_tag"] = tag_name
        return node


def _module_stack(path: str, call: int) -> dict[str, tuple[str, type]]:
    parts = path.split(".")
    stack: dict[str, tuple[str, type]] = {"root": ("L['self']", nn.Module)}
    for end in range(1, len(parts) + 1):
        if end == 1 and parts[0] == "layers" and len(parts) > 1:
            continue  # a ModuleList is never called
        own = ".".join(parts[:end])
        suffix = f"@{call}" if call else ""
        stack[f"{own}{suffix}"] = (f"L['self'].{own}", nn.Module)
    return stack


def rule(kind: RuleKind, pattern: str, layers: Iterable[int], *, literal: bool = False) -> Rule:
    """A rule as the configuration would give it."""
    numbers = tuple(layers)
    if kind is RuleKind.RECOMPUTE_FULL:
        return Rule(kind, "recompute.full_recompute_layer", "", numbers)
    if kind is RuleKind.SWAP_LAYER:
        return Rule(kind, "swap.layer_swap[0]", "", numbers)
    return Rule(kind, f"{_SECTIONS.get(kind, kind.value)}[{pattern!r}]", pattern, numbers, literal)


def plan(
    layers: int = 2,
    *,
    full: Sequence[int] = (),
    select: Mapping[str, Sequence[int]] | None = None,
    operators: Mapping[str, Sequence[int]] | None = None,
    exclude: Sequence[str] | Mapping[str, Sequence[int]] = (),
    comm: Mapping[str, Sequence[int]] | None = None,
    swap: Sequence[int] = (),
    swap_modules: Mapping[str, Sequence[int]] | None = None,
    swap_operators: Mapping[str, Sequence[int]] | None = None,
    **travel: Any,
) -> Plan:
    """A plan as ``resolve`` would make it: whole layers, module paths, patterns that may name operators, and what is kept.

    ``travel``: how values are swapped, where that matters, as ``SwapPolicy`` has it; one layer ahead if not said otherwise.
    """
    plans = []
    for index in range(layers):
        recomputed = _rules_of_layer(index, RuleKind.RECOMPUTE_FULL, full, RuleKind.RECOMPUTE_SELECT, select)
        swapped = _rules_of_layer(index, RuleKind.SWAP_LAYER, swap, RuleKind.SWAP_OP, swap_modules)
        plans.append(
            LayerPlan(
                index,
                f"layers.{index}",
                recompute_full="" in recomputed,
                recompute=tuple(p for p in recomputed if p),
                swap_full="" in swapped,
                swap=tuple(p for p in swapped if p),
                rules={**recomputed, **swapped},
            )
        )
    pending = tuple(rule(RuleKind.RECOMPUTE_SELECT, p, numbers) for p, numbers in (operators or {}).items())
    pending += tuple(rule(RuleKind.RECOMPUTE_COMM, p, numbers) for p, numbers in (comm or {}).items())
    pending += tuple(rule(RuleKind.SWAP_OP, p, numbers) for p, numbers in (swap_operators or {}).items())
    if isinstance(exclude, Mapping):
        kept = tuple(rule(RuleKind.EXCLUDE_OP, p, numbers) for p, numbers in exclude.items())
    else:
        kept = tuple(rule(RuleKind.EXCLUDE_OP, p, range(layers), literal=True) for p in exclude)
    policy = SwapPolicy(**{"prefetch": 1, **travel}) if swap or swap_modules or swap_operators else None
    return Plan(tuple(plans), pending=pending, exclude=kept, swap=policy)


def _rules_of_layer(
    index: int, full: RuleKind, layers: Sequence[int], select: RuleKind, modules: Mapping[str, Sequence[int]] | None
) -> dict[str, Rule]:
    """Module path in the layer -> its rule; a rule for the whole layer leaves nothing to those for modules."""
    if index in layers:
        return {"": rule(full, "", layers)}
    return {path: rule(select, f".*{path}", numbers) for path, numbers in (modules or {}).items() if index in numbers}


def recompute(*nodes: Node, region: int | None = 0, layer: int | None = 0, path: str = "", rule: str = "a rule") -> None:
    """Decide by hand to recompute nodes."""
    for node in nodes:
        decide(node, Decision(Action.RECOMPUTE, rule, layer, path, "a rule says so", region))


def save(*nodes: Node, region: int | None = None, layer: int | None = 0, path: str = "", rule: str = "a rule") -> None:
    """Decide by hand to save nodes."""
    for node in nodes:
        decide(node, Decision(Action.SAVE, rule, layer, path, "a rule keeps it", region))


def split(joint: JointGraph, *, views: bool = False) -> tuple[GraphModule, GraphModule]:
    """Split a copy of a decided joint graph with torch's partitioner, as the pipeline does.

    The operators of hand-built graphs are so cheap that torch would recompute each: what is to be swapped is saved here.

    ``views``: save just what the backward reads, a view as a view, with torch's simpler partitioner, which decides nothing.
    """
    copy = copied(joint)

    def write(node: Node, recomputed: bool | None) -> None:
        own = copy[node]
        if recomputed is None:
            torch_bridge.clear_tag(own)
        else:
            torch_bridge.write_tag(own, recompute=recomputed)

    tag(joint, write)
    for node in joint.forward_operators():
        decision = decision_of(node)
        if (
            decision is not None
            and decision.action is Action.OFFLOAD
            and viewed(node) is None
            and node.target is not operator.getitem
        ):
            write(node, False)
    module = GraphModule(nn.Module(), next(iter(copy.values())).graph)
    partition = default_partition if views else min_cut_rematerialization_partition
    with _fake_mode_of(joint):  # in which torch makes the random states it saves
        return partition(module, (), num_fwd_outputs=joint.num_fwd_outputs)


def _fake_mode_of(joint: JointGraph) -> FakeTensorMode:
    return next(n.meta["val"].fake_mode for n in joint.graph.nodes if "val" in n.meta)


def copied(joint: JointGraph) -> dict[Node, Node]:
    """Each node of a graph -> its copy in a graph of its own, with the same names."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    for node in joint.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    return copies


def named(joint: JointGraph, name: str) -> Node:
    """The node of this name."""
    return next(n for n in joint.graph.nodes if n.name == name)
