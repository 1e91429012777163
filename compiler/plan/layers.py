"""Where the layers of a model are: the stack, or stacks, of repeated blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.nn.parameter import is_lazy

from ..errors import LayersError, counted, did_you_mean, show
from .paths import children, normalise_path, unwrap, walk

_LISTED = 10
_PASS = 'Pass layers="path", or layers=["path", "path"] to number several stacks through, in that order.'


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer.

    Attributes:
        index: its number, counted through all stacks.
        path: its normalised path in the model: ``model.layers.7``.
        module: the layer as its stack holds it, wrappers included. The same module may stand at several positions.
    """

    index: int
    path: str
    module: nn.Module = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Stack:
    """A container whose children may be layers.

    Attributes:
        path: normalised.
        module: the container.
        classes: the class of each child, in order of first appearance.
        count: how many children it holds.
        parameters: elements in the parameters of its children; a shared parameter counts once.
        blocks: its children are more than single layers of ``torch.nn``, as ``Linear``.
    """

    path: str
    module: nn.Module
    classes: tuple[type[nn.Module], ...]
    count: int
    parameters: int
    blocks: bool

    def __str__(self) -> str:
        names = " and ".join(dict.fromkeys(cls.__qualname__ for cls in self.classes))
        return f"{_quoted(self.path)}: {counted(self.count, 'layer')} of {names}, {counted(self.parameters, 'parameter')}"


def find_layers(model: nn.Module, layers: str | Sequence[str] | None = None, *, first: int = 0) -> tuple[Layer, ...]:
    """The layers of ``model``, numbered from ``first``.

    Without ``layers`` they are looked for: the ``ModuleList``, ``Sequential`` or numbered ``ModuleDict`` that holds most
    parameters in children of one class. A container within another one's children (the experts of a layer) is no
    candidate; one whose children are bare ``torch.nn`` layers is one only where there is no other. Nothing is guessed: a
    second stack of at least half as many parameters, or a stack that mixes classes and is not smaller, is an error.

    Args:
        model: any module, on any device, also the meta device.
        layers: the path of the stack, or of several that are numbered through in that order. A named stack may hold
            children of different classes.
        first: the number of the first one.

    Raises:
        LayersError: no stack is found, or several may be meant, or ``layers`` names none; candidates are listed.
    """
    if layers is None:
        stacks = [_find(model)]
    else:
        stacks = [_named(model, path) for path in _paths(layers)]
        _check_disjoint(stacks)
    found = [
        (f"{stack.path}.{name}" if stack.path else name, child) for stack in stacks for name, child in children(stack.module)
    ]
    return tuple(Layer(index, path, module) for index, (path, module) in enumerate(found, first))


def _find(model: nn.Module) -> _Stack:
    candidates = _candidates(model)
    if not candidates:
        raise LayersError(
            f"no stack of layers in {type(unwrap(model)).__qualname__}: no ModuleList, Sequential or numbered ModuleDict holds "
            f"children of one class with parameters.{_others(model)} {_PASS}"
        )
    first = candidates[0]
    rivals = [stack for stack in candidates if 2 * stack.parameters >= first.parameters]
    if len(rivals) > 1:
        raise LayersError(f"several stacks may be meant:\n{_list(rivals)}\n{_PASS}")
    if len(first.classes) > 1:
        raise LayersError(
            f"the largest stack mixes classes, so its children may not be the layers:\n{_list(candidates)}\n{_PASS}"
        )
    return first


def _candidates(model: nn.Module) -> list[_Stack]:
    """The outermost stacks, those with most parameters first."""
    found: list[_Stack] = []

    def visit(path: str, module: nn.Module, above: frozenset[int]) -> None:
        stack = _stack(path, module)
        within = [(f"{path}.{name}" if path else name, child) for name, child in children(module)]
        if stack is not None and _looks_like_layers(stack):
            found.append(stack)
            return
        for child_path, child in within:
            if id(child) not in above:
                visit(child_path, child, above | {id(child)})

    visit("", model, frozenset({id(model)}))
    # One container at two paths is one stack.
    found = list({id(unwrap(stack.module)): stack for stack in reversed(found)}.values())[::-1]
    if any(stack.blocks for stack in found):
        found = [stack for stack in found if stack.blocks]
    return sorted(found, key=lambda stack: -stack.parameters)


def _stack(path: str, module: nn.Module) -> _Stack | None:
    """What ``module`` holds, if it is a container with children."""
    container = unwrap(module)
    held = [unwrap(child) for _, child in children(container)]
    if not isinstance(container, (nn.ModuleList, nn.Sequential, nn.ModuleDict)) or not held:
        return None
    classes = tuple(dict.fromkeys(_class_of(child) for child in held))
    return _Stack(path, module, classes, len(held), _count_parameters(held), any(_is_block(child) for child in held))


def _looks_like_layers(stack: _Stack) -> bool:
    """Whether the children are repeated blocks, rather than the parts of one thing."""
    container = unwrap(stack.module)
    if stack.parameters == 0 or (
        isinstance(container, nn.ModuleDict) and not all(name.isdigit() for name, _ in children(container))
    ):
        return False
    held = [unwrap(child) for _, child in children(container)]
    if len(stack.classes) == 1:
        # A Sequential around one whole model is a wrapper, not a stack of one layer.
        if len(held) == 1 and isinstance(container, nn.Sequential):
            return not any(stack.blocks and stack.count > 1 for stack in _candidates(held[0]))
        return True
    often = Counter(_class_of(child) for child in held if _is_block(child))
    repeated = [child for child in held if often[_class_of(child)] > 1]
    return 2 * _count_parameters(repeated) >= stack.parameters and bool(repeated)


def _class_of(module: nn.Module) -> type[nn.Module]:
    """The class of a module; FSDP2 puts each sharded module into a class of its own making."""
    cls = type(module)
    if any(base.__name__ == "FSDPModule" for base in cls.__bases__):
        cls = next((base for base in cls.__bases__ if base.__name__ != "FSDPModule"), cls)
    return cls


def _is_block(module: nn.Module) -> bool:
    return bool(module._modules) or not type(module).__module__.startswith("torch.nn.")


def _count_parameters(modules: Sequence[nn.Module]) -> int:
    parameters = {id(parameter): parameter for module in modules for parameter in module.parameters()}
    # The size of a lazy parameter is unknown, but there is one.
    return sum(1 if is_lazy(parameter) else parameter.numel() for parameter in parameters.values())


def _paths(layers: str | Sequence[str]) -> list[str]:
    paths = [layers] if isinstance(layers, str) else list(layers) if isinstance(layers, (list, tuple)) else None
    if not paths or not all(isinstance(path, str) for path in paths):
        raise LayersError(f"layers is {show(layers)}, which is neither a path nor a list of paths. {_PASS}")
    return paths


def _named(model: nn.Module, path: str) -> _Stack:
    wanted = normalise_path(path)
    modules = dict(walk(model))
    # A path copied from a model in DDP still has its "module", which only the model can tell to be a wrapper's.
    wanted = wanted if wanted in modules else normalise_path(path, model)
    if wanted not in modules:
        stacks = [known for known, module in modules.items() if _stack(known, module) is not None]
        hint = did_you_mean(wanted, stacks) or did_you_mean(wanted, list(modules))
        raise LayersError(f"layers={path!r}: the model has no module of that path. {hint or _others(model).strip()}".rstrip())
    container = unwrap(modules[wanted])
    if not isinstance(container, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
        raise LayersError(
            f"layers={path!r} is a {type(container).__qualname__}, not a ModuleList, Sequential or ModuleDict whose children "
            f"are the layers.{_others(model)}"
        )
    stack = _stack(wanted, modules[wanted])
    if stack is None:
        raise LayersError(f"layers={path!r} is an empty {type(container).__qualname__}.")
    return stack


def _check_disjoint(stacks: Sequence[_Stack]) -> None:
    for index, stack in enumerate(stacks):
        for other in stacks[:index]:
            within = [path for path, module in walk(other.module) if unwrap(module) is unwrap(stack.module)]
            around = [path for path, module in walk(stack.module) if unwrap(module) is unwrap(other.module)]
            if within or around:
                named = f"layers={stack.path!r} and layers={other.path!r}"
                raise LayersError(f"{named} hold the same modules; name each layer once.")


def _others(model: nn.Module) -> str:
    """A sentence that lists every container with children, as far as there is one."""
    stacks = sorted(filter(None, (_stack(path, module) for path, module in walk(model))), key=lambda stack: -stack.parameters)
    return f" Containers in it:\n{_list(stacks)}\n" if stacks else ""


def _list(stacks: Sequence[_Stack]) -> str:
    rest = len(stacks) - _LISTED
    lines = [f"  {stack}" for stack in stacks[:_LISTED]]
    return "\n".join([*lines, f"  and {rest} more"] if rest > 0 else lines)


def _quoted(path: str) -> str:
    return f'"{path}"' if path else '"" (the model itself)'
