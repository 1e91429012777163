"""Swapped values come back as they were: gradients, buffers and random numbers are those of eager, on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from harness import BACKENDS, check
from numeric_models import Block, Mlp, Residual, Stack, double, stack, x
from torch import nn

from memopt import ConfigError, compile_with_memopt, swap_counters, trace


def swap(*layers: int | str, operators: dict[str, list[Any]] | None = None, **more: Any) -> dict[str, Any]:
    """A configuration that swaps every value, however small."""
    section: dict[str, Any] = {"enable": True, "min_bytes": 0, **more}
    if layers:
        section["layer_swap"] = [{"layers": list(layers)}]
    if operators:
        section["op_swap"] = [{"op_name": name, "layers": numbers} for name, numbers in operators.items()]
    return {"swap": section}


def moved(trained: Any) -> list[str]:
    """The operators whose values were swapped."""
    return [row.op for row in trained.explanation.values if row.action == "offload"]


CONFIGS = {
    "layers": swap("0-1"),
    "layers, two ahead": swap(0, default_prefetch=2),
    "module": swap(operators={".*mlp": ["0-1"]}),
    "operator": swap(operators={r".*\.gelu": ["0-1"]}),
    "layer and module": swap(0, operators={".*attention": [1]}),
    "with recomputation": {**swap(1), "recompute": {"mode": "full", "full_recompute_layer": [0, 2]}},
    "beside a recomputed module": {
        **swap(operators={".*attention": ["0-1"]}),
        "recompute": {"mode": "select", "select_module": {".*mlp": ["0-2"]}},
    },
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("backend", [b for b in BACKENDS if b != "inductor"])
def test_gradients_are_those_of_eager(config: Any, backend: str) -> None:
    trained = check(stack(lambda: Block(dropout=0.1), 3), [x(2, 6)], config, backend)
    assert moved(trained)


@pytest.mark.parametrize("name", ["layers", "beside a recomputed module"])
def test_gradients_are_those_of_eager_under_inductor(name: str) -> None:
    trained = check(stack(lambda: Block(dropout=0.1), 3), [x(2, 6)], CONFIGS[name], "inductor")
    assert moved(trained)


def test_all_that_only_swapped_layers_read_leaves() -> None:
    trained = check(stack(Block, 3), [x(2, 6)], swap("0-1"), "aot_eager")
    rows = trained.explanation.values
    left = [r for r in rows if r.layer in (0, 1) and r.kind == "activation" and r.action == "save"]
    # What lies between layer 1 and layer 2 is read by layer 2, which is not swapped.
    assert [(r.layer, r.rule) for r in left] == [(1, "swap.borders")]
    before = {t.layer: t.saved_before for t in trained.explanation.totals}
    after = {t.layer: t for t in trained.explanation.totals}
    assert after[0].saved_after == 0
    assert after[0].swapped + after[1].swapped + after[1].saved_after == before[0] + before[1]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_swap_saves_nothing_that_torch_would_recompute(backend: str) -> None:
    torch.manual_seed(3)
    model = Autocast()  # whose casts, saved, would be as large again
    traced = trace(model, swap("0-1"), [x().detach().float()], backend=backend)
    before, after = (sum(getattr(t, name) for t in traced.totals) for name in ("saved_before", "saved_after"))
    # A border may cost a value, and spare others.
    assert traced.swapped + after <= 1.02 * before


def test_journeys_are_told_by_layer() -> None:
    trained = check(stack(Block, 4), [x(64, 6)], swap("0-1", default_prefetch=2), "aot_eager")
    rows = [r for r in trained.explanation.values if r.action == "offload"]
    assert {(r.store, r.returns, r.issued) for r in rows} == {("disk", 0, 2), ("disk", 1, 3)}
    assert {r.leaves for r in rows if r.layer == 0 and r.returns == 0} == {0}
    assert all(r.rule == "swap.layer_swap[0]" for r in rows)
    assert "fetched at n+2, used in n" in str(trained.explanation)


class Views(nn.Module):
    """Saves a square matrix, its transpose, a slice and a flat view of it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        y = (h @ self.weight).tanh()
        part = (y[:, 1:3] * y[:, 3:5]).sum()
        flat = y.view(2, -1)
        return 0.1 * ((y * y.t()) + part + (flat * flat.sin()).sum() + (y.t() @ y)).tanh()


class Strides(nn.Module):
    """Saves transposed, expanded, sliced, strided, scalar, boolean, integer and complex values."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        y = (h @ self.weight).tanh().t().contiguous().t()
        row = (y[:1] * 2).exp().expand(8, 8)
        column = y[:, 3:4].exp()
        strided = torch.as_strided(y.contiguous(), (4, 4), (9, 2), 1)
        scalar = y.mean().exp()
        chosen = y.topk(3, dim=1)
        spectrum = torch.fft.fft(y)
        masked = y.masked_fill(y > 0.5, 0.0)
        product = (row * y) * column * scalar + (strided * strided).sum() / 64 + (chosen.values * chosen.values).sum()
        return 0.1 * (product + (spectrum * spectrum.conj()).real + masked * masked).tanh() + y.t().view(-1).cos().view(8, 8)


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + F.silu(self.norm(self.conv(h.to(memory_format=torch.channels_last))))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("layer", [Views, Strides])
def test_views_and_strides_come_back(layer: Callable[[], nn.Module], backend: str) -> None:
    trained = check(stack(lambda: Residual(layer()), 3), [x(8)], swap("0-1"), backend)
    assert moved(trained)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_images_and_buffers(backend: str) -> None:
    trained = check(stack(ChannelsLast, 3), [x(2, 8, 6, width=6)], swap("0-1"), backend)
    assert moved(trained)


class Rolled(nn.Module):
    """An operator whose fake kernel tells other strides than the real one gives."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(()))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + (h.to(memory_format=torch.channels_last).sin() * self.scale).roll(1, 2).sin()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_strides_that_torch_tells_wrong(backend: str) -> None:
    trained = check(stack(Rolled, 3), [x(2, 8, 6, width=6)], swap("0-1"), backend, exact=False)
    assert "roll" in moved(trained) or backend == "inductor"


class Windows(nn.Module):
    """Saves overlapping windows and halves of one value."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        y = self.fc(h).tanh()
        windows, (left, _) = y.unfold(1, 4, 1), y.split(4, 1)
        return h + 0.1 * (windows * windows.sin()).sum() * (left.exp() * left).sum() + y


def test_rows_of_shared_memory_add_up_to_what_moves() -> None:
    model = stack(Windows, 3)
    trained = check(model, [x(8)], swap("0-1"), "aot_eager", steps=1)
    rows = [r for r in trained.explanation.values if r.action == "offload"]
    before = swap_counters()
    model(x(8)).sum().backward()
    assert sum(r.bytes or 0 for r in rows) == (swap_counters() - before).bytes_out == trained.explanation.swapped
    assert len([r for r in rows if r.bytes]) == (swap_counters() - before).offloads < len(rows)


class Masked(nn.Module):
    """Embeds ids, and shares a mask and a table of angles among all layers; returns a value that is also saved."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(MaskedLayer() for _ in range(3))
        self.register_buffer("frequencies", torch.linspace(0.1, 1.0, 8))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(ids.shape[1])
        mask = positions[:, None] >= positions[None, :]
        angles = torch.outer(positions.to(self.frequencies.dtype), self.frequencies).cos()
        h = self.tokens(ids)
        kept = []
        for layer in self.layers:
            h, inner = layer(h, mask, angles)
            kept.append(inner)
        return h, kept[0]


class MaskedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.mlp = Mlp()

    def forward(self, h: torch.Tensor, mask: torch.Tensor, angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (self.qkv(h) * torch.cat([angles] * 3, dim=-1)).chunk(3, dim=-1)
        scores = (q @ k.transpose(-1, -2)).masked_fill(~mask, float("-inf")).softmax(-1)
        inner = torch.tanh(scores @ v)
        return h + self.mlp(inner), inner


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_what_must_stay_stays_and_says_why(backend: str) -> None:
    torch.manual_seed(3)
    trained = check(double(Masked()), [torch.randint(0, 16, (2, 6))], swap("0-1"), backend)
    reasons = {r.reason for r in trained.explanation.values if r.action == "save" and r.rule == "swap.layer_swap[0]"}
    assert any("the model returns it" in reason for reason in reasons)
    assert any("the backward of layer 2, which is not swapped, reads it" in reason for reason in reasons)
    offloaded = [r for r in trained.explanation.values if r.action == "offload"]
    assert offloaded
    assert {r.dtype for r in offloaded} <= {"float64"}
    assert {r.kind for r in offloaded} == {"activation"}


class Backwards(nn.Module):
    """Runs its layers from the last to the first, the middle one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual(Mlp()) for _ in range(4))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for number in (3, 2, 1, 2, 0):
            h = self.layers[number](h)
        return h


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_layers_in_another_order_and_twice(backend: str) -> None:
    torch.manual_seed(3)
    trained = check(double(Backwards()), [x(64)], swap("1-2"), backend)
    rows = [r for r in trained.explanation.values if r.action == "offload"]
    # In the order of the backward, 0 2 1 2 3: layers are fetched one place ahead, whatever their numbers.
    assert {(r.returns, r.issued) for r in rows} == {(2, 0), (1, 2), (2, 1)}


class Decays(nn.Module):
    """Reads a copy of a buffer, and then changes the buffer: a backend may leave out the copy."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("rate", torch.linspace(0.5, 1.0, 8))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        y = h + self.fc(h) * self.rate.clone()
        self.rate.mul_(0.9)
        return y


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_copy_of_an_input_stays(backend: str) -> None:
    trained = check(stack(Decays, 3), [x()], swap("0-1"), backend)
    assert moved(trained)
    (graph,) = trained.explanation.graphs
    sent = [n.args[0] for n in graph.forward.graph.nodes if n.target is torch.ops.memopt.offload.default]
    assert not [n for n in sent if n.target is torch.ops.aten.clone.default]
    reasons = [r.reason for r in trained.explanation.values if "which a backend may take for the input itself" in r.reason]
    assert len(reasons) == 2
    assert all("it stays: a copy of " in reason for reason in reasons)


class Skips(nn.Module):
    """The first layer's value is read again by the third."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual(Mlp()) for _ in range(4))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        first = self.layers[0](h)
        second = self.layers[1](first)
        return self.layers[3](self.layers[2](second * first))


def test_a_value_that_an_unswapped_part_reads_stays() -> None:
    torch.manual_seed(3)
    trained = check(double(Skips()), [x()], swap("0-2"), "aot_eager")
    assert any("outside the layers" in r.reason for r in trained.explanation.values if r.action == "save")


def test_rules_without_effect_are_named() -> None:
    model = stack(lambda: Residual(Mlp()), 3)
    config = swap(operators={".*nothing": [0], r".*\.relu": [0, 1]})
    trained = check(
        model,
        [x()],
        config,
        "aot_eager",
        warns=["'.*nothing'] did not match any module", r"'.*\.relu'] did not match any module"],
    )
    assert not moved(trained)


def test_smaller_values_stay_and_a_rule_that_moves_nothing_says_why() -> None:
    config = swap("0-1", min_bytes="1MiB")
    trained = check(stack(Block, 3), [x(2, 6)], config, "aot_eager", warns=["swaps nothing: "])
    assert "smaller than swap.min_bytes (1048576)" in trained.warnings[0]
    assert not moved(trained)


def test_host_store_moves_nothing_that_is_in_host_memory() -> None:
    trained = check(stack(Block, 3), [x(2, 6)], swap("0-1", store="host"), "aot_eager", warns=["it is in host memory already"])
    assert not moved(trained)


@pytest.mark.parametrize(
    ("settings", "warns"),
    [
        ({"host_limit": "1MiB"}, ["swap.host_limit: has no effect, since with store: auto all that moves goes to the disk."]),
        ({"dir": "/tmp"}, []),
        ({"dir": "/tmp", "host_limit": "1MiB"}, ["swap.host_limit: has no effect"]),
        ({"host_limit": "1MiB", "min_bytes": "1MiB"}, ["swaps nothing: "]),
    ],
    ids=["limit", "directory", "both", "nothing moves"],
)
def test_settings_of_a_store_that_nothing_goes_to(settings: dict[str, Any], warns: list[str]) -> None:
    check(stack(Block, 3), [x(2, 6)], swap("0-1", **settings), "aot_eager", warns=warns)


def test_swap_off_leaves_no_operator_of_ours() -> None:
    trained = check(stack(Block, 3), [x(2, 6)], {"swap": {"enable": False}}, "aot_eager")
    (graph,) = trained.explanation.graphs
    targets = [str(n.target) for module in (graph.forward, graph.backward) for n in module.graph.nodes]
    assert not [t for t in targets if "memopt" in t]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_dynamic_sizes(backend: str) -> None:
    model = stack(lambda: Block(dropout=0.1), 3)
    plain = stack(lambda: Block(dropout=0.1), 3)
    config = swap("0-1")
    check(model, [x(2, 6)], config, backend, plain=plain, dynamic=True, steps=1, lr=0.0)
    ours = model
    for batch, positions in ((3, 5), (4, 9), (2, 6)):
        torch.manual_seed(1)
        found = torch.autograd.grad(ours(x(batch, positions)).sum(), list(ours.parameters()))
        torch.manual_seed(1)
        wanted = torch.autograd.grad(plain(x(batch, positions)).sum(), list(plain.parameters()))
        for left, right in zip(found, wanted, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-9)
    assert swap_counters().live_tickets == 0


class Autocast(Stack):
    def __init__(self) -> None:
        super().__init__([Residual(Mlp()) for _ in range(3)])
        self.float()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(h)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_autocast(backend: str) -> None:
    torch.manual_seed(3)
    trained = check(Autocast(), [x().detach().float()], swap("0-1"), backend, tolerance=2e-2)
    assert "bfloat16" in {r.dtype for r in trained.explanation.values if r.action == "offload"}
    assert not [r for r in trained.explanation.values if r.action == "offload" and r.kind != "activation"]


@pytest.mark.parametrize(
    ("backend", "options"),
    [("inductor", {"options": {"triton.cudagraphs": True}}), ("cudagraphs", {})],
    ids=["option", "backend"],
)
def test_cuda_graphs_are_refused(backend: str, options: dict[str, Any]) -> None:
    model = stack(Block, 3)
    with pytest.raises(ConfigError, match=r"swap.enable: found True; allowed: False under CUDA graphs"):
        compile_with_memopt(model, swap("0-1"), backend=backend, **options)
    assert "forward" not in model.__dict__


class Gate(nn.Module):
    """Elementwise, so that the backwards of all layers may run in one kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return torch.sin(h) * self.weight


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_layers_without_a_kernel_of_their_own(backend: str) -> None:
    torch.manual_seed(3)
    trained = check(Stack([Gate() for _ in range(5)]), [x(8)], swap("0-3"), backend)
    assert moved(trained)


@torch.library.custom_op("memopt_tests::twice", mutates_args=())
def twice(value: torch.Tensor) -> torch.Tensor:
    return value * 2 + 1


twice.register_fake(torch.empty_like)
twice.register_autograd(
    lambda ctx, grad: grad * ctx.saved_tensors[0] / ctx.saved_tensors[0] * 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


class Twice(Mlp):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.fc2(twice(self.fc1(h)).sin())


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_the_result_of_a_users_operator(backend: str) -> None:
    torch.manual_seed(3)
    trained = check(Stack([Twice() for _ in range(3)]), [x()], swap("0-1"), backend)
    assert "twice" in {row.op for row in trained.explanation.values if row.action == "offload"}
