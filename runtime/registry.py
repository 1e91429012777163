"""The engines of this process: one for each device and settings, made when first needed."""

from __future__ import annotations

import atexit
import os
import threading

import torch

from .callers import CpuCaller, StreamCaller
from .carriers.file import FileCarrier
from .carriers.interface import Carrier
from .carriers.pinned import PinnedCarrier
from .carriers.staged import StagedCarrier
from .counters import SwapCounters
from .devices.accelerator import Accelerator
from .devices.interface import Device
from .engine import Engine
from .errors import Refused
from .settings import Settings
from .stores.disk import DiskArena
from .stores.host import PinnedPool

_engines: dict[tuple[torch.device, Settings], Engine] = {}
_lock = threading.Lock()

_EXIT_SECONDS = 10.0
"""How long the end of the process may take per worker thread; a disk that hangs must not keep it forever."""


def engine_for(device: torch.device, settings: Settings) -> Engine:
    """The engine that moves values of ``device``.

    Raises:
        Refused: values of this device cannot be moved as ``settings`` ask.
    """
    engine = _engines.get((device, settings))
    if engine is None:
        with _lock:
            engine = _engines.get((device, settings))
            if engine is None:
                engine = _engines[device, settings] = _make(device, settings)
    return engine


def swap_counters() -> SwapCounters:
    """What all engines of this process did, and how things stand: ``after - before`` gives what happened in between."""
    total = SwapCounters()
    for engine in list(_engines.values()):
        total += engine.counters()
    return total


def tidy() -> None:
    """Free the memory of values whose copies out have ended; elsewhere the next operator of swap does."""
    for engine in list(_engines.values()):
        engine.tidy()


def _make(device: torch.device, settings: Settings) -> Engine:
    if settings.store not in ("host", "disk"):
        raise Refused(f"there is no store {settings.store!r}. Set swap.store to auto, host or disk.")
    if device.type == "cpu":
        if settings.store == "host":
            raise Refused("the value is in host memory already. Set swap.store to disk (or auto) for a model on the CPU.")
        return Engine(settings, CpuCaller(), [FileCarrier(DiskArena(settings.where))])
    if not torch.accelerator.is_available() or device.type != torch.accelerator.current_accelerator().type:  # type: ignore[union-attr]
        raise Refused(f"values on {device} cannot be swapped. Set swap.enable to false.")
    return on_device(Accelerator(device), settings)


def on_device(device: Device, settings: Settings) -> Engine:
    """A new engine for an accelerator."""
    carriers: list[Carrier] = [StagedCarrier(device, DiskArena(settings.where))]
    if settings.store == "host":
        carriers.insert(0, PinnedCarrier(device, PinnedPool(device.pin, settings.host_limit)))
    return Engine(settings, StreamCaller(device), carriers)


def _at_exit() -> None:
    """Before the interpreter frees the memory that worker threads may be reading into."""
    for engine in list(_engines.values()):
        engine.stop(_EXIT_SECONDS)


def _in_child() -> None:
    """After a fork: the parent's engines, with their threads and files, are the parent's."""
    global _lock
    _lock = threading.Lock()
    for engine in _engines.values():
        engine.abandon()
    _engines.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
