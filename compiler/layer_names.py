"""The paths of modules in the graph of a layer that is compiled by itself, however torch came upon them.

::

    before  L['original'].__defaults__[0].__self__.mlp.fc1    the layer has a ``forward`` of its own
            L['self'].fc1                                     after a graph break in ``mlp``, where ``self`` is ``mlp``
    after   L['self'].mlp.fc1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.fx import GraphModule

from ..passes.scopes import module_path
from . import torch_bridge


def name_modules(graph: GraphModule, inputs: Sequence[Any], layer: nn.Module, tensors: Mapping[str, int]) -> None:
    """Name the modules of every operator as the layer does; torch notes each with the module's ``id``.

    A module that is not the layer's is left out. ``tensors`` are the parameters of the layer: name without wrappers -> id.
    """
    paths: dict[int, list[str]] = {}
    for path, module in layer.named_modules(remove_duplicate=False):
        paths.setdefault(id(module), []).append(path)
    start = _start(graph, inputs, tensors)
    beginning = {f"start {start}": (_source(start), nn.Module)} if start else {}
    for part in graph.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            stack = {**beginning}
            for key, (source, kind) in (node.meta.get("nn_module_stack") or {}).items():
                number = str(key).partition("@")[0]
                known = paths.get(int(number), []) if number.isdigit() else []
                if known:
                    # A module may stand at several places of the layer.
                    own = next((path for path in known if module_path(_source(path)) == module_path(source)), known[0])
                    stack[key] = _source(own), kind
            if stack or "nn_module_stack" in node.meta:
                node.meta["nn_module_stack"] = stack


def _start(graph: GraphModule, inputs: Sequence[Any], tensors: Mapping[str, int]) -> str:
    """The path of the module that is ``self`` in the graph, judged by its parameters; empty for the layer, or unknown."""
    found: set[str] | None = None
    for source, value in torch_bridge.parameter_inputs(graph, inputs):
        path = module_path(source)
        names = (name for name, tensor in tensors.items() if tensor == id(value) and f".{name}".endswith(f".{path}"))
        starts = {name[: -len(path)].rstrip(".") for name in names}
        found = starts if found is None else found & starts
    return found.pop() if found is not None and len(found) == 1 else ""


def _source(path: str) -> str:
    return f"L['self'].{path}" if path else "L['self']"
