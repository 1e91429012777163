"""What is chosen of a model's graphs, with its place and its fate."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from drawings import Tower
from memopt.compiler.draw.drawing import Drawing, Fate
from memopt.compiler.draw.select import select
from memopt.compiler.draw.text import to_text
from torch import nn

from memopt import Explanation, trace

FULL = {"recompute": {"mode": "full", "full_recompute_layer": [1]}}
KEPT = {"recompute": {"mode": "full", "full_recompute_layer": [0], "exclude_op": ["addmm"]}}
SWAPPED = {"swap": {"enable": True, "default_prefetch": 1, "store": "disk", "min_bytes": 0, "layer_swap": [{"layers": [1]}]}}


@cache
def traced(name: str, dropout: float = 0.0) -> Explanation:
    config: dict[str, Any] = {"full": FULL, "kept": KEPT, "swapped": SWAPPED, "nothing": {}}[name]
    return trace(Tower(dropout=dropout), config, (torch.zeros(4, 8),), backend="aot_eager")


def fates(drawing: Drawing, layer: int | None, *, backward: bool = False) -> Counter[Fate]:
    return Counter(i.fate for i in drawing.items if i.layer == layer and i.backward is backward)


def by_operator(drawing: Drawing, layer: int | None, operator: str) -> list[Fate]:
    return [i.fate for i in drawing.items if i.layer == layer and i.operator == operator and not i.backward]


def test_only_the_chosen_layers_are_drawn() -> None:
    drawing = select(traced("full"), "joint", [1])
    assert {i.layer for i in drawing.items} == {1}
    assert drawing.title.startswith("joint graph: layer 1, ")
    assert {i.layer for i in select(traced("full")).items} == {0, 1, 2}
    assert select(traced("full")).title.startswith("joint graph: layers 0-2, ")


def test_outside_adds_what_lies_in_no_layer() -> None:
    explanation = traced("full")
    every = select(explanation, outside=True)
    assert {i.layer for i in every.items} == {0, 1, 2, None}
    total = sum(n.op != "output" for n in explanation.graphs[0].joint.graph.nodes)
    assert len(every.items) == total
    assert every.title == f"joint graph: layers 0-2 and what lies outside the layers, {total} of {total} nodes"
    assert {"first", "last"} <= {i.path for i in every.items if i.layer is None}


def test_edges_lead_to_drawn_nodes_and_names_stand_for_the_others() -> None:
    drawing = select(traced("full"), "joint", [1])
    keys = {i.key for i in drawing.items}
    assert all(key in keys for i in drawing.items for key in i.inputs)
    assert not keys & {name for i in drawing.items for name in (*i.from_outside, *i.to_outside)}
    whole = select(traced("full"), outside=True)
    assert {name for i in whole.items for name in i.to_outside} == {"output"}
    assert not any(i.from_outside for i in whole.items)


def test_a_recomputed_layer() -> None:
    drawing = select(traced("full"))
    assert by_operator(drawing, 1, "gelu") == [Fate.RECOMPUTE]
    (gelu,) = (i for i in drawing.items if i.layer == 1 and i.operator == "gelu")
    assert gelu.rule == "recompute.full_recompute_layer"
    assert gelu.reason == "its layer is recomputed"
    assert gelu.formula == "aten.gelu(addmm_3)"
    assert (gelu.shape, gelu.bytes) == ("[4, 16] float32", 4 * 16 * 4)
    assert by_operator(drawing, 0, "gelu") == [Fate.TORCH_SAVES]
    assert {i.fate for i in drawing.items if i.backward} == {Fate.PLAIN}


def test_what_is_excluded_is_saved_where_the_backward_needs_it() -> None:
    drawing = select(traced("kept"), "joint", [0])
    found = [i for i in drawing.items if i.operator == "addmm"]
    assert [i.fate for i in found] == [Fate.SAVE, Fate.PLAIN]
    assert found[0].rule == "recompute.exclude_op['addmm']"
    assert found[1].verdict == "not needed: recompute.exclude_op['addmm'] — addmm is excluded from recomputation"


def test_without_rules_torch_decides() -> None:
    found = fates(select(traced("nothing")), 0)
    assert set(found) <= {Fate.TORCH_SAVES, Fate.TORCH_RECOMPUTES, Fate.PLAIN}
    assert found[Fate.TORCH_SAVES] == 3


def test_the_backward_graph_has_the_recomputed_operators() -> None:
    drawing = select(traced("full"), "backward", [1])
    assert [i.fate for i in drawing.items if i.operator == "gelu"] == [Fate.RECOMPUTE]
    assert all(i.backward for i in drawing.items)
    saved = select(traced("full"), "backward", [0])
    assert [(i.formula, i.fate) for i in saved.items if i.is_given] == [("saved", Fate.TORCH_SAVES)] * 3


def test_a_swapped_value_leaves_and_returns() -> None:
    forward = select(traced("swapped"), "forward", [1])
    leaving = [i for i in forward.items if i.fate is Fate.LEAVES]
    moved = [i for i in forward.items if i.fate is Fate.OFFLOAD]
    assert [i.formula for i in leaving] == [f"memopt.offload({i.name})" for i in moved]
    assert {i.operator for i in moved} == {"addmm", "gelu"}
    assert {i.rule for i in (*leaving, *moved)} == {"swap.layer_swap[0]"}
    backward = select(traced("swapped"), "backward", [1])
    assert [i.name for i in backward.items if i.fate is Fate.FETCHED] == [f"{i.name}_prefetch" for i in reversed(moved)]
    assert [i.name for i in backward.items if i.fate is Fate.AWAITED] == [f"{i.name}_wait" for i in reversed(moved)]
    assert {i.formula for i in backward.items if i.fate is Fate.OFFLOAD} == {"ticket"}
    joint = select(traced("swapped"))
    assert [i.fate for i in joint.items if i.layer == 1 and i.operator == "clone"] == [Fate.PLAIN]
    assert by_operator(joint, 1, "add") == [Fate.SAVE]


def test_sums_of_gradients_belong_to_the_layer_whose_gradient_they_add() -> None:
    drawing = select(traced("full"), "joint", [1])
    (total,) = (i for i in drawing.items if i.backward and i.operator == "add")
    assert total.layer == 1
    assert [i.path for i in drawing.items if i.key in total.inputs] == ["fc1"]


def test_replayed_random_operators_are_recomputed_ones() -> None:
    explanation = traced("full", dropout=0.5)
    drawing = select(explanation, "backward", [1])
    (replayed,) = (i for i in drawing.items if i.operator == "run_with_rng_state")
    assert (replayed.fate, replayed.rule) == (Fate.RECOMPUTE, "legalize.random")
    assert [i.layer for i in select(explanation, "forward").items if i.operator == "run_and_save_rng_state"] == [1]


def test_nothing_in_the_text_depends_on_the_process() -> None:
    text = to_text(select(traced("full", dropout=0.5), "backward", outside=True))
    assert "0x" not in text
    assert "/" not in text
    again = trace(Tower(dropout=0.5), FULL, (torch.zeros(4, 8),), backend="aot_eager")
    assert to_text(select(again, "backward", outside=True)) == text


def test_a_dynamic_size_is_its_symbol() -> None:
    model = Tower()
    explanation = trace(model, {}, (torch.zeros(4, 8),), backend="aot_eager", dynamic=True)
    shapes = {i.shape for i in select(explanation, "joint", [0]).items if i.operator == "gelu"}
    assert len(shapes) == 1
    assert next(iter(shapes)).startswith("[s")


class Broken(nn.Module):
    """Two graphs: the second begins behind a break."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](x)
        torch._dynamo.graph_break()
        return self.layers[1](x)


def test_the_nodes_of_several_graphs_are_told_apart() -> None:
    explanation = trace(Broken(), {}, (torch.zeros(2, 4),), backend="aot_eager")
    drawing = select(explanation)
    assert {i.key.partition(":")[0] for i in drawing.items} == {"0", "1"}
    assert len({i.key for i in drawing.items}) == len(drawing.items)
    assert {(i.graph, i.layer) for i in drawing.items} == {(0, 0), (1, 1)}


@pytest.mark.parametrize(
    ("which", "layers", "message"),
    [
        ("both", [], r"which: found 'both'; allowed: joint, forward or backward\."),
        ("joint", [3], r"layer: found 3; the joint graph has layers 0-2\."),
        ("forward", [1, 5, 6], r"layer: found 5-6; the forward graph has layers 0-2\."),
    ],
)
def test_what_is_not_there_is_refused(which: str, layers: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        select(traced("full"), which, layers)


def test_an_explanation_without_graphs_is_refused() -> None:
    with pytest.raises(ValueError, match="no graph with a backward"):
        select(Explanation((), (), (), {}, {}))
