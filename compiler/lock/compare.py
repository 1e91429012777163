"""What a lock file allows, against what was found now."""

from __future__ import annotations

from dataclasses import dataclass

from ..explain.table import human_bytes, layer_ranges
from .lock import OUTSIDE, LayerLock, Lock, LockError

_AGAIN = "Look at it with 'memopt explain', and if it is meant, write the lock again with 'memopt lock'."


@dataclass(frozen=True)
class Verdict:
    """How a lock compares.

    Attributes:
        broken: what the lock does not allow.
        better: what has become less: worth locking.
    """

    broken: tuple[str, ...]
    better: tuple[str, ...]


def check_same(locked: Lock, now: Lock, path: object) -> None:
    """Refuse a lock that says nothing about what is looked at now.

    Raises:
        LockError: it was written for another model, configuration, backend or inputs, or by other versions.
    """
    for name, is_version in (("model", False), ("memopt", True), ("torch", True), ("backend", False), ("inputs", False)):
        before, after = (_shown(getattr(lock, name)) for lock in (locked, now))
        if before != after:
            what = f"{name} version" if is_version else name
            raise LockError(
                f"{path}: found a lock for the {what} {before}, and here it is {after}; bytes of one say nothing about the "
                "other. Write the lock again with 'memopt lock'."
            )
    if locked.config != now.config:
        changed = sorted({k for k in {*locked.config, *now.config} if locked.config.get(k) != now.config.get(k)})
        raise LockError(
            f"{path}: found a lock for another configuration ({', '.join(changed)} differ); write the lock again with "
            "'memopt lock'."
        )
    old, new = ({n: layer.path for n, layer in lock.layers.items() if n != OUTSIDE} for lock in (locked, now))
    if old != new:
        raise LockError(
            f"{path}: found a lock for another model: its layers are {_paths(old)}, and here they are {_paths(new)}. "
            "Write the lock again with 'memopt lock'."
        )


def compare(locked: Lock, now: Lock) -> Verdict:
    """Hold what was found against the lock: per layer, the plan and the bytes; and all bytes together."""
    broken: list[str] = []
    better: list[str] = []
    grown: dict[tuple[int, int], list[str]] = {}
    fallen: dict[tuple[int, int], list[str]] = {}
    for number in {**now.layers, **locked.layers}:  # outside layers there may have been nothing, or be nothing now
        before, after = (lock.layers.get(number, LayerLock("")) for lock in (locked, now))
        if (before.recompute, before.swap) != (after.recompute, after.swap):
            broken.append(f"{_name([number])}: {_plan(before)} was locked, and now it is {_plan(after)}. {_AGAIN}")
        if before.saved_bytes != after.saved_bytes:
            which = grown if after.saved_bytes > before.saved_bytes else fallen
            which.setdefault((before.saved_bytes, after.saved_bytes), []).append(number)
    for (old, new), numbers in grown.items():
        each = " each" if len(numbers) > 1 else ""
        broken.append(
            f"{_name(numbers)}: {human_bytes(new)} ({new:,} B){each} saved for backward, {human_bytes(old)} ({old:,} B) were "
            f"locked. {_AGAIN}"
        )
    for (old, new), numbers in fallen.items():
        better.append(f"{_name(numbers)}: {human_bytes(new)} saved for backward, {human_bytes(old)} were locked")
    return Verdict(tuple(broken), tuple(better))


def _name(numbers: list[str]) -> str:
    if numbers == [OUTSIDE]:
        return "outside layers"
    inside = layer_ranges(int(n) for n in numbers if n != OUTSIDE)
    also = " and outside layers" if OUTSIDE in numbers else ""
    return f"layer{'s' if len(numbers) > 1 else ''} {inside}{also}"


def _plan(layer: LayerLock) -> str:
    parts = [f"{what} {', '.join(paths)}" for what, paths in (("recompute", layer.recompute), ("swap", layer.swap)) if paths]
    return " and ".join(parts) or "no rule"


def _paths(paths: dict[str, str]) -> str:
    named = [path for path in paths.values() if path]
    return f"{named[0]} ... {named[-1]} ({len(named)})" if named else "none"


def _shown(value: object) -> str:
    return "; ".join(value) if isinstance(value, tuple) else str(value)
