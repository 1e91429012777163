"""``scope="layer"``: every layer is compiled in place by itself, layers with the same policy and structure together.

::

    layers  0  1  2  3  4  5        recompute: full_recompute_layer: [0-2]
    groups  a  a  a  b  b  b        two compilations, however many layers there are

The rest of the model runs as it is. What goes from layer to layer (the early reload of swapped values) is issued by the
runtime (``runtime/calls.py``), which sees every layer's forward and the beginning of its backward.
"""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from ..passes.policy import Plan
from ..runtime.calls import Calls
from . import torch_bridge
from .forward import Settings, causes_raised, compiled_forward
from .layer_calls import LayerCalls, new_tensors
from .plan.layers import Layer
from .session import Session

Group = Callable[..., Any]
"""Runs the forward of any layer with one policy and structure: the layer comes first, then its arguments."""


class LayeredForward:
    """The ``forward`` of a model whose layers are compiled one by one: it runs the model's own."""

    def __init__(self, model: nn.Module, settings: Settings, original: Callable[..., Any] | None = None) -> None:
        self.model = model
        self.settings = settings
        self.original = original
        self.session = settings.session(model)
        swap = settings.plan.swap
        self.calls = Calls(swap.prefetch if swap is not None else 0)
        self.layers = LayerCalls()
        self._groups: dict[Hashable, Group] = {}
        self._group_of: dict[int, Group] = {}
        self._broken: set[Group] = set()
        functools.update_wrapper(self, original or types.MethodType(type(model).forward, model))

    @torch.compiler.disable(reason="memopt compiles the layers of this module")  # type: ignore[no-untyped-call, untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward, in which each layer runs compiled."""
        session = self.session
        session.refuse()
        session.calls += 1
        news, breaks = session.news, torch_bridge.watch_breaks()
        self.layers.begin()
        forward = self.original or functools.partial(type(self.model).forward, self.model)
        with self.calls.new_pass():
            result = forward(*args, **kwargs)
        self.layers.say(session, breaks, is_news=session.news != news, is_whole=True)
        return result

    def run(self, index: int, layer: nn.Module, original: Callable[..., Any] | None, args: Any, kwargs: Any) -> Any:
        """Run the forward of one layer, compiled."""
        session = self.session
        session.refuse()
        group = self._group(index, layer, original)
        alone = None if self.calls.is_in_pass else (session.news, torch_bridge.watch_breaks())
        runs, before, noted = session.runs, session.place, torch_bridge.count_breaks()
        session.place = index, layer
        given = args if original is None else (original, *args)
        try:
            with causes_raised(), torch_bridge.recompilations(self._most_variants()), self.calls.call(index) as call:
                result = group(layer, *given, **kwargs)
        finally:
            session.place = before
        if torch_bridge.count_breaks() != noted:
            self._broken.add(group)
        self.layers.note(index, session.runs - runs, breaks=group in self._broken)
        if torch.is_grad_enabled():
            call.watch(new_tensors(result, (args, kwargs)))
        if alone is not None:
            news, breaks = alone
            self.layers.say(session, breaks, is_news=session.news != news, is_whole=False)
        return result

    def _group(self, index: int, layer: nn.Module, original: Callable[..., Any] | None) -> Group:
        """The group of a layer, found at its first call: what changes later, torch's guards see."""
        group = self._group_of.get(index)
        if group is None:
            key = policy_of(self.settings.plan, index), structure_of(layer), None if original is None else index
            group = self._groups.get(key)
            if group is None:
                title = f"{type(layer).__name__}_{index}"
                group = compiled_forward(_Backend(self.session), title, self.settings, is_instances=original is not None)
                self._groups[key] = group
            self._group_of[index] = group
        return group

    def _most_variants(self) -> int:
        """How often one group may be compiled: once for each of its layers, where torch tells them apart by an attribute."""
        return 8 * max(len(self.settings.plan.layers), 1)

    def __deepcopy__(self, memo: dict[int, Any]) -> LayeredForward:
        model = memo.get(id(self.model))
        if model is None:
            model = copy.deepcopy(self.model, memo)
        made = LayeredForward(model, self.settings, copy.deepcopy(self.original, memo))
        memo[id(self)] = made
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        self.settings.check_picklable()
        return LayeredForward, (self.model, self.settings, self.original)


class _Backend:
    """The backend of one group: where a graph breaks, torch goes on in code that all groups share, and tells them by this."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(self, graph: GraphModule, inputs: Sequence[Any], **more: Any) -> torch_bridge.Compiled:
        return self._session(graph, inputs, **more)


class LayerForward:
    """The ``forward`` of one layer; it lies on the instance, so that the layer stays what it was."""

    def __init__(
        self, owner: LayeredForward, places: tuple[int, ...], layer: nn.Module, original: Callable[..., Any] | None
    ) -> None:
        """``places``: the numbers that the layer has; several where it stands at several places of its stack."""
        self.owner = owner
        self.places = places
        self.layer = layer
        self.original = original
        functools.update_wrapper(self, original or types.MethodType(type(layer).forward, layer))

    @torch.compiler.disable(reason="memopt compiles this layer by itself")  # type: ignore[no-untyped-call, untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the layer's forward, compiled."""
        index = self.places[self.owner.layers.count(self.places[0]) % len(self.places)]
        return self.owner.run(index, self.layer, self.original, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> LayerForward:
        layer = memo.get(id(self.layer))
        if layer is None:
            layer = copy.deepcopy(self.layer, memo)
        # Copied with its model, it belongs to the copy of the model; alone, it goes on with the policy that it has.
        owner = copy.deepcopy(self.owner, memo) if id(self.owner.model) in memo else self.owner
        return LayerForward(owner, self.places, layer, copy.deepcopy(self.original, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return LayerForward, (self.owner, self.places, self.layer, self.original)


def conflicts(plan: Plan, stack: Sequence[Layer]) -> list[str]:
    """What the user should hear of modules that are several layers with different rules."""
    first: dict[int, int] = {}
    return [
        f"layers {first[id(layer.module)]} and {layer.index} are one module, and have different rules: with scope='layer' it "
        f"follows those of layer {first[id(layer.module)]}. Give both the same, or use scope='model'."
        for layer in stack
        if policy_of(plan, first.setdefault(id(layer.module), layer.index)) != policy_of(plan, layer.index)
    ]


def attach(forward: LayeredForward, stack: Sequence[Layer]) -> None:
    """Give every layer of the model its forward; a module that is several layers with other rules has those of the first."""
    plan = forward.settings.plan
    numbers: dict[int, list[int]] = {}
    for entry in stack:
        numbers.setdefault(id(entry.module), []).append(entry.index)
    for layer in {id(entry.module): entry.module for entry in stack}.values():
        first, *others = numbers[id(layer)]
        differing = [index for index in others if policy_of(plan, index) != policy_of(plan, first)]
        forward.layers.told.update(("shared", index) for index in differing)
        places = tuple(index for index in (first, *others) if index not in differing)
        object.__setattr__(layer, "forward", LayerForward(forward, places, layer, layer.__dict__.get("forward")))


def detach(model: nn.Module) -> None:
    """Give the layers of a model compiled before with ``scope="layer"`` back what they had."""
    forward = model.__dict__.get("forward")
    if not isinstance(forward, LayeredForward):
        return
    for module in model.modules():
        own = module.__dict__.get("forward")
        if isinstance(own, LayerForward) and own.owner is forward:
            if own.original is None:
                object.__delattr__(module, "forward")
            else:
                object.__setattr__(module, "forward", own.original)


def policy_of(plan: Plan, index: int) -> Hashable:
    """What holds in a layer, as far as compiling it depends on it: equal for layers that can share a compilation."""
    layer = plan.layer(index)
    return (
        layer.recompute_full,
        layer.recompute,
        layer.swap_full,
        layer.swap,
        tuple(sorted((path, rule.field) for path, rule in layer.rules.items())),
        tuple(rule.field for rule in (*plan.pending, *plan.exclude) if index in rule.layers),
    )


def structure_of(layer: nn.Module) -> Hashable:
    """The modules and tensors of a layer: where they differ, one compilation would not serve."""
    modules = tuple((name, type(module)) for name, module in layer.named_modules())
    tensors = (*layer.named_parameters(), *layer.named_buffers())
    return modules, tuple((name, tuple(t.shape), t.dtype, t.device, t.requires_grad) for name, t in tensors)
