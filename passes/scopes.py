"""Where a node comes from: its layer, its module path inside the layer, and the function the user called.

    node.meta["nn_module_stack"]  {"1407": ("L['self'].model.layers.7", Block), "1408@1": ("L['self'].model.layers.7.mlp", MLP)}
    Scope                         layer=7  path="mlp"  chain=(("", "1407"), ("mlp", "1408@1"))

The keys of the stack differ between calls of the same module (``@1``), so that a layer that runs twice is told apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from torch.fx import Node

# Parts that wrappers add to a module's path, and that the user never wrote.
WRAPPER_PARTS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
_STRUCTURE = frozenset({"__dict__", "_modules", "_parameters"})
_TOKEN = re.compile(r"""\[['"]?([^\]'"]+)['"]?\]|([^.\[\]]+)""")
_CALL_NUMBER = re.compile(r"_\d+$")


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a node comes from.

    Attributes:
        layer: the number of the layer; None outside the layer stacks.
        path: module path relative to the layer, or to the model outside the layers.
        chain: from the layer (``""``) inwards, each module's path and a key for this call of it.
        function: the name of the function the user called; empty when unknown.
        call: a key for this call of that function.
    """

    layer: int | None
    path: str
    chain: tuple[tuple[str, str], ...]
    function: str
    call: str


@lru_cache(maxsize=65536)
def module_path(source: str) -> str:
    """``L['self'].layers.1.__dict__['_modules']['_orig_mod'].mlp`` -> ``layers.1.mlp``."""
    tokens = [a or b for a, b in _TOKEN.findall(source)]
    tokens = tokens[2:] if tokens[:1] == ["L"] else tokens
    return ".".join(t for t in tokens if t not in WRAPPER_PARTS and t not in _STRUCTURE)


def find_scope(node: Node, layer_of_path: Mapping[str, int]) -> Scope | None:
    """Read a node's scope; None when torch recorded nothing.

    ``layer_of_path`` maps a layer's module path to its number; the path is empty where the whole graph is that layer's.
    """
    stack = node.meta.get("nn_module_stack")
    sources = node.meta.get("source_fn_stack")
    function, call = "", ""
    if sources:
        call, target = str(sources[-1][0]), sources[-1][1]
        function = str(getattr(target, "__name__", target))
        if isinstance(target, type):  # a built-in module stands for its function: ("linear_3", torch.nn.Linear)
            function = _CALL_NUMBER.sub("", call)
    layer = layer_of_path.get("")
    if not stack and layer is None:
        return Scope(None, "", (), function, call) if sources else None
    prefix = ""
    path = ""
    chain: list[tuple[str, str]] = [] if layer is None else [("", "")]
    for key, (source, _) in (stack or {}).items():
        path = module_path(source)
        found = layer_of_path.get(path)
        # DistributedDataParallel keeps its model in `module`; a user's own `module` is part of the layers' paths.
        shorter = path.removeprefix("module.")
        leads_to_layer = shorter in layer_of_path if layer is None else f"{shorter}.".startswith(f"{prefix}.")
        if found is None and shorter != path and leads_to_layer:
            path, found = shorter, layer_of_path.get(shorter)
        if found is not None and layer is None:
            layer, prefix = found, path
        if layer is not None:
            chain.append((path.removeprefix(prefix).lstrip("."), str(key)))
    relative = path.removeprefix(prefix).lstrip(".") if layer is not None else path
    return Scope(layer, relative, tuple(chain), function, call)
