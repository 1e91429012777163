"""Drawings as DOT."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from drawings import item, mlp, one_of_each
from memopt.compiler.draw.dot import quote, to_dot
from memopt.compiler.draw.drawing import Drawing, Fate
from memopt.compiler.draw.palette import LOOKS

TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|->|[{}\[\];,=]|[A-Za-z_][A-Za-z_0-9]*|-?[0-9.]+)')


def tokens(text: str) -> list[str]:
    """The tokens of a DOT file; fails at anything that is none."""
    found, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = TOKEN.match(text, position)
        assert match, f"no token at {text[position : position + 30]!r}"
        found.append(match.group(1))
        position = match.end()
    return found


class Parsed:
    """A digraph: nodes with attributes and the labels of the clusters around them, and edges."""

    def __init__(self, text: str) -> None:
        self.nodes: dict[str, dict[str, str]] = {}
        self.clusters: dict[str, tuple[str, ...]] = {}
        self.edges: list[tuple[str, str]] = []
        self._left = tokens(text)
        assert self._take() == "digraph"
        self._take()
        self._block([])
        assert self._left == []

    def _take(self) -> str:
        return self._left.pop(0)

    def _block(self, labels: list[str]) -> None:
        assert self._take() == "{"
        here = [*labels]
        while (token := self._take()) != "}":
            if token == "subgraph":
                assert self._take().startswith("cluster_")
                self._block(here)
            elif self._left[0] == "=":
                self._take()
                value = self._take()
                if token == "label":
                    here.append(value.strip('"'))
                self._end()
            elif self._left[0] == "->":
                self._take()
                self.edges.append((token.strip('"'), self._take().strip('"')))
                self._attributes()
            elif token in ("node", "edge"):
                self._attributes()
            else:
                self.nodes[token.strip('"')] = self._attributes()
                self.clusters[token.strip('"')] = tuple(here[1:])

    def _attributes(self) -> dict[str, str]:
        found = {}
        if self._left[0] == "[":
            self._take()
            while True:
                name, equals, value = (self._take() for _ in range(3))
                assert equals == "="
                found[name] = value.strip('"')
                if self._take() == "]":
                    break
        self._end()
        return found

    def _end(self) -> None:
        assert self._take() == ";"


def test_nodes_lie_in_the_clusters_of_their_places() -> None:
    parsed = Parsed(to_dot(mlp()))
    assert parsed.clusters["fc1"] == ("forward", "layer 0", "mlp", "mlp.fc1")
    assert parsed.clusters["out"] == ("forward", "layer 0")
    assert parsed.clusters["grad_fc1"] == ("backward", "layer 0", "mlp", "mlp.act")


def test_edges_inside_and_from_outside() -> None:
    parsed = Parsed(to_dot(mlp()))
    assert ("fc1", "act") in parsed.edges
    assert ("act", "grad_w2") in parsed.edges
    assert ("w2 -> fc2", "fc2") in parsed.edges
    assert parsed.nodes["w2 -> fc2"]["label"] == "w2"
    assert ("grad_fc1", "grad_fc1 -> outside") in parsed.edges
    assert parsed.nodes["grad_fc1 -> outside"]["label"] == "grad_w1 and 1 more"


def test_colours_are_those_of_the_fates() -> None:
    parsed = Parsed(to_dot(one_of_each()))
    for fate in Fate:
        attributes = parsed.nodes[fate.name.lower()]
        assert (attributes["fillcolor"], attributes["color"]) == (LOOKS[fate].fill, LOOKS[fate].stroke)
        assert ("dashed" in attributes.get("style", "")) is (fate in (Fate.TORCH_SAVES, Fate.TORCH_RECOMPUTES))
    assert len({look.fill for look in LOOKS.values()}) == len(Fate)


def test_the_legend_tells_every_colour() -> None:
    parsed = Parsed(to_dot(mlp()))
    legend = {name: a for name, a in parsed.nodes.items() if name.startswith("legend_")}
    assert [a["fillcolor"] for a in legend.values()] == [look.fill for look in LOOKS.values()]
    assert legend["legend_1"]["label"] == "recompute: a rule has the backward compute it again"


def test_labels_and_tooltips() -> None:
    act = Parsed(to_dot(mlp())).nodes["act"]
    assert act["label"] == r"act\ngelu\n[4, 4] float32, 64 B"
    assert act["tooltip"] == r"aten.gelu(fc1)\nrecompute: recompute.select_module['.*mlp'] — module mlp is recomputed"


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("plain", '"plain"'),
        ('a "b"', r'"a \"b\""'),
        (r"\d+\N", r'"\\d+\\N"'),
        ("one\ntwo", r'"one\ntwo"'),
        ("a &lt; b", '"a &amp;lt; b"'),
        ("bell\x07", '"bell "'),
    ],
)
def test_texts_are_quoted(text: str, quoted: str) -> None:
    assert quote(text) == quoted


def test_a_pattern_with_quotes_and_backslashes_stays_one_string() -> None:
    rule = "recompute.select_module['\\d\\.\"x\"']"
    drawing = replace(mlp(), items=(item("a", "sin", fate=Fate.RECOMPUTE, rule=rule),))
    assert r"\\d\\.\"x\"" in Parsed(to_dot(drawing)).nodes["a"]["tooltip"]


def test_several_graphs_have_clusters_of_their_own() -> None:
    items = (item("a", "sin", key="0:a"), item("a", "sin", key="1:a", graph=1, layer=None))
    parsed = Parsed(to_dot(Drawing("forward", "two", items)))
    assert parsed.clusters["0:a"] == ("graph 0", "layer 0")
    assert parsed.clusters["1:a"] == ("graph 1", "outside the layers")
