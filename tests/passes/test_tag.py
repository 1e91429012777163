from __future__ import annotations

from memopt.passes.joint import decide
from memopt.passes.policy import Action, Decision
from memopt.passes.tag import tag
from printer import Builder, named, recompute, save, show
from small_graphs import aten, mlp_layer


def tags(joint) -> dict[str, bool | None]:
    written: dict[str, bool | None] = {}
    tag(joint, lambda node, value: written.__setitem__(node.name, value))
    return written


def test_without_decisions_every_tag_is_cleared() -> None:
    assert tags(mlp_layer()) == dict.fromkeys(("fc1", "act", "fc2", "out"))


def test_decisions_become_tags_for_operators_of_the_forward_only() -> None:
    joint = mlp_layer()
    recompute(named(joint, "fc1"), named(joint, "grad_act"))
    save(named(joint, "act"))
    decide(named(joint, "fc2"), Decision(Action.OFFLOAD, "a rule", 0, "mlp", "it is moved"))
    before = show(joint)
    assert tags(joint) == {"fc1": True, "act": False, "fc2": None, "out": None}
    assert tags(joint) == {"fc1": True, "act": False, "fc2": None, "out": None}
    assert show(joint) == before


def test_a_saved_view_or_getitem_is_saved_by_what_makes_its_storage() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    top = b.op("top", aten.topk.default, x, 2, at="layers.0")
    values = b.item("values", top, 0, at="layers.0")
    view = b.op("view", aten.view.default, values, [8], at="layers.0")
    kept = b.op("kept", aten.exp.default, view, at="layers.0")
    joint = b.joint([kept])
    save(top, values, view, kept)
    assert tags(joint) == {"top": False, "values": None, "view": None, "kept": False}
    recompute(values, view)
    assert tags(joint) == {"top": False, "values": True, "view": True, "kept": False}


def test_sizes_seeds_and_mutations_are_left_to_torch() -> None:
    b = Builder()
    x, buffer = b.input("x", 4, 4), b.input("buffer", 4, 4, mutated=True)
    out = b.op("out", aten.exp.default, x, at="layers.0")
    size = b.op("size", aten.sym_size.int, x, 0, at="layers.0")
    write = b.op("write", aten.copy_.default, buffer, out, at="layers.0")
    joint = b.joint([out])
    for node in (size, write):
        recompute(node)
    assert tags(joint) == {"out": None}
