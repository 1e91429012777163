"""Drawings as SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from drawings import chain, item, mlp, one_of_each
from memopt.compiler.draw.drawing import Drawing, Fate
from memopt.compiler.draw.layout import BOX_HEIGHT, BOX_WIDTH, lay_out
from memopt.compiler.draw.palette import LOOKS
from memopt.compiler.draw.svg import CLASSES, MOST_NODES, to_svg

SVG = "{http://www.w3.org/2000/svg}"


def parsed(drawing: Drawing) -> ElementTree.Element:
    return ElementTree.fromstring(to_svg(drawing).encode())


def groups(root: ElementTree.Element) -> Iterator[tuple[str, ElementTree.Element]]:
    """The group of each node, with the name that stands in it."""
    for group in root.iter(f"{SVG}g"):
        if group.get("class", "").startswith("node "):
            yield group.findall(f"{SVG}text")[0].text or "", group


def words(root: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def test_a_node_shows_name_operator_shape_and_bytes() -> None:
    group = dict(groups(parsed(mlp())))["act"]
    assert ["".join(t.itertext()) for t in group.findall(f"{SVG}text")] == ["act", "again", "gelu", "[4, 4] float32 64 B"]


def test_a_tooltip_tells_rule_and_reason() -> None:
    title = dict(groups(parsed(mlp())))["act"].find(f"{SVG}title")
    assert title is not None
    assert (title.text or "").splitlines() == [
        "act = aten.gelu(fc1)",
        "[4, 4] float32, 64 B",
        "layer 0 mlp.act",
        "recompute",
        "rule: recompute.select_module['.*mlp']",
        "reason: module mlp is recomputed",
    ]


def test_every_fate_has_its_class_and_colours_for_light_and_dark() -> None:
    root = parsed(one_of_each())
    found = {name: group.get("class") for name, group in groups(root)}
    assert found == {fate.name.lower(): f"node {CLASSES[fate]}" for fate in Fate}
    style = root.find(f"{SVG}style")
    assert style is not None
    light, dark = (style.text or "").split("@media (prefers-color-scheme: dark)")
    for fate, look in LOOKS.items():
        assert f".{CLASSES[fate]} rect {{ fill: {look.fill}; stroke: {look.stroke}" in light
        assert f".{CLASSES[fate]} rect {{ fill: {look.dark_fill}; stroke: {look.dark_stroke}" in dark


def test_an_edge_has_the_colour_of_its_value() -> None:
    paths = {path.findtext(f"{SVG}title"): path.get("class") for path in parsed(mlp()).iter(f"{SVG}path")}
    assert paths["act → grad_w2"] == "from-recompute"
    assert paths["fc1 → act"] == "from-save"
    assert paths["grad_act → grad_fc1"] == "from-plain"


def test_what_is_not_drawn_is_named_where_it_is_read() -> None:
    found = words(parsed(mlp()))
    assert {"x", "w1", "w2", "tangents_out"} <= {*found}
    assert "→ output" in found
    assert "→ grad_w1 +1" in found


def test_more_names_than_there_is_room_for() -> None:
    drawing = Drawing("forward", "t", (item("cat", "cat", outer=tuple(f"x{i}" for i in range(7))),))
    found = words(parsed(drawing))
    assert "x3 and 3 more" in found
    assert "x4" not in found


def test_the_halves_of_a_layer_lie_side_by_side_and_the_backward_runs_up() -> None:
    boxes = {box.item.name: box for box in lay_out(mlp()).boxes}
    assert boxes["fc1"].y < boxes["act"].y < boxes["fc2"].y < boxes["out"].y
    assert boxes["grad_fc1"].y < boxes["grad_act"].y
    assert all(boxes[name].x > boxes["out"].x + BOX_WIDTH for name in ("grad_w2", "grad_act", "grad_fc1"))


def test_a_backward_alone_runs_down_from_the_last_layer() -> None:
    items = (item("g1", "sin", layer=1, backward=True), item("g0", "sin", "g1", layer=0, backward=True))
    boxes = {box.item.name: box for box in lay_out(Drawing("backward", "t", items)).boxes}
    assert boxes["g1"].y < boxes["g0"].y


def test_layers_are_framed_and_boxes_lie_within() -> None:
    layout = lay_out(mlp())
    frames = {frame.label: frame for frame in layout.frames}
    assert list(frames) == ["layer 0, forward", "layer 0, backward"]
    for box in layout.boxes:
        frame = frames["layer 0, backward" if box.item.backward else "layer 0, forward"]
        assert frame.x < box.x
        assert box.x + BOX_WIDTH < frame.x + frame.width
        assert frame.y < box.y
        assert box.y + BOX_HEIGHT < frame.y + frame.height


def test_before_and_behind_the_layers() -> None:
    items = (
        item("embed", "sin", layer=None),
        item("a", "sin", "embed", layer=0),
        item("head", "sin", "a", layer=None),
        item("g_head", "sin", "head", layer=None, backward=True),
        item("g_a", "sin", "g_head", layer=0, backward=True),
        item("g_embed", "sin", "g_a", layer=None, backward=True),
    )
    labels = [frame.label for frame in lay_out(Drawing("joint", "t", items)).frames]
    assert labels == [
        "before the layers, forward",
        "before the layers, backward",
        "layer 0, forward",
        "layer 0, backward",
        "behind the layers, forward",
        "behind the layers, backward",
    ]


def test_parameters_outside_the_layers_are_names_not_boxes() -> None:
    items = (item("w", "parameter", layer=None, given=True), item("a", "sin", "w", layer=0))
    root = parsed(Drawing("joint", "t", items))
    assert [name for name, _ in groups(root)] == ["a"]
    assert "w" in words(root)


def test_boxes_of_a_row_do_not_overlap() -> None:
    items = [item("x", "sin"), *(item(f"n{i}", "sin", "x") for i in range(9))]
    items.append(item("sum", "add", *(f"n{i}" for i in range(9))))
    boxes = sorted(box.x for box in lay_out(Drawing("forward", "t", tuple(items))).boxes if box.item.name.startswith("n"))
    assert all(b - a > BOX_WIDTH for a, b in pairwise(boxes))


def test_texts_are_escaped() -> None:
    rule = "recompute.select_module['<a> & \"b\"\x01']"
    drawing = replace(mlp(), title="<t> & co", items=(item("a", "sin", fate=Fate.RECOMPUTE, rule=rule),))
    title = dict(groups(parsed(drawing)))["a"].findtext(f"{SVG}title") or ""
    assert "rule: recompute.select_module['<a> & \"b\"\ufffd']" in title
    assert parsed(drawing).findtext(f"{SVG}title") == "<t> & co"


def test_nothing_is_fetched_from_elsewhere() -> None:
    text = to_svg(mlp())
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"href|<script|<image|@import|url\(", text)


def test_long_names_are_shortened_in_the_middle() -> None:
    name = "_scaled_dot_product_flash_attention_for_cpu_backward"
    (shown,) = (shown for shown, _ in groups(parsed(Drawing("forward", "t", (item(name, "sin"),)))))
    assert re.fullmatch(r"_scaled_dot_.*….*_backward", shown)


def test_the_same_drawing_gives_the_same_text() -> None:
    assert to_svg(mlp()) == to_svg(mlp())


def test_too_many_nodes_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"svg: found 3,001 nodes to draw; allowed: up to 3,000\. Choose layers \(--layer 0-1\)"
    ):
        to_svg(chain(MOST_NODES + 1))


def test_as_many_nodes_as_allowed_are_drawn() -> None:
    assert to_svg(chain(MOST_NODES, per_layer=1500)).count('class="node ') == MOST_NODES
