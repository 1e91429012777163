from __future__ import annotations

import torch
from memopt.passes.legalize.parameters import recompute_what_parameters_give
from memopt.passes.matched import Matched
from printer import Builder, actions, named, save
from small_graphs import aten, mlp_layer


def run(joint) -> None:
    recompute_what_parameters_give(joint, Matched())


def cast(mutated: bool = False):
    b = Builder()
    x, w = b.input("x", 4, 4, dtype=torch.bfloat16), b.parameter("w", 4, 4, mutated=mutated)
    half = b.op("half", aten._to_copy.default, w, at="layers.0.fc", dtype=torch.bfloat16)
    turned = b.op("turned", aten.t.default, half, at="layers.0.fc")
    out = b.op("out", aten.mm.default, x, turned, at="layers.0.fc")
    gradient = b.tangent(out)
    return b.joint([out], [b.back("grad", aten.mm.default, gradient, turned)])


def test_casts_of_parameters_are_recomputed(golden) -> None:
    golden("legalize_parameters", cast(), run)


def test_a_parameter_that_the_forward_changes_gives_nothing(unchanged) -> None:
    unchanged(cast(mutated=True), run)


def test_products_of_parameters_with_activations_are_left_alone(unchanged) -> None:
    unchanged(mlp_layer(), run)


def test_what_was_decided_to_be_saved_stays_saved(unchanged) -> None:
    joint = cast()
    save(named(joint, "half"), named(joint, "turned"))
    unchanged(joint, run)


def test_a_view_of_a_parameter_needs_no_decision_and_its_elementwise_results_do() -> None:
    b = Builder()
    w = b.parameter("w", 4, 4)
    turned = b.op("turned", aten.t.default, w, at="layers.0.fc")
    scaled = b.op("scaled", aten.mul.Tensor, turned, 2, at="layers.0.fc")
    joined = b.op("joined", aten.cat.default, [scaled, turned], at="layers.0.fc")
    product = b.op("product", aten.mm.default, scaled, turned, at="layers.0.fc")
    joint = b.joint([joined, product])
    run(joint)
    assert actions(joint) == {"scaled": "RECOMPUTE", "joined": "RECOMPUTE"}


def test_what_an_input_gives_is_an_activation(unchanged) -> None:
    b = Builder()
    half = b.op("half", aten._to_copy.default, b.input("x", 4), at="layers.0", dtype=torch.bfloat16)
    unchanged(b.joint([half]), run)


def test_random_noise_on_a_parameter_is_never_drawn_again(unchanged) -> None:
    b = Builder()
    noise = b.op("noise", aten.normal.Tensor_float, b.parameter("w", 4), 1.0, at="layers.0")
    unchanged(b.joint([noise]), run)
