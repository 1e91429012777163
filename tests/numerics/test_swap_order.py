"""The order in which a compiled step really runs: recorded from its operators, under every backend, after all scheduling."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from memopt.compiler import session
from torch import nn
from torch.fx import Graph, GraphModule, Node
from torch.profiler import ProfilerActivity, profile

from memopt import compile_with_memopt, explain

LAYERS = 5
WIDTHS = [24 + 8 * i for i in range(LAYERS)]
"""Each layer has an inner width of its own, by which its matrix products are told."""


class Layer(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.fc1 = nn.Linear(16, inner)
        self.fc2 = nn.Linear(inner, 16)
        self.drop = nn.Dropout(0.1)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.drop(self.fc2(torch.nn.functional.gelu(self.fc1(self.norm(h)))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(Layer, WIDTHS))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            h = layer(h)
        return h


def recorded(model: nn.Module, h: torch.Tensor, folder: Path) -> list[tuple[str, int | None]]:
    """What ran in one step, in order: ``("mm", layer)``, ``("offload", None)``, ``("prefetch", None)``, ``("wait", None)``."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        model(h).sum().backward()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("ph") == "X" and e.get("cat") == "cpu_op"]
    found: list[tuple[str, int | None]] = []
    for event in sorted(events, key=lambda e: e["ts"]):
        name = event["name"]
        if name.startswith("memopt::"):
            found.append((name.removeprefix("memopt::"), None))
        elif name in ("aten::mm", "aten::addmm"):
            sizes = {size for shape in event["args"]["Input Dims"] for size in shape if isinstance(size, int)}
            layer = next((i for i, width in enumerate(WIDTHS) if width in sizes), None)
            found.append(("mm", layer))
    return found


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize(("rows", "ahead"), [(20, 1), (400, 1), (400, 2), (20, LAYERS - 1)])
def test_reloads_run_where_they_were_planned(rows: int, ahead: int, backend: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model()
    plain = copy.deepcopy(model)
    h = torch.randn(rows, 16)
    last = LAYERS - 1 - ahead
    config = {"swap": {"enable": True, "min_bytes": 0, "default_prefetch": ahead, "layer_swap": [{"layers": [f"0-{last}"]}]}}
    compiled = compile_with_memopt(model, config, backend=backend)
    other = torch.compile(plain, backend=backend)
    for seed in range(2):
        for run in (compiled, other):
            run.zero_grad()
            torch.manual_seed(seed)
            run(h).sum().backward()
    largest = max(float(p.grad.abs().max()) for p in plain.parameters())
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        difference = float((ours.grad - theirs.grad).abs().max())
        assert difference <= (0.0 if backend == "aot_eager" else 1e-6 * largest)

    order = recorded(model, h, tmp_path)
    moves = [row for row in explain(model).values if row.action == "offload"]
    names = [kind for kind, _ in order]
    assert names.count("offload") == names.count("prefetch") == names.count("wait") > 0
    assert max(i for i, n in enumerate(names) if n == "offload") < names.index("prefetch")

    # Which layer's backward each operator of ours runs in: that of the last matrix product before it.
    backward = order[next(i for i, n in enumerate(names) if n == "prefetch") :]
    running = None
    issued: list[int | None] = []
    for kind, layer in backward:
        if kind == "mm":
            running = layer
        elif kind == "prefetch":
            issued.append(running)
    # A reload runs in the layer that is told: no product of the layer before that has run, and all of the one after it have.
    planned = sorted((row.issued for row in moves), reverse=True)
    assert all(at in (number, number + 1 if number + 1 < LAYERS else None) for at, number in zip(issued, planned, strict=True))
    # It is the one that is configured where activations weigh more than the gradients of parameters, which fill the memory
    # towards the end: of the last layers some come a layer later.
    layers_ahead = {row.issued - row.returns for row in moves}
    assert layers_ahead == ({ahead} if rows == 400 else {ahead, ahead - 1})

    # Waits run in the backward of the layer that reads the value, not at its beginning all at once.
    running = None
    waited = []
    for kind, layer in backward:
        if kind == "mm":
            running = layer
        elif kind == "wait":
            waited.append(running)
    readers = sorted((row.returns for row in moves), reverse=True)
    assert all(at in (reader, reader + 1, None) for at, reader in zip(waited, readers, strict=True))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_values_leave_while_the_forward_runs(backend: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model()
    h = torch.randn(20, 16)
    config = {"swap": {"enable": True, "min_bytes": 0, "layer_swap": [{"layers": ["0-3"]}]}}
    compile_with_memopt(model, config, backend=backend)
    model(h).sum().backward()
    order = recorded(model, h, tmp_path)
    forward = order[: next(i for i, (kind, _) in enumerate(order) if kind == "prefetch")]
    # After every layer's products, before the products of the layer after the next, that layer's values have left.
    leaves = [sum(1 for kind, _ in forward[:i] if kind == "offload") for i, (kind, layer) in enumerate(forward) if kind == "mm"]
    total = sum(1 for kind, _ in forward if kind == "offload")
    assert leaves[-2] >= total * 3 // 4


def shuffled(seed: int) -> Any:
    """A backend that runs the nodes of each graph in a random order that data allows."""
    chance = random.Random(seed)

    def run(graph: GraphModule, _inputs: Any) -> Any:
        waiting = {n: set(n.all_input_nodes) for n in graph.graph.nodes if n.op not in ("placeholder", "output")}
        order = [n for n in graph.graph.nodes if n.op == "placeholder"]
        done = set(order)
        while waiting:
            node = chance.choice([n for n, inputs in waiting.items() if inputs <= done])
            del waiting[node]
            order.append(node)
            done.add(node)
        made = Graph()
        copies: dict[Node, Node] = {}
        for node in [*order, *graph.graph.find_nodes(op="output")]:
            copies[node] = made.node_copy(node, copies.__getitem__)
        return GraphModule(graph, made).forward

    return run


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_any_order_that_data_allows_gives_the_same_gradients(
    seed: int, asynchronous: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "reuses_held_memory", lambda _backend: not asynchronous)
    torch.manual_seed(0)
    model = Model().eval()  # without dropout, whose numbers depend on the order
    plain = copy.deepcopy(model)
    h = torch.randn(20, 16)
    config = {"swap": {"enable": True, "min_bytes": 0, "in_flight_bytes": "4KiB", "layer_swap": [{"layers": ["0-3"]}]}}
    compile_with_memopt(model, config, backend=shuffled(seed))
    for one in (model, plain):
        one(h).sum().backward()
    assert "offload" in {row.action for row in explain(model).values}
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-5)
