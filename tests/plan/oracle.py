"""The rules of the specification, said again, slowly and without any of memopt.

A configuration is plain data, as YAML gives it. The answer says whether it is valid for a model, and if so which layers and
paths are recomputed and swapped. Nothing here is clever: a layer is asked about one at a time, a path is asked about one at
a time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Answer:
    """``recomputed[layer]`` is ``"full"`` or the set of paths; so is ``swapped[layer]``."""

    valid: bool = True
    warned: bool = False
    recomputed: dict[int, Any] = field(default_factory=dict)
    swapped: dict[int, Any] = field(default_factory=dict)
    communication: dict[int, set[str]] = field(default_factory=dict)


def numbers(spec: Any) -> list[int] | None:
    """The layer numbers of a specification, or None if it is wrong."""
    found: list[int] = []
    for item in spec if isinstance(spec, list) else [spec]:
        if isinstance(item, bool) or not isinstance(item, (int, str)):
            return None
        text = str(item).replace(" ", "")
        if re.fullmatch("[0-9]+", text):
            first = last = int(text)
        elif re.fullmatch("[0-9]+-[0-9]+", text):
            first, last = (int(part) for part in text.split("-"))
        else:
            return None
        if first > last or (found and first <= found[-1]):
            return None
        for number in range(first, last + 1):
            found.append(number)
    return found or None


def is_inside(path: str, other: str) -> bool:
    """Whether ``path`` is ``other`` or a module within it."""
    return path == other or path.startswith(other + ".")


def answer(config: dict[str, Any], paths: list[list[str]], pipeline_parallel_size: int = 1) -> Answer:
    """What the specification says about ``config`` for a model whose layer ``i`` holds the modules ``paths[i]``."""
    num_layers = len(paths)
    recompute = config.get("recompute") or {}
    comm = config.get("recompute_comm") or {}
    swap = config.get("swap") or {}
    mode = {None: "None", "none": "None"}.get(recompute.get("mode"), recompute.get("mode"))
    wrong = Answer(valid=False)
    result = Answer()

    # Every specification has to be well-formed, in force or not.
    if recompute.get("full_recompute_layer") == []:
        recompute = {**recompute, "full_recompute_layer": None}
    specs = [recompute["full_recompute_layer"]] if recompute.get("full_recompute_layer") is not None else []
    specs += (recompute.get("select_module") or {}).values()
    specs += (comm.get("select_module") or {}).values()
    specs += [entry["layers"] for entry in (swap.get("layer_swap") or [])]
    specs += [entry["layers"] for entry in (swap.get("op_swap") or [])]
    if any(numbers(spec) is None for spec in specs) or swap.get("default_prefetch", 1) < 1:
        return wrong

    # "The corresponding full_recompute_layer (full) or select_module (select) must be provided", and enable likewise.
    if mode == "full" and recompute.get("full_recompute_layer") is None:
        return wrong
    if mode == "select" and not recompute.get("select_module"):
        return wrong
    if comm.get("enable") and not comm.get("select_module"):
        return wrong

    # What is in force.
    full: list[int] = []
    if mode in ("full", "select") and recompute.get("full_recompute_layer") is not None:
        full = numbers(recompute["full_recompute_layer"]) or []
    selected = {}
    if mode == "select":
        selected = {pattern: numbers(spec) or [] for pattern, spec in recompute["select_module"].items()}
    gathered = {}
    if comm.get("enable"):
        gathered = {pattern: numbers(spec) or [] for pattern, spec in comm["select_module"].items()}
    whole: list[int] = []
    parts: list[tuple[str, list[int]]] = []
    if swap.get("enable"):
        for entry in (swap.get("layer_swap") or [])[:1]:  # "actually takes only the first entry"
            whole = numbers(entry["layers"]) or []
        parts = [(entry["op_name"], numbers(entry["layers"]) or []) for entry in swap.get("op_swap") or []]

    # Bounds.
    for layers in (full, whole, *selected.values(), *gathered.values(), *(layers for _, layers in parts)):
        if any(layer > num_layers - 1 for layer in layers):
            return wrong
    if swap.get("enable"):
        ahead = swap.get("default_prefetch", 1)
        if not 1 <= ahead <= num_layers - 1 or pipeline_parallel_size > 1:
            return wrong
        for layers in (whole, *(layers for _, layers in parts)):
            if layers and max(layers) + ahead >= num_layers:
                return wrong

    # Layer by layer.
    for layer in range(num_layers):
        patterns = [pattern for pattern, layers in selected.items() if layer in layers]
        swap_patterns = [pattern for pattern, layers in parts if layer in layers]
        again = {path for path in paths[layer] for pattern in patterns if re.fullmatch(pattern, path)}
        away = {path for path in paths[layer] for pattern in swap_patterns if re.fullmatch(pattern, path)}
        if layer in full and (layer in whole or swap_patterns):
            return wrong
        if layer in whole and patterns:
            return wrong
        if layer not in full and layer not in whole:
            if any(is_inside(one, other) or is_inside(other, one) for one in again for other in away):
                return wrong
            if set(patterns) & set(swap_patterns):
                return wrong
            if {pattern for pattern, layers in gathered.items() if layer in layers} & set(swap_patterns):
                return wrong
        result.recomputed[layer] = "full" if layer in full else outermost(again)
        result.swapped[layer] = "full" if layer in whole else outermost(away)
        result.communication[layer] = set()
        for pattern, layers in gathered.items():
            if layer in layers and layer not in full:
                result.communication[layer].add(pattern)
                result.warned |= any(re.fullmatch(pattern, path) for path in paths[layer])

    # What is written and not in force.
    result.warned |= mode != "select" and bool(recompute.get("select_module"))
    result.warned |= mode == "None" and recompute.get("full_recompute_layer") is not None
    result.warned |= not comm.get("enable") and bool(comm.get("select_module"))
    if swap.get("enable"):
        result.warned |= len(swap.get("layer_swap") or []) > 1
        result.warned |= not swap.get("layer_swap") and not swap.get("op_swap")
    else:
        result.warned |= bool(swap.get("layer_swap") or swap.get("op_swap")) or swap.get("default_prefetch", 1) != 1
    return result


def outermost(paths: set[str]) -> set[str]:
    """The paths that lie within no other."""
    return {path for path in paths if not any(path != other and is_inside(path, other) for other in paths)}
