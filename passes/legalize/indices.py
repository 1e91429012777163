"""Operators that choose elements, and values whose size depends on data, are saved.

A recomputed sum may round differently, and a near tie then chooses another element than the forward did. Such results are
small. A rule that names the operator itself forces its recomputation, with a warning; without one where the operator chooses
by no data at all, but computes a table from constants, as ``interpolate`` does.
"""

from __future__ import annotations

from torch.fx import Node

from ..joint import JointGraph, is_recomputed
from ..keep import keep
from ..matched import Matched
from ..operators import chooses_indices, draws_random_numbers, is_seed, is_symbolic

RULE = "legalize.indices"


def keep_chosen_indices(joint: JointGraph, matched: Matched) -> None:
    """Save what chooses elements or has a size that only the data tells."""
    tables = _constant_tables(joint)
    for node in joint.forward_operators():
        if not is_recomputed(node):
            continue
        if node.meta.get("unbacked_bindings"):
            keep(node, RULE, "its size depends on the data")
        elif chooses_indices(node):
            forced = matched.operators.get(node)
            if forced is None:
                keep(node, RULE, "it chooses elements, and a second run may choose others")
            elif node not in tables:
                matched.warnings.append(
                    f"{forced.field} recomputes {node.name}, which chooses elements: if the recomputation rounds "
                    "differently, it may choose others than the forward did. Name a module instead to have it saved."
                )


def _constant_tables(joint: JointGraph) -> set[Node]:
    """What is computed from no input but sizes, and so is the same in every run."""
    tables: set[Node] = set()
    for node in joint.graph.nodes:
        if node.op != "call_function" or node in joint.backward or node.meta.get("unbacked_bindings"):
            continue
        if draws_random_numbers(node) or is_seed(node):
            continue
        sized = is_symbolic(node) and all(i.op == "placeholder" for i in node.all_input_nodes)
        if sized or tables.issuperset(node.all_input_nodes):
            tables.add(node)
    return tables
