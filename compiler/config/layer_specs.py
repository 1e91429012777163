"""Layer numbers as users write them: ``5``, ``"0-3"``, ``[0-3, 8]``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any

from ..errors import Finding, Findings, show

MAX_LAYER = 99_999
"""The highest layer number there can be: a range is kept number by number, and no model comes near."""

ALLOWED_ITEM = "a layer number such as 5, or a range such as 0-3"

_NUMBER = r"(0|[1-9][0-9]*)"
_ITEM = re.compile(rf"\s*{_NUMBER}\s*(?:-\s*{_NUMBER}\s*)?")
_NEGATIVE = re.compile(r"\s*-\s*[0-9]+\s*")
_LEADING_ZERO = re.compile(r"\s*(?:0[0-9_]+|0[xob][0-9a-f_]+)\s*(?:-.*)?", re.IGNORECASE)
_OTHER_SEPARATOR = re.compile(r"\s*([0-9]+)\s*(?::|\.\.+|–|—|to)\s*([0-9]+)\s*")

_ITEM_SCHEMA: dict[str, Any] = {
    "description": "A layer number, counted from 0, or a range with both ends included: 5, 0-3.",
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": MAX_LAYER},
        {"type": "string", "pattern": rf"^\s*{_NUMBER}\s*(-\s*{_NUMBER}\s*)?$"},
    ],
}

JSON_SCHEMA: dict[str, Any] = {
    "anyOf": [_ITEM_SCHEMA, {"type": "array", "items": _ITEM_SCHEMA, "minItems": 1}],
    "examples": [["0-3", 8]],
}
"""Of a layer specification."""


def parse_layers(raw: object) -> tuple[int, ...]:
    """The layer numbers that ``raw`` names, ascending.

    Raises:
        Findings: an item is not a layer number or range, the items do not ascend or overlap, or there is none.
    """
    items = list(written_items(raw))
    if not items:
        raise Findings(Finding((), f"{show(raw)}, which names no layer", f"{ALLOWED_ITEM}, or a list of them"))
    findings: list[Finding] = []
    layers: list[int] = []
    before: object = None
    for index, item in items:
        loc = () if index is None else (index,)
        try:
            start, end = parse_item(item)
        except Findings as error:
            findings.extend(finding.under(loc) for finding in error.items)
            continue
        if layers and start <= layers[-1]:
            findings.append(
                Finding(
                    loc,
                    f"{show(item)} after {show(before)}",
                    "layer numbers in ascending order that do not overlap",
                    f"The entry before ends at layer {layers[-1]}.",
                )
            )
            continue
        layers.extend(range(start, end + 1))
        before = item
    if findings:
        raise Findings(*findings)
    return tuple(layers)


def written_items(raw: object) -> Iterator[tuple[int | None, object]]:
    """The items of a layer specification, each with its position; None when ``raw`` is not a list but one item."""
    if isinstance(raw, (list, tuple, range)):
        yield from enumerate(raw)
    else:
        yield None, raw


def parse_item(item: object) -> tuple[int, int]:
    """First and last layer (both included) of one item.

    Raises:
        Findings: with one finding that says what is wrong with the item.
    """
    if (number := as_integer(item)) is not None:
        start = end = number
    elif isinstance(item, str) and (match := _ITEM.fullmatch(item)):
        texts = (match.group(1), match.group(2) or match.group(1))
        # Python refuses to convert thousands of digits.
        start, end = (int(text) if len(text) <= 18 else 10**18 for text in texts)
    else:
        raise Findings(Finding((), show(item), ALLOWED_ITEM, _hint(item)))
    if start < 0:
        raise Findings(Finding((), show(item), ALLOWED_ITEM, "Layer numbers start at 0."))
    if start > end:
        raise Findings(Finding((), show(item), "a range whose start is not above its end", f"Did you mean '{end}-{start}'?"))
    if end > MAX_LAYER:
        raise Findings(Finding((), show(item), f"layer numbers up to {MAX_LAYER}"))
    return start, end


def _hint(item: object) -> str:
    if isinstance(item, bool):
        return "true and false are not layer numbers."
    if isinstance(item, (list, tuple)):
        return "Write one flat list."
    if not isinstance(item, str):
        return ""
    if _NEGATIVE.fullmatch(item):
        return "Layer numbers start at 0."
    if _LEADING_ZERO.fullmatch(item):
        return "Write decimal numbers without leading zeros."
    if match := _OTHER_SEPARATOR.fullmatch(item):
        return f"Did you mean '{match.group(1)}-{match.group(2)}'?"
    if "," in item:
        return f"Did you mean the list [{item.strip().strip('[]')[:80]}]?"
    return ""


def as_integer(raw: object) -> int | None:
    """``raw`` as an int if it is an integer of any type; True and False are none."""
    if isinstance(raw, bool):
        return None
    return int(raw) if isinstance(raw, Integral) else None


def ranges(layers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending layer numbers as ranges, both ends included."""
    found: list[tuple[int, int]] = []
    for layer in layers:
        if found and layer == found[-1][1] + 1:
            found[-1] = (found[-1][0], layer)
        else:
            found.append((layer, layer))
    return found


def canonical(layers: Sequence[int]) -> list[int | str]:
    """The shortest way to write the layer numbers: ``["0-3", 8]``."""
    return [start if start == end else f"{start}-{end}" for start, end in ranges(layers)]


def spoken(layers: Sequence[int]) -> str:
    """The layer numbers within a sentence: ``layer 5``, ``layers 0-3, 8``."""
    return f"layer{'' if len(layers) == 1 else 's'} {', '.join(map(str, canonical(layers)))}"
