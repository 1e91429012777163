"""What compilers are told of the operators is what the operators do."""

from __future__ import annotations

import pytest
import torch
from swapping import OPS, offload, wait_like
from torch._subclasses.fake_tensor import FakeTensorMode

VALUES = [
    torch.randn(3, 4),
    torch.randn(3, 4).t(),
    torch.randn(3, 1).expand(3, 5),
    torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    torch.randn(10, 100)[:, 2:4],
    torch.tensor(True),
    torch.empty(0, 3, dtype=torch.int64),
]


def form(value: torch.Tensor) -> tuple[object, ...]:
    return value.shape, value.stride(), value.dtype, value.device, value.storage_offset(), value.requires_grad


def all_three(value: torch.Tensor, device: torch.device) -> list[torch.Tensor]:
    ticket = offload(value)
    token = OPS.prefetch(ticket)
    back = OPS.wait(token, list(value.shape), list(value.stride()), value.dtype, device)
    return [ticket, token, back]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: f"{tuple(v.shape)}{v.stride()}")
def test_fake_and_real_agree(value: torch.Tensor) -> None:
    real = all_three(value, value.device)
    mode = FakeTensorMode()
    with mode:
        fake = all_three(mode.from_tensor(value), value.device)
    assert [form(t) for t in fake] == [form(t) for t in real]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: f"{tuple(v.shape)}{v.stride()}")
def test_on_the_meta_device(value: torch.Tensor) -> None:
    meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    ticket, token, back = all_three(meta, meta.device)
    assert form(ticket) == form(token) == (torch.Size([1]), (1,), torch.int64, torch.device("cpu"), 0, False)
    assert form(back) == form(meta)


def test_sizes_may_be_symbols() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return wait_like(OPS.prefetch(offload(y)), y)

    graph = make_fx(f, tracing_mode="symbolic")(torch.randn(3, 4))
    assert "sym_size" in graph.code
    x = torch.randn(7, 2)
    assert torch.equal(graph(x), x * 2)


@pytest.mark.parametrize("name", ["offload", "prefetch", "wait"])
def test_operators_declare_no_alias_and_no_mutation(name: str) -> None:
    schema = getattr(OPS, name).default._schema
    assert not schema.is_mutable
    assert all(a.alias_info is None for a in (*schema.arguments, *schema.returns))


@pytest.mark.parametrize("name", ["offload", "prefetch", "wait"])
def test_compilers_must_keep_strides(name: str) -> None:
    assert torch.Tag.needs_exact_strides in getattr(OPS, name).default.tags


@pytest.mark.parametrize("requires_grad", [False, True])
def test_torchs_own_checks(requires_grad: bool) -> None:
    value = torch.randn(4, 5, requires_grad=requires_grad)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    ticket_arguments = (value, "x", "disk", None, 1 << 20, None, True)
    # Tickets differ from call to call, so what compares results does not apply.
    assert set(torch.library.opcheck(OPS.offload.default, ticket_arguments, test_utils=checks).values()) == {"SUCCESS"}
    ticket = OPS.offload(*ticket_arguments)
    assert set(torch.library.opcheck(OPS.prefetch.default, (ticket,), test_utils=("test_faketensor",)).values()) == {"SUCCESS"}


def test_on_a_device_that_is_not_here() -> None:
    with FakeTensorMode():
        value = torch.empty(3, 4, device="cuda:0").t()
        ticket, token, back = all_three(value, value.device)
    assert ticket.device == token.device == torch.device("cpu")
    assert form(back) == form(value)
