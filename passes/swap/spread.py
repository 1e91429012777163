"""Before which kernel of the backward each reload is issued: as early as the configuration says, but at no peak's expense.

    backward of layer 4   |mm |mm |gelu |mm |...    backward of layer 3   |mm |mm |gelu |mm |...
    earliest              ^ all reloads of layer 3, default_prefetch: 1
    latest                             ^ gelu    ^ fc1           ^ norm    ^ input

Issued at their earliest, two layers' values are alive at the beginning of a layer's backward, and at the beginning of the last
one also all gradients of parameters. Copies run one after another, so that memory for all of them at once would only wait. Two
schedules issue them late: ``latest_places`` from where each still arrives in time if the reloads of a layer take as long as its
backward, and all are done an eighth of that early (every further layer in ``default_prefetch`` begins them a layer earlier);
``turns`` as the earlier layer releases memory. What is alive at the most in the better one is needed anyway: within that, each
is issued as early as there is room.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

_SLACK = 1 / 8
"""The part of a layer's backward by which a copy is to end before its use: threads that copy do not run at once."""


@dataclass(frozen=True, slots=True)
class Reload:
    """What is to come back; kernels are told by their number.

    Attributes:
        size: its bytes.
        use: the kernel that first reads it.
        gone: the first kernel that runs without it again; not before ``use``.
        layer: whose backward reads it: its number in the order of the backwards.
    """

    size: int
    use: int
    gone: int
    layer: int


def spread(
    reloads: Sequence[Reload],
    held: Sequence[int],
    released: Sequence[int],
    time: Sequence[int],
    layers: Sequence[range],
    ahead: int,
) -> list[int]:
    """Find the kernel before which each reload is issued.

    Args:
        reloads: in the order of their first use.
        held: per kernel, the bytes alive beside them.
        released: per kernel, the bytes of saved values that are free after it.
        time: per kernel, when it begins; at last when all have ended.
        layers: the kernels of each layer's backward, in the order of the backwards.
        ahead: ``default_prefetch``.
    """
    in_time, in_turn = latest_places(reloads, time, layers, ahead), turns(reloads, released, layers, ahead)
    latest, alive = min(((p, _alive(reloads, p, held)) for p in (in_time, in_turn)), key=lambda found: max(found[1], default=0))
    most = max(alive, default=0)
    places: list[int] = []
    for reload, place in zip(reloads, latest, strict=True):
        first = max(_earliest(reload, layers, ahead), places[-1] if places else 0)
        while place > first and alive[place - 1] + reload.size <= most:
            place -= 1
            alive[place] += reload.size
        places.append(place)
    return places


def _alive(reloads: Sequence[Reload], places: Sequence[int], held: Sequence[int]) -> list[int]:
    """The bytes alive while each kernel runs."""
    alive = list(held)
    for reload, place in zip(reloads, places, strict=True):
        for kernel in range(place, reload.gone):
            alive[kernel] += reload.size
    return alive


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
    return list(accumulate(reversed(places), max))  # none before that of a value that is used earlier


def turns(reloads: Sequence[Reload], released: Sequence[int], layers: Sequence[range], ahead: int) -> list[int]:
    """Let each reload take the place of what the earlier layer releases; all within that layer's backward.

    Where it releases little: when as large a part of its kernels has run as of the bytes is then issued.
    """
    places = [_earliest(reload, layers, ahead) for reload in reloads]
    for later, kernels in enumerate(layers):
        own = [i for i, reload in enumerate(reloads) if reload.layer - ahead == later]
        total = max(sum(reloads[i].size for i in own), 1)
        place, room, issued = kernels.start, 0, 0
        for i in own:
            issued += reloads[i].size
            latest = min(kernels.start + len(kernels) * issued // total, kernels.stop - 1) if i != own[0] else place
            while place < latest and room < issued:
                room += released[place]
                place += 1
            places[i] = min(place, reloads[i].use)
    return list(accumulate(places, max))
