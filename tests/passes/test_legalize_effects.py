from __future__ import annotations

from memopt.passes.legalize.effects import keep_effects
from memopt.passes.matched import Matched
from printer import Builder, actions, named, recompute
from small_graphs import aten, mlp_layer


def run(joint) -> None:
    keep_effects(joint, Matched())


def printing():
    b = Builder()
    x = b.input("x", 4, 4)
    said = b.op("said", aten._print.default, "hello", at="layers.0")
    out = b.op("out", aten.exp.default, x, at="layers.0")
    joint = b.joint([out])
    recompute(said, out)
    return joint


def test_an_effect_happens_once(golden) -> None:
    golden("legalize_effects", printing(), run)


def test_without_effects_nothing_changes(unchanged) -> None:
    joint = mlp_layer()
    recompute(*(named(joint, n) for n in ("fc1", "act", "fc2", "out")))
    unchanged(joint, run)


def test_ordered_effects_and_assertions_happen_once() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    checked = b.op("checked", aten._assert_async.msg, b.op("first", aten.any.default, x, at="layers.0"), "no", at="layers.0")

    def with_effects(value):
        return value.clone()

    ordered = b.op("ordered", with_effects, x, at="layers.0")
    joint = b.joint([ordered])
    recompute(checked, ordered)
    run(joint)
    assert actions(joint) == {"checked": "SAVE", "ordered": "SAVE"}
