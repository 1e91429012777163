from __future__ import annotations

import pytest
import torch
from memopt.passes.joint import decision_of
from memopt.passes.legalize.indices import keep_chosen_indices
from memopt.passes.matched import Matched
from memopt.passes.policy import RuleKind
from printer import Builder, actions, named, recompute, rule
from small_graphs import aten, mlp_layer


def router():
    b = Builder()
    x = b.input("x", 4, 4)
    scores = b.op("scores", aten.softmax.int, x, 1, at="layers.0.router")
    best = b.op("best", aten.argmax.default, scores, 1, at="layers.0.router")
    out = b.op("out", aten.index_select.default, x, 0, best, at="layers.0.router")
    return b.joint([out])


def test_what_chooses_elements_is_saved(golden) -> None:
    joint = router()
    recompute(*(named(joint, n) for n in ("scores", "best", "out")))
    golden("legalize_indices", joint, lambda joint: keep_chosen_indices(joint, Matched()))


def test_outside_regions_and_without_a_choice_nothing_changes(unchanged) -> None:
    unchanged(router(), lambda joint: keep_chosen_indices(joint, Matched()))
    joint = mlp_layer()
    recompute(*(named(joint, n) for n in ("fc1", "act", "fc2", "out")))
    unchanged(joint, lambda joint: keep_chosen_indices(joint, Matched()))


def test_a_rule_that_names_the_operator_forces_it_and_is_warned_about(unchanged) -> None:
    joint = router()
    recompute(named(joint, "best"))
    matched = Matched(operators={named(joint, "best"): rule(RuleKind.RECOMPUTE_SELECT, ".*argmax", [0])})
    unchanged(joint, lambda joint: keep_chosen_indices(joint, matched))
    assert matched.warnings == [
        "recompute.select_module['.*argmax'] recomputes best, which chooses elements: if the recomputation rounds differently, "
        "it may choose others than the forward did. Name a module instead to have it saved."
    ]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("topk.default", (2,)),
        ("sort.default", ()),
        ("argmax.default", ()),
        ("argmin.default", ()),
        ("argsort.default", ()),
        ("kthvalue.default", (2,)),
        ("median.default", ()),
        ("multinomial.default", (2,)),
        ("max.dim", (1,)),
        ("min.dim", (1,)),
        ("cummax.default", (1,)),
    ],
)
def test_every_operator_that_chooses_is_known(name: str, arguments: tuple[object, ...]) -> None:
    packet, _, overload = name.partition(".")
    b = Builder()
    node = b.op("chosen", getattr(getattr(aten, packet), overload), b.input("x", 4, 4), *arguments, at="layers.0")
    joint = b.joint([])
    recompute(node)
    keep_chosen_indices(joint, Matched())
    assert decision_of(node).action.name == "SAVE"


def test_a_size_that_only_the_data_tells_is_saved() -> None:
    joint = router()
    node = named(joint, "out")
    node.meta["unbacked_bindings"] = {"u0": ()}
    recompute(node)
    keep_chosen_indices(joint, Matched())
    assert actions(joint) == {"out": "SAVE"}
    assert decision_of(node).reason == "its size depends on the data"


def test_a_table_computed_from_constants_is_forced_without_a_warning() -> None:
    """The index of a nearest interpolation: which element it takes depends on no data."""
    b = Builder()
    x = b.input("x", 8)
    steps = b.op("steps", aten.arange.default, 16, at="layers.0")
    scaled = b.op("scaled", aten.mul.Tensor, steps, 0.5, at="layers.0")
    index = b.op("index", aten._to_copy.default, scaled, at="layers.0", dtype=torch.int64)
    data = b.op("data", aten._to_copy.default, x, at="layers.0", dtype=torch.int64)
    out = b.op("out", aten.index.Tensor, x, [index], at="layers.0")
    joint = b.joint([out, data])
    recompute(steps, scaled, index, data, out)
    named_by_it = rule(RuleKind.RECOMPUTE_SELECT, "interpolate", [0])
    matched = Matched(operators={index: named_by_it, data: named_by_it})
    keep_chosen_indices(joint, matched)
    assert actions(joint) == dict.fromkeys(["steps", "scaled", "index", "data", "out"], "RECOMPUTE")
    (said,) = matched.warnings
    assert said.startswith("recompute.select_module['interpolate'] recomputes data, which chooses elements")
