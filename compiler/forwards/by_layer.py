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
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from ...passes.policy import Plan
from ...runtime.calls import Calls
from .. import torch_bridge
from ..plan.layers import Layer
from ..session import Place, Session
from .layer_calls import LayerCalls, first_differentiable, new_tensors
from .whole import Settings, causes_raised, compiled_forward


@dataclass(frozen=True, eq=False)
class Group:
    """The layers that share a compilation.

    Attributes:
        forward: runs the forward of any of them: the layer comes first, then its arguments.
        first: the number of the one that ran first, which stands for all in graphs and cache keys.
    """

    forward: Callable[..., Any]
    first: int


class LayeredForward:
    """The ``forward`` of a model whose layers are compiled one by one: it runs the model's own."""

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        original: Callable[..., Any] | None = None,
        shared: Collection[int] = (),
    ) -> None:
        """``shared``: layers that are one module with an earlier one, and have other rules, which do not hold."""
        self.model = model
        self.settings = settings
        self.original = original
        self.session = settings.session(model)
        swap = settings.plan.swap
        self.calls = Calls(swap.prefetch if swap is not None else 0)
        self.layers = LayerCalls()
        self.shared = frozenset(shared)
        self.layers.told.update(("shared", index) for index in self.shared)
        self._groups: dict[Hashable, Group] = {}
        self._group_of: dict[tuple[int, bool], Group] = {}
        self._moves: dict[int, bool] = {}
        self._broken: set[Group] = set()
        self._swapping = {layer.index for layer in settings.plan.layers if layer.prefetch_at is not None}
        functools.update_wrapper(self, original or types.MethodType(type(model).forward, model), updated=())

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
        session.tidy()
        self.layers.say(session, breaks, is_news=session.news != news, is_whole=True)
        return result

    def run(self, index: int, layer: nn.Module, original: Callable[..., Any] | None, args: Any, kwargs: Any) -> Any:
        """Run the forward of one layer, compiled."""
        session = self.session
        session.refuse()
        alone = None if self.calls.is_in_pass else (session.news, torch_bridge.watch_breaks())
        with self.calls.call(index) as call:
            # A checkpoint of the model's own runs layers again in the backward: that is no new pass.
            again = torch_bridge.is_in_backward()
            session.calls += call.is_first and not again
            first = first_differentiable(args, kwargs) if torch.is_grad_enabled() else None
            fresh, repeated = call.given(first) if first is not None else (False, False)
            if first is not None:
                self._moves.setdefault(index, fresh and index in self._swapping)
            moves = self._moves.get(index, False)
            group = self._group(index, layer, original, moves=moves)
            noted = torch_bridge.count_breaks()
            given = args if original is None else (original, *args)
            place = Place(index, layer, group.first, moves, None if again else repeated)
            with session.at(place) as ran, causes_raised(), torch_bridge.recompilations(self._most_variants()):
                result = group.forward(layer, *given, **kwargs)
        if torch_bridge.count_breaks() != noted:
            self._broken.add(group)
        self.layers.note(index, len(ran), breaks=group in self._broken)
        if torch.is_grad_enabled():
            call.keeps_result = any(seen.keeps_result for seen in ran)
            call.watch(new_tensors(result, (args, kwargs)))
        if alone is not None:
            news, breaks = alone
            self.layers.say(session, breaks, is_news=session.news != news, is_whole=False)
        return result

    def _group(self, index: int, layer: nn.Module, original: Callable[..., Any] | None, *, moves: bool) -> Group:
        """The group of a layer, found at its first call: what changes later, torch's guards see.

        ``moves``: what the layer was given may be swapped with it.
        """
        group = self._group_of.get((index, moves))
        if group is None:
            key = policy_of(self.settings.plan, index), structure_of(layer), None if original is None else index, moves
            group = self._groups.get(key)
            if group is None:
                title = f"{type(layer).__name__}_{index}"
                forward = compiled_forward(_Backend(self.session), title, self.settings, is_instances=original is not None)
                group = self._groups[key] = Group(forward, index)
            self._group_of[index, moves] = group
        return group

    def _most_variants(self) -> int:
        """How often one group may be compiled: once for each of its layers, where torch tells them apart by an attribute."""
        return 8 * max(len(self.settings.plan.layers), 1)

    def __deepcopy__(self, memo: dict[int, Any]) -> LayeredForward:
        model = memo.get(id(self.model))
        if model is None:
            model = copy.deepcopy(self.model, memo)
        made = LayeredForward(model, self.settings, copy.deepcopy(self.original, memo), self.shared)
        memo[id(self)] = made
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        self.settings.check_picklable()
        return LayeredForward, (self.model, self.settings, self.original, tuple(self.shared))


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
        functools.update_wrapper(self, original or types.MethodType(type(layer).forward, layer), updated=())

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


def shared_with_other_rules(plan: Plan, stack: Sequence[Layer]) -> dict[int, int]:
    """The layers that are one module with an earlier one, and have other rules -> that earlier layer."""
    first: dict[int, int] = {}
    pairs = ((layer.index, first.setdefault(id(layer.module), layer.index)) for layer in stack)
    return {index: other for index, other in pairs if policy_of(plan, other) != policy_of(plan, index)}


def conflict(index: int, other: int) -> str:
    """Say that a module is two layers with different rules."""
    return (
        f"layers {other} and {index} are one module, and have different rules: with scope='layer' it follows those of layer "
        f"{other}. Give both the same, or use scope='model'."
    )


def attach(forward: LayeredForward, stack: Sequence[Layer]) -> None:
    """Give every layer of the model its forward; a module that is several layers with other rules has those of the first."""
    numbers: dict[int, list[int]] = {}
    for entry in stack:
        numbers.setdefault(id(entry.module), []).append(entry.index)
    for layer in {id(entry.module): entry.module for entry in stack}.values():
        first, *others = numbers[id(layer)]
        differing = [index for index in others if index in forward.shared]
        places = tuple(index for index in (first, *others) if index not in differing)
        object.__setattr__(layer, "forward", LayerForward(forward, places, layer, layer.__dict__.get("forward")))


def detach(model: nn.Module) -> None:
    """Give the layers of a model, and of models within it, what they had before they were compiled with ``scope="layer"``."""
    for module in model.modules():
        own = module.__dict__.get("forward")
        if isinstance(own, LayerForward) or (isinstance(own, LayeredForward) and module is not model):
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
