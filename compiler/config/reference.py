"""The configuration reference: Markdown made from the JSON Schema, so that it says what the loader does.

python -m memopt.compiler.config.reference > docs/reference.md
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from ..errors import one_of
from . import schema
from .layer_specs import MAX_LAYER
from .model import MemoptConfig
from .values import UNITS

_WIDTH = 140

_INTRODUCTION = """
Every section and field of the YAML file, made from the schema that the loader uses. What the fields mean together, and what
is checked, is in [configuration.md](configuration.md); which of them to set, in [choosing-a-level.md](choosing-a-level.md).
`memopt schema` prints the same as a JSON Schema, for editors.
"""

EXAMPLES = {
    "recompute": r"""
recompute:
  mode: select
  full_recompute_layer: [0-3]           # these layers whole
  select_module:
    '.*mlp': [4-15, 20]                 # in these, the MLP
    '.*\.gelu': [16-19]                 # in these, what gelu returns
  exclude_op: [FlashAttention]          # kept in whatever is recomputed
""",
    "recompute_comm": r"""
recompute_comm:
  enable: True
  select_module:
    '.*\.all_gather': [0-31]            # gathered again in the backward
""",
    "swap": """
swap:
  enable: True
  default_prefetch: 1
  layer_swap:
    - layers: [16-30]                   # one entry: further ones are not used
  op_swap:
    - op_name: '.*mlp'
      layers: [8-15]
  store: auto
  dir: /mnt/nvme                        # for what goes to disk
  min_bytes: 64KiB
  in_flight_bytes: 512MiB
  host_limit: 48GiB
""",
}
"""One for each section, which names every field of it; for a model of 32 layers."""


class _Form(NamedTuple):
    """A way to write a value that several fields share."""

    title: str
    schema: dict[str, Any]
    lines: tuple[str, ...]


_FORMS = (
    _Form(
        "Layers",
        schema.LAYERS,
        (
            "A number, counted from 0 through all stacks; a range, both ends included; or a list of numbers and ranges, "
            f"ascending and without overlap. The highest number is {MAX_LAYER}. Booleans, floats and dates are none.",
            "| written | layers |\n| --- | --- |\n| `5` or `'5'` | 5 |\n| `0-3` or `' 0 - 3 '` | 0, 1, 2, 3 |\n"
            "| `[0-3, 8]` | 0, 1, 2, 3, 8 |",
        ),
    ),
    _Form(
        "Pattern",
        schema.PATTERN,
        (
            "A regular expression that must match a whole path within a layer: `.*mlp` matches `mlp` and `block.mlp`, and "
            r"not `mlp.fc1`. In YAML, put it in single quotation marks: `'.*\.all_gather'`. What paths there are is in "
            "[configuration.md](configuration.md#paths-and-patterns).",
        ),
    ),
    _Form(
        "Patterns with layers",
        schema.PATTERN_LAYERS,
        ("A mapping. Each key is a [pattern](#pattern), each value [layers](#layers).",),
    ),
    _Form(
        "Size",
        schema.SIZE,
        (
            "A number of bytes, or a text of a number and a unit: `1048576`, `64KiB`, `1.5 GiB`.",
            "| unit | bytes |\n| --- | ---: |\n" + "\n".join(f"| `{name}` | {size:,} |" for name, size in UNITS.items()),
        ),
    ),
)

_LITERAL = re.compile(
    r"""
    \b(?:mode|enable|store):\ \w+        # a field with a value
    | \b[a-z]+(?:_[a-z]+)+\b             # a field
    | \[[^\]]*\]                         # a list
    | '[^'\ ]*[*\\][^'\ ]*'              # a pattern
    """,
    re.VERBOSE,
)
"""What descriptions quote from a configuration."""

_COUNTED = {"swap.default_prefetch": "layers"}
"""Units of fields that are plain numbers."""


def reference() -> str:
    """The reference as a Markdown document."""
    whole = MemoptConfig.json_schema()
    blocks = ["# Configuration reference", _filled(_INTRODUCTION)]
    for name, part in whole["properties"].items():
        blocks += _section(name, part, whole["$defs"])
    blocks.append("## Forms of values")
    for form in _FORMS:
        blocks += [f"### {form.title}", *map(_filled, form.lines)]
    blocks += ["## The defaults", "An empty file, and a section that is left out, mean this:", _code(_defaults())]
    return "\n\n".join(blocks) + "\n"


def _section(name: str, part: dict[str, Any], definitions: dict[str, Any]) -> Iterator[str]:
    """A section: what it is for, an example, and its fields."""
    yield f"## `{name}`"
    yield _filled(_as_code(part["description"]))
    yield _code(EXAMPLES[name])
    yield from _fields(name, _definition(part, definitions), definitions)


def _fields(path: str, owner: dict[str, Any], definitions: dict[str, Any]) -> Iterator[str]:
    for name, field in owner["properties"].items():
        place = f"{path}.{name}"
        yield f"### `{place}`"
        yield _filled(_as_code(field["description"]))
        facts = [f"- values: {_values(field)}"]
        if unit := _COUNTED.get(place) or ("bytes" if _form(field) == "Size" else ""):
            facts.append(f"- unit: {unit}")
        if "default" in field:
            facts.append(f"- default: `{_written(field['default'])}`")
        facts += [f"- required{when}" for when in _required(name, owner)]
        yield "\n".join(facts)
        entry = _entry(field)
        if entry is not None:
            yield from _fields(f"{place}[]", definitions[entry], definitions)


def _required(name: str, owner: dict[str, Any]) -> Iterator[str]:
    """When the field has to be there: always, or where another one has a certain value."""
    if name in owner.get("required", ()):
        yield ""
    for rule in owner.get("allOf", ()):
        if name in rule["then"]["required"]:
            ((other, condition),) = rule["if"]["properties"].items()
            yield f" with `{other}: {_written(condition['const'])}`"


def _values(field: dict[str, Any]) -> str:
    """What may be written, in words."""
    told = [_form_link(field)] if _form(field) else [_value(choice) for choice in _choices(field)]
    if {"type": "null"} in field.get("anyOf", ()):
        told.append("`null`")
    return one_of(told)


def _value(choice: dict[str, Any]) -> str:
    if _form(choice):
        return _form_link(choice)
    if "enum" in choice:
        return one_of([f"`{_written(value)}`" for value in choice["enum"]])
    match choice["type"]:
        case "boolean":
            return "`True` or `False`"
        case "integer":
            return f"an integer of at least {choice['minimum']}"
        case "string":
            return "a text"
        case "array" if "$ref" in choice["items"]:
            return "a list of entries, whose fields follow,"
        case "array":
            return "a list of texts"
    raise ValueError(f"no words for {choice}")


def _choices(field: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas of which a value must meet one; null left out."""
    own = {key: value for key, value in field.items() if key not in ("default", "description", "title", "examples")}
    return [choice for choice in own.get("anyOf", [own]) if choice != {"type": "null"}]


def _form(field: dict[str, Any]) -> str:
    """The title of the form that the field's values have; empty for one of its own."""
    return next((form.title for form in _FORMS if _choices(form.schema) == _choices(field)), "")


def _form_link(field: dict[str, Any]) -> str:
    title = _form(field).lower()
    return f"[{title}](#{title.replace(' ', '-')})"


def _entry(field: dict[str, Any]) -> str | None:
    """The definition of a list's entries."""
    items: dict[str, Any] = next((choice["items"] for choice in _choices(field) if "items" in choice), {})
    return items["$ref"].removeprefix("#/$defs/") if "$ref" in items else None


def _definition(part: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    ref = next(choice["$ref"] for choice in _choices(part) if "$ref" in choice)
    found: dict[str, Any] = definitions[ref.removeprefix("#/$defs/")]
    return found


def _written(value: object) -> str:
    """A value as YAML has it here."""
    return "null" if value is None else str(value)


def _defaults() -> str:
    return yaml.safe_dump(MemoptConfig().to_dict(), sort_keys=False).strip()


def _as_code(text: str) -> str:
    """A description with fields, values in brackets and patterns set as code, since Markdown has other uses for their signs."""
    return _LITERAL.sub(r"`\g<0>`", " ".join(text.split()))


def _code(text: str) -> str:
    return f"```yaml\n{text.strip()}\n```"


def _filled(text: str) -> str:
    """A paragraph in lines; code stays in one piece, and so does a table."""
    if text.startswith("|"):
        return text
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), " ".join(text.split()))
    return textwrap.fill(whole, _WIDTH, break_on_hyphens=False, break_long_words=False).replace("\0", " ")


if __name__ == "__main__":
    print(reference(), end="")
