"""The real accelerator, where there is one; elsewhere, that torch has what ``devices/accelerator.py`` calls."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from memopt.runtime import SwapError, swap_counters
from memopt.runtime.devices.accelerator import Accelerator
from memopt.runtime.devices.interface import Device
from swapping import OPS
from test_values import LAYOUTS, base_of

MISSING = not torch.accelerator.is_available()
needs_accelerator = pytest.mark.skipif(MISSING, reason="no accelerator here")
LARGE = 1 << 40


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (torch.Stream, "wait_event"),
        (torch.Stream, "__enter__"),
        (torch.Event, "record"),
        (torch.Event, "query"),
        (torch.Event, "synchronize"),
        (torch.Event, "elapsed_time"),
        (torch.accelerator, "current_stream"),
        (torch.accelerator, "current_accelerator"),
        (torch.Tensor, "record_stream"),
        (torch.cuda, "is_current_stream_capturing"),
    ],
)
def test_torch_has_what_is_called(owner: Any, name: str) -> None:
    assert callable(getattr(owner, name))


def test_an_accelerator_is_a_device() -> None:
    """Method by method, as the simulated device and the type checker see it."""
    for name, method in inspect.getmembers(Device, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(getattr(Accelerator, name)) == inspect.signature(method), name


@pytest.mark.skipif(not MISSING, reason="there is an accelerator")
def test_pinning_without_an_accelerator_is_an_error_of_ours() -> None:
    from memopt.runtime.errors import PinningFailed

    with pytest.raises(PinningFailed, match="4096 bytes"):
        Accelerator(torch.device("cuda", 0)).pin(4096)


@pytest.fixture
def device() -> Iterator[torch.device]:
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    device = torch.device(kind.type, torch.accelerator.current_device_index())
    yield device
    torch.accelerator.synchronize()
    now = swap_counters()
    assert (now.host_bytes, now.disk_bytes, now.live_tickets, now.in_flight_bytes) == (0, 0, 0, 0)


def offload(value: torch.Tensor, store: str, directory: Path, host_limit: int | None = None) -> torch.Tensor:
    return OPS.offload(value, "x", store, str(directory), LARGE, host_limit, True)  # type: ignore[no-any-return]


def reload(ticket: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    token = OPS.prefetch(ticket)
    return OPS.wait(token, list(like.shape), list(like.stride()), like.dtype, like.device)  # type: ignore[no-any-return]


@needs_accelerator
@pytest.mark.parametrize(("store", "host_limit"), [("host", None), ("host", 0), ("disk", None)])
@pytest.mark.parametrize("arrangement", LAYOUTS)
def test_values(arrangement: str, store: str, host_limit: int | None, device: torch.device, tmp_path: Path) -> None:
    value = LAYOUTS[arrangement](base_of(torch.float32).to(device))
    back = reload(offload(value, store, tmp_path, host_limit), value)
    assert (back.shape, back.stride(), back.device) == (value.shape, value.stride(), value.device)
    assert torch.equal(back.contiguous().view(torch.int32), value.contiguous().view(torch.int32))


@needs_accelerator
@pytest.mark.parametrize("store", ["host", "disk"])
def test_memory_is_reused_at_once_and_nothing_is_mixed_up(store: str, device: torch.device, tmp_path: Path) -> None:
    streams = [torch.accelerator.current_stream(), torch.Stream(device)]
    for step in range(20):
        with streams[step % 2]:
            values = [torch.full((1 << 20,), float(step * 10 + i), device=device) for i in range(8)]
            kept = [offload(v, store, tmp_path) for v in values]
            like = values[0].to("meta")
            values.clear()
            noise = [torch.full((1 << 20,), -1.0, device=device) for _ in range(8)]
            del noise
            for i in reversed(range(8)):
                token = OPS.prefetch(kept[i])
                back = OPS.wait(token, [1 << 20], list(like.stride()), torch.float32, device)
                assert bool((back == step * 10 + i).all())
        torch.accelerator.synchronize()
        del token, back, kept


@needs_accelerator
def test_pinned_memory_is_reused(device: torch.device, tmp_path: Path) -> None:
    counts = []
    for _ in range(20):
        values = [torch.randn(1 << 20, device=device) for _ in range(4)]
        kept = [offload(v, "host", tmp_path) for v in values]
        for value, ticket in zip(reversed(values), reversed(kept), strict=True):
            assert torch.equal(reload(ticket, value), value)
        del kept, ticket
        counts.append(swap_counters().pinned_allocations)
    assert counts[-1] == counts[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_cuda_graphs_are_refused(device: torch.device, tmp_path: Path) -> None:
    value = torch.randn(100, device=device)
    with pytest.raises(SwapError, match="CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        offload(value, "host", tmp_path)
