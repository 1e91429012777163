"""Which rules a compiled graph met, kept beside torch's compile cache.

On a hit in that cache no pass runs, and a rule that matches nothing would go unmentioned in every process but the first.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from ..passes.matched import Matched
from . import torch_bridge
from .explain.collectives import Step


@dataclass(frozen=True)
class MatchRecord:
    """What a graph met when it was compiled, as in ``Matched``."""

    met: frozenset[tuple[str, int]]
    effective: frozenset[str]
    ineffective: Mapping[str, str]
    warnings: tuple[str, ...]
    steps: tuple[Step, ...] = ()
    keeps_result: bool = False


def write(key: str, matched: Matched, steps: tuple[Step, ...], keeps_result: bool) -> None:
    """Keep what a graph met. A cache that cannot be written costs only the time to find it out again."""
    path = _path(key)
    text = json.dumps(
        {
            "met": sorted(matched.met),
            "effective": sorted(matched.effective),
            "ineffective": matched.ineffective,
            "warnings": matched.warnings,
            "steps": [astuple(step) for step in steps],
            "keeps_result": keeps_result,
        }
    )
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text)
        unfinished.replace(path)


def read(key: str) -> MatchRecord | None:
    """Read what a graph met when it was compiled; None when nobody knows."""
    try:
        found = json.loads(_path(key).read_text())
        met = frozenset((str(field), int(layer)) for field, layer in found["met"])
        ineffective = {str(field): str(why) for field, why in found["ineffective"].items()}
        steps = tuple(Step(*step) for step in found["steps"])
        effective, warnings = frozenset(found["effective"]), tuple(found["warnings"])
        return MatchRecord(met, effective, ineffective, warnings, steps, bool(found["keeps_result"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _path(key: str) -> Path:
    # Ranks may share the folder, and their groups have other names.
    return Path(torch_bridge.cache_dir()) / "memopt" / f"{key}.{torch_bridge.own_rank()}.json"
