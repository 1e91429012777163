"""Hand-built joint graphs that several tests share. Matrices are square, and transposes are left out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from memopt.passes.joint import JointGraph
from printer import Builder

aten = torch.ops.aten


def mlp_layer(call_twice: bool = False) -> JointGraph:
    """One layer: ``x + fc2(gelu(fc1(x)))``; the backward reads fc1, act and the weights."""
    b = Builder()
    x, w1, w2 = b.input("x", 4, 4), b.parameter("w1", 4, 4), b.parameter("w2", 4, 4)
    fc1 = b.op("fc1", aten.mm.default, x, w1, at="layers.0.mlp.fc1", fn=F.linear)
    act = b.op("act", aten.gelu.default, fc1, at="layers.0.mlp.act", fn=F.gelu)
    fc2 = b.op("fc2", aten.mm.default, act, w2, at="layers.0.mlp.fc2", fn=F.linear)
    out = b.op("out", aten.add.Tensor, x, fc2, at="layers.0")
    tangent = b.tangent(out)
    grad_w2 = b.back("grad_w2", aten.mm.default, act, tangent, of=fc2)
    grad_act = b.back("grad_act", aten.mm.default, tangent, w2, of=fc2)
    grad_fc1 = b.back("grad_fc1", aten.gelu_backward.default, grad_act, fc1, of=act)
    grad_w1 = b.back("grad_w1", aten.mm.default, x, grad_fc1, of=fc1)
    return b.joint([out], [grad_w1, grad_w2])


def chain(*places: str, calls: tuple[int, ...] = ()) -> JointGraph:
    """``a0 = sin(x)``, ``a1 = sin(a0)``, ...: one node at each place; the backward reads every input of a sine."""
    b = Builder()
    value = b.input("x", 8)
    nodes = []
    for i, place in enumerate(places):
        call = calls[i] if calls else 0
        value = b.op(f"a{i}", aten.sin.default, value, at=place, fn=torch.sin, call=call)
        nodes.append(value)
    gradient = b.tangent(value)
    for i, node in reversed(list(enumerate(nodes))):
        gradient = b.back(f"g{i}", aten.mul.Tensor, gradient, node.args[0], of=node)
    return b.joint([value], [gradient])
