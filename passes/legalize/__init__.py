"""Change every decision that would be wrong or wasteful, each with its reason.

The order matters: what must be kept comes first, then what crosses the border of a region, then what nobody needs, and last the
regions of which nothing is left.
"""

from __future__ import annotations

from collections.abc import Callable

from ..joint import JointGraph, decision_of, is_recomputed
from ..mark_checkpoint import RULE as CHECKPOINT
from ..matched import Matched
from ..operators import viewed
from .boundaries import keep_what_leaves_a_region, leave_regions_that_recompute_nothing
from .collectives import decide_collective_with_wait, keep_undecided_collectives
from .effects import keep_effects
from .indices import keep_chosen_indices
from .mutation import keep_reads_of_mutated_inputs
from .parameters import recompute_what_parameters_give
from .random import keep_or_replay_random
from .tails import recompute_tails
from .tuples import decide_tuples_as_one
from .unneeded import drop_what_backward_does_not_need

Legalization = Callable[[JointGraph, Matched], None]

ALWAYS: tuple[Legalization, ...] = (keep_undecided_collectives, keep_or_replay_random, keep_reads_of_mutated_inputs)
"""What holds without any rule too: torch's own choice would be wrong there."""

WITH_RULES: tuple[Legalization, ...] = (
    decide_tuples_as_one,
    recompute_tails,
    decide_collective_with_wait,
    keep_undecided_collectives,
    keep_or_replay_random,
    keep_chosen_indices,
    keep_effects,
    recompute_what_parameters_give,
    keep_reads_of_mutated_inputs,
    keep_what_leaves_a_region,
    drop_what_backward_does_not_need,
    leave_regions_that_recompute_nothing,
)
"""What holds when rules have marked the graph."""


NOTHING_RECOMPUTED = (
    "recomputes nothing: what it names only makes values that leave its region, or that the backward does not need. "
    "Name more of the model, or the operator itself (memopt.trace lists operators by layer and path)"
)


def legalize(joint: JointGraph, matched: Matched, *, with_rules: bool) -> None:
    """Run the legalizations in their order, once."""
    asked = _recomputing_rules(joint)
    for rule in WITH_RULES if with_rules else ALWAYS:
        rule(joint, matched)
    matched.effective = _recomputing_rules(joint) | matched.fulfilled
    matched.ineffective |= dict.fromkeys(asked - matched.effective - {CHECKPOINT}, NOTHING_RECOMPUTED)


def _recomputing_rules(joint: JointGraph) -> set[str]:
    """The rules by which a storage is recomputed; a view alone saves nothing."""
    recomputed = (n for n in joint.graph.nodes if is_recomputed(n) and viewed(n) is None)
    return {d.rule for n in recomputed if (d := decision_of(n)) is not None}
