"""A drawing as SVG: one file that needs nothing else, for light and for dark backgrounds."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from ..explain.table import human_bytes
from .drawing import Drawing, Fate, Item
from .layout import BOX_HEIGHT, BOX_WIDTH, MOST_STUBS, STUB_HEIGHT, Box, Curve, Frame, lay_out, moved
from .palette import LOOKS, MEANING

MOST_NODES = 3_000
_MARGIN = 24.0
_LEGEND_COLUMN = 430.0
_LEGEND_ROW = 20.0
_LEGEND_ROWS = 3
_TOP = _MARGIN + 26 + (_LEGEND_ROWS + 1) * _LEGEND_ROW + 16
_CHARACTER = 0.61
"""The width of a monospaced character, as a part of its size."""

CLASSES = {fate: fate.name.lower().replace("_", "-") for fate in Fate}
"""The class of a node's group, by its fate."""


def to_svg(drawing: Drawing) -> str:
    """A whole SVG document.

    Raises:
        ValueError: there are more nodes than a drawing is good for.
    """
    if len(drawing.items) > MOST_NODES:
        raise ValueError(
            f"svg: found {len(drawing.items):,} nodes to draw; allowed: up to {MOST_NODES:,}. Choose layers (--layer 0-1), or "
            "write text or DOT."
        )
    layout = moved(lay_out(drawing), _MARGIN, _TOP)
    width = max(layout.width + 2 * _MARGIN, 3 * _LEGEND_COLUMN + 2 * _MARGIN)
    height = layout.height + _TOP + _MARGIN
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(height)}" '
        f'viewBox="0 0 {_n(width)} {_n(height)}" role="img" font-family="ui-monospace, Menlo, Consolas, monospace">',
        f"<title>{_text(drawing.title)}</title>",
        f"<style>\n{_style()}</style>",
        '<rect class="paper" width="100%" height="100%"/>',
        f'<text class="name" x="{_n(_MARGIN)}" y="{_n(_MARGIN + 12)}" font-size="15">{_text(drawing.title)}</text>',
        *_legend(),
        *(_frame(frame) for frame in layout.frames),
        *(_curve(curve) for curve in layout.curves),
    ]
    for box in layout.boxes:
        lines += _box(box)
    return "\n".join([*lines, "</svg>", ""])


def _style() -> str:
    """One rule for each class, then the same for dark backgrounds."""
    return "".join(
        [
            _rules(paper="#ffffff", ink="#1f2328", faint="#59636e", line="#8b949e", frame="#d1d9e0", dark=False),
            "@media (prefers-color-scheme: dark) {\n",
            _rules(paper="#0d1117", ink="#e6edf3", faint="#9198a1", line="#6e7681", frame="#3d444d", dark=True),
            "}\n",
        ]
    )


def _rules(*, paper: str, ink: str, faint: str, line: str, frame: str, dark: bool) -> str:
    rules = [
        f".paper {{ fill: {paper} }}",
        f"text {{ fill: {faint} }}",
        f"text.name {{ fill: {ink}; font-weight: bold }}",
        f".frame {{ fill: none; stroke: {frame}; stroke-width: 1.5 }}",
        f"path {{ fill: none; stroke: {line}; stroke-width: 1.2 }}",
        f"path.stub {{ stroke: {faint}; stroke-dasharray: 3 2 }}",
    ]
    for fate, look in LOOKS.items():
        fill, stroke = (look.dark_fill, look.dark_stroke) if dark else (look.fill, look.stroke)
        dashes = "; stroke-dasharray: 5 3" if look.dashed else ""
        rules.append(f".{CLASSES[fate]} rect {{ fill: {fill}; stroke: {stroke}; stroke-width: 1.5{dashes} }}")
        if fate is not Fate.PLAIN:
            rules.append(f"path.from-{CLASSES[fate]} {{ stroke: {stroke} }}")
    return "".join(f"{rule}\n" for rule in rules)


def _legend() -> Iterator[str]:
    yield '<g class="legend">'
    for number, (fate, look) in enumerate(LOOKS.items()):
        x = _MARGIN + number // _LEGEND_ROWS * _LEGEND_COLUMN
        y = _MARGIN + 26 + number % _LEGEND_ROWS * _LEGEND_ROW
        yield f'<g class="{CLASSES[fate]}"><rect x="{_n(x)}" y="{_n(y)}" width="46" height="15" rx="3"/>'
        yield f'<text x="{_n(x + 23)}" y="{_n(y + 11)}" font-size="9" text-anchor="middle">{_text(look.mark)}</text>'
        yield f'<text x="{_n(x + 54)}" y="{_n(y + 11)}" font-size="10">{_text(MEANING[fate])}</text></g>'
    y = _MARGIN + 26 + _LEGEND_ROWS * _LEGEND_ROW
    yield f'<path class="stub" d="M {_n(_MARGIN + 23)} {_n(y)} v 15"/>'
    text = "a dashed line ends at the name of what is not drawn: a value that is read, or what reads the value"
    yield f'<text x="{_n(_MARGIN + 54)}" y="{_n(y + 11)}" font-size="10">{text}</text>'
    yield "</g>"


def _frame(frame: Frame) -> str:
    place = f'x="{_n(frame.x)}" y="{_n(frame.y)}" width="{_n(frame.width)}" height="{_n(frame.height)}"'
    label = f'<text class="name" x="{_n(frame.x + 12)}" y="{_n(frame.y + 18)}" font-size="12">{_text(frame.label)}</text>'
    return f'<g><rect class="frame" {place} rx="8"/>{label}</g>'


def _curve(curve: Curve) -> str:
    (x, y), *rest = curve.points
    parts = [f"M {_n(x)} {_n(y)}"]
    for number, (to_x, to_y) in enumerate(rest):
        if number % 2:
            parts.append(f"L {_n(to_x)} {_n(to_y)}")
        elif curve.sideways:
            pull = max(abs(to_x - x) / 2, 40.0)
            parts.append(f"C {_n(x + pull)} {_n(y)} {_n(to_x - pull)} {_n(to_y)} {_n(to_x)} {_n(to_y)}")
        else:
            middle = (y + to_y) / 2
            parts.append(f"C {_n(x)} {_n(middle)} {_n(to_x)} {_n(middle)} {_n(to_x)} {_n(to_y)}")
        x, y = to_x, to_y
    title = f"{curve.source.name} → {curve.target.name}"
    return f'<path class="from-{CLASSES[curve.source.fate]}" d="{" ".join(parts)}"><title>{_text(title)}</title></path>'


def _box(box: Box) -> Iterator[str]:
    item, look = box.item, LOOKS[box.item.fate]
    x, y = box.x, box.y
    yield from _stubs(box)
    yield f'<g class="node {CLASSES[item.fate]}"><title>{_text(_tooltip(item))}</title>'
    yield f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(BOX_WIDTH)}" height="{_n(BOX_HEIGHT)}" rx="5"/>'
    room = BOX_WIDTH - 16 - len(look.mark) * 9 * _CHARACTER
    yield f'<text class="name" x="{_n(x + 8)}" y="{_n(y + 15)}" font-size="11">{_text(_fitted(item.name, room, 11))}</text>'
    right = x + BOX_WIDTH - 6
    yield f'<text x="{_n(right)}" y="{_n(y + 14)}" font-size="9" text-anchor="end">{_text(look.mark)}</text>'
    value = f"{item.shape} {human_bytes(item.bytes)}" if item.shape else ""
    for number, line in enumerate((item.operator, value)):
        text = _fitted(line, BOX_WIDTH - 16, 10)
        yield f'<text x="{_n(x + 8)}" y="{_n(y + 29 + 13 * number)}" font-size="10">{_text(text)}</text>'
    yield "</g>"


def _stubs(box: Box) -> Iterator[str]:
    """What is read from outside stands before the box, what reads the value from outside behind it."""
    shown = box.outer[:MOST_STUBS]
    side = -1.0 if not box.up else 1.0
    edge = box.y if not box.up else box.y + BOX_HEIGHT
    for number, name in enumerate(shown):
        more = len(box.outer) - MOST_STUBS
        text = f"{name} and {more} more" if more > 0 and number == MOST_STUBS - 1 else name
        x = box.x + 8 + 9 * number
        end = edge + side * (len(shown) - number) * STUB_HEIGHT
        tooltip = f"{', '.join(box.outer)} → {box.item.name}"
        yield _stub(x, end, edge, x + 4, end + (10 if not box.up else -3), _fitted(text, BOX_WIDTH - 20, 9), tooltip)
    if box.item.to_outside:
        first, *others = box.item.to_outside
        text = f"→ {first} +{len(others)}" if others else f"→ {first}"
        start = box.y + BOX_HEIGHT if not box.up else box.y
        end = start - side * STUB_HEIGHT
        x = box.x + BOX_WIDTH / 2 + 10
        tooltip = f"{box.item.name} → {', '.join(box.item.to_outside)}"
        yield _stub(x, start, end, x + 4, end - 2 if not box.up else end + 10, _fitted(text, BOX_WIDTH / 2, 9), tooltip)


def _stub(x: float, start: float, end: float, text_x: float, text_y: float, text: str, tooltip: str) -> str:
    line = f'<path class="stub" d="M {_n(x)} {_n(start)} L {_n(x)} {_n(end)}"/>'
    label = f'<text x="{_n(text_x)}" y="{_n(text_y)}" font-size="9">{_text(text)}</text>'
    return f"<g><title>{_text(tooltip)}</title>{line}{label}</g>"


def _tooltip(item: Item) -> str:
    value = f"{item.shape}, {human_bytes(item.bytes)}" if item.shape else ""
    place = item.place if item.place != "-" else "outside the layers"
    lines = (f"{item.name} = {item.formula}", value, place + (", backward" if item.backward else ""), item.fate.value)
    told = (f"rule: {item.rule}" if item.rule else "", f"reason: {item.reason}" if item.reason else "")
    return "\n".join(line for line in (*lines, *told) if line)


def _fitted(text: str, room: float, size: float) -> str:
    """The text, with its middle left out where it does not fit."""
    most = int(room / (size * _CHARACTER))
    if len(text) <= most:
        return text
    tail = max((most - 1) // 2, 1)
    return f"{text[: max(most - 1 - tail, 1)]}…{text[-tail:]}"


def _text(text: str) -> str:
    """Text as XML has it, without characters that XML cannot hold."""
    return escape("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text), {'"': "&quot;"})


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


__all__ = ["CLASSES", "MOST_NODES", "to_svg"]
