"""Just enough of JSON Schema to hold the configuration's schema against files, without a dependency."""

from __future__ import annotations

import re
from typing import Any

_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
_KNOWN = {
    "$defs", "$ref", "$schema", "additionalProperties", "allOf", "anyOf", "const", "default", "description", "enum", "examples",
    "if", "items", "maximum", "minItems", "minLength", "minimum", "pattern", "properties", "propertyNames", "required", "then",
    "title", "type",
}  # fmt: skip


def matches(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """Whether ``value`` is valid; a keyword that is not known here is an error of the test."""
    assert set(schema) <= _KNOWN, set(schema) - _KNOWN
    if "$ref" in schema and not matches(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root):
        return False
    wanted = schema.get("type")
    if wanted and (not isinstance(value, _TYPES[wanted]) or (wanted == "integer" and isinstance(value, bool))):
        return False
    if "enum" in schema and not any(value is item or value == item for item in schema["enum"]):
        return False
    if "const" in schema and value != schema["const"]:
        return False
    if "anyOf" in schema and not any(matches(value, part, root) for part in schema["anyOf"]):
        return False
    if not all(matches(value, part, root) for part in schema.get("allOf", ())):
        return False
    if "if" in schema and matches(value, schema["if"], root) and not matches(value, schema["then"], root):
        return False
    if isinstance(value, str):
        return len(value) >= schema.get("minLength", 0) and bool(re.search(schema.get("pattern", ""), value))
    if isinstance(value, int) and not isinstance(value, bool):
        return schema.get("minimum", value) <= value <= schema.get("maximum", value)
    if isinstance(value, list):
        return len(value) >= schema.get("minItems", 0) and all(matches(item, schema.get("items", {}), root) for item in value)
    if isinstance(value, dict):
        named = schema.get("properties", {})
        other = schema.get("additionalProperties", {})
        return (
            set(schema.get("required", ())) <= set(value)
            and all(matches(key, schema.get("propertyNames", {}), root) for key in value)
            and all(
                matches(item, named[key], root) if key in named else other is not False and matches(item, other, root)
                for key, item in value.items()
            )
        )
    return True
