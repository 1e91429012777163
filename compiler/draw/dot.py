"""A drawing as DOT, for Graphviz: clusters by part of the step, layer and module path, and a legend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..explain.table import human_bytes
from .drawing import Drawing, Item
from .palette import LOOKS, MEANING

_HEADER = (
    'node [shape=box, style="rounded,filled", fontname="monospace", fontsize=10]',
    'edge [color="#57606a", fontname="monospace", fontsize=9]',
    "rankdir=TB",
    "compound=true",
)


def quote(text: str) -> str:
    """A quoted string: what Graphviz would take for an escape, an entity or the end of the string is none."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")
    return '"' + "\\n".join("".join(c if c.isprintable() else " " for c in line) for line in escaped.split("\n")) + '"'


def to_dot(drawing: Drawing) -> str:
    """A directed graph; edges from outside the drawn part begin at a small node that names the value."""
    lines = ["digraph memopt {"]
    for statement in (f"label={quote(drawing.title)}", 'labelloc="t"', *_HEADER):
        lines.append(f"  {statement};")
    root = _Cluster("")
    for item in drawing.items:
        root.cluster(_path(drawing, item)).items.append(item)
    lines += _contents(root, [0], 1)
    for item in drawing.items:
        lines += (f"  {line}" for line in _edges(item))
    lines += ["  subgraph cluster_legend {", '    label="legend";', "    color=gray;"]
    for number, (fate, look) in enumerate(LOOKS.items()):
        style = "rounded,filled,dashed" if look.dashed else "rounded,filled"
        colours = f"fillcolor={quote(look.fill)}, color={quote(look.stroke)}"
        lines.append(f"    legend_{number} [label={quote(MEANING[fate])}, style={quote(style)}, {colours}];")
    return "\n".join([*lines, "  }", "}", ""])


@dataclass
class _Cluster:
    """Nodes of one place, and the places within it."""

    label: str
    items: list[Item] = field(default_factory=list)
    parts: dict[str, _Cluster] = field(default_factory=dict)

    def cluster(self, path: tuple[str, ...]) -> _Cluster:
        """The cluster at a path, made where it is not there yet."""
        found = self
        for label in path:
            found = found.parts.setdefault(label, _Cluster(label))
        return found


def _path(drawing: Drawing, item: Item) -> tuple[str, ...]:
    """The labels of the clusters around a node, outermost first."""
    graph = (f"graph {item.graph}",) if item.key != item.name else ()
    phase = ("backward" if item.backward else "forward",) if drawing.which == "joint" else ()
    layer = f"layer {item.layer}" if item.layer is not None else "outside the layers"
    parts = item.path.split(".") if item.path else []
    return (*graph, *phase, layer, *(".".join(parts[: end + 1]) for end in range(len(parts))))


def _contents(cluster: _Cluster, count: list[int], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for item in cluster.items:
        yield f"{indent}{quote(item.key)} [{_attributes(item)}];"
    for part in cluster.parts.values():
        count[0] += 1
        yield f"{indent}subgraph cluster_{count[0]} {{"
        yield f"{indent}  label={quote(part.label)};"
        yield f'{indent}  color="#8b949e";'
        yield from _contents(part, count, depth + 1)
        yield f"{indent}}}"


def _attributes(item: Item) -> str:
    look = LOOKS[item.fate]
    size = f", {human_bytes(item.bytes)}" if item.shape else ""
    label = "\n".join(part for part in (item.name, item.operator, f"{item.shape}{size}") if part)
    tooltip = "\n".join(part for part in (item.formula, item.verdict) if part)
    style = ', style="rounded,filled,dashed"' if look.dashed else ""
    colours = f"fillcolor={quote(look.fill)}, color={quote(look.stroke)}"
    return f"label={quote(label)}, tooltip={quote(tooltip)}, {colours}{style}"


def _edges(item: Item) -> Iterator[str]:
    for source in item.inputs:
        yield f"{quote(source)} -> {quote(item.key)};"
    for name in item.from_outside:
        stub = quote(f"{name} -> {item.key}")
        yield f"{stub} [label={quote(name)}, shape=plaintext, style=solid, fontsize=9];"
        yield f"{stub} -> {quote(item.key)} [style=dashed];"
    if item.to_outside:
        stub = quote(f"{item.key} -> outside")
        more = f" and {len(item.to_outside) - 1} more" if len(item.to_outside) > 1 else ""
        yield f"{stub} [label={quote(item.to_outside[0] + more)}, shape=plaintext, style=solid, fontsize=9];"
        yield f"{quote(item.key)} -> {stub} [style=dashed];"
