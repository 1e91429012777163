"""Whose forward a captured graph is: after a graph break, torch compiles the forward of an inner module by itself.

    model.encoder.layers.0    the graph of ``model``            ``L['self'].encoder.layers.0``
                              the graph of ``model.encoder``    ``L['self'].layers.0``
                              the graph of the layer            ``L['self']``: all layers may share it, no layer's rules hold

The parameters tell: a graph takes them as inputs, with the path by which torch found each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from ..passes.scopes import module_path
from . import torch_bridge


def find_root(graph: GraphModule, inputs: Sequence[Any], tensors: Mapping[str, int]) -> str | None:
    """The path of the module that ``self`` is in a graph; None when its parameters are not all of one such module.

    A graph without parameters counts as the model's own.

    Args:
        graph: as torch captured it.
        inputs: its inputs.
        tensors: the model's parameters: path without wrappers -> id.
    """
    found: dict[str, list[tuple[str, int]]] = {}
    for source, value in torch_bridge.parameter_inputs(graph, inputs):
        found.setdefault(_variable(source), []).append((module_path(source), id(value)))
    if not found:
        return ""
    # A function may have another module in hand besides its own: the one with most parameters is taken.
    return _root_of(max(found.values(), key=len), tensors)


def _root_of(found: Sequence[tuple[str, int]], tensors: Mapping[str, int]) -> str | None:
    # DistributedDataParallel keeps its model in `module`, and torch may start at either.
    if all(number in (tensors.get(path), tensors.get(path.removeprefix("module."))) for path, number in found):
        return ""
    first, number = found[0]
    for name in (name for name, other in tensors.items() if other == number and name.endswith(f".{first}")):
        root = name.removesuffix(f".{first}")
        if all(tensors.get(f"{root}.{path}") == number for path, number in found):
            return root
    return None


def _variable(source: str) -> str:
    """``L['self']`` of ``L['self']._modules['mlp']``: the local variable that holds the module."""
    return source.partition("]")[0]


def key_input(graph: GraphModule) -> tuple[int, str] | None:
    """The place among a graph's inputs of one of its parameters, and the parameter's path from its root."""
    found = torch_bridge.first_parameter_input(graph)
    return None if found is None else (found[0], module_path(found[1]))


def layers_below(root: str, layer_of_path: Mapping[str, int]) -> dict[str, int]:
    """The layers in a module's graph, by their paths from it; none where the module is part of a layer: others may share it."""
    if not root:
        return dict(layer_of_path)
    return {path.removeprefix(f"{root}."): number for path, number in layer_of_path.items() if path.startswith(f"{root}.")}


def layer_around(root: str, layer_of_path: Mapping[str, int]) -> int | None:
    """The layer that a module is, or is part of; None for one outside the layers."""
    parts = root.split(".")
    around = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return next((layer_of_path[path] for path in around if path in layer_of_path), None)
