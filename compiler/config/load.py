"""From a file, a text or a mapping to a `MemoptConfig`, with every problem in one error."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ..errors import ConfigError, Finding, Problem, show
from .model import LayerSwap, MemoptConfig, OpSwap, RecomputeCommConfig, RecomputeConfig, SwapConfig
from .section import Origin, findings_of
from .yaml_lines import read_yaml, where

__all__ = [
    "ConfigError",
    "ConfigSource",
    "LayerSwap",
    "MemoptConfig",
    "OpSwap",
    "Problem",
    "RecomputeCommConfig",
    "RecomputeConfig",
    "SwapConfig",
    "load_config",
]

ConfigSource = str | os.PathLike[str] | Mapping[Any, Any] | MemoptConfig | None

MAX_FILE_BYTES = 16 * 1024**2


def load_config(source: ConfigSource) -> MemoptConfig:
    """Read a configuration.

    Args:
        source: the path of a YAML file; YAML text (a text with a line break or ``": "`` in it that is not the path of a file);
            a mapping; a `MemoptConfig`, which is returned as it is; or None. An empty file or mapping, and None, switch
            everything off.

    Raises:
        ConfigError: it cannot be read, or is wrong; every problem is listed, each with its place and line.
    """
    given: object = source
    if isinstance(given, MemoptConfig):
        return given
    if given is None:
        return MemoptConfig()
    if isinstance(given, Mapping):
        return _validate(given, Origin())
    if not isinstance(given, (str, os.PathLike)):
        allowed = "the path of a YAML file, YAML text, a mapping or a MemoptConfig"
        raise ConfigError([Problem("configuration", None, show(given), allowed)])
    name, text = _text(given)
    return _parse(text, name)


def _text(source: str | os.PathLike[str]) -> tuple[str | None, str]:
    """The name of the file, if it is one, and the YAML text."""
    name = os.fsdecode(source)
    looks_like_text = isinstance(source, str) and ("\n" in source or ": " in source)
    if looks_like_text and not _is_file(name):
        return None, name
    allowed = "the path of a YAML file"
    try:
        path = Path(name)
        if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError([Problem("configuration", None, f"more than {MAX_FILE_BYTES} bytes", "a YAML file")], name)
        return name, path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        hint = "YAML text is told from a path by a line break or ': ' in it." if isinstance(source, str) else ""
        problem = Problem("configuration", None, f"no file at {show(name)}", allowed, hint)
    except UnicodeDecodeError as error:
        problem = Problem("configuration", None, f"bytes that are not UTF-8 text (at byte {error.start})", allowed)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        problem = Problem("configuration", None, f"{show(name)}, which cannot be read ({reason})", allowed)
    raise ConfigError([problem], name if name.isprintable() else None)


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def _parse(text: str, source: str | None) -> MemoptConfig:
    try:
        data, lines, duplicates = read_yaml(text)
    except yaml.YAMLError as error:
        found, line = where(error)
        raise ConfigError([Problem("configuration", line, f"invalid YAML ({found})", "one YAML document")], source) from None
    except RecursionError:
        raise ConfigError([Problem("configuration", None, "YAML that is nested too deeply")], source) from None
    except ValueError as error:
        raise ConfigError([Problem("configuration", None, f"invalid YAML ({error})", "one YAML document")], source) from None
    return _validate({} if data is None else data, Origin(source, lines, data), duplicates)


def _validate(data: object, origin: Origin, duplicates: list[Finding] | None = None) -> MemoptConfig:
    findings = list(duplicates or ())
    try:
        plain = _plain(data)
        config = MemoptConfig.model_validate(plain)
    except ValidationError as error:
        findings += findings_of(error)
    except RecursionError:
        findings.append(Finding((), "data that is nested too deeply"))
    if findings:
        raise ConfigError([finding.problem(origin.lines) for finding in findings], origin.source)
    return config.with_origin(Origin(origin.source, origin.lines, plain))


def _plain(data: object, seen: dict[int, tuple[object, object]] | None = None) -> object:
    """Mappings of any class as dicts; anything else as it is, for the fields' own parsers to judge.

    What YAML's aliases share stays shared: a few lines of them can stand for more data than there is memory.
    """
    # The data is kept with its id, which would be given to something else otherwise.
    seen = {} if seen is None else seen
    if id(data) in seen:
        return seen[id(data)][1]
    if isinstance(data, Mapping):
        mapping: dict[object, object] = {}
        seen[id(data)] = (data, mapping)
        mapping.update((key, _plain(value, seen)) for key, value in data.items())
        return mapping
    if isinstance(data, list):
        items: list[object] = []
        seen[id(data)] = (data, items)
        items.extend(_plain(item, seen) for item in data)
        return items
    return data
