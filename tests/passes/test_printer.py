"""The printer is what the golden texts rest on."""

from __future__ import annotations

import pytest
from memopt.passes.mark_recompute import mark_recompute
from memopt.passes.matched import Matched
from printer import Builder, decided, plan, show
from small_graphs import aten, mlp_layer


def test_equal_graphs_have_equal_texts() -> None:
    assert show(mlp_layer()) == show(mlp_layer())


def test_nothing_that_differs_between_machines_is_printed() -> None:
    joint = mlp_layer()
    mark_recompute(joint, plan(full=[0]), Matched())
    text = show(joint)
    assert "/" not in text
    assert "0x" not in text
    assert "cpu" not in text


def test_one_node_a_line() -> None:
    joint = mlp_layer()
    assert len(show(joint).splitlines()) == len(joint.graph.nodes)
    assert decided(joint) == ""


def test_a_name_that_is_taken_is_an_error() -> None:
    b = Builder()
    x = b.input("x", 4)
    b.op("same", aten.exp.default, x)
    with pytest.raises(AssertionError, match="same is taken"):
        b.op("same", aten.exp.default, x)
