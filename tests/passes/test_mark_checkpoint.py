from __future__ import annotations

from memopt.passes.joint import region_of
from memopt.passes.mark_checkpoint import mark_checkpoint
from memopt.passes.mark_recompute import mark_recompute
from memopt.passes.matched import Matched
from printer import actions, decided, named, plan
from small_graphs import mlp_layer

TAGS = {"fc1": (True, 1), "act": (True, 1), "fc2": (False, 1), "grad_act": (True, 1)}


def tag_of(node):
    return TAGS.get(node.name)


def test_tags_of_the_users_checkpoints_become_decisions(golden) -> None:
    golden("mark_checkpoint", mlp_layer(), lambda joint: mark_checkpoint(joint, tag_of))


def test_without_checkpoints_nothing_is_marked(unchanged) -> None:
    unchanged(mlp_layer(), lambda joint: mark_checkpoint(joint, lambda node: None))


def test_the_backward_is_not_looked_at() -> None:
    joint = mlp_layer()
    mark_checkpoint(joint, tag_of)
    assert actions(joint) == {"fc1": "RECOMPUTE", "act": "RECOMPUTE", "fc2": "SAVE"}


def test_what_a_checkpoint_saves_lies_in_its_region() -> None:
    """Else its own recomputed inputs would seem to leave the region, and be saved with it."""
    joint = mlp_layer()
    mark_checkpoint(joint, tag_of)
    assert region_of(named(joint, "fc2")) == region_of(named(joint, "fc1"))


def test_two_checkpoints_are_two_regions_and_none_of_memopts_own() -> None:
    joint = mlp_layer()
    mark_checkpoint(joint, lambda node: {"fc1": (True, 1), "act": (True, 2)}.get(node.name))
    mark_recompute(joint, plan(operators={"add": [0]}), Matched())
    regions = [region_of(named(joint, n)) for n in ("fc1", "act", "out")]
    assert len(set(regions)) == 3


def test_a_rule_leaves_to_the_models_checkpoint_what_that_recomputes() -> None:
    joint, matched = mlp_layer(), Matched()
    mark_checkpoint(joint, tag_of)
    before = decided(joint)
    mark_recompute(joint, plan(operators={r".*\.gelu": [0]}), matched)
    assert decided(joint) == before
    assert matched.fulfilled == {r"recompute.select_module['.*\\.gelu']"}
    assert matched.operators == {}
