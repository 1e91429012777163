"""The JSON Schema of values that may be written in more ways than their Python type shows."""

from __future__ import annotations

from typing import Any

from .layer_specs import JSON_SCHEMA as LAYERS
from .values import UNITS

__all__ = ["EXCLUDE_OP", "LAYERS", "MODE", "PATTERN", "PATTERN_LAYERS", "PREFETCH", "SIZE"]

Json = dict[str, Any]

PATTERN: Json = {"type": "string", "minLength": 1}
PATTERN_LAYERS: Json = {"type": "object", "additionalProperties": LAYERS, "propertyNames": PATTERN}
EXCLUDE_OP: Json = {"anyOf": [{"type": "array", "items": {"type": "string", "minLength": 1}}, PATTERN_LAYERS]}
MODE: Json = {"enum": ["None", "full", "select", "none", None]}
PREFETCH: Json = {"type": "integer", "minimum": 1}
SIZE: Json = {
    "anyOf": [
        {"type": "integer", "minimum": 0},
        {"type": "string", "pattern": rf"^\s*[0-9]+(\.[0-9]+)?\s*({'|'.join(UNITS)})?\s*$"},
    ]
}


def or_null(schema: Json) -> Json:
    """The schema of an optional value; an empty list or mapping counts as none as well."""
    return {"anyOf": [*schema["anyOf"], {"type": "null"}] if "anyOf" in schema else [schema, {"type": "null"}]}


def recompute_conditions(schema: Json) -> None:
    """What ``mode`` requires."""
    schema["allOf"] = [
        _requires("mode", "full", "full_recompute_layer"),
        _requires("mode", "select", "select_module"),
    ]


def recompute_comm_conditions(schema: Json) -> None:
    """What ``enable`` requires."""
    schema["allOf"] = [_requires("enable", True, "select_module")]


def _requires(name: str, value: object, required: str) -> Json:
    condition = {"properties": {name: {"const": value}}, "required": [name]}
    return {"if": condition, "then": {"required": [required]}}
