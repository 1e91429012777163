"""The values of single fields: what users may write for each, and what it means.

Every parser takes the raw value and returns the normal form, or raises `Findings` that say what is wrong with it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from ...passes.matching import compile_pattern
from ..errors import Finding, Findings, did_you_mean, one_of, show
from .layer_specs import as_integer, parse_layers

T = TypeVar("T")

MODES = ("None", "full", "select")
STORES = ("auto", "host", "disk")

UNITS = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", 1)},
    "kB": 1000,
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", 1)},
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([^\s0-9.]*)\s*", re.ASCII)
_SIZE_ALLOWED = f"a number of bytes, or a text such as '64MiB' with one of the units {', '.join(UNITS)}"
_MAX_SIZE = 2**63 - 1

_LIST_OF_NAMES = "a list of operator names such as ['AllGather'], or a mapping from regular expressions to layers"


def optional(parse: Callable[[object], T]) -> Callable[[object], T | None]:
    """The parser for a field that may also be null, or empty, which both mean: not given."""

    def parse_optional(raw: object) -> T | None:
        return None if raw is None or (isinstance(raw, (list, tuple, Mapping)) and not raw) else parse(raw)

    return parse_optional


def parse_mode(raw: object) -> str:
    """``recompute.mode``: null and ``none`` are ways to write ``None``."""
    if raw is None or raw == "none":
        return "None"
    if isinstance(raw, str) and raw in MODES:
        return raw
    hint = "Write null or None to switch recomputation off." if isinstance(raw, bool) else did_you_mean(raw, MODES)
    raise Findings(Finding((), show(raw), one_of(["None", "'full'", "'select'"]), hint))


def parse_flag(raw: object) -> bool:
    """True or False, nothing that merely looks like it."""
    if isinstance(raw, bool):
        return raw
    quoted = isinstance(raw, str) and raw.strip().lower() in ("true", "false", "yes", "no", "on", "off")
    raise Findings(Finding((), show(raw), "True or False", "Remove the quotation marks." if quoted else ""))


def parse_store(raw: object) -> str:
    """``swap.store``."""
    if isinstance(raw, str) and raw in STORES:
        return raw
    raise Findings(Finding((), show(raw), one_of([repr(name) for name in STORES]), did_you_mean(raw, STORES)))


def parse_directory(raw: object) -> str:
    """A path; whether it can be written to is known only when it is used."""
    if isinstance(raw, os.PathLike):
        raw = os.fspath(raw)
    if isinstance(raw, str) and raw.strip() and "\0" not in raw:
        return raw
    raise Findings(Finding((), show(raw), "the path of a directory, or null for the system's temporary directory"))


def parse_prefetch(raw: object) -> int:
    """``swap.default_prefetch``; the upper bound depends on the model."""
    number = as_integer(raw)
    if number is not None and number >= 1:
        return number
    raise Findings(Finding((), show(raw), "1 <= default_prefetch <= num_layers - 1, an integer"))


def parse_size(raw: object) -> int:
    """A number of bytes, written as an integer or with a unit."""
    number = as_integer(raw)
    if number is not None and 0 <= number <= _MAX_SIZE:
        return number
    if isinstance(raw, str) and len(raw) <= 100 and (match := _SIZE.fullmatch(raw)):
        amount, unit = match.groups()
        if unit and unit not in UNITS:
            raise Findings(Finding((), show(raw), _SIZE_ALLOWED, did_you_mean(unit, list(UNITS)) or "The unit is not known."))
        scale = UNITS[unit or "B"]
        if "." in amount and scale == 1:
            raise Findings(Finding((), show(raw), _SIZE_ALLOWED, "There are no parts of a byte."))
        size = int(float(amount) * scale) if "." in amount else int(amount) * scale
        if size <= _MAX_SIZE:
            return size
    raise Findings(Finding((), show(raw), _SIZE_ALLOWED))


def parse_positive_size(raw: object) -> int:
    """A number of bytes above zero."""
    size = parse_size(raw)
    if size == 0:
        raise Findings(Finding((), show(raw), f"more than 0 bytes: {_SIZE_ALLOWED}"))
    return size


def parse_pattern(raw: object) -> str:
    """A regular expression over the module and operator paths within a layer."""
    allowed = "a regular expression over paths within a layer, such as '.*mlp'"
    if not isinstance(raw, str):
        raise Findings(Finding((), show(raw), allowed, "Put the expression in quotation marks."))
    if not raw:
        raise Findings(Finding((), "an empty pattern, which matches no path", allowed))
    try:
        compile_pattern(raw)
    except ValueError as error:
        glob = raw.startswith(("*", "?"))
        hint = f"Did you mean {'.' + raw!r}?" if glob else ""
        raise Findings(Finding((), f"{show(raw)}, an invalid regular expression ({error})", allowed, hint)) from None
    return raw


def parse_pattern_layers(raw: object) -> dict[str, tuple[int, ...]]:
    """A mapping from regular expressions to layers: ``{'.*mlp': [0-3]}``."""
    if not isinstance(raw, Mapping):
        raise Findings(Finding((), show(raw), "a mapping from regular expressions to layers, such as {'.*mlp': [0-3]}"))
    findings: list[Finding] = []
    parsed: dict[str, tuple[int, ...]] = {}
    for key, value in raw.items():
        loc = (key if isinstance(key, (str, int)) else show(key),)
        layers: tuple[int, ...] = ()
        for attempt in (parse_pattern, parse_layers):
            try:
                if attempt is parse_layers:
                    layers = parse_layers(value)
                else:
                    parse_pattern(key)
            except Findings as error:
                findings.extend(finding.under(loc) for finding in error.items)
        parsed[str(key)] = layers
    if findings:
        raise Findings(*findings)
    return parsed


def parse_exclude_op(raw: object) -> tuple[str, ...] | dict[str, tuple[int, ...]]:
    """``recompute.exclude_op``: a list of texts, or a mapping from regular expressions to layers."""
    if isinstance(raw, Mapping):
        return parse_pattern_layers(raw)
    if not isinstance(raw, (list, tuple)):
        hint = f"Did you mean [{raw!r}]?" if isinstance(raw, str) and len(raw) <= 80 else ""
        raise Findings(Finding((), show(raw), _LIST_OF_NAMES, hint))
    findings = []
    for index, item in enumerate(raw):
        if not isinstance(item, str):
            findings.append(Finding((index,), show(item), "the name of an operator, or a part of it, such as 'AllGather'"))
        elif not item.replace("_", "").replace(".", "").strip():
            # Names are compared without these characters, so nothing would be left, and nothing is found everywhere.
            found = f"{show(item)}, which every operator's name contains"
            findings.append(Finding((index,), found, "a part of an operator's name"))
    if findings:
        raise Findings(*findings)
    return tuple(dict.fromkeys(raw))
