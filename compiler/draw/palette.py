"""The colours and marks of each fate, the same in every format.

What torch chose has the colour of what was decided alike, paler and dashed; what swap inserted has a colour of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from .drawing import Fate


@dataclass(frozen=True, slots=True)
class Look:
    """How a fate looks.

    Attributes:
        mark: a few letters, for those who do not tell the colours apart.
        fill, stroke: on a light background.
        dark_fill, dark_stroke: on a dark background.
        dashed: the outline is dashed.
        terminal: the style of the word on a terminal, as rich has it.
    """

    mark: str
    fill: str
    stroke: str
    dark_fill: str
    dark_stroke: str
    dashed: bool
    terminal: str


LOOKS = {
    Fate.SAVE: Look("save", "#ffe3a3", "#9a6700", "#5c4400", "#e3b341", False, "bold yellow"),
    Fate.RECOMPUTE: Look("again", "#c6e0ff", "#0969da", "#0c3d77", "#6cb6ff", False, "bold blue"),
    Fate.OFFLOAD: Look("swap", "#e2d1ff", "#8250df", "#44297d", "#c297ff", False, "bold magenta"),
    Fate.TORCH_SAVES: Look("(save)", "#fff7df", "#b08800", "#33290f", "#b89b4d", True, "yellow"),
    Fate.TORCH_RECOMPUTES: Look("(again)", "#eaf4ff", "#5b9de0", "#12263d", "#5a8fc4", True, "blue"),
    Fate.PLAIN: Look("", "#f4f5f7", "#8b949e", "#21262d", "#7d8590", False, "dim"),
    Fate.LEAVES: Look("out", "#ffd3e6", "#bf3989", "#5e1a42", "#ff80c8", False, "bold red"),
    Fate.FETCHED: Look("back", "#c3f0cf", "#1a7f37", "#0f4a22", "#57d273", False, "bold green"),
    Fate.AWAITED: Look("wait", "#ffd8c0", "#bc4c00", "#5c2a08", "#ff9e64", False, "bold cyan"),
}

MEANING = {
    Fate.SAVE: "must save: a rule or correctness keeps it for the backward",
    Fate.RECOMPUTE: "recompute: a rule has the backward compute it again",
    Fate.OFFLOAD: "offload: a rule has it wait outside the device's memory",
    Fate.TORCH_SAVES: "torch saves: no rule, its partitioner keeps it",
    Fate.TORCH_RECOMPUTES: "torch recomputes: no rule, its partitioner computes it again",
    Fate.PLAIN: "plain: neither kept nor computed again",
    Fate.LEAVES: "inserted by swap: offload, the value leaves",
    Fate.FETCHED: "inserted by swap: prefetch, its reload is issued",
    Fate.AWAITED: "inserted by swap: wait, it is back",
}
