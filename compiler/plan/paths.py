"""Module paths as users write them: without the parts that wrappers add."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...passes.scopes import WRAPPER_PARTS

_DATA_PARALLEL = (DistributedDataParallel, nn.DataParallel)
"""Their wrapped module is called ``module``, a name that users give to modules of their own too."""


def normalise_path(path: str, root: nn.Module | None = None) -> str:
    """``path`` without wrapper parts: ``layers.0._orig_mod.mlp`` is ``layers.0.mlp``.

    Args:
        path: a module path, as ``named_modules`` gives it.
        root: the module the path starts from. Only with it can the ``module`` of data parallelism be told from a
            user's module of that name; without it, ``module`` stays.
    """
    parts = []
    module = root
    for part in path.split(".") if path else ():
        if not _is_wrapper_part(module, part):
            parts.append(part)
        module = None if module is None else module._modules.get(part)
    return ".".join(parts)


def unwrap(module: nn.Module) -> nn.Module:
    """The module within all wrappers."""
    while (inner := _wrapped(module)) is not None:
        module = inner
    return module


def children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Name and module of the children of ``module``, as stored, with wrappers around ``module`` removed."""
    for name, child in unwrap(module)._modules.items():
        if child is not None:
            yield name, child


def walk(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Normalised path and module of ``root`` (path ``""``) and everything below it, in order.

    A module comes as it is stored, wrappers included, and once for each path that leads to it.
    """

    def visit(path: str, module: nn.Module, above: frozenset[int]) -> Iterator[tuple[str, nn.Module]]:
        yield path, module
        above |= {id(module), id(unwrap(module))}
        for name, child in children(module):
            if id(child) not in above:
                yield from visit(f"{path}.{name}" if path else name, child, above)

    return visit("", root, frozenset())


def relative_module_paths(layer: nn.Module) -> tuple[str, ...]:
    """The normalised paths of the modules within ``layer``, in order, without the layer itself."""
    return tuple(path for path, _ in walk(layer) if path)


def _wrapped(module: nn.Module) -> nn.Module | None:
    inner = (child for name, child in module._modules.items() if _is_wrapper_part(module, name))
    return next((child for child in inner if child is not None), None)


def _is_wrapper_part(module: nn.Module | None, name: str) -> bool:
    return name in WRAPPER_PARTS or (name == "module" and isinstance(module, _DATA_PARALLEL))
