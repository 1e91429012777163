"""From events to blocks and moments: cases written down by hand."""

from __future__ import annotations

from typing import Any

import pytest
from memopt.runtime.blocks import Block, Spans, blocks_of, moments_of

NEVER = float("inf")
Event = dict[str, Any]


def span(name: str, start: float, end: float, thread: int = 1) -> Event:
    return {"name": name, "ts": start, "dur": end - start, "tid": thread}


def memory(when: float, size: int, address: int, thread: int = 1) -> Event:
    return {"ts": when, "tid": thread, "args": {"Bytes": size, "Addr": address}}


def blocks(events: list[Event], spans: list[Event] | None = None, backward: float = NEVER) -> list[Block]:
    return blocks_of(events, Spans(spans or []), backward)


def test_what_runs_is_found_the_innermost_first() -> None:
    spans = Spans([span("inner", 2, 4), span("outer", 0, 10), span("later", 5, 6), span("other", 0, 10, thread=2)])
    assert [name for _, name in spans.around(1, 3)] == ["inner", "outer"]
    assert [name for _, name in spans.around(1, 4.5)] == ["outer"]
    assert [name for _, name in spans.around(1, 5)] == ["later", "outer"]
    assert spans.around(1, 11) == []
    assert spans.around(1, -1) == []
    assert [name for _, name in spans.around(2, 3)] == ["other"]
    assert spans.around(3, 3) == []


def test_two_runs_of_one_operator_are_told_apart() -> None:
    spans = Spans([span("aten::mm", 0, 2), span("aten::mm", 3, 5)])
    assert spans.around(1, 1) != spans.around(1, 4)


def test_a_block_has_its_operator_and_its_end() -> None:
    (block,) = blocks([memory(1, 64, 0xA), memory(5, -64, 0xA)], [span("aten::mm", 0, 2)])
    assert block == Block(64, 1, 0, "aten::mm", "temporary", 5, 1, within_operator=False)


def test_a_block_that_stays_has_no_end() -> None:
    (block,) = blocks([memory(1, 64, 0xA)])
    assert (block.freed, block.end, block.operator, block.category) == (None, None, "", "outputs")


def test_events_are_taken_in_the_order_of_time() -> None:
    found = blocks([memory(5, -64, 0xA), memory(3, 32, 0xB), memory(1, 64, 0xA)])
    assert [(b.size, b.place, b.end) for b in found] == [(64, 0, 2), (32, 1, None)]


def test_an_address_may_be_used_again() -> None:
    found = blocks([memory(1, 64, 0xA), memory(2, -64, 0xA), memory(3, 32, 0xA), memory(4, -32, 0xA)])
    assert [(b.size, b.freed) for b in found] == [(64, 2), (32, 4)]


def test_what_was_there_before_is_no_block() -> None:
    assert blocks([memory(1, -64, 0xA)]) == []


@pytest.mark.parametrize(
    ("spans", "freed", "within"),
    [
        ([span("aten::mm", 0, 10)], 5, True),
        ([span("aten::mm", 0, 10)], 11, False),
        ([span("aten::mm", 0, 3), span("aten::mm", 4, 10)], 5, False),
        ([span("aten::outer", 0, 10), span("aten::empty", 1, 2)], 5, True),
        ([span("autograd::engine::evaluate_function: MmBackward0", 0, 10)], 5, False),
        ([span("CompiledFunctionBackward", 0, 10), span("aten::mm", 0, 3)], 5, False),
    ],
)
def test_what_an_operator_frees_itself_is_its_own(spans: list[Event], freed: float, *, within: bool) -> None:
    (block,) = blocks([memory(1, 64, 0xA), memory(freed, -64, 0xA)], spans)
    assert block.within_operator is within


@pytest.mark.parametrize(
    ("made", "freed", "category"),
    [
        (1, 2, "temporary"),
        (1, 20, "saved"),
        (1, None, "outputs"),
        (11, 20, "temporary"),
        (11, None, "gradients"),
    ],
)
def test_what_a_block_is_for(made: float, freed: float | None, category: str) -> None:
    events = [memory(made, 64, 0xA), *([memory(freed, -64, 0xA)] if freed is not None else [])]
    (block,) = blocks(events, backward=10)
    assert block.category == category


def test_what_swap_fetches_is_reloaded_whatever_allocates_it() -> None:
    spans = [span("memopt::prefetch", 10, 14), span("aten::empty", 11, 12)]
    (block,) = blocks([memory(11.5, 64, 0xA), memory(20, -64, 0xA)], spans, backward=9)
    assert (block.operator, block.category) == ("memopt::prefetch", "reloaded")


def test_moments_are_what_is_alive_at_each_allocation() -> None:
    events = [
        memory(1, 100, 0xA),  # until the backward: saved
        memory(2, 30, 0xB),  # freed at once
        memory(3, -30, 0xB),
        memory(4, 7, 0xC),  # an output
        memory(11, 50, 0xD),  # a gradient
        memory(12, -100, 0xA),
        memory(13, 20, 0xE),
        memory(14, -20, 0xE),
    ]
    spans = [span("aten::mm", 0, 1.5), span("aten::add", 2, 2.5), span("custom::op", 10, 15)]
    found = moments_of(blocks(events, spans, backward=10), 10)
    assert [(m.phase, m.operator, dict(m.bytes)) for m in found] == [
        ("forward", "mm", {"saved": 100}),
        ("forward", "add", {"saved": 100, "temporary": 30}),
        ("forward", "", {"saved": 100, "outputs": 7}),
        ("backward", "custom::op", {"saved": 100, "outputs": 7, "gradients": 50}),
        ("backward", "custom::op", {"outputs": 7, "gradients": 50, "temporary": 20}),
    ]
    assert {(m.node, m.layer) for m in found} == {("", None)}
