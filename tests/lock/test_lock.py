"""Locks as data and as files: what is written, what is read again, and what breaks one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from memopt.compiler.lock.compare import check_same, compare
from memopt.compiler.lock.lock import LayerLock, Lock, LockError, lock_of, read_lock, to_text
from torch import Tensor, nn

from memopt import __version__, load_config, resolve, trace

FULL = ("*",)


class Block(nn.Module):
    """``x + fc2(tanh(fc1(x)))``: the backward needs ``x`` and what ``tanh`` makes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.fc2(torch.tanh(self.fc1(x)))
        return out


class Tower(nn.Module):
    """Blocks, and a linear map behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x).sigmoid()
        return out


def made(config: dict[str, Any]) -> Lock:
    model, parsed, args = Tower(), load_config(config), (torch.zeros(4, 8),)
    explanation = trace(model, parsed, args, backend="aot_eager")
    return lock_of(model, parsed, resolve(model, parsed), explanation, "aot_eager", (args, {"n": 3}))


RECOMPUTED: dict[str, Any] = {"recompute": {"mode": "full", "full_recompute_layer": [1]}}
X, TANH, OUT = 4 * 8 * 4, 4 * 16 * 4, 4 * 4 * 4


def lock(**layers: LayerLock) -> Lock:
    numbered = {name.removeprefix("layer_"): layer for name, layer in layers.items()}
    return Lock("1", "2", "m.Model", "inductor", ("[4] float32",), {"recompute": {"mode": "full"}, "swap": {}}, numbered)


def layer(saved: int, number: int = 0, **more: Any) -> LayerLock:
    return LayerLock(f"layers.{number}", saved_bytes=saved, **more)


# ---------------------------------------------------------------- what is locked


def test_what_is_locked() -> None:
    found = made(RECOMPUTED)
    assert found.layers == {
        "0": LayerLock("layers.0", (), (), X + TANH),  # the layer's sum is the next one's input, and counts where it is made
        "1": LayerLock("layers.1", FULL, (), X),
        "2": LayerLock("layers.2", (), (), X + TANH),
        "outside": LayerLock("", (), (), OUT),
    }
    assert found.saved_bytes == 3 * X + 2 * TANH + OUT
    assert (found.memopt, found.torch, found.backend) == (__version__, torch.__version__, "aot_eager")
    assert (found.model, found.inputs) == (f"{Tower.__module__}.Tower", ("[4, 8] float32",))
    assert found.config["recompute"]["full_recompute_layer"] == [1]


@pytest.mark.filterwarnings("ignore::memopt.MemoptWarning")
def test_plans_and_swapped_bytes() -> None:
    select = {"mode": "select", "select_module": {".*fc1": [0]}}
    swap = {"enable": True, "layer_swap": [{"layers": [1]}], "min_bytes": 1}
    found = made({"recompute": select, "swap": swap}).layers
    assert (found["0"].recompute, found["0"].swap) == (("fc1",), ())
    assert (found["1"].recompute, found["1"].swap) == ((), FULL)
    # What layer 1 reads and layer 0 made counts for layer 0.
    assert {n: own.swapped_bytes for n, own in found.items()} == {"0": X, "1": TANH, "2": 0, "outside": 0}


def test_a_lock_is_the_same_each_time_and_after_a_file(tmp_path: Path) -> None:
    first, second = made(RECOMPUTED), made(RECOMPUTED)
    assert to_text(first) == to_text(second)
    path = tmp_path / "lock.json"
    path.write_text(to_text(first))
    again = read_lock(path)
    assert again == first
    assert to_text(again) == path.read_text()
    check_same(again, second, path)
    assert (compare(again, second).broken, compare(again, second).better) == ((), ())


# ---------------------------------------------------------------- what breaks one


def test_what_grows_is_told_by_layer_and_bytes() -> None:
    verdict = compare(lock(layer_3=layer(1000, 3)), lock(layer_3=layer(1_234_567, 3)))
    (text,) = verdict.broken
    assert text.startswith("layer 3: 1.2 MiB (1,234,567 B) saved for backward, 1000 B (1,000 B) were locked. ")
    assert "write the lock again with 'memopt lock'" in text
    assert verdict.better == ()


def test_layers_that_grow_alike_are_told_together() -> None:
    before = lock(
        layer_0=layer(10),
        layer_1=layer(10, 1),
        layer_2=layer(10, 2),
        layer_5=layer(10, 5),
        outside=LayerLock("", saved_bytes=10),
    )
    after = lock(
        layer_0=layer(12),
        layer_1=layer(12, 1),
        layer_2=layer(12, 2),
        layer_5=layer(99, 5),
        outside=LayerLock("", saved_bytes=12),
    )
    broken = compare(before, after).broken
    assert [text.split(" B)")[0] for text in broken] == ["layers 0-2 and outside layers: 12 B (12", "layer 5: 99 B (99"]
    assert "each saved for backward" in broken[0]
    assert "each" not in broken[1]


def test_a_byte_more_breaks_it_also_where_others_save_less() -> None:
    verdict = compare(lock(layer_0=layer(10), layer_1=layer(10, 1)), lock(layer_0=layer(11), layer_1=layer(1, 1)))
    assert [text.split(":")[0] for text in verdict.broken] == ["layer 0"]
    assert verdict.better == ("layer 1: 1 B saved for backward, 10 B were locked",)


def test_what_lies_outside_layers_may_come_and_go() -> None:
    without, with_some = lock(layer_0=layer(10)), lock(layer_0=layer(10), outside=LayerLock("", saved_bytes=64))
    check_same(without, with_some, "p")
    (text,) = compare(without, with_some).broken
    assert text.startswith("outside layers: 64 B (64 B) saved for backward, 0 B (0 B) were locked.")
    assert compare(with_some, without).better == ("outside layers: 0 B saved for backward, 64 B were locked",)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"recompute": FULL}, {}, "recompute * was locked, and now it is no rule"),
        ({}, {"swap": ("mlp", "norm")}, "no rule was locked, and now it is swap mlp, norm"),
        (
            {"recompute": ("mlp",)},
            {"recompute": FULL, "swap": ("a",)},
            "recompute mlp was locked, and now it is recompute * and swap a",
        ),
    ],
)
def test_another_plan_breaks_it(before: Any, after: Any, told: str) -> None:
    (text,) = compare(lock(layer_0=layer(1, **before)), lock(layer_0=layer(1, **after))).broken
    assert text.startswith(f"layer 0: {told}. ")


# ---------------------------------------------------------------- what says nothing about what is there


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "m.Other"}, "for the model m.Model, and here it is m.Other; bytes of one say nothing about the other."),
        ({"torch": "3"}, "for the torch version 2, and here it is 3;"),
        ({"memopt": "3"}, "for the memopt version 1, and here it is 3;"),
        ({"backend": "aot_eager"}, "for the backend inductor, and here it is aot_eager;"),
        ({"inputs": ("[4] int64", "[2] int64")}, "for the inputs [4] float32, and here it is [4] int64; [2] int64;"),
        ({"config": {"recompute": {}, "swap": {}}}, "for another configuration (recompute differ);"),
        ({"config": {"recompute": {"mode": "full"}}}, "for another configuration (swap differ);"),
        ({"layers": {}}, "for another model: its layers are layers.0 ... layers.0 (1), and here they are none."),
        (
            {"layers": {"0": LayerLock("blocks.0")}},
            "its layers are layers.0 ... layers.0 (1), and here they are blocks.0 ... blocks.0",
        ),
    ],
)
def test_a_lock_of_something_else_is_refused(changed: Any, message: str) -> None:
    own = lock(layer_0=layer(1))
    check_same(own, own, "p")
    with pytest.raises(LockError) as caught:
        check_same(own, dataclasses.replace(own, **changed), "p")
    assert str(caught.value).startswith("p: found a lock ")
    assert message in str(caught.value)
    assert "rite the lock again with 'memopt lock'." in str(caught.value)


# ---------------------------------------------------------------- files


def changed(change: Any) -> str:
    data = json.loads(to_text(lock(layer_0=layer(1))))
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recompute: {}", "found text that is not JSON (Expecting value"),
        ("", "found text that is not JSON"),
        ("[" * 100_000, "found text that is not JSON"),
        ("{}", "found no 'memopt_lock' in it; allowed: what 'memopt lock' writes."),
        ("[1]", "found no 'memopt_lock' in it"),
        (changed(lambda d: d.update(memopt_lock=2)), "found a lock of another format; allowed: 1."),
        (changed(lambda d: d.pop("layers")), "found a lock file that was changed ('layers')."),
        (changed(lambda d: d.pop("torch")), "found a lock file that was changed ("),
        (changed(lambda d: d.update(toch="2")), "Did you mean 'torch'?"),
        (changed(lambda d: d.update(layers=[1])), "found a lock file that was changed ("),
        (changed(lambda d: d.update(config=[])), "found a lock file that was changed (a configuration that is no mapping)."),
        (
            changed(lambda d: d.update(inputs="[4] float32")),
            "found a lock file that was changed (a list of texts that is none).",
        ),
        (changed(lambda d: d["layers"]["0"].update(recompute=[1])), "(a list of texts that is none)."),
        (changed(lambda d: d["layers"]["0"].update(saved_bytes="1")), "(bytes that are no count)."),
        (changed(lambda d: d["layers"]["0"].update(saved_bytes=-1)), "(bytes that are no count)."),
        (changed(lambda d: d["layers"]["0"].update(swapped_bytes=1.5)), "(bytes that are no count)."),
        (changed(lambda d: d["layers"]["0"].update(saved_bytes=True)), "(bytes that are no count)."),
        (changed(lambda d: d["layers"]["0"].pop("path")), "found a lock file that was changed ("),
        (changed(lambda d: d["layers"].update({"1": 3})), "found a lock file that was changed ("),
    ],
)
def test_files_that_are_no_locks(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "lock.json"
    path.write_text(text)
    with pytest.raises(LockError) as caught:
        read_lock(path)
    assert str(caught.value).startswith(f"{path}: found ")
    assert message in str(caught.value)
    assert str(caught.value).endswith("Write it again with 'memopt lock'.")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "lock.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LockError, match="found text that is not JSON"):
        read_lock(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_lock(tmp_path / "lock.json")
