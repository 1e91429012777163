"""Small drawings made by hand, and models to draw, that the tests of drawing share."""

from __future__ import annotations

from itertools import pairwise

from memopt.compiler.draw.drawing import Drawing, Fate, Item
from torch import Tensor, nn


def item(
    name: str,
    operator: str,
    *inputs: str,
    layer: int | None = 0,
    path: str = "",
    fate: Fate = Fate.PLAIN,
    rule: str = "",
    reason: str = "",
    backward: bool = False,
    shape: str = "[4, 4] float32",
    outer: tuple[str, ...] = (),
    to: tuple[str, ...] = (),
    given: bool = False,
    graph: int = 0,
    key: str = "",
) -> Item:
    formula = operator if given else f"aten.{operator}({', '.join((*inputs, *outer))})"
    value = (shape, 64 if shape else None)
    place = (graph, backward, layer, path)
    return Item(key or name, name, operator, formula, *value, *place, fate, rule, reason, inputs, outer, to, given)


RULE = "recompute.select_module['.*mlp']"


def mlp() -> Drawing:
    """A layer that computes ``fc2(gelu(fc1(x)))``, its MLP recomputed, with a saved product."""
    kept = "recompute.exclude_op['mm']"
    items = (
        item("fc1", "mm", path="mlp.fc1", outer=("x", "w1"), fate=Fate.SAVE, rule=kept, reason="mm is kept"),
        item("act", "gelu", "fc1", path="mlp.act", fate=Fate.RECOMPUTE, rule=RULE, reason="module mlp is recomputed"),
        item("fc2", "mm", "act", path="mlp.fc2", outer=("w2",)),
        item("out", "add", "fc2", outer=("x",), to=("output",)),
        item("grad_w2", "mm", "act", path="mlp.fc2", backward=True, outer=("tangents_out",), to=("output",)),
        item("grad_act", "mm", path="mlp.fc2", backward=True, outer=("tangents_out", "w2")),
        item("grad_fc1", "gelu_backward", "grad_act", "fc1", path="mlp.act", backward=True, to=("grad_w1", "grad_x")),
    )
    return Drawing("joint", "joint graph: layer 0, 7 of 12 nodes", items)


def one_of_each() -> Drawing:
    """A chain with one node of every fate."""
    items = [item("save", "sin", fate=Fate.SAVE)]
    for before, fate in pairwise(Fate):
        items.append(item(fate.name.lower(), "sin", before.name.lower(), fate=fate))
    return Drawing("forward", "forward graph: layer 0", tuple(items))


def chain(length: int, *, per_layer: int = 50) -> Drawing:
    """A long chain through many layers."""
    items = [item("n0", "sin")]
    items += [item(f"n{i}", "sin", f"n{i - 1}", layer=i // per_layer) for i in range(1, length)]
    return Drawing("forward", f"{length} nodes", tuple(items))


class Block(nn.Module):
    """Two linear maps, a GELU, dropout, and the way around them."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 2 * width)
        self.fc2 = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.fc2(nn.functional.gelu(self.fc1(x))))


class Tower(nn.Module):
    """Blocks between two linear maps."""

    def __init__(self, layers: int = 3, width: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.layers = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.last = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        for layer in self.layers:
            x = layer(x)
        return self.last(x)
