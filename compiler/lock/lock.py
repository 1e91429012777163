"""A lock: the resolved plan and the bytes that each layer saves, as plain data, and as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...passes.policy import LayerPlan, Plan
from ..cache_key import package_version
from ..config.load import MemoptConfig
from ..errors import did_you_mean
from ..explain.explanation import Explanation

FORMAT = 1
"""The number of the file's format; a reader refuses others."""

OUTSIDE = "outside"
"""What stands in the place of a layer's number for what lies outside the layers."""


class LockError(ValueError):
    """A lock file cannot be used here; the message says why, and what to do."""


@dataclass(frozen=True)
class LayerLock:
    """What holds in a layer, and what it saves.

    Attributes:
        path: its module path; empty for what lies outside the layers.
        recompute: what is recomputed: ``*`` for the whole layer, else module paths.
        swap: the same for what is swapped.
        saved_bytes: what its forward keeps for the backward.
        swapped_bytes: what leaves, and returns.
    """

    path: str
    recompute: tuple[str, ...] = ()
    swap: tuple[str, ...] = ()
    saved_bytes: int = 0
    swapped_bytes: int = 0


@dataclass(frozen=True)
class Lock:
    """What ``memopt lock`` writes.

    Attributes:
        memopt, torch: the versions that made it.
        model: the type of the model.
        backend: the backend whose graphs were split.
        inputs: the shapes and types of the tensors that the model was called with.
        config: the configuration in its normal form.
        layers: number -> what holds there; ``outside`` for what lies outside the layers.
    """

    memopt: str
    torch: str
    model: str
    backend: str
    inputs: tuple[str, ...]
    config: Mapping[str, Any]
    layers: Mapping[str, LayerLock] = field(default_factory=dict)

    @property
    def saved_bytes(self) -> int:
        """What all layers save."""
        return sum(layer.saved_bytes for layer in self.layers.values())


def lock_of(
    model: nn.Module, config: MemoptConfig, plan: Plan, explanation: Explanation, backend: str, inputs: tuple[Any, ...]
) -> Lock:
    """Lock what was found for a model."""
    totals = {total.layer: total for total in explanation.totals}
    layers = {}
    for layer in plan.layers:
        total = totals.get(layer.index)
        saved, swapped = (total.saved_after, total.swapped) if total is not None else (0, 0)
        layers[str(layer.index)] = LayerLock(layer.path, _recomputed(layer), _swapped(layer), saved, swapped)
    if (rest := totals.get(None)) is not None:
        layers[OUTSIDE] = LayerLock("", saved_bytes=rest.saved_after, swapped_bytes=rest.swapped)
    tensors = (t for t in torch.utils._pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor))
    shapes = tuple(f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in tensors)
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    return Lock(package_version(), torch.__version__, kind, backend, shapes, _plain(config.to_dict()), layers)


def _recomputed(layer: LayerPlan) -> tuple[str, ...]:
    return ("*",) if layer.recompute_full else (*layer.recompute, *layer.recompute_comm)


def _swapped(layer: LayerPlan) -> tuple[str, ...]:
    return ("*",) if layer.swap_full else layer.swap


def _plain(value: Any) -> Any:
    """As JSON would give it back."""
    return json.loads(json.dumps(value))


def to_text(lock: Lock) -> str:
    """The file's text: stable, and a line a field, so that a change of it can be read."""
    return json.dumps({"memopt_lock": FORMAT, **asdict(lock)}, indent=1) + "\n"


def read_lock(path: Path) -> Lock:
    """Read a lock file.

    Raises:
        OSError: it cannot be read.
        LockError: it is no lock file, or of another format.
    """
    again = "Write it again with 'memopt lock'."
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise LockError(
            f"{path}: found text that is not JSON ({error}); allowed: what 'memopt lock' writes. {again}"
        ) from error
    if not isinstance(data, dict) or "memopt_lock" not in data:
        raise LockError(f"{path}: found no 'memopt_lock' in it; allowed: what 'memopt lock' writes. {again}")
    if data.pop("memopt_lock") != FORMAT:
        raise LockError(f"{path}: found a lock of another format; allowed: {FORMAT}. {again}")
    try:
        layers = {str(n): _layer(layer) for n, layer in data.pop("layers").items()}
        if not isinstance(data["config"], dict):
            raise ValueError("a configuration that is no mapping")
        return Lock(**{**data, "inputs": _texts(data["inputs"])}, layers=layers)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        known = [*Lock.__dataclass_fields__]
        hint = next((h for name in data if name not in known and (h := did_you_mean(name, known))), "")
        raise LockError(f"{path}: found a lock file that was changed ({error}). {hint} {again}".replace("  ", " ")) from error


def _layer(data: Any) -> LayerLock:
    layer = LayerLock(**{**data, "recompute": _texts(data["recompute"]), "swap": _texts(data["swap"])})
    if not all(type(count) is int and count >= 0 for count in (layer.saved_bytes, layer.swapped_bytes)):
        raise ValueError("bytes that are no count")
    return layer


def _texts(data: Any) -> tuple[str, ...]:
    if not isinstance(data, list) or not all(isinstance(text, str) for text in data):
        raise ValueError("a list of texts that is none")
    return tuple(data)
