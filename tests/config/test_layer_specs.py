from __future__ import annotations

import datetime
import time
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memopt.compiler.config.layer_specs import canonical, parse_layers, spoken
from memopt.compiler.errors import Findings

ITEM = "a layer number such as 5, or a range such as 0-3"


@pytest.mark.parametrize(
    ("raw", "layers"),
    [
        (5, (5,)),
        (0, (0,)),
        ("5", (5,)),
        ("0-3", (0, 1, 2, 3)),
        (" 0 - 3 ", (0, 1, 2, 3)),
        ("3-3", (3,)),
        ([0, 1, 2], (0, 1, 2)),
        (["0-3", 8], (0, 1, 2, 3, 8)),
        (("0-1", "2", "4-5"), (0, 1, 2, 4, 5)),
        (range(3), (0, 1, 2)),
        ([numpy.int64(4)], (4,)),
        ("99999", (99_999,)),
    ],
)
def test_accepted_forms(raw: Any, layers: tuple[int, ...]) -> None:
    assert parse_layers(raw) == layers


@pytest.mark.parametrize(
    ("raw", "loc", "found", "allowed", "hint"),
    [
        ([], (), "[], which names no layer", f"{ITEM}, or a list of them", ""),
        (None, (), "None", ITEM, ""),
        ([True], (0,), "True", ITEM, "true and false are not layer numbers."),
        ([1.0], (0,), "1.0", ITEM, ""),
        ([datetime.date(2024, 1, 2)], (0,), "datetime.date(2024, 1, 2)", ITEM, ""),
        (["2024-01-02"], (0,), "'2024-01-02'", ITEM, ""),
        (["1:30"], (0,), "'1:30'", ITEM, "Did you mean '1-30'?"),
        (["0..3"], (0,), "'0..3'", ITEM, "Did you mean '0-3'?"),
        (["0–3"], (0,), "'0–3'", ITEM, "Did you mean '0-3'?"),
        (["010"], (0,), "'010'", ITEM, "Write decimal numbers without leading zeros."),
        (["0x1f"], (0,), "'0x1f'", ITEM, "Write decimal numbers without leading zeros."),
        (["01-03"], (0,), "'01-03'", ITEM, "Write decimal numbers without leading zeros."),
        (["1_0"], (0,), "'1_0'", ITEM, ""),
        (["٣"], (0,), "'٣'", ITEM, ""),
        ("0-3, 8", (), "'0-3, 8'", ITEM, "Did you mean the list [0-3, 8]?"),
        ([[0, 1]], (0,), "[0, 1]", ITEM, "Write one flat list."),
        ([{"a": 1}], (0,), "{'a': 1}", ITEM, ""),
        ([-1], (0,), "-1", ITEM, "Layer numbers start at 0."),
        (["-1"], (0,), "'-1'", ITEM, "Layer numbers start at 0."),
        (["3-0"], (0,), "'3-0'", "a range whose start is not above its end", "Did you mean '0-3'?"),
        (["0-999999999999"], (0,), "'0-999999999999'", "layer numbers up to 99999", ""),
        ([10**30], (0,), "1000000000000000000000000000000", "layer numbers up to 99999", ""),
        (["9" * 5000], (0,), f"'{'9' * 40}...{'9' * 40}'", "layer numbers up to 99999", ""),
        (
            ["0-3", "3-5"],
            (1,),
            "'3-5' after '0-3'",
            "layer numbers in ascending order that do not overlap",
            "The entry before ends at layer 3.",
        ),
        (
            [4, 2],
            (1,),
            "2 after 4",
            "layer numbers in ascending order that do not overlap",
            "The entry before ends at layer 4.",
        ),
        (
            [2, 2],
            (1,),
            "2 after 2",
            "layer numbers in ascending order that do not overlap",
            "The entry before ends at layer 2.",
        ),
    ],
)
def test_refused_forms(raw: Any, loc: tuple[int, ...], found: str, allowed: str, hint: str) -> None:
    with pytest.raises(Findings) as caught:
        parse_layers(raw)
    (finding,) = caught.value.items
    assert (finding.loc, finding.found, finding.allowed, finding.hint) == (loc, found, allowed, hint)


def test_all_items_are_reported() -> None:
    with pytest.raises(Findings) as caught:
        parse_layers(["x", 3, 1, True, 4])
    assert [(finding.loc, finding.found) for finding in caught.value.items] == [
        ((0,), "'x'"),
        ((2,), "1 after 3"),
        ((3,), "True"),
    ]


def test_huge_ranges_take_no_time() -> None:
    start = time.perf_counter()
    with pytest.raises(Findings):
        parse_layers([f"{index}-999999999999" for index in range(1000)])
    assert time.perf_counter() - start < 10


@given(st.sets(st.integers(0, 60)).filter(bool))
def test_canonical_form_reads_back(layers: set[int]) -> None:
    ascending = tuple(sorted(layers))
    form = canonical(ascending)
    assert parse_layers(form) == ascending
    assert len(form) == sum(layer - 1 not in layers for layer in layers)


def test_spoken() -> None:
    assert spoken((3,)) == "layer 3"
    assert spoken((0, 1, 2, 8)) == "layers 0-2, 8"
