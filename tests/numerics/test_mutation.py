"""What the forward changes in place: the backward must see it as it was, and it must change once."""

from __future__ import annotations

import copy

import pytest
import torch
from harness import BACKENDS, EMPTY, FULL, check, train_step
from numeric_models import WIDTH, Stack, stack, x
from torch import nn

from memopt import compile_with_memopt

CONFIGS = {"empty": EMPTY, "full": FULL}
ALL = pytest.mark.parametrize(("config", "backend"), [(c, b) for c in CONFIGS for b in BACKENDS])
SOME = pytest.mark.parametrize(
    ("config", "backend"), [("empty", "no-op"), ("full", "no-op"), ("full", "aot_eager"), ("full", "inductor")]
)


class CountingSine(nn.Module):
    """y = sin(2 b) w x, and then b + 1."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.ones(()))
        self.w = nn.Parameter(torch.ones(WIDTH))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        y = torch.sin(2 * self.b) * self.w * h
        self.b += 1
        return y


@ALL
def test_buffer_read_before_it_changes(config: str, backend: str) -> None:
    h = x()
    trained = check(stack(CountingSine, 1), [h], CONFIGS[config], backend, steps=1, lr=0)
    weights = torch.linspace(0.5, 1.5, h.numel(), dtype=torch.float64).reshape(h.shape)
    layer = trained.model.layers[0]
    right = (torch.sin(torch.tensor(2.0, dtype=torch.float64)) * h * weights).sum(0)
    torch.testing.assert_close(layer.w.grad, right, rtol=1e-12, atol=0)
    assert layer.b.item() == 2


@SOME
def test_buffer_read_before_it_changes_over_steps_and_layers(config: str, backend: str) -> None:
    trained = check(stack(CountingSine, 2), [x()], CONFIGS[config], backend, steps=3)
    assert [layer.b.item() for layer in trained.model.layers] == [4, 4]


class ReadsBufferViews(nn.Module):
    """The read goes through a chain of views, and the write through another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("history", torch.arange(2.0 * WIDTH).reshape(2, WIDTH))
        self.w = nn.Parameter(torch.ones(WIDTH))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        old = self.history.t()[:, 1].view(1, -1)
        y = torch.sin(old).detach() * torch.cos(h * self.w) * old.clone()
        self.history[1].add_(h.detach().mean(0))
        return y


@SOME
def test_buffer_read_through_views(config: str, backend: str) -> None:
    check(stack(ReadsBufferViews, 2), [x()], CONFIGS[config], backend, steps=2)


class BackwardReadsBuffer(nn.Module):
    """The product's backward reads the buffer, or a copy of it; nothing between the two could be saved instead."""

    def __init__(self, read: str) -> None:
        super().__init__()
        self.read = read
        self.register_buffer("scale", torch.full((WIDTH,), 2.0))
        self.w = nn.Parameter(torch.ones(WIDTH))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        y = (self.scale.clone() if self.read == "a copy" else self.scale) * (h * self.w)
        if self.read == "unseen by autograd":
            self.scale.data.mul_(3)
        else:
            self.scale.mul_(3)
        return y


@SOME
@pytest.mark.parametrize("read", ["a copy", "unseen by autograd"])
def test_backward_reads_the_buffer_itself(read: str, config: str, backend: str) -> None:
    # All that such a layer keeps is what it must.
    warns = ["recompute.full_recompute_layer matches, and recomputes nothing"] if config == "full" else []
    model = stack(lambda: BackwardReadsBuffer(read))
    trained = check(model, [x()], CONFIGS[config], backend, steps=2, warns=warns)
    assert trained.model.layers[0].scale.tolist() == [18.0] * WIDTH


@pytest.mark.parametrize("backend", ["no-op", "aot_eager"])
def test_what_eager_refuses_is_refused(backend: str) -> None:
    message = "modified by an inplace operation"
    model = stack(lambda: BackwardReadsBuffer("itself"))
    with pytest.raises(RuntimeError, match=message):
        train_step(copy.deepcopy(model), [x()])
    with pytest.raises(RuntimeError, match=message):
        check(model, [x()], FULL, backend, plain=stack(lambda: BackwardReadsBuffer("a copy")))


class ChangesInput(nn.Module):
    """An input is read, multiplied in place, and read again."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(WIDTH))
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(2)])

    def forward(self, h: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        first = torch.sin(state * 2) * self.w * h
        state.mul_(3)
        second = torch.exp(torch.cos(state) * self.w) * h
        for layer in self.layers:
            first = torch.tanh(layer(first)) * state
        return first + second


@ALL
def test_input_read_changed_and_read_again(config: str, backend: str) -> None:
    state = torch.linspace(0.1, 1, WIDTH, dtype=torch.float64)
    torch.manual_seed(0)
    check(ChangesInput().double(), [x(), state], CONFIGS[config], backend, steps=2)


class ChangesInputInLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(WIDTH))

    def forward(self, h: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        y = torch.sin(state) * torch.tanh(self.w * h)
        state.add_(h.detach())
        return y * state.clone()


class PassesState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([ChangesInputInLayer() for _ in range(3)])

    def forward(self, h: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            h = layer(h, state)
        return h


@SOME
def test_every_layer_changes_the_same_input(config: str, backend: str) -> None:
    check(PassesState().double(), [x(), torch.full((4, WIDTH), 0.25, dtype=torch.float64)], CONFIGS[config], backend, steps=2)


class Normalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.BatchNorm1d(2 * WIDTH)
        self.fc2 = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.norm(self.fc1(h))))


@ALL
def test_batch_norm_counts_every_batch_once(config: str, backend: str) -> None:
    trained = check(stack(Normalised, 2), [x(6)], CONFIGS[config], backend, steps=3)
    assert [layer.norm.num_batches_tracked.item() for layer in trained.model.layers] == [3, 3]


@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_norm_in_convolutions(backend: str) -> None:
    def layer() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU())

    images = torch.randn(2, 3, 5, 5, dtype=torch.float64)
    trained = check(stack(layer, 2), [images], FULL, backend, steps=2)
    assert trained.model.layers[1][1].num_batches_tracked.item() == 2


class CountsCalls(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.tanh(self.fc(h)) * self.calls


@SOME
def test_counter_on_a_buffer(config: str, backend: str) -> None:
    trained = check(stack(CountsCalls, 2), [x()], CONFIGS[config], backend, steps=3)
    assert [layer.calls.item() for layer in trained.model.layers] == [3, 3]


class MovingAverage(nn.Module):
    """A buffer that is changed first and read afterwards, also by the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.fc = nn.Linear(WIDTH, WIDTH)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(h.detach().mean(0), 0.1)
        return torch.sigmoid(self.fc(h) * self.mean) * h


@SOME
def test_buffer_changed_and_then_read(config: str, backend: str) -> None:
    check(stack(MovingAverage, 2), [x()], CONFIGS[config], backend, steps=3)


class TwoWrites(nn.Module):
    """Read, written, read, written: each read sees its own contents."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.full((WIDTH,), 0.5))
        self.w = nn.Parameter(torch.ones(WIDTH))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        y = torch.sin(self.b) * torch.exp(self.w * h)
        self.b.add_(1)
        y = y * torch.sin(self.b) * self.w
        self.b.copy_(h.detach().mean(0))
        return y * torch.cos(self.b)


@SOME
def test_buffer_written_twice(config: str, backend: str) -> None:
    check(stack(TwoWrites, 2), [x()], CONFIGS[config], backend, steps=3)


@pytest.mark.parametrize("backend", BACKENDS)
def test_buffer_in_evaluation_mode_is_left_alone(backend: str) -> None:
    model: Stack = stack(Normalised, 2)
    model.eval()
    trained = check(model, [x(6)], FULL, backend, steps=2)
    assert trained.model.layers[0].norm.num_batches_tracked.item() == 0


class ChangesParts(nn.Module):
    """Parts of buffers are changed in place, read, changed again and read again: a backend may write them where they lie."""

    def __init__(self, parts: str) -> None:
        super().__init__()
        self.parts = parts
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("m", torch.linspace(0.5, 1.5, WIDTH))
        self.register_buffer("where", torch.tensor([1, 3]))
        self.register_buffer("square", torch.ones(WIDTH, WIDTH))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if self.parts == "one write":
            self.m[0] += 1
            return torch.tanh(self.fc(h) * self.m.sin())
        if self.parts == "slices":
            self.m[0] += h.detach().sum()
            y = self.fc(h) * self.m.sin()
            self.m[1:3].mul_(2)
            return torch.tanh(y) * self.m[:1].cos()
        if self.parts == "copied, and read by the backward":
            self.m[0] += 1
            y = self.fc(h) * self.m.clone()
            self.m[1:3].mul_(2)
            return torch.tanh(y)
        if self.parts == "indices":
            self.m[self.where] = 3.0
            y = self.fc(h) * self.m.sin()
            self.m[self.where] = self.m[self.where] * 2
            return torch.tanh(y) * self.m.cos()
        self.square.diagonal().add_(1)
        y = self.fc(h) @ self.square.sin()
        self.square.diagonal(1).mul_(2)
        return torch.tanh(y)


PARTS = ["one write", "slices", "copied, and read by the backward", "indices", "diagonals"]


@SOME
@pytest.mark.parametrize("parts", PARTS)
def test_parts_of_a_buffer_changed_read_and_changed_again(parts: str, config: str, backend: str) -> None:
    check(stack(lambda: ChangesParts(parts)), [x()], CONFIGS[config], backend, steps=2)


@SOME
@pytest.mark.parametrize("parts", PARTS)
def test_a_second_forward_before_the_backward_changes_nothing_that_was_saved(parts: str, config: str, backend: str) -> None:
    model = stack(lambda: ChangesParts(parts))
    plain = copy.deepcopy(model)
    configuration = CONFIGS[config](model) if callable(CONFIGS[config]) else CONFIGS[config]
    compile_with_memopt(model, configuration, backend=BACKENDS[backend])
    for trained in (model, plain):
        (trained(x()).sum() + 2 * trained(x()).sum()).backward()
    for found, wanted in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-11, atol=1e-11)
