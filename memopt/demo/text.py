"""Real text that every machine has: the source files of Python's standard library, as bytes."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"})
HELD_OUT_EVERY = 10


@dataclass(frozen=True, eq=False, slots=True)
class Text:
    """Bytes to train on and bytes to judge by, from different files; uint8 tensors of one dimension."""

    training: Tensor
    held_out: Tensor


def read_text(folder: Path | None = None) -> Text:
    """Read the Python files below ``folder`` in the order of their paths; every tenth file is held out.

    Args:
        folder: where to look; by default the standard library, without its tests and installed packages.

    Raises:
        FileNotFoundError: there are fewer than ten Python files.
    """
    root = folder or Path(sysconfig.get_paths()["stdlib"])
    files = [p for p in root.rglob("*.py") if not LEFT_OUT.intersection(p.relative_to(root).parts[:-1])]
    files.sort(key=lambda path: path.relative_to(root).as_posix())
    if len(files) < HELD_OUT_EVERY:
        raise FileNotFoundError(
            f"{root}: found {len(files)} Python source files; needed: {HELD_OUT_EVERY} or more. This Python installation "
            "holds no sources of its standard library."
        )
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for number, path in enumerate(files):
        parts[number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1].append(path.read_bytes())
    training, held_out = (torch.frombuffer(bytearray(b"\n".join(part)), dtype=torch.uint8) for part in parts)
    return Text(training, held_out)


def batch(source: Tensor, number: int, *, size: int, context: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return batch ``number``: symbols, and the symbols that follow them, both ``[size, context]`` of int64.

    The same arguments give the same batch, whatever was drawn before; the global random state is left alone.
    """
    if len(source) <= context:
        raise ValueError(f"source: found {len(source)} bytes; needed: more than context, which is {context}.")
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
    starts = torch.randint(0, len(source) - context, (size, 1), generator=generator)
    windows = source[starts + torch.arange(context + 1)].long()
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
