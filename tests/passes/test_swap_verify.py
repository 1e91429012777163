"""A right pair passes; for every refusal a right pair is broken by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from memopt.passes.swap.pair import Pair
from memopt.passes.swap.targets import PREFETCH, WAIT
from memopt.passes.swap.verify_swap import verify_swap
from memopt.passes.verify import VerificationError
from printer import Builder, plan
from swap_graphs import aten, node_of, show_pair, tower, travelled
from torch.fx import GraphModule, Node

Break = Callable[[Pair], object]
OFFLOADS = "the forward has another number of offloads than values move"


def towers():
    """Layers 0 and 1 of three are swapped, one layer ahead: a0 and a1 move."""
    return travelled(tower("layers.0", "layers.1", "layers.2"), plan(3, swap=[0, 1]))


def forward(pair: Pair, name: str) -> Node:
    return node_of(pair.forward, name)


def backward(pair: Pair, name: str) -> Node:
    return node_of(pair.backward, name)


def returns(module: GraphModule, change: Callable[[list[Node]], list[Node]]) -> None:
    (output,) = module.graph.find_nodes(op="output")
    output.args = (change(list(output.args[0])),)


def bypass(node: Node) -> None:
    """Let what reads the node read its argument."""
    node.replace_all_uses_with(node.args[0])
    node.graph.erase_node(node)


def double(node: Node) -> None:
    with node.graph.inserting_after(node):
        node.graph.node_copy(node)


def reads(node: Node, argument: Node) -> None:
    """Give the node another first argument."""
    node.args = (argument, *node.args[1:])


def offload_in_the_backward(pair: Pair) -> None:
    wait = backward(pair, "a0_wait")
    with pair.backward.graph.inserting_after(wait):
        pair.backward.graph.node_copy(forward(pair, "a0_ticket"), lambda _: wait)


def receive_another_name(pair: Pair) -> None:
    backward(pair, "a0_ticket").name = "another"


def read_the_old_placeholder(pair: Pair) -> None:
    with pair.backward.graph.inserting_before(backward(pair, "a2")):
        old = pair.backward.graph.placeholder("a0")
    backward(pair, "a0_wait").replace_all_uses_with(old)


def read_the_ticket_elsewhere(pair: Pair) -> None:
    with pair.backward.graph.inserting_before(backward(pair, "g0")):
        pair.backward.graph.call_function(aten.neg.default, (backward(pair, "a0_ticket"),))


def read_the_token_elsewhere(pair: Pair) -> None:
    with pair.backward.graph.inserting_before(backward(pair, "g0")):
        pair.backward.graph.call_function(aten.neg.default, (backward(pair, "a0_prefetch"),))


BROKEN: dict[str, tuple[Break, str]] = {
    "offload removed": (lambda p: bypass(forward(p, "a0_ticket")), OFFLOADS),
    "offload doubled": (lambda p: double(forward(p, "a0_ticket")), OFFLOADS),
    "one value offloaded twice, the other not at all": (
        lambda p: reads(forward(p, "a0_ticket"), forward(p, "a1")),
        "a0 of layer 0 does not leave",
    ),
    "ticket of another name": (
        lambda p: setattr(forward(p, "a0_ticket"), "name", "another"),
        "a0 of layer 0 does not leave",
    ),
    "offload before the last use": (
        lambda p: forward(p, "a0").append(forward(p, "a0_ticket")),
        "a0 of layer 0 leaves before its last use",
    ),
    "offload in the backward": (offload_in_the_backward, "the backward would offload again"),
    "the value crosses too": (
        lambda p: returns(p.forward, lambda r: [*r, forward(p, "a0")]),
        "a0 of layer 0 moves, and crosses on the device too",
    ),
    "the value crosses instead of the ticket": (
        lambda p: returns(p.forward, lambda r: [forward(p, "a0") if n.name == "a0_ticket" else n for n in r]),
        "a0 of layer 0 moves, and crosses on the device too",
    ),
    "ticket not returned": (
        lambda p: returns(p.forward, lambda r: [n for n in r if n.name != "a1_ticket"]),
        "the ticket of a1 of layer 1 does not cross",
    ),
    "ticket not received": (receive_another_name, "the ticket of a0 of layer 0 does not cross"),
    "reload removed": (
        lambda p: bypass(backward(p, "a0_prefetch")),
        f"the backward has another number of {PREFETCH} than values move",
    ),
    "reload doubled": (
        lambda p: double(backward(p, "a0_prefetch")),
        f"the backward has another number of {PREFETCH} than values move",
    ),
    "one value reloaded twice": (
        lambda p: reads(backward(p, "a0_prefetch"), backward(p, "a1_ticket")),
        "a1 of layer 1 is not fetched exactly once",
    ),
    "ticket read by another operator": (read_the_ticket_elsewhere, "a0 of layer 0 is not fetched exactly once"),
    "reload a layer late": (
        lambda p: backward(p, "g1").append(backward(p, "a0_prefetch")),
        "a0 of layer 0 is not fetched at its place",
    ),
    "reload a layer early": (
        lambda p: backward(p, "g2").prepend(backward(p, "a0_prefetch")),
        "a0 of layer 0 is fetched before the backward of layer 1",
    ),
    "wait removed": (
        lambda p: bypass(backward(p, "a0_wait")),
        f"the backward has another number of {WAIT} than values move",
    ),
    "wait doubled": (
        lambda p: double(backward(p, "a0_wait")),
        f"the backward has another number of {WAIT} than values move",
    ),
    "two waits for one reload": (
        lambda p: reads(backward(p, "a0_wait"), backward(p, "a1_prefetch")),
        "a1 of layer 1 is not waited for exactly once",
    ),
    "token read by another operator": (read_the_token_elsewhere, "a0 of layer 0 is not waited for exactly once"),
    "a reader of the old placeholder": (read_the_old_placeholder, "a0 of layer 0 comes back, and nothing reads it"),
    "a reader of something else": (
        lambda p: backward(p, "a0_wait").replace_all_uses_with(backward(p, "g")),
        "a0 of layer 0 comes back, and nothing reads it",
    ),
}


def test_a_right_pair_passes_and_stays_as_it_is() -> None:
    pair, journeys = towers()
    before = show_pair(pair)
    verify_swap(pair, journeys)
    verify_swap(pair, journeys)
    assert show_pair(pair) == before


@pytest.mark.parametrize(("broken", "fault"), BROKEN.values(), ids=BROKEN)
def test_a_broken_pair_is_refused(broken: Break, fault: str) -> None:
    pair, journeys = towers()
    broken(pair)
    with pytest.raises(VerificationError) as caught:
        verify_swap(pair, journeys)
    assert str(caught.value) == fault


def viewed_last():
    """``v`` is read last through a view of it, which the backward reads too."""
    b = Builder()
    v = b.op("v", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4), at="layers.0.mlp")
    turned = b.op("turned", aten.t.default, v, at="layers.0")
    out = b.op("out", aten.mul.Tensor, turned, turned, at="layers.0")
    joint = b.joint([out], [b.back("g", aten.mul.Tensor, b.tangent(out), turned, of=out)])
    return travelled(joint, plan(swap=[0]), views=True)


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (lambda p: forward(p, "turned").append(forward(p, "v_ticket")), "v of layer 0, mlp leaves before its last use"),
        (
            lambda p: returns(p.forward, lambda r: [*r, forward(p, "turned")]),
            "v of layer 0, mlp moves, and crosses on the device too",
        ),
    ],
    ids=["offload before the last use of a view", "a view crosses"],
)
def test_views_count_as_the_value(broken: Break, fault: str) -> None:
    pair, journeys = viewed_last()
    verify_swap(pair, journeys)
    broken(pair)
    with pytest.raises(VerificationError) as caught:
        verify_swap(pair, journeys)
    assert str(caught.value) == fault


def test_a_journey_that_was_never_made_is_refused() -> None:
    pair, journeys = towers()
    with pytest.raises(VerificationError, match=OFFLOADS):
        verify_swap(pair, journeys[:1])


def test_a_slice_that_moves_alone_leaves_nothing_of_its_storage_behind() -> None:
    b = Builder()
    v = b.op("v", aten.mm.default, b.input("x", 4, 4), b.parameter("w", 4, 4), at="layers.0")
    part = b.op("part", aten.slice.Tensor, v, 1, 0, 2, at="layers.0")
    out = b.op("out", aten.mul.Tensor, part, part, at="layers.0")
    joint = b.joint([out], [b.back("g", aten.mul.Tensor, b.tangent(out), part, of=out)])
    pair, journeys = travelled(joint, plan(swap=[0]), views=True)
    verify_swap(pair, journeys)
    returns(pair.forward, lambda r: [*r, forward(pair, "v")])
    with pytest.raises(VerificationError) as caught:
        verify_swap(pair, journeys)
    assert str(caught.value) == "part of layer 0 moves, and crosses on the device too"
