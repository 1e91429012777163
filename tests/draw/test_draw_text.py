"""Drawings as text."""

from __future__ import annotations

import io

from drawings import mlp, one_of_each
from memopt.compiler.draw.text import styled, to_text
from rich.console import Console

GOLDEN = """\
# joint graph: layer 0, 7 of 12 nodes
fc1 = aten.mm(x, w1)                          [4, 4] float32, 64 B  layer 0 mlp.fc1            must save: recompute.exclude_op['mm'] — mm is kept
act = aten.gelu(fc1)                          [4, 4] float32, 64 B  layer 0 mlp.act            recompute: recompute.select_module['.*mlp'] — module mlp is recomputed
fc2 = aten.mm(act, w2)                        [4, 4] float32, 64 B  layer 0 mlp.fc2
out = aten.add(fc2, x)                        [4, 4] float32, 64 B  layer 0
grad_w2 = aten.mm(act, tangents_out)          [4, 4] float32, 64 B  layer 0 mlp.fc2, backward
grad_act = aten.mm(tangents_out, w2)          [4, 4] float32, 64 B  layer 0 mlp.fc2, backward
grad_fc1 = aten.gelu_backward(grad_act, fc1)  [4, 4] float32, 64 B  layer 0 mlp.act, backward
"""  # noqa: E501


def test_one_node_a_line() -> None:
    assert to_text(mlp()) == GOLDEN


def test_every_fate_has_its_word() -> None:
    words = [line.split("layer 0", 1)[1].strip() for line in to_text(one_of_each()).splitlines()[1:]]
    assert words == [
        "must save",
        "recompute",
        "offload",
        "torch saves",
        "torch recomputes",
        "",
        "inserted: offload",
        "inserted: prefetch",
        "inserted: wait",
    ]


def test_a_terminal_sees_the_same_text_in_colours() -> None:
    assert styled(mlp()).plain + "\n" == to_text(mlp())
    console = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=400)
    console.print(styled(mlp()), highlight=False, soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert "\x1b[1;33mmust save: " in lines[1]
    assert "\x1b[1;34mrecompute: " in lines[2]
    assert lines[3].startswith("\x1b[2m")
