"""YAML text to plain data, with the line of every entry.

Numbers and dates are read as people expect them to be: YAML 1.1 would silently make 90 of ``1:30``, 8 of ``010`` and a
date of ``2024-01-02``. Here they stay text, for the parser of the field to judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from ..errors import Finding, Loc

MAX_DEPTH = 8
MAX_PLACES = 200_000


class _Loader(yaml.SafeLoader):
    """YAML's safe types, without octal, hexadecimal, sexagesimal and underscored numbers, and without dates."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as the base class declares it
        first: [
            (tag, expression)
            for tag, expression in resolvers
            if tag in ("tag:yaml.org,2002:null", "tag:yaml.org,2002:bool", "tag:yaml.org,2002:merge")
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})\Z"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"[-+]?(?:[0-9]+\.[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|nan))\Z"
    ),
    list("-+.0123456789"),
)


def read_yaml(text: str) -> tuple[Any, dict[Loc, int], list[Finding]]:
    """The data of one YAML document, the line of each place in it (from 1), and its duplicate keys.

    A key is listed where its line is known; places that are nested more deeply than a configuration can be are not.

    Raises:
        yaml.YAMLError: the text is not YAML, holds several documents, or asks for other than plain data.
        RecursionError: it is nested too deeply.
    """
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, {}, []
        duplicates = list(_duplicates(root, (), set()))
        data = loader.construct_document(root)
        lines: dict[Loc, int] = {}
        for loc, line in _places(root, ()):
            lines[loc] = line
            if len(lines) >= MAX_PLACES:
                break
        return data, lines, duplicates
    finally:
        loader.dispose()


def where(error: yaml.YAMLError) -> tuple[str, int | None]:
    """What is wrong with the text, and the line (from 1) where there is one."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        parts = [part for part in (error.context, error.problem) if part]
        return ": ".join(parts), mark.line + 1 if mark else None
    if isinstance(error, yaml.reader.ReaderError):
        return f"the character {error.character!r}, which text does not contain", None
    return str(error), None


def _places(node: yaml.Node, loc: Loc) -> Iterator[tuple[Loc, int]]:
    yield loc, node.start_mark.line + 1
    if len(loc) >= MAX_DEPTH:
        return
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _places(item, (*loc, index))
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                place = (*loc, _key(key))
                yield from _places(value, place)
                yield place, key.start_mark.line + 1


def _duplicates(node: yaml.Node, loc: Loc, seen: set[int]) -> Iterator[Finding]:
    """Keys that stand twice in one mapping; merged mappings (``<<``) are meant to be overridden and do not count."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _duplicates(item, (*loc, index), seen)
    elif isinstance(node, yaml.MappingNode):
        first: dict[str | int, int] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            name = _key(key)
            line = key.start_mark.line + 1
            if name in first and key.tag != "tag:yaml.org,2002:merge":
                found = f"the key a second time on line {line}"
                yield Finding((*loc, name), found, f"each key once; it stands on line {first[name]} already")
            first.setdefault(name, line)
            yield from _duplicates(value, (*loc, name), seen)


def _key(node: yaml.ScalarNode) -> str | int:
    return int(node.value) if node.tag == "tag:yaml.org,2002:int" else str(node.value)
