"""Right pairs pass; for every refusal a wrong pair is handed over, made by torch's partitioner from other decisions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from memopt.passes.joint import JointGraph, decide
from memopt.passes.verify import VerificationError, computed_again, saved_values, verify
from printer import Builder, named, recompute, save, show, show_graph, split
from small_graphs import aten, mlp_layer


def decided_mlp() -> JointGraph:
    joint = mlp_layer()
    recompute(named(joint, "fc1"), named(joint, "act"))
    return joint


def test_a_pair_that_honours_the_decisions_passes() -> None:
    joint = decided_mlp()
    before = show(joint)
    forward, backward = split(joint)
    texts = show_graph(forward), show_graph(backward)
    verify(joint, forward, backward)
    verify(joint, forward, backward)
    assert show(joint) == before
    assert (show_graph(forward), show_graph(backward)) == texts


def test_without_decisions_torchs_own_split_passes() -> None:
    joint = mlp_layer()
    verify(joint, *split(joint))


def test_what_was_to_be_recomputed_and_is_saved() -> None:
    joint = mlp_layer()
    save(named(joint, "act"))
    pair = split(joint)
    recompute(named(joint, "act"), rule="recompute.select_module['.*mlp']")
    with pytest.raises(VerificationError) as caught:
        verify(joint, *pair)
    assert str(caught.value) == (
        "act (aten.gelu.default) in layer 0 was to be recomputed by recompute.select_module['.*mlp'], and is saved"
    )


def test_what_was_to_be_saved_and_is_recomputed() -> None:
    joint = decided_mlp()
    pair = split(joint)
    save(named(joint, "act"), rule="recompute.exclude_op['gelu']")
    decide(named(joint, "fc1"), None)
    with pytest.raises(VerificationError) as caught:
        verify(joint, *pair)
    assert str(caught.value) == (
        "act (aten.gelu.default) in layer 0 was to be saved (recompute.exclude_op['gelu']: a rule keeps it), and is recomputed"
    )


def test_views_and_outputs_of_tuples_may_be_made_again_from_what_is_saved() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    kept = b.op("kept", aten.exp.default, x, at="layers.0")
    view = b.op("view", aten.view.default, kept, [16], at="layers.0")
    out = b.op("out", aten.mul.Tensor, view, 2, at="layers.0")
    gradient = b.tangent(out)
    joint = b.joint([out], [b.back("grad", aten.mul.Tensor, gradient, view)])
    save(kept, view)
    verify(joint, *split(joint))


def copies_again(name: str) -> Callable[[JointGraph], tuple[torch.fx.GraphModule, torch.fx.GraphModule]]:
    """A pair whose backward runs one forward operator again, as it stands."""

    def make(joint: JointGraph) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        forward, backward = split(joint)
        node = named(joint, name)
        present = {n.name: n for n in backward.graph.nodes}
        first = next(n for n in backward.graph.nodes if n.op != "placeholder")
        for source in node.all_input_nodes:
            if source.name not in present:
                with backward.graph.inserting_before(next(iter(backward.graph.nodes))):
                    present[source.name] = backward.graph.placeholder(source.name)
        with backward.graph.inserting_before(first):
            backward.graph.node_copy(node, lambda n: present[n.name])
        return forward, backward

    return make


def test_a_random_operator_that_would_draw_again() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    mask = b.op("mask", aten.bernoulli.p, x, 0.5, at="layers.0")
    out = b.op("out", aten.mul.Tensor, x, mask, at="layers.0")
    gradient = b.tangent(out)
    joint = b.joint([out], [b.back("grad", aten.mul.Tensor, gradient, x)])
    pair = copies_again("mask")(joint)
    with pytest.raises(VerificationError) as caught:
        verify(joint, *pair)
    assert str(caught.value) == "mask (aten.bernoulli.p) would draw other random numbers in the backward than in the forward"


def test_a_random_operator_that_is_replayed_passes() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    mask = b.op("mask", aten.bernoulli.p, x, 0.5, at="layers.0")
    out = b.op("out", aten.mul.Tensor, x, mask, at="layers.0")
    gradient = b.tangent(out)
    joint = b.joint([out], [b.back("grad", aten.mul.Tensor, gradient, mask)])
    recompute(mask)
    forward, backward = split(joint)
    verify(joint, forward, backward)
    assert "run_with_rng_state" in show_graph(backward)
    states = [n.meta["val"] for n, own in saved_values(joint, forward) if own is None]
    assert [s.dtype for s in states] == [torch.uint8]


def test_an_effect_that_would_happen_twice() -> None:
    b = Builder()
    x = b.input("x", 4, 4)
    said = b.op("said", aten._print.default, "hello", at="layers.0")
    out = b.op("out", aten.exp.default, x, at="layers.0")
    gradient = b.tangent(out)
    joint = b.joint([out], [b.back("grad", aten.mul.Tensor, gradient, x)])
    pair = copies_again("said")(joint)
    with pytest.raises(VerificationError) as caught:
        verify(joint, *pair)
    assert str(caught.value) == f"said ({said.target}) has an effect and would run in the backward too"


def test_a_changed_input_that_the_backward_reads() -> None:
    b = Builder()
    x, buffer = b.input("x", 4), b.parameter("b", 4, mutated=True)
    out = b.op("out", aten.mul.Tensor, buffer, x, at="layers.0")
    b.op("write", aten.copy_.default, buffer, out, at="layers.0")
    gradient = b.tangent(out)
    joint = b.joint([out], [b.back("grad", aten.mul.Tensor, gradient, buffer)])
    with pytest.raises(VerificationError) as caught:
        verify(joint, *split(joint))
    assert str(caught.value) == "the backward reads primals_b, which the forward changes in place"


def test_a_name_that_means_another_node_in_the_backward_is_no_recomputation() -> None:
    """torch numbers nodes anew: a backward node may have the name of a forward node that does not run again."""
    joint = mlp_layer()
    save(named(joint, "fc1"), named(joint, "act"))
    forward, backward = split(joint)
    grad = next(n for n in backward.graph.nodes if n.name == "grad_w2")
    grad._rename("fc2")
    assert computed_again(joint, backward) == set()
    verify(joint, forward, backward)
