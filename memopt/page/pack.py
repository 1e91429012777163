"""The data as the page carries it: the same content in less space, and safe inside a script element."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_NUMBERS = ("layer", "bytes", "leaves", "issued", "returns")
"""The columns of values that hold numbers or None; all others hold text."""


def packed(data: Mapping[str, Any]) -> dict[str, Any]:
    """``data`` with each moment as its difference from the one before, and each text of the values once.

    ``timeline.bytes`` turns from ``[5, 7, 7]`` into ``[5, 2, 0]``: most operators leave most categories as they are. ``values``
    turns from rows into columns, ``["mul", "add", "mul"]`` into ``{"words": ["mul", "add"], "at": [0, 1, 0]}``. ``data.js``
    undoes both.
    """
    small = dict(data)
    if timeline := data.get("timeline"):
        small["timeline"] = {**timeline, "bytes": {name: _differences(column) for name, column in timeline["bytes"].items()}}
    if values := data.get("values"):
        columns, rows = values["columns"], values["rows"]
        cells = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
        small["values"] = {
            "count": len(rows),
            "columns": {name: _column(name, column) for name, column in zip(columns, cells, strict=True)},
        }
    return small


def embedded(value: Any) -> str:
    """``value`` as JSON that may stand inside a script element: no ``<`` in it, and nothing outside ASCII.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _differences(column: Sequence[int]) -> list[int]:
    return [b - a for a, b in zip([0, *column], column, strict=False)]


def _column(name: str, cells: Iterable[Any]) -> Any:
    if name in _NUMBERS:
        return list(cells)
    places: dict[str, int] = {}
    at = [places.setdefault(str(cell or ""), len(places)) for cell in cells]
    return {"words": list(places), "at": at}
