"""What the forward saves, in the order in which torch's runtime takes it apart: tensors, opaque objects, sizes.

    forward    return (out, x, mesh, rng_state, s0)     ->  return (out, x, rng_state, mesh, s0)
    backward   s0, x, mesh, rng_state, tangents         ->  s0, x, rng_state, mesh, tangents

Torch's partitioner appends the random states that recomputed operators start from behind the opaque objects (device meshes
and process groups, which DTensors bring along), and the runtime then takes the mesh for a tensor.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from .operators import is_symbolic


def order_saved(forward: GraphModule, backward: GraphModule, num_fwd_outputs: int) -> None:
    """Move opaque objects behind the tensors: among the forward's saved values, and in the same way in the backward."""
    (output,) = forward.graph.find_nodes(op="output")
    outputs = list(output.args[0])
    saved = outputs[num_fwd_outputs:]
    received = list(backward.graph.find_nodes(op="placeholder"))[: len(saved)]
    returned = [kind for kind in map(_kind, saved) if kind != _SIZE]
    if returned == sorted(returned):
        return
    output.args = ((*outputs[:num_fwd_outputs], *sorted(saved, key=_kind)),)
    place = received[-1]
    for node in received:
        if _kind(node) == _OPAQUE:
            place.append(node)
            place = node
    forward.recompile()
    backward.recompile()


_TENSOR, _OPAQUE, _SIZE = range(3)


def _kind(value: object) -> int:
    if not isinstance(value, Node) or isinstance(value.meta.get("val"), torch.Tensor):
        return _TENSOR
    return _SIZE if is_symbolic(value) else _OPAQUE
