"""The report page as text: what is in it, that nothing breaks out of it, and that it needs nothing else."""

from __future__ import annotations

import copy
import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from page_data import report

import memopt.page.render as render
from memopt.page.pack import embedded, packed
from memopt.page.summary import Tile, tiles

FOLDER = Path(render.__file__).parent
FILES = sorted(path for path in FOLDER.iterdir() if path.suffix in (".js", ".css", ".html"))
SMALL = report(4, values_per_layer=12, moments_per_layer=30)
HOSTILE = "</script></style></title><script>alert(1)</script><!-- <b onload='x'>\u2028\u2029&lt;\"'`$title ${data}\udce9"
OPTIONAL = "title facts warnings summary categories timeline measured layers swaps config values".split()  # noqa: SIM905


class Elements(HTMLParser):
    """The elements of a document: ``found`` has tag, attributes, and the text that it begins with."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.inside = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs), []))
        self.inside = True

    def handle_data(self, data: str) -> None:
        if self.found and self.inside:
            self.found[-1][2].append(data)

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def texts(self, tag: str, **attributes: str) -> list[str]:
        return ["".join(t) for name, own, t in self.found if name == tag and attributes.items() <= own.items()]


def tags(elements: Elements) -> list[str]:
    """Without places where a name may be broken."""
    return [tag for tag, _, _ in elements.found if tag != "wbr"]


def data_in(text: str) -> Any:
    (found,) = Elements(text).texts("script", type="application/json")
    return json.loads(found)


def unpacked(small: dict[str, Any]) -> dict[str, Any]:
    """What the page's script makes of the data, in Python."""
    data = dict(small)
    if timeline := small.get("timeline"):
        data["timeline"] = {**timeline, "bytes": {name: list(accumulate(c)) for name, c in timeline["bytes"].items()}}
    if values := small.get("values"):
        columns = values["columns"].values()
        cells = [column if isinstance(column, list) else [column["words"][i] for i in column["at"]] for column in columns]
        data["values"] = {"columns": list(values["columns"]), "rows": [list(row) for row in zip(*cells, strict=True)]}
    return data


def replaced(value: Any, text: str) -> Any:
    """``value`` with every text in it, keys apart, replaced."""
    if isinstance(value, dict):
        return {key: replaced(part, text) for key, part in value.items()}
    if isinstance(value, list):
        return [replaced(part, text) for part in value]
    return text if isinstance(value, str) else value


# ---------------------------------------------------------------- the data


def test_packing_loses_nothing() -> None:
    assert unpacked(packed(SMALL)) == SMALL


def test_packing_leaves_what_it_is_given() -> None:
    before = copy.deepcopy(SMALL)
    render.page(SMALL)
    assert before == SMALL


def test_data_is_in_the_page() -> None:
    assert unpacked(data_in(render.page(SMALL))) == SMALL


def test_no_values_keep_their_columns() -> None:
    data = {"values": {"columns": ["layer", "path"], "rows": []}}
    assert packed(data)["values"] == {"count": 0, "columns": {"layer": [], "path": {"words": [], "at": []}}}


def test_numbers_that_are_none_are_no_numbers() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        render.page({**SMALL, "summary": {"peak_bytes": 1, "forward_flops": float("nan"), "recompute_flops": 0}})


def test_rows_that_are_too_short_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        render.page({"values": {"columns": ["layer", "path"], "rows": [[1, "a"], [2]]}})


# ---------------------------------------------------------------- escaping


def test_hostile_text_stays_text() -> None:
    data = replaced(SMALL, HOSTILE)
    data["categories"] = SMALL["categories"]
    data["values"]["columns"] = SMALL["values"]["columns"]
    text = render.page(data)
    assert text.encode("utf-8")
    elements = Elements(text)
    assert [own.get("type") for tag, own, _ in elements.found if tag == "script"] == ["application/json", "module"]
    assert tags(elements) == tags(Elements(render.page(SMALL)))
    assert unpacked(data_in(text)) == data
    assert elements.texts("title") == elements.texts("h1") == [HOSTILE.replace("\udce9", "?")]


@pytest.mark.parametrize("part", ["<", ">", "&", "\u2028", "\u2029", "\udce9", "é"])
def test_embedded_json_has_no_characters_that_matter_to_html(part: str) -> None:
    text = embedded({"a": part})
    assert part not in text
    assert text.isascii()
    assert json.loads(text) == {"a": part}


# ---------------------------------------------------------------- one document that needs nothing else


def test_a_large_model_is_a_page_of_less_than_three_megabytes() -> None:
    data = report(32)
    assert (len(data["timeline"]["phase"]) >= 12_000, len(data["values"]["rows"]) >= 4_000) == (True, True)
    assert len(render.page(data).encode()) < 3_000_000


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = render.page(SMALL)
    links = [
        value or "" for _, own, _ in Elements(text).found for name, value in own.items() if name in ("src", "href", "srcset")
    ]
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    assert set(re.findall(r"https?://[^\"')\s]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert [word for word in ("@import", "url(http", "fetch(", "XMLHttpRequest", "innerHTML", "eval(") if word in text] == []
    assert set(re.findall(r"url\(([^)]*)\)", text)) <= {"#plot-clip"}


def test_the_policy_allows_this_style_and_this_script_alone() -> None:
    elements = Elements(render.page(SMALL))
    (policy,) = [own["content"] or "" for tag, own, _ in elements.found if own.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    own = {"style-src": elements.texts("style"), "script-src": elements.texts("script", type="module")}
    for rule, (text,) in own.items():
        assert rules.pop(rule) == f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
    assert rules == {"default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}


def test_no_style_attributes_and_handlers_which_the_policy_forbids() -> None:
    names = {name for _, own, _ in Elements(render.page(SMALL)).found for name in own}
    assert [name for name in names if name == "style" or name.startswith("on")] == []


def test_every_script_and_style_of_the_folder_is_in_the_page() -> None:
    assert sorted((*render._SCRIPTS, *render._STYLES)) == [path.name for path in FILES if path.suffix != ".html"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_easy_to_read(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 400
    assert [line for line in lines if len(line) > 128 and "data:" not in line] == []


# ---------------------------------------------------------------- parts that are missing


@pytest.mark.parametrize("nothing", [None, (), "absent"], ids=["none", "empty", "absent"])
@pytest.mark.parametrize("part", OPTIONAL)
def test_every_part_may_be_missing(part: str, nothing: Any) -> None:
    data = {**SMALL, part: nothing}
    if nothing == "absent":
        del data[part]
    assert "<h1>" in render.page(data)


def test_an_empty_report_is_a_page() -> None:
    elements = Elements(render.page({}))
    assert elements.texts("h1") == ["Memory of a training step"]
    assert "Warnings" not in elements.texts("h2")


def test_without_scripts_there_are_warnings_summary_and_layers() -> None:
    elements = Elements(render.page(SMALL))
    assert [text for text in elements.texts("li") if text in SMALL["warnings"]] == SMALL["warnings"]
    assert [name for tag, own, _ in elements.found if tag == "div" and (name := own.get("id") or "").startswith("tile-")] == [
        *("tile-peak", "tile-measured", "tile-resident", "tile-saved", "tile-swapped", "tile-recomputed")
    ]
    assert elements.texts("td")[:4] == ["recompute", "160.1 MiB", "48.0 MiB", "0 B"]


# ---------------------------------------------------------------- the summary


def test_tiles() -> None:
    summary = {
        "peak_bytes": 3 * 2**30,
        "peak_at": {"operator": "mm", "layer": 7, "phase": "backward"},
        "measured_peak_bytes": 3 * 2**30 + 2**28,
        "resident_bytes": 5 * 2**20,
        "resident": {"parameters": 4 * 2**20, "buffers": 0, "optimizer": 2**20},
        "saved_before": 2**31,
        "saved_after": 2**29,
        "swapped_bytes": 2**28,
        "forward_flops": 4_000_000_000_000,
        "recompute_flops": 1_000_000_000_000,
    }
    assert list(tiles({"summary": summary, "swaps": [{"store": "disk"}, {"store": "host"}]})) == [
        Tile("peak", "Predicted peak", "3.0 GiB", ("at mm", "layer 7, backward")),
        Tile("measured", "Measured peak", "3.2 GiB", ("1.083 × predicted",)),
        Tile("resident", "Resident all the time", "5.0 MiB", ("parameters 4.0 MiB", "optimizer 1.0 MiB")),
        Tile("saved", "Saved for the backward", "2.0 GiB → 512.0 MiB", ("−75 %",)),
        Tile("swapped", "Swapped out and back", "256.0 MiB", ("2 values to disk and host",)),
        Tile("recomputed", "Recomputed", "25 %", ("of the forward's work", "1.0 TFLOPs of 4.0 TFLOPs")),
    ]


def test_tiles_of_numbers_that_are_unknown_or_zero() -> None:
    zero: dict[str, Any] = {"peak_bytes": 0, "measured_peak_bytes": 5, "saved_before": 0, "saved_after": 0, "swapped_bytes": 0}
    zero |= {"forward_flops": 0, "recompute_flops": 0, "peak_at": None, "resident_bytes": None}
    assert list(tiles({"summary": zero})) == [
        Tile("peak", "Predicted peak", "0 B"),
        Tile("measured", "Measured peak", "5 B"),
        Tile("saved", "Saved for the backward", "0 → 0 B"),
        Tile("recomputed", "Recomputed", "0 FLOPs"),
    ]
    assert list(tiles({"summary": {"saved_after": 3}})) == [Tile("saved", "Saved for the backward", "3 B")]


def test_a_peak_outside_the_layers() -> None:
    at = {"operator": "embedding", "layer": None, "phase": "forward"}
    assert next(tiles({"summary": {"peak_bytes": 1, "peak_at": at}})).notes == ("at embedding", "outside layers, forward")
