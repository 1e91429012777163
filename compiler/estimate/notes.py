"""What an estimate leaves out: said wherever its figures are."""

from __future__ import annotations

from collections.abc import Iterator

from ...passes.operators import target_names
from ..explain.explanation import Explanation

NO_BACKWARD = (
    "no parameter or input that it uses requires a gradient, or its outputs need none, as integers, None, and what is computed "
    "under no_grad do. Call it in training, and return a loss or floating-point tensors."
)


def notes(explanation: Explanation, *, asked: bool) -> Iterator[str]:
    """One sentence for each thing that is not counted or checked; ``asked``: for sizes other than the inputs'."""
    if asked:
        yield "whether the model takes such sizes is not checked: a table of positions, for example, may be shorter"
    if not explanation.is_whole:
        yield (
            "the trace stopped before the model's end (a warning says where): all figures are those of the part before, and "
            "the step takes more"
        )
    if len(explanation.runs) > 1:
        parts = f"the model breaks into {len(explanation.runs)} parts that are compiled"
        yield f"{parts}; what runs between and around them is not counted, so that the step may take more"
    if any("convolution" in name for name in _operators(explanation)):
        yield "memory that convolutions use inside themselves is not counted"


def _operators(explanation: Explanation) -> Iterator[str]:
    for graph in explanation.current:
        for node in graph.joint.graph.nodes:
            if node.op == "call_function":
                yield from target_names(node)[:1]
