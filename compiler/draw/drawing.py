"""What is drawn: the chosen nodes of a graph as plain data, with what was decided about each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Fate(Enum):
    """What happens to a value, or why a node is there: a closed set, in the order of the legend.

    The first three were decided, by a rule or for correctness; the next two are torch's partitioner's own choice. The last
    three are operators that swap inserted.
    """

    SAVE = "must save"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"
    TORCH_SAVES = "torch saves"
    TORCH_RECOMPUTES = "torch recomputes"
    PLAIN = "plain"
    LEAVES = "inserted: offload"
    FETCHED = "inserted: prefetch"
    AWAITED = "inserted: wait"


@dataclass(frozen=True, slots=True)
class Item:
    """One node.

    Attributes:
        key: tells it from every other in the drawing.
        name: its name in its graph.
        operator: the operator, as ``exclude_op`` can name it; for a placeholder, what it receives.
        formula: the operator with its arguments: ``aten.mm(x, w)``.
        shape: sizes and element type, ``[4, 256] float32``; empty where the value is no tensor.
        bytes: the bytes of its elements; None where a size is unknown, or the value is no tensor.
        graph: the number of its captured graph.
        backward: whether it runs in the backward.
        layer: its layer's number; None outside the layers.
        path: its module path, relative to the layer or else to the model; for a node of the backward, that of the operator
            it is the backward of.
        fate: what happens to the value.
        rule: the rule that decided; empty where none did.
        reason: why, as a clause; empty where nothing was decided. A plain node with a reason was to be kept, and the backward
            does not need it.
        inputs: the keys of the drawn nodes that it reads.
        from_outside: the names of the values that it reads and that are not drawn.
        to_outside: the names of the nodes that read it and are not drawn; ``output`` where the graph returns it.
        is_given: it is a placeholder: the graph receives it.
    """

    key: str
    name: str
    operator: str
    formula: str
    shape: str
    bytes: int | None
    graph: int
    backward: bool
    layer: int | None
    path: str
    fate: Fate
    rule: str = ""
    reason: str = ""
    inputs: tuple[str, ...] = ()
    from_outside: tuple[str, ...] = ()
    to_outside: tuple[str, ...] = ()
    is_given: bool = False

    @property
    def verdict(self) -> str:
        """What happens, by which rule, and why; empty for a node about which nothing was decided."""
        parts = [part for part in (self.rule, self.reason) if part]
        if self.fate is Fate.PLAIN:
            return f"not needed: {' — '.join(parts)}" if parts else ""
        return f"{self.fate.value}: {' — '.join(parts)}" if parts else self.fate.value

    @property
    def place(self) -> str:
        """``layer 3 mlp.fc1``; outside the layers, the path in the model, or ``-``."""
        if self.layer is None:
            return self.path or "-"
        return f"layer {self.layer} {self.path}".rstrip()


@dataclass(frozen=True, slots=True)
class Drawing:
    """The chosen part of one graph, or of one for each captured graph.

    Attributes:
        which: ``joint``, ``forward`` or ``backward``.
        title: what is drawn, in one line.
        items: the nodes, in the order in which they run.
    """

    which: str
    title: str
    items: tuple[Item, ...]
