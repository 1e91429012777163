"""Before which kernel of the backward each reload is issued: as early as the configuration says, but at no peak's expense.

    backward of layer 4   |mm |mm |gelu |mm |...    backward of layer 3   |mm |mm |gelu |mm |...
    earliest              ^ all reloads of layer 3, default_prefetch: 1
    latest                             ^ gelu    ^ fc1           ^ norm    ^ input

Issued at their earliest, two layers' values are alive at the beginning of a layer's backward, and at the beginning of the last
one also all gradients of parameters. Copies run one after another, so that memory for all of them at once would only wait. The
latest place of a reload is the one from which it still arrives in time if the reloads of a layer take as long as its backward,
and all are done an eighth of that early; every further layer in ``default_prefetch`` begins them a layer earlier. What is alive
at the most if all are issued at their latest is needed anyway: within that, each is issued as early as there is room.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_SLACK = 1 / 8
"""The part of a layer's backward by which a copy is to end before its use: threads that copy do not run at once."""


@dataclass(frozen=True, slots=True)
class Reload:
    """What is to come back; kernels are told by their number.

    Attributes:
        size: its bytes.
        use: the kernel that first reads it.
        gone: the first kernel that runs without it again.
        layer: whose backward reads it: its number in the order of the backwards.
    """

    size: int
    use: int
    gone: int
    layer: int


def spread(
    reloads: Sequence[Reload], held: Sequence[int], time: Sequence[int], layers: Sequence[range], ahead: int
) -> list[int]:
    """Find the kernel before which each reload is issued.

    Args:
        reloads: in the order of their first use.
        held: per kernel, the bytes alive beside them.
        time: per kernel, when it begins; at last when all have ended.
        layers: the kernels of each layer's backward, in the order of the backwards.
        ahead: ``default_prefetch``.
    """
    latest = latest_places(reloads, time, layers, ahead)
    alive = list(held)
    for reload, place in zip(reloads, latest, strict=True):
        for kernel in range(place, reload.gone):
            alive[kernel] += reload.size
    most = max(alive, default=0)
    places: list[int] = []
    for reload, place in zip(reloads, latest, strict=True):
        first = max(_earliest(reload, layers, ahead), places[-1] if places else 0)
        while place > first and alive[place - 1] + reload.size <= most:
            place -= 1
            alive[place] += reload.size
        places.append(place)
    return places


def _earliest(reload: Reload, layers: Sequence[range], ahead: int) -> int:
    return min(layers[max(reload.layer - ahead, 0)].start, reload.use)


def latest_places(reloads: Sequence[Reload], time: Sequence[int], layers: Sequence[range], ahead: int) -> list[int]:
    """Find the last kernel before which each can be issued if the reloads of a layer take as long as its backward.

    Args: as for :func:`spread`.
    """
    total: Counter[int] = Counter()
    for reload in reloads:
        total[reload.layer] += reload.size
    places = []
    free: float = math.inf  # when the copies after this one begin
    for reload in reversed(reloads):
        kernels = layers[reload.layer]
        span = time[kernels.stop] - time[kernels.start]
        free = min(free, time[reload.use]) - span * reload.size / max(total[reload.layer], 1)
        lead = time[kernels.start] - time[layers[max(reload.layer - ahead + 1, 0)].start]
        place = max(bisect_right(time, free - lead - _SLACK * span) - 1, _earliest(reload, layers, ahead))
        places.append(min(place, reload.use))
    found: list[int] = []
    for place in reversed(places):  # none before that of a value that is used earlier
        found.append(max(place, found[-1] if found else 0))
    return found
