"""Where a drawing's boxes, frames and curves lie.

A joint graph is a U: the forward runs down on the left, the backward up on the right, so that the two halves of a layer lie
side by side, and what is saved crosses between them::

    ┌ layer 0, forward ─┐        ┌ layer 0, backward ┐
    │   norm            │        │   grad_norm       │
    │    ↓      ────────┼─ fc1 ──┼─→    ↑            │
    │   fc1             │        │   grad_fc1        │
    └─────────┼─────────┘        └─────────┼─────────┘
    ┌ layer 1, forward ─┐        ┌ layer 1, backward ┐

A forward or a backward graph alone runs down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .drawing import Drawing, Item
from .layering import Edge, Vertex, arrange

BOX_WIDTH, BOX_HEIGHT = 212.0, 50.0
STUB_HEIGHT = 14.0
MOST_STUBS = 4
_ROW_GAP = 30.0
_PADDING = 22.0
_HEADER = 26.0
_BAND_GAP = 46.0
_COLUMN_GAP = 150.0

Point = tuple[float, float]
_Band = tuple[int, int, int]
"""The number of the graph; before (0), in (1) or behind (2) the layers; the number of the layer."""


@dataclass(frozen=True, slots=True)
class Box:
    """A node's box. ``x, y``: its upper left corner; ``up``: it is entered from below, and left at the top."""

    item: Item
    x: float
    y: float
    up: bool
    outer: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """Around the nodes of one layer, in the forward or in the backward."""

    label: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Curve:
    """An edge. Between the first two points, and between every second pair after, it bends; else it is straight.

    ``sideways``: it leaves to the right and arrives from the left.
    """

    source: Item
    target: Item
    points: tuple[Point, ...]
    sideways: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Everything that is drawn, and the size of it all."""

    boxes: tuple[Box, ...]
    frames: tuple[Frame, ...]
    curves: tuple[Curve, ...]
    width: float
    height: float


def lay_out(drawing: Drawing) -> Layout:
    """Find the places of everything.

    What the graph is given from outside the layers (parameters) gets no box: its name stands at each reader.
    """
    items = {item.key: item for item in drawing.items if item.layer is not None or not item.is_given}
    bands = _bands(list(items.values()))
    names = {item.key: item.name for item in drawing.items}
    blocks: dict[tuple[_Band, bool], _Block] = {}
    for band, backward in sorted({(bands[key], item.backward) for key, item in items.items()}):
        own = [item for item in items.values() if item.backward is backward and bands[item.key] == band]
        label = _label(band, own[0], several=own[0].key != own[0].name)
        blocks[band, backward] = _Block(label, own, names, items, up=backward and drawing.which == "joint")
    widths = [max((b.width for (_, half), b in blocks.items() if half is backward), default=0.0) for backward in (False, True)]
    lefts = [0.0, widths[0] + _COLUMN_GAP if widths[0] else 0.0]
    boxes: dict[str, Box] = {}
    frames: list[Frame] = []
    curves: list[Curve] = []
    y = 0.0
    for band in sorted(set(bands.values()), reverse=drawing.which == "backward"):
        halves = [(backward, blocks[band, backward]) for backward in (False, True) if (band, backward) in blocks]
        height = max(block.height for _, block in halves)
        for backward, block in halves:
            left = lefts[backward] + (widths[backward] - block.width) / 2
            top = y + (height - block.height if block.up else 0.0)
            frames.append(Frame(block.label, left, top, block.width, block.height))
            boxes |= block.boxes(left, top)
            curves += block.curves(left, top)
        y += height + _BAND_GAP
    inner = {(curve.source.key, curve.target.key) for curve in curves}
    curves += _between(boxes, inner)
    width = lefts[1] + widths[1] if widths[1] else widths[0]
    return Layout(tuple(boxes.values()), tuple(frames), tuple(curves), width, max(y - _BAND_GAP, 0.0))


def _bands(items: Sequence[Item]) -> dict[str, _Band]:
    """The band of each node: its layer's; or before or behind all layers, by whether a layer of its own half leads to it."""
    found: dict[str, _Band] = {}
    behind_layers: set[str] = set()
    half = {item.key: item.backward for item in items}
    for item in items:
        own = [key for key in item.inputs if half.get(key) is item.backward]
        reached = any(key in behind_layers or found[key][1] == 1 for key in own)
        if item.layer is not None:
            found[item.key] = (item.graph, 1, item.layer)
            continue
        if reached:
            behind_layers.add(item.key)
        # The backward runs the other way: what it reaches from a layer lies before the layers.
        found[item.key] = (item.graph, 2 if reached is not item.backward else 0, 0)
    return found


def _label(band: _Band, item: Item, *, several: bool) -> str:
    graph = f"graph {band[0]}, " if several else ""
    place = f"layer {band[2]}" if band[1] == 1 else f"{'before' if band[1] == 0 else 'behind'} the layers"
    return f"{graph}{place}, {'backward' if item.backward else 'forward'}"


@dataclass
class _Block:
    """The nodes of one frame, arranged downwards, and turned over where the step runs upwards."""

    label: str
    items: Sequence[Item]
    names: Mapping[str, str]
    boxed: Mapping[str, Item]
    up: bool
    width: float = field(init=False)
    height: float = field(init=False)

    def __post_init__(self) -> None:
        keys = {item.key for item in self.items}
        self._inner: list[Edge] = [(key, item.key) for item in self.items for key in item.inputs if key in keys]
        self._layering = arrange({item.key: BOX_WIDTH for item in self.items}, self._inner)
        own = {item.key: item for item in self.items}
        self._outer = {item.key: tuple(self._names(item)) for item in self.items}
        self._tops: dict[str, float] = {}
        self._spans: list[tuple[float, float]] = []
        y = _HEADER + _PADDING / 2
        for row in self._layering.rows:
            there = [own[v] for v in row if isinstance(v, str)]
            above = max((min(len(self._outer[item.key]), MOST_STUBS) for item in there), default=0) * STUB_HEIGHT
            below = STUB_HEIGHT if any(item.to_outside for item in there) else 0.0
            self._tops |= {item.key: y + above for item in there}
            self._spans.append((y, y + above + BOX_HEIGHT + below))
            y += above + BOX_HEIGHT + below + _ROW_GAP
        self.width = self._layering.width + 2 * _PADDING
        self.height = y - _ROW_GAP + _PADDING

    def _names(self, item: Item) -> Iterator[str]:
        yield from (self.names[key] for key in item.inputs if key not in self.boxed)
        yield from item.from_outside

    def boxes(self, left: float, top: float) -> dict[str, Box]:
        """The boxes, by key."""
        found = {}
        for item in self.items:
            x = left + _PADDING + self._layering.x[item.key] - BOX_WIDTH / 2
            y = self._tops[item.key]
            y = top + (self.height - y - BOX_HEIGHT + _HEADER - _PADDING / 2 if self.up else y)
            found[item.key] = Box(item, x, y, self.up, self._outer[item.key])
        return found

    def curves(self, left: float, top: float) -> Iterator[Curve]:
        """The edges within the block."""
        own = {item.key: item for item in self.items}
        x = self._layering.x
        arriving: dict[Vertex, list[Edge]] = {}
        for edge in self._inner:
            arriving.setdefault(edge[1], []).append(edge)
        for target, edges in arriving.items():
            assert isinstance(target, str)
            edges.sort(key=lambda edge: x[(edge[0], *self._layering.bends.get(edge, ()))[-1]])
            ports = _ports(x[target] - BOX_WIDTH / 2, len(edges), crowded=bool(self._outer[target]))
            for edge, port in zip(edges, ports, strict=True):
                source = str(edge[0])
                points = [(x[source], self._tops[source] + BOX_HEIGHT)]
                for bend in self._layering.bends.get(edge, ()):
                    points += [(x[bend], end) for end in self._spans[bend.row]]
                points.append((port, self._tops[target]))
                yield Curve(own[source], own[target], tuple(self._turned(p, left, top) for p in points))

    def _turned(self, point: Point, left: float, top: float) -> Point:
        y = self.height - point[1] + _HEADER - _PADDING / 2 if self.up else point[1]
        return left + _PADDING + point[0], top + y


def _ports(left: float, count: int, *, crowded: bool) -> list[float]:
    """Where edges arrive at a box: spread over its side, or over the right half where names stand on the left."""
    start, width = (left + BOX_WIDTH / 2, BOX_WIDTH / 2) if crowded else (left, BOX_WIDTH)
    return [start + width * (i + 1) / (count + 1) for i in range(count)]


def _between(boxes: Mapping[str, Box], inner: set[tuple[str, str]]) -> Iterator[Curve]:
    """The edges from block to block: down or up a column, or across from the forward to the backward."""
    for target in boxes.values():
        sources = [boxes[key] for key in target.item.inputs if key in boxes and (key, target.item.key) not in inner]
        across = sorted((s for s in sources if s.up is not target.up), key=lambda s: s.y)
        for i, source in enumerate(across):
            y = target.y + BOX_HEIGHT * (i + 1) / (len(across) + 1)
            ends = ((source.x + BOX_WIDTH, source.y + BOX_HEIGHT / 2), (target.x, y))
            yield Curve(source.item, target.item, ends, sideways=True)
        for source in (s for s in sources if s.up is target.up):
            leaves, arrives = (source.y, target.y + BOX_HEIGHT) if source.up else (source.y + BOX_HEIGHT, target.y)
            ends = ((source.x + BOX_WIDTH / 2, leaves), (target.x + BOX_WIDTH * 0.75, arrives))
            yield Curve(source.item, target.item, ends)


def moved(layout: Layout, x: float, y: float) -> Layout:
    """The same layout, further right and further down."""
    return replace(
        layout,
        boxes=tuple(replace(b, x=b.x + x, y=b.y + y) for b in layout.boxes),
        frames=tuple(replace(f, x=f.x + x, y=f.y + y) for f in layout.frames),
        curves=tuple(replace(c, points=tuple((px + x, py + y) for px, py in c.points)) for c in layout.curves),
    )
