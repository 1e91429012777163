"""A drawing as text: one node a line, in the order in which they run.

    act = aten.gelu(fc1)      [4, 4] float32, 64 B  layer 0 mlp.act  recompute: recompute.select_module['.*mlp'] — ...
    grad_act = aten.mm(...)   [4, 4] float32, 64 B  layer 0 mlp.fc2, backward

Nothing depends on where files or values lie, so that two texts can be compared line by line.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from ..explain.table import human_bytes
from .drawing import Drawing, Fate, Item
from .palette import LOOKS

_WIDEST = 72
"""Characters: a longer formula shifts its own line only."""


def to_text(drawing: Drawing) -> str:
    """The title, then one line a node, and a last line break."""
    return "".join(f"{line}\n" for line in [f"# {drawing.title}", *(cells for cells, _ in _lines(drawing))])


def styled(drawing: Drawing) -> Text:
    """The same for a terminal, each verdict in the colour of its fate."""
    text = Text().append(f"# {drawing.title}\n", "bold")
    for line, item in _lines(drawing):
        verdict = item.verdict
        row = Text(line.removesuffix(verdict) if verdict else line, style="" if verdict else LOOKS[Fate.PLAIN].terminal)
        text.append_text(row.append(verdict, LOOKS[item.fate].terminal).append("\n"))
    text.right_crop(1)
    return text


def _lines(drawing: Drawing) -> Iterator[tuple[str, Item]]:
    rows = [_cells(item, tells_backward=drawing.which == "joint") for item in drawing.items]
    widths = [max((len(row[i]) for row in rows if len(row[i]) <= _WIDEST), default=0) for i in range(3)]
    for cells, item in zip(rows, drawing.items, strict=True):
        columns = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
        yield f"{'  '.join(columns)}  {item.verdict}".rstrip(), item


def _cells(item: Item, *, tells_backward: bool) -> tuple[str, str, str]:
    value = f"{item.shape}, {human_bytes(item.bytes)}" if item.shape else ""
    phase = ", backward" if item.backward and tells_backward else ""
    return f"{item.key} = {item.formula}", value, item.place + phase
