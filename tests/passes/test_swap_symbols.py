"""Sizes that only a run can tell: what the backward needs of them crosses as numbers."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import lru_cache

import pytest
import torch
import torch.nn.functional as F
from memopt.passes.joint import JointGraph
from memopt.passes.swap.journey import plan_journeys
from memopt.passes.swap.pair import Pair
from memopt.passes.swap.symbols import Symbols
from memopt.passes.swap.targets import OFFLOAD, WAIT
from memopt.passes.swap.verify_swap import verify_swap
from printer import Builder, plan
from swap_graphs import aten, chosen, node_of, show_pair, travel, travelled
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import memopt
from memopt.demo.gpt import GPT, GPTConfig


class Dynamic(Builder):
    """A builder of graphs with one unknown size, ``n``: an input ``x`` of ``[2, n, 4]``, and the size itself."""

    def __init__(self, *, seen: bool = True) -> None:
        super().__init__()
        shapes = ShapeEnv()
        self._mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
        if seen:
            size = self._mode.from_tensor(torch.empty(6, 4), static_shapes=False).shape[0]
        else:
            size = shapes.create_unbacked_symint()
        with self.graph.inserting_after(self.parameter("w", 4, 4)):
            self.n = self._last = self.graph.placeholder("primals_n")
        self.n.meta["val"] = size
        self.x = self.input("x", 2, size, 4)

    def value(self, name: str) -> Node:
        """A value of ``[2, n, 4]`` in layer 0, whose first stride is ``4 * n``."""
        return self.op(name, aten.exp.default, self.x, at="layers.0")

    def finish(self, *read: Node, reads: Sequence[Node] = ()) -> JointGraph:
        """Layer 0 ends: what is read there, its backward reads too; ``reads``: what the backward alone reads."""
        sums = [self.op(f"sum_{n.name}", aten.sum.default, n, at="layers.0") for n in read]
        out = self.op("out", aten.stack.default, sums, at="layers.0")
        gradient = self.tangent(sums[0])
        return self.joint([out], [self.back(f"g_{n.name}", aten.mul.Tensor, gradient, n, of=out) for n in [*read, *reads]])


def numbers(module: GraphModule) -> list[str]:
    """The numbers that the backward receives, in order."""
    found = module.graph.find_nodes(op="placeholder")
    return [n.name for n in found if isinstance(n.meta["val"], torch.SymInt)]


def crossing(pair: Pair) -> list[str]:
    """What the forward returns for the backward, the numbers first, as they are handed over."""
    (output,) = pair.forward.graph.find_nodes(op="output")
    saved = output.args[0][pair.joint.num_fwd_outputs :]
    return list(map(meaning, sorted(saved, key=lambda n: not isinstance(n.meta["val"], torch.SymInt))))


def received(pair: Pair) -> list[str]:
    """What the backward receives from the forward, in order."""
    found = pair.backward.graph.find_nodes(op="placeholder")
    return [meaning(n) for n in found if not n.name.startswith("tangents")]


def meaning(node: Node) -> str:
    """A number by its formula, a tensor by its name."""
    value = node.meta["val"]
    return str(value) if isinstance(value, torch.SymInt) else node.name


def test_a_stride_that_the_backward_lacks_is_asked_for_and_crosses(golden) -> None:
    b = Dynamic()
    rules = plan(swap=[0])
    pair, moves = chosen(b.finish(b.value("v")), rules)
    journeys = plan_journeys(pair, moves, 1)
    golden("swap_symbols", pair, lambda pair: travel(pair, journeys, rules), twice=False, printed=show_pair)
    verify_swap(pair, journeys)
    assert received(pair) == crossing(pair)


def test_a_number_is_taken_across_once() -> None:
    b = Dynamic()
    pair, journeys = travelled(b.finish(b.value("v"), b.op("u", aten.sin.default, b.x, at="layers.0")), plan(swap=[0]))
    verify_swap(pair, journeys)
    assert numbers(pair.backward) == ["primals_n", "sym_stride_int"]
    assert [n.args[2][0].name for n in waits(pair)] == ["sym_stride_int", "sym_stride_int"]
    assert received(pair) == crossing(pair)


def test_what_the_backward_knows_is_not_taken_across_again() -> None:
    b = Dynamic()
    stride = b.op("stride", operator.mul, b.n, 4, at="layers.0")
    pair, _ = travelled(b.finish(b.value("v"), reads=[stride]), plan(swap=[0]))
    (wait,) = waits(pair)
    assert [str(n) for n in wait.args[2]] == ["stride", "4", "1"]
    assert numbers(pair.backward) == ["primals_n", "stride"]


def test_a_view_that_is_made_again_gets_its_size(golden) -> None:
    b = Dynamic()
    v = b.value("v")
    rows = b.op("rows", operator.mul, b.n, 2, at="layers.0")
    flat = b.op("flat", aten.view.default, v, [rows, 4], at="layers.0")
    rules = plan(swap=[0])
    pair, moves = chosen(b.finish(v, flat), rules, views=True)
    journeys = plan_journeys(pair, moves, 1)
    golden("swap_symbols_view", pair, lambda pair: travel(pair, journeys, rules), twice=False, printed=show_pair)
    verify_swap(pair, journeys)
    assert received(pair) == crossing(pair)


def test_a_view_that_is_made_again_takes_the_size_that_the_backward_knows() -> None:
    b = Dynamic()
    v = b.value("v")
    rows = b.op("rows", operator.mul, b.n, 2, at="layers.0")
    flat = b.op("flat", aten.view.default, v, [rows, 4], at="layers.0")
    pair, _ = travelled(b.finish(v, flat, reads=[rows]), plan(swap=[0]), views=True)
    assert sorted(numbers(pair.backward)) == ["primals_n", "rows", "sym_stride_int"]
    assert node_of(pair.backward, "flat_1").args[1] == [node_of(pair.backward, "rows"), 4]


def test_a_size_that_only_a_run_can_tell_moves_whatever_its_bytes() -> None:
    b = Dynamic(seen=False)
    (move,) = chosen(b.finish(b.value("v")), plan(swap=[0], min_bytes=1 << 40))[1]
    assert (move.value.name, move.size) == ("v", None)


def test_a_dynamic_size_counts_as_in_the_call_that_was_captured() -> None:
    b = Dynamic()
    assert chosen(b.finish(b.value("v")), plan(swap=[0], min_bytes=2 * 6 * 4 * 4 + 1))[1] == []
    b = Dynamic()
    (move,) = chosen(b.finish(b.value("v")), plan(swap=[0], min_bytes=2 * 6 * 4 * 4))[1]
    assert move.size == 2 * 6 * 4 * 4


def test_descriptions_of_what_is_returned_grow_with_it() -> None:
    b = Dynamic()
    rules = plan(swap=[0])
    pair, moves = chosen(b.finish(b.value("v")), rules)
    (output,) = pair.forward.graph.find_nodes(op="output")
    output.meta["desc"] = [n.name for n in output.args[0]]
    travel(pair, plan_journeys(pair, moves, 1), rules)
    assert output.meta["desc"] == ["out", "v", "primals_n", None]
    assert [n.name for n in output.args[0]] == ["out", "v_ticket", "primals_n", "sym_stride_int"]


def test_sizes_that_the_pair_does_not_carry_are_asked_for() -> None:
    b = Dynamic()
    pair, _ = chosen(b.finish(b.value("v")), plan(swap=[0]))
    pair.backward.graph.erase_node(node_of(pair.backward, "primals_n"))
    (output,) = pair.forward.graph.find_nodes(op="output")
    output.args = (tuple(n for n in output.args[0] if n.name != "primals_n"),)
    symbols = Symbols(pair)
    v = node_of(pair.forward, "v")
    assert [str(s) for s in symbols.sizes(v)] == ["2", "sym_size_int", "4"]
    assert [str(s) for s in symbols.strides(v)] == ["sym_stride_int", "4", "1"]
    assert [str(s) for s in symbols.sizes(v)] == ["2", "sym_size_int", "4"]
    assert numbers(pair.backward) == ["sym_size_int", "sym_stride_int"]
    assert received(pair) == crossing(pair)
    assert node_of(pair.forward, "sym_size_int").args == (v, 1)


def waits(pair: Pair) -> list[Node]:
    return list(pair.backward.graph.find_nodes(op="call_function", target=WAIT))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 32)
        self.fc2 = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fc2(F.gelu(self.fc1(x)))


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mlp() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.tanh()


@lru_cache
def traced(model: str, backend: str) -> memopt.GraphExplanation:
    """A real model of two layers and unknown sizes, of which layer 0 is swapped."""
    config = {"swap": {"enable": True, "min_bytes": 0, "layer_swap": [{"layers": [0]}]}}
    if model == "mlp":
        return memopt.trace(Stack(), config, (torch.randn(4, 6, 8),), backend=backend, dynamic=True).graphs[0]
    symbols = torch.zeros(2, 8, dtype=torch.long)
    gpt = GPT(GPTConfig(vocabulary=16, context=8, layers=2, heads=2, width=16, dropout=0.1))
    return memopt.trace(gpt, config, (symbols, symbols), backend=backend, dynamic=True).graphs[0]


REAL = [(model, backend) for model in ("mlp", "gpt") for backend in ("aot_eager", "inductor")]


@pytest.mark.parametrize(("model", "backend"), REAL)
def test_in_a_real_model_every_value_returns_with_the_form_it_had(model: str, backend: str) -> None:
    graph = traced(model, backend)
    left = {n.name: n.args[0].meta["val"] for n in graph.forward.graph.find_nodes(op="call_function", target=OFFLOAD)}
    for wait in graph.backward.graph.find_nodes(op="call_function", target=WAIT):
        value = left.pop(wait.args[0].args[0].name)
        sizes, strides = ([str(number(n)) for n in wait.args[i]] for i in (1, 2))
        assert (sizes, strides) == ([str(n) for n in value.shape], [str(n) for n in value.stride()])
        assert wait.args[3:] == (value.dtype, value.device)
    assert left == {}
    assert any(isinstance(n, Node) for n in wait.args[1])


@pytest.mark.parametrize(("model", "backend"), REAL)
def test_in_a_real_model_what_is_returned_is_what_is_received_in_the_same_order(model: str, backend: str) -> None:
    graph = traced(model, backend)
    (output,) = graph.forward.graph.find_nodes(op="output")
    found = [n for n in graph.backward.graph.find_nodes(op="placeholder") if not n.name.startswith("tangents")]
    saved = sorted(output.args[0][-len(found) :], key=lambda n: not isinstance(n.meta["val"], torch.SymInt))
    assert list(map(meaning, found)) == list(map(meaning, saved))


def number(value: object) -> object:
    return value.meta["val"] if isinstance(value, Node) else value
