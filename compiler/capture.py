"""One graph that torch.compile captured from the model, and what memopt made of it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.fx import GraphModule

from ..passes.liveness.kernels import node_by_node
from ..passes.operators import storage_root
from ..passes.policy import Plan
from ..passes.scopes import find_scope
from ..passes.swap.course import Kernels
from ..passes.verify import saved_values
from . import torch_bridge
from .clock import Clock
from .explain.collectives import Step, collective_steps
from .explain.raised import raised
from .pipeline import Rewritten, Source, rewrite, snapshot
from .roots import find_root, key_input, layers_below


@dataclass
class Capture:
    """A captured graph.

    Attributes:
        number: its place among the model's captured graphs, from 0.
        layer_of_path: module path of a layer -> its number; empty where the graph's names do not start at the model.
        layers: the layers that have operators in the graph.
        trains: whether a backward is compiled for it.
        layer_inputs: where the graph is a layer's, the places among its inputs of what the layer was given.
        inputs_move: these may be swapped with the layer: nobody else holds them.
        keeps_result: the graph of a layer saves what the layer returns.
        repeated: the layers for which what they were given is saved by another layer too.
        graph: a copy of it, until it is rewritten.
        inputs: stand-ins for its inputs, until it is rewritten.
        rewritten: what the pipeline made of it; None for inference, and after a hit in torch's compile cache.
        met: the fields of the rules that matched something in it, each with the layer.
        effective: the fields of the rules by which something in it is recomputed or swapped.
        ineffective: the fields of the rules that asked for it and by which nothing is -> why.
        warnings: what rewriting it gave cause to say.
        steps: the collectives of its forward and backward, in their order.
        autocast: the devices and types for which autocast was on.
        call: the number of the model's latest call that ran it, as the session counts.
        root: the path, in the model or in the layer compiled by itself, of the module whose forward it is; None if unknown.
        key_input: the place of an input that is a parameter, and its path below ``root``: tells for which module it runs.
        ran_for: the modules whose forward it was, where it is not the model's: several may share a graph.
        operators: how many operators each layer has in it; None: those of no layer, or of one that is not told.
        served: where the graph is a layer's, the layers for which it ran -> the latest call of the model in which it did.
    """

    number: int
    layer_of_path: dict[str, int]
    layers: frozenset[int]
    trains: bool
    graph: GraphModule | None
    inputs: list[Any] | None
    rewritten: Rewritten | None = None
    met: frozenset[tuple[str, int]] = frozenset()
    effective: frozenset[str] = frozenset()
    ineffective: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    autocast: tuple[tuple[str, torch.dtype], ...] = field(default_factory=tuple)
    call: int = 0
    layer_inputs: tuple[int, ...] = ()
    inputs_move: bool = False
    keeps_result: bool = False
    repeated: set[int] = field(default_factory=set)
    root: str | None = ""
    key_input: tuple[int, str] | None = None
    ran_for: set[str] = field(default_factory=set)
    operators: Counter[int | None] = field(default_factory=Counter)
    served: dict[int, int] = field(default_factory=dict)

    def serve(self, layer: int, call: int, *, repeated: bool | None) -> bool:
        """Record that the graph of a layer runs for this one; whether it had not before.

        ``repeated``: what the layer was given is saved by another layer too; None leaves that as it was.
        """
        is_new = layer not in self.served
        self.served[layer] = call
        if repeated is not None:
            (self.repeated.add if repeated else self.repeated.discard)(layer)
        return is_new

    def met_in(self) -> Iterator[tuple[str, int]]:
        """The fields of the rules that matched something, each with the layer: for a layer's graph, every layer it ran for."""
        if not self.served:
            yield from self.met
        else:
            rules = {rule for rule, _ in self.met}
            yield from ((rule, layer) for layer in self.served for rule in rules)

    def named_layers(self) -> Iterable[int]:
        """The layers that have operators in the graph."""
        return self.served or self.layers

    def rewrite(
        self,
        plan: Plan,
        module: GraphModule,
        inputs: Any,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
        *,
        asynchronous: bool = True,
        kernels_of: Kernels = node_by_node,
        **_: Any,
    ) -> tuple[GraphModule, GraphModule]:
        """Run the pipeline on the joint graph of this capture: a partition function, once ``plan`` is bound."""
        clock = Clock()
        # Tensor subclasses become several inputs each: then the places are others.
        places = self.layer_inputs if self.inputs is None or len(self.inputs) == _primals(module) else ()
        source = Source(
            module, inputs, num_fwd_outputs, static_lifetime_input_indices, places, layer_inputs_move=self.inputs_move
        )
        self.rewritten, forward, backward = rewrite(
            source, plan, self.layer_of_path, asynchronous=asynchronous, kernels_of=kernels_of
        )
        with clock.measure("compare"):
            self.rewritten.matched.warnings.extend(raised(self.rewritten, plan))
        self.rewritten = replace(self.rewritten, seconds={**self.rewritten.seconds, **clock.seconds})
        self.graph = self.inputs = None
        self.met = frozenset(self.rewritten.matched.met)
        self.effective = frozenset(self.rewritten.matched.effective)
        self.ineffective = dict(self.rewritten.matched.ineffective)
        self.warnings = tuple(self.rewritten.matched.warnings)
        made = self.rewritten
        self.steps = collective_steps(made.joint, made.forward, made.backward)
        returned = {storage_root(node) for node in made.joint.returned}
        self.keeps_result = any(
            own is not None and storage_root(own) in returned for _, own in saved_values(made.joint, forward)
        )
        return forward, backward


def capture(
    number: int,
    graph: GraphModule,
    inputs: Any,
    layer_of_path: dict[str, int],
    tensors: dict[str, int],
    *,
    is_layer: bool = False,
    inputs_move: bool = False,
) -> Capture:
    """Record a graph before it is compiled.

    ``tensors`` are the parameters of the model, or of the layer that is compiled by itself: name without wrappers -> id.
    """
    root = find_root(graph, inputs, tensors)
    named = layer_of_path if is_layer else layers_below(root, layer_of_path) if root is not None else {}
    # The parts of a model that it checkpoints itself, and branches, are graphs within the graph.
    parts = [part.graph for part in graph.modules() if isinstance(part, GraphModule)]
    scopes = [find_scope(node, named) for part in parts for node in part.nodes if node.op not in ("placeholder", "output")]
    layers = frozenset(s.layer for s in scopes if s is not None and s.layer is not None)
    trains = torch.is_grad_enabled() and any(
        isinstance(v, torch.Tensor) and v.requires_grad for v in (torch_bridge.fake_inputs(graph) or inputs)
    )
    seen = Capture(
        number, named, layers, trains, snapshot(graph), torch_bridge.fake_inputs(graph), autocast=tuple(_autocast_in_force())
    )
    seen.root, seen.key_input = root, key_input(graph)
    seen.operators = Counter(s.layer for s in scopes if s is not None)
    if is_layer:
        seen.layers = frozenset()  # those for which it runs
        seen.layer_inputs = torch_bridge.first_differentiable_argument(graph)
        seen.inputs_move = inputs_move
    return seen


def _primals(joint: GraphModule) -> int:
    return sum(not torch_bridge.is_tangent(node) for node in joint.graph.find_nodes(op="placeholder"))


def _autocast_in_force() -> Iterator[tuple[str, torch.dtype]]:
    for device in {"cpu", *([torch.accelerator.current_accelerator().type] if torch.accelerator.is_available() else [])}:  # type: ignore[union-attr]
        if torch.is_autocast_enabled(device):
            yield device, torch.get_autocast_dtype(device)


@contextlib.contextmanager
def same_autocast(seen: Capture) -> Iterator[None]:
    """Within, autocast is as it was when the graph was captured."""
    with contextlib.ExitStack() as stack:
        for device, dtype in seen.autocast:
            stack.enter_context(torch.autocast(device, dtype=dtype))
        yield
