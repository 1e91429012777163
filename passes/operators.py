"""What an operator is: the names it answers to, and the properties that decide how it may be treated."""

from __future__ import annotations

import operator
from functools import lru_cache

import torch
from torch.fx import Graph, GraphModule, Node

from .communication import canonical_name, is_message, operator_of
from .scopes import Scope

_MATMULS = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "_scaled_mm", "_grouped_mm")
_INDEX_CHOOSING = frozenset(
    {"topk", "sort", "argsort", "argmax", "argmin", "nonzero", "nonzero_static", "multinomial", "bincount", "histc"}
    | {"kthvalue", "mode", "median", "nanmedian", "_unique2", "unique_dim", "unique_consecutive", "searchsorted", "msort"}
)
# Inductor's seed table: torch keeps its values itself, and a tag on them breaks the lowering.
_SEED_OPERATORS = frozenset({"inductor_seeds", "inductor_seed", "inductor_lookup_seed"})


def simplified(name: str) -> str:
    """A name as ``exclude_op`` compares it: lower case, without ``_`` and ``.``."""
    return name.lower().replace("_", "").replace(".", "")


@lru_cache(maxsize=4096)
def _target_names(target: object) -> tuple[str, ...]:
    if isinstance(target, torch._ops.OpOverload):
        name = target._schema.name.split("::")[-1]
        qualified = str(target.overloadpacket)
        names = [name, qualified, str(target)]
    else:
        name = str(getattr(target, "__name__", target))
        names = [name]
    bare = name.strip("_")
    if name in _MATMULS or bare in _MATMULS:
        names.append("matmul")
    if "attention" in name:
        names += ["attention", "flash_attention", "scaled_dot_product_attention"]
    if (collective := canonical_name(target)) is not None:
        names += [collective, *(["matmul"] if "matmul" in name else [])]
    return tuple(dict.fromkeys(names))


def target_names(node: Node) -> tuple[str, ...]:
    """The names of what the node itself runs: ``addmm``, ``aten.addmm``, ``aten.addmm.default``, ``matmul``."""
    if node.op != "call_function" or node.target is operator.getitem:
        return ()
    return _target_names(operator_of(node))


def function_names(scope: Scope | None) -> tuple[str, ...]:
    """The names of the function the user called, of which the node is a part: ``linear``, ``gelu``, ``attention``."""
    if scope is None or not scope.function:
        return ()
    name = scope.function
    if name in _MATMULS:
        return (name, "matmul")
    if "attention" in name:
        return (name, "attention", "flash_attention")
    return (name,)


@lru_cache(maxsize=4096)
def _aliases_first_argument(target: object) -> bool:
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.returns or not target._schema.arguments:
        return False
    returned = target._schema.returns[0].alias_info
    given = target._schema.arguments[0].alias_info
    return returned is not None and given is not None and not returned.is_write


def viewed(node: Node) -> Node | None:
    """The node whose storage this node's value lies in, one step up, or None when it has its own.

    ``getitem`` of a tuple operator has its own storage unless the operator itself only makes views (``split``).
    """
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return None
    if node.target is operator.getitem:
        return viewed(node.args[0])
    return node.args[0] if _aliases_first_argument(node.target) else None


def storage_root(node: Node) -> Node:
    """The node that produced the storage the value lies in."""
    while (base := viewed(node)) is not None:
        node = base
    return node


def is_view_of(node: Node, root: Node) -> bool:
    """Whether the node makes a view of the storage that ``root`` produced; of a ``split``, it and its outputs do."""
    return viewed(node) is not None and storage_root(node) is root


def producer(node: Node) -> Node:
    """The operator that makes the value: for a ``getitem`` its tuple-valued operator, else the node itself."""
    while node.target is operator.getitem and isinstance(node.args[0], Node):
        node = node.args[0]
    return node


def is_symbolic(node: Node) -> bool:
    """Whether the value is a size or another number, not a tensor: torch's partitioner carries those by itself."""
    return isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool)


def is_mutating(node: Node) -> bool:
    """Whether the operator writes into one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def is_seed(node: Node) -> bool:
    """Whether the node makes or looks up inductor's random seeds."""
    return bool(_SEED_OPERATORS.intersection(target_names(node)))


def subgraphs(node: Node) -> list[Graph]:
    """The graphs that a higher-order operator runs: the branches of ``cond``, the body of ``scan``."""
    owner = node.graph.owning_module
    found = [getattr(owner, str(i.target), None) for i in node.all_input_nodes if i.op == "get_attr"]
    return [part.graph for part in found if isinstance(part, GraphModule)]


def draws_random_numbers(node: Node) -> bool:
    """Whether running the node again, as it is, would draw other numbers: by operator tag, not by a list of names.

    Attention with ``dropout_p=0`` carries the tag and draws nothing.
    """
    if node.op != "call_function" or is_seed(node):
        return False
    if any(draws_random_numbers(inner) for graph in subgraphs(node) for inner in graph.nodes):
        return True
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded not in tags:
        return False
    return argument(node, "dropout_p", missing=1.0) != 0.0


def argument(node: Node, name: str, *, missing: object = None) -> object:
    """The value given for a named argument of an ATen operator, its default, or ``missing`` when it takes none."""
    schema = getattr(node.target, "_schema", None)
    for position, spec in enumerate(schema.arguments if schema is not None else ()):
        if spec.name == name:
            if name in node.kwargs:
                return node.kwargs[name]
            if position < len(node.args):
                return node.args[position]
            return spec.default_value
    return missing


def chooses_indices(node: Node) -> bool:
    """Whether rounding could make a second run choose other elements: topk, sort, argmax, nonzero, ...

    By name, and by nature: what makes indices of floating-point numbers chooses (``max`` over a dimension, say). Attention
    returns integers too, its random seed and sizes.
    """
    names = target_names(node)
    if _INDEX_CHOOSING.intersection(names):
        return True
    return "attention" not in names and _makes_indices(node) and any(_is_floating(i) for i in node.all_input_nodes)


def _makes_indices(node: Node) -> bool:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else (value,)
    return any(isinstance(v, torch.Tensor) and v.dtype in (torch.int32, torch.int64) for v in values)


def _is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def has_effect(node: Node) -> bool:
    """Whether running the node twice would be seen from outside: ordered effects, printing, asserting, sending."""
    if getattr(node.target, "__name__", "") == "with_effects" or is_message(node):
        return True
    if any(has_effect(inner) for graph in subgraphs(node) for inner in graph.nodes):
        return True
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and not schema.returns
