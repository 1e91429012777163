"""Sizes that have names: ``batch`` and ``seq`` are dimensions of the inputs, and everything else follows from them.

ids: [4, 256]     batch -> 4, seq -> 256     marked dynamic: s0, s1      bytes: 1024*s0*s1
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import sympy
import torch
from torch.utils._pytree import tree_map_only

from .. import torch_bridge
from ..explain.explanation import Explanation

Place = tuple[int | str, int]
"""An argument, by position or name, and a dimension of it."""

Dims = Mapping[str, Sequence[Place]]
_MOST = 2**31 - 1
Call = tuple[tuple[Any, ...], dict[str, Any]]


class SizesError(ValueError):
    """Named sizes cannot be had of these inputs; the message says why, and what to do."""


def check_sizes(at: object, dims: object) -> None:
    """Refuse what is no mapping of names.

    Raises:
        TypeError: ``at`` or ``dims`` has another form.
    """
    if at is not None and not isinstance(at, Mapping):
        raise TypeError(f"at: found {at!r}; allowed: a mapping of names to sizes, such as {{'batch': 8}}.")
    allowed = "a mapping of names to lists of (argument, dimension), such as {'batch': [(0, 0)]}"
    if dims is not None and not isinstance(dims, Mapping):
        raise TypeError(f"dims: found {dims!r}; allowed: {allowed}.")
    for name, places in dims.items() if isinstance(dims, Mapping) else ():
        pairs = places if isinstance(places, list | tuple) else [places]
        if not all(isinstance(p, list | tuple) and len(p) == 2 and isinstance(p[1], int) for p in pairs) or not pairs:
            raise TypeError(f"dims[{name!r}]: found {places!r}; allowed: {allowed}.")


def usual_dims(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, list[Place]]:
    """``batch``: the first dimension of the tensors, as of the first one; ``seq``: the second of those of integers."""
    given: dict[int | str, Any] = dict(enumerate(args))
    given.update(kwargs)
    tensors = {k: v for k, v in given.items() if isinstance(v, torch.Tensor) and v.dim() > 0}
    if not tensors:
        return {}
    count = next(iter(tensors.values())).shape[0]
    dims: dict[str, list[Place]] = {"batch": [(k, 0) for k, t in tensors.items() if t.shape[0] == count]}
    texts = {k: t for k, t in tensors.items() if t.dim() > 1 and not (t.is_floating_point() or t.is_complex())}
    if texts:
        length = next(iter(texts.values())).shape[1]
        dims["seq"] = [(k, 1) for k, t in texts.items() if t.shape[1] == length]
    return dims


@dataclass(frozen=True)
class NamedSizes:
    """The named dimensions of a call.

    Attributes:
        dims: name -> where it stands.
        given: name -> its size in the call.
    """

    dims: Dims
    given: Mapping[str, int]

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any], dims: Dims | None, asked: Collection[str] = ()) -> NamedSizes:
        """Look the sizes up. Of the usual names, those that were not asked for are left out where they cannot be had.

        Raises:
            SizesError: a name stands for no dimension, for different sizes, for one that torch does not treat as variable, or
                for the same as another.
        """
        optional = set() if dims is not None else usual_dims(args, kwargs).keys() - set(asked)
        dims = dict(dims if dims is not None else usual_dims(args, kwargs))
        given = {name: _size_of(name, places, args, kwargs) for name, places in dims.items()}
        for name, size in list(given.items()):
            twins = [other for other, own in given.items() if own == size and other != name]
            if name in optional and (size < 2 or twins):
                del dims[name], given[name]
            elif size < 2:
                raise SizesError(f"{name}: found the size {size} in the inputs; allowed: 2 or more, so that it can be varied.")
            elif twins:
                raise SizesError(
                    f"{name}: found {size}, as {twins[0]} has; allowed: inputs in which every named size is another one, "
                    "so that they can be told apart."
                )
        if not given:
            raise SizesError("dims: found no dimension of the inputs that can be varied; allowed: tensors of sizes from 2.")
        return cls(dims, given)

    def marked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """The call again, with the named dimensions as sizes that may vary. The tensors share memory with those given."""
        args, kwargs = tree_map_only(torch.Tensor, _again, (tuple(args), dict(kwargs)))
        for places in self.dims.values():
            for key, dim in places:
                torch_bridge.mark_dynamic(_argument(key, args, kwargs), dim)
        return tuple(args), dict(kwargs)

    def symbols(self, explanation: Explanation) -> dict[sympy.Symbol, str]:
        """Which symbol in the graphs is which size; those that the model fixed are missing."""
        by_size = {size: name for name, size in self.given.items()}
        return {symbol: by_size[size] for symbol, size in self.hints(explanation).items() if size in by_size}

    def hints(self, explanation: Explanation) -> dict[sympy.Symbol, int]:
        """The sizes of the captured call, by symbol."""
        found = {}
        for graph in explanation.graphs:
            for node in graph.joint.graph.find_nodes(op="placeholder"):
                value = node.meta.get("val")
                for size in value.shape if isinstance(value, torch.Tensor) else (value,):
                    if isinstance(size, torch.SymInt) and isinstance(size.node.expr, sympy.Symbol) and size.node.has_hint():
                        found[size.node.expr] = int(size.node.hint)
        return found

    def checked(self, at: Mapping[str, int], symbols: Mapping[sympy.Symbol, str]) -> dict[str, int]:
        """All sizes, those in ``at`` as asked for.

        Raises:
            SizesError: a name is unknown, a size is no count, or the model fixes it.
        """
        for name, size in at.items():
            if name not in self.given:
                near = get_close_matches(name, self.given, 1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                allowed = f"{', '.join(self.given)}, and what dims names"
                raise SizesError(f"at: found the name {name!r}; allowed: {allowed}.{hint}")
            if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= _MOST:
                raise SizesError(f"at: found {name}={size!r}; allowed: a whole number from 1 to {_MOST}.")
            if name not in symbols.values() and size != self.given[name]:
                raise SizesError(
                    f"at: found {name}={size}, but the model fixes it at {self.given[name]} while it is traced; allowed: "
                    "inputs of that size."
                )
        return {**self.given, **at}


class SizesAt:
    """Tells every size that follows from those of the symbols."""

    def __init__(self, values: Mapping[sympy.Symbol, int]) -> None:
        self._values = dict(values)
        self._found: dict[sympy.Expr, int | None] = {}

    def __call__(self, size: int | torch.SymInt) -> int | None:
        """The size; None where only a run can tell."""
        if isinstance(size, int):
            return size
        expression = size.node.expr
        if expression not in self._found:
            value = sympy.sympify(expression).subs(self._values)
            known = not self._values.keys() & sympy.sympify(expression).free_symbols and size.node.has_hint()
            self._found[expression] = int(value) if value.is_Integer else int(size.node.hint) if known else None
        return self._found[expression]


def _size_of(name: str, places: Sequence[Place], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    sizes = {}
    for key, dim in places:
        tensor = _argument(key, args, kwargs)
        if tensor is None:
            known = [*range(len(args)), *kwargs]
            raise SizesError(f"dims[{name!r}]: found the argument {key!r}; allowed: {', '.join(map(repr, known)) or 'none'}.")
        if not isinstance(tensor, torch.Tensor) or isinstance(dim, bool) or not 0 <= dim < tensor.dim():
            found = tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise SizesError(
                f"dims[{name!r}]: found dimension {dim} of argument {key!r}, which is {found}; allowed: one it has."
            )
        sizes[key, dim] = int(tensor.shape[dim])
    if len(set(sizes.values())) != 1:
        raise SizesError(f"dims[{name!r}]: found the sizes {sizes or 'of no tensor'}; allowed: tensors that agree in it.")
    return next(iter(sizes.values()))


def _argument(key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if isinstance(key, int):
        return args[key] if 0 <= key < len(args) else None
    return kwargs.get(key)


def _again(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)
