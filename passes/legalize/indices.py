"""Operators that choose elements, and values whose size depends on data, are saved.

A recomputed sum may round differently, and a near tie then chooses another element than the forward did. Such results are
small. A rule that names the operator itself forces its recomputation, with a warning.
"""

from __future__ import annotations

from ..joint import JointGraph, is_recomputed
from ..keep import keep
from ..matched import Matched
from ..operators import chooses_indices

RULE = "legalize.indices"


def keep_chosen_indices(joint: JointGraph, matched: Matched) -> None:
    """Save what chooses elements or has a size that only the data tells."""
    for node in joint.forward_operators():
        if not is_recomputed(node):
            continue
        if node.meta.get("unbacked_bindings"):
            keep(node, RULE, "its size depends on the data")
        elif chooses_indices(node):
            forced = matched.operators.get(node)
            if forced is None:
                keep(node, RULE, "it chooses elements, and a second run may choose others")
            else:
                matched.warnings.append(
                    f"{forced.field} recomputes {node.name}, which chooses elements: if the recomputation rounds "
                    "differently, it may choose others than the forward did. Name a module instead to have it saved."
                )
