"""The page as text: its template, style and scripts put together with the data."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from ..compiler.explain.table import human_bytes
from .pack import embedded, packed
from .summary import Tile, tiles

_STYLES = ("base.css", "controls.css", "charts.css", "values.css", "print.css")
_SCRIPTS = (
    *("format.js", "data.js", "filter.js", "scale.js"),
    *("timeline.js", "readout.js", "cursor.js", "swaps.js", "layers.js", "config.js", "rows.js", "table.js", "main.js"),
)
"""In the order in which they are put together: one script, in which each may use the functions of all."""


def page(data: Mapping[str, Any]) -> str:
    """One HTML document that shows ``data`` and loads nothing: style, scripts and data are inside.

    Its content security policy allows the style and the script that are in it, by their hashes, and nothing else. Without
    JavaScript it still shows the warnings, the summary and a table of the layers.

    Args:
        data: what ``memopt.page.data`` collects. Parts that are missing, None or empty are left out of the page.

    Raises:
        ValueError: a number in ``data`` is not finite.
    """
    style, script = (_joined(names) for names in (_STYLES, _SCRIPTS))
    return Template(_read("page.html")).substitute(
        policy=f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        title=_text(data.get("title") or "Memory of a training step"),
        facts="".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in (data.get("facts") or {}).items() if v),
        warnings=_warnings(data.get("warnings") or ()),
        tiles="".join(_tile(tile) for tile in tiles(data)),
        layers=_layers(data.get("layers") or ()),
        style=style,
        data=embedded(packed(data)),
        script=script,
    )


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _joined(names: Iterable[str]) -> str:
    return "\n" + "\n".join(_read(name) for name in names)


def _source(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _text(value: object) -> str:
    """``value`` for use in HTML; half a surrogate pair, as in the name of a file, becomes ``?``."""
    return escape(str(value).encode("utf-8", "replace").decode())


def _warnings(texts: Iterable[str]) -> str:
    items = "".join(f"<li>{_text(text)}</li>" for text in texts)
    if not items:
        return ""
    heading = '<h2 id="warnings-title">Warnings</h2>'
    return f'<section class="warnings" aria-labelledby="warnings-title">{heading}<ul>{items}</ul></section>'


def _tile(tile: Tile) -> str:
    notes = "".join(f"<span>{_breakable(_text(note))}</span>" for note in tile.notes)
    said = f"<b>{_unbroken(tile.value)}</b>{notes}"
    return f'<div class="tile" id="tile-{tile.key}"><dt>{_text(tile.name)}</dt><dd>{said}</dd></div>'


def _unbroken(value: str) -> str:
    """Keeps numbers together with their units; an arrow may end a line."""
    return _text(value).replace(" ", "&nbsp;").replace("→&nbsp;", "→ ")


def _breakable(name: str) -> str:
    """Lets a long name such as ``mlp.fc1.linear`` be broken after dots and underscores; numbers stay whole."""
    return re.sub(r"(?<=\w)[._](?=[a-z])", r"\g<0><wbr>", name)


def _layers(layers: Iterable[Mapping[str, Any]]) -> str:
    """The rows of the table that is shown where no script runs."""
    rows = []
    for layer in layers:
        name = "outside layers" if layer["layer"] is None else layer["layer"]
        sizes = (human_bytes(layer.get(key)) for key in ("before", "after", "swapped"))
        cells = "".join(f"<td>{_text(cell)}</td>" for cell in (layer.get("action") or "", *sizes))
        rows.append(f'<tr><th scope="row">{_text(name)}</th>{cells}</tr>')
    return "".join(rows)
