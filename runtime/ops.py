"""The operators that a compiled graph calls; importing this file registers them.

::

    forward    ticket = memopt::offload(x, ...)                   x leaves; only the ticket is saved for backward
    backward   token = memopt::prefetch(ticket)                   early: memory is allocated, the copy back begins
               y = memopt::wait(token, size, stride, dtype, dev)  right before the first use; y has the bytes of x

Tickets and tokens are ``int64`` CPU tensors of shape ``[1]`` and own what they stand for (``tickets.py``). No result
shares memory with an argument, and none requires a gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import calls, tickets
from .engine import Reload, Stored
from .errors import Refused, SwapError, swap_error
from .layout import Layout
from .registry import engine_for
from .settings import Settings

_LIBRARY: Any = torch.library.Library("memopt", "FRAGMENT")  # type: ignore[no-untyped-call]
_EXACT_STRIDES = tuple(tag for tag in (getattr(torch.Tag, "needs_exact_strides", None),) if tag is not None)
_META = torch.device("meta")
_AUTOCAST = {torch.float32, torch.bfloat16, torch.float16}


def offload(
    value: torch.Tensor,
    name: str,
    store: str,
    directory: str | None,
    in_flight_bytes: int,
    host_limit: int | None,
    asynchronous: bool,
) -> torch.Tensor:
    """Start the copy of ``value`` to its store, and return a ticket for it.

    Args:
        value: any type and strides. The caller may drop it at once, and must not write to it before the copy has ended.
        name: the value, for messages.
        store: ``host`` (pinned memory; for values on an accelerator) or ``disk``.
        directory: for the file; None: the directory for temporary files.
        in_flight_bytes: the most bytes that may be on their way out; the call waits for earlier copies first.
        host_limit: the most bytes of pinned memory; what does not fit goes to the disk. None: no limit.
        asynchronous: False: what follows comes after the copy, so that the value's memory may be used again at once.

    Raises:
        SwapError: there is no room, or no way to move the value.
    """
    settings = Settings(store, directory, in_flight_bytes, host_limit)
    with torch.no_grad():
        value = value.detach()
        try:
            if value.layout != torch.strided:
                raise Refused(f"values of layout {value.layout} cannot be swapped. Set swap.enable to false.")
            engine = engine_for(value.device, settings)
        except Refused as refused:
            nbytes = Layout.of(value).nbytes if value.layout == torch.strided else 0
            raise swap_error(refused, name, nbytes, settings.where) from None
        ticket = engine.offload(value, name, asynchronous)
        calls.note(tickets.handle_of(ticket))
        return ticket


def prefetch(ticket: torch.Tensor) -> torch.Tensor:
    """Start the copy back, and return a token for it. One ticket may be prefetched several times.

    Raises:
        SwapError: the stored copy is gone, or was never whole.
    """
    handle = tickets.handle_of(ticket)
    if handle is None and tickets.is_blank(ticket):
        return tickets.blank()
    stored = None if handle is None else handle.owned
    if handle is None or not isinstance(stored, Stored):
        raise SwapError(
            f"the swapped value of ticket {ticket.tolist()} is gone. A ticket must be kept as it is: something copied it, such "
            "as saved-tensor hooks (torch.autograd.graph.save_on_cpu) or a pass over the graph. Run the model without them, or "
            "set swap.enable to false."
        )
    _refuse_if_abandoned(stored)
    early = stored.engine.claim_early(stored)
    reload = early or Reload(stored)
    token = tickets.issue(reload)  # first: it owns the copy
    reload.ticket = handle
    if early is not None:
        stored.early = None
        return token
    try:
        with torch.no_grad():
            stored.engine.prefetch(reload)
    except BaseException:
        del token  # which the error would keep
        raise
    return token


def wait(
    token: torch.Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The value that ``token`` brings back, whole for whatever comes after. A token is waited for once.

    Raises:
        SwapError: the copy failed, the token was waited for before, or the value has another form than asked for.
    """
    handle = tickets.handle_of(token)
    if handle is None and device == _META and tickets.is_blank(token):
        return torch.empty_strided(size, stride, dtype=dtype, device=device)
    reload = None if handle is None else handle.owned
    if not isinstance(reload, Reload):
        raise SwapError(
            f"token {token.tolist()} brings nothing back: it is no result of memopt::prefetch, or a copy of one. A token must "
            "be passed on as it is; set swap.enable to false if something else in the program copies it."
        )
    stored = reload.stored
    _refuse_if_abandoned(stored)
    size, stride = tuple(size), tuple(stride)
    layout = stored.parcel.layout
    agrees = layout.agrees(size, stride, dtype)
    # Where torch's fake kernel tells another type than the real one makes, what comes next gets what it would get without swap.
    is_other_type = layout.size == size and layout.dtype != dtype and (0 in size or {layout.dtype, dtype} <= _AUTOCAST)
    if not (agrees or is_other_type or layout.converts_to(size, stride, dtype)) or not _same(stored.device, device):
        raise SwapError(
            f"swap of {stored.parcel.name!r}: stored with size {layout.size}, stride {layout.stride}, {layout.dtype} on "
            f"{stored.device}, but asked for with size {size}, stride {stride}, {dtype} on {device}. Set swap.enable to false "
            "and report it."
        )
    with torch.no_grad():
        value = stored.engine.wait(reload)
        if stored.used is not None:
            stored.used(stored.parcel.nbytes)
        if is_other_type:
            return value
        if not agrees:
            # Some of torch's fake kernels tell other strides than the real ones have; what comes next was made for those told.
            return torch.empty_strided(size, stride, dtype=dtype, device=value.device).copy_(value)
        return value if value.stride() == stride else value.as_strided(size, stride)


def _refuse_if_abandoned(stored: Stored) -> None:
    if stored.engine.abandoned:
        raise SwapError(
            f"swap of {stored.parcel.name!r}: its parent swapped it out before this process was forked. Run forward and "
            "backward in one process, or set swap.enable to false."
        )


def _same(stored: torch.device, asked: torch.device) -> bool:
    return stored == asked or (stored.type == asked.type and asked.index is None)


def _fake_offload(
    value: torch.Tensor,  # noqa: ARG001
    name: str,  # noqa: ARG001
    store: str,  # noqa: ARG001
    directory: str | None,  # noqa: ARG001
    in_flight_bytes: int,  # noqa: ARG001
    host_limit: int | None,  # noqa: ARG001
    asynchronous: bool,  # noqa: ARG001
) -> torch.Tensor:
    return tickets.blank()


def _fake_prefetch(ticket: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return tickets.blank()


def _fake_wait(
    token: torch.Tensor,  # noqa: ARG001
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


for _schema, _kernel, _fake in (
    (
        "offload(Tensor value, str name, str store, str? directory, int in_flight_bytes, int? host_limit, bool asynchronous)"
        " -> Tensor",
        offload,
        _fake_offload,
    ),
    ("prefetch(Tensor ticket) -> Tensor", prefetch, _fake_prefetch),
    ("wait(Tensor token, SymInt[] size, SymInt[] stride, ScalarType dtype, Device device) -> Tensor", wait, _fake_wait),
):
    _name = _schema.partition("(")[0]
    _LIBRARY.define(_schema, tags=_EXACT_STRIDES)
    _LIBRARY.impl(_name, _kernel, "CompositeExplicitAutograd")
    # Gradients pass these by, and conjugate views come as they are: their strides would change if torch resolved them.
    for _key in ("Autograd", "Conjugate", "Negative"):
        _LIBRARY.impl(_name, torch.library.fallthrough_kernel, _key)
    torch.library.register_fake(f"memopt::{_name}", _fake, lib=_LIBRARY)
