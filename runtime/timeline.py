"""A step as a sequence of moments, each with the bytes that are alive, by what they are for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CATEGORIES = ("gradients", "saved", "leaving", "reloaded", "recomputed", "outputs", "temporary")
"""What bytes of a step are for.

- gradients: of parameters, until the optimizer has used them
- saved: made by the forward for the backward
- leaving: made by the forward for the backward, and on its way to the host or the disk
- reloaded: back from there, or on its way back
- recomputed: made again by the backward
- outputs: what the model returned
- temporary: everything else
"""


@dataclass(frozen=True, slots=True)
class Moment:
    """What is alive while one operator runs.

    Attributes:
        phase: ``forward`` or ``backward``.
        operator: what runs, as ``explain`` names operators; the node's name where it has no such name.
        node: the node in the graph; empty where what was measured is none.
        layer: its layer's number, in the backward that of the operator it is the backward of; None outside the layers.
        bytes: category -> bytes above what was there before the step; categories without bytes are left out.
    """

    phase: str
    operator: str
    node: str
    layer: int | None
    bytes: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes alive, above what was there before the step."""
        return sum(self.bytes.values())


def peak_of(timeline: tuple[Moment, ...]) -> Moment:
    """The first moment at which most is alive."""
    return max(timeline, key=lambda moment: moment.total)
