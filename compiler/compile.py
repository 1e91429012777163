"""``compile_with_memopt`` and ``trace``: from a model and a configuration to something that trains."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from . import torch_bridge
from .arguments import check_arguments, check_call, check_seconds
from .config.load import ConfigSource, MemoptConfig, load_config
from .errors import ConfigError, Problem, line_of, quoted
from .explain.explanation import Explanation, explain_session
from .explain.stopped import is_whole, stopped
from .explain.unapplied import unapplied
from .forwards.by_layer import LayeredForward, attach, conflict, detach, shared_with_other_rules
from .forwards.whole import CompiledForward, Settings, compiled_forward
from .lowering import Backend
from .plan.layers import find_layers
from .plan.resolve import resolve
from .ranks.agreement import DEFAULT_TIMEOUT
from .session import Session
from .stand_in import replaced_meta_tensors
from .untouched import untouched

Layers = str | Sequence[str] | None


def compile_with_memopt(
    model: nn.Module,
    cfg: ConfigSource,
    *,
    backend: Backend = "inductor",
    scope: str = "model",
    layers: Layers = None,
    pipeline_parallel_size: int = 1,
    layer_offset: int = 0,
    num_layers: int | None = None,
    strict: bool = False,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    ranks_timeout: float = DEFAULT_TIMEOUT,
) -> nn.Module:
    """Compile a model in place so that it trains as the configuration says, and return the same module.

    Compilation happens at the first call, as with ``torch.compile``. Compiling a model again replaces what was there.

    Args:
        model: any module; its state-dict keys, type, hooks and device moves stay as they were.
        cfg: a path to a YAML file, YAML text, a mapping, or a ``MemoptConfig``.
        backend: what lowers the graphs: ``"inductor"``, ``"aot_eager"``, any name torch.compile knows whose backend runs
            AOTAutograd, an object made by ``aot_autograd(...)``, or a callable ``(graph, example_inputs) -> callable``
            that is given the forward and the backward graph.
        scope: ``"model"``: one graph for the whole model. ``"layer"``: each layer by itself, one compilation for all layers
            with the same rules and structure, so that its time does not grow with depth; the rest of the model runs as it is.
        layers: where the layers are, if they can't be told: a module path, or several, numbered through in that order.
        pipeline_parallel_size: how many pipeline stages the training has; swap works with one.
        layer_offset: for a stage of a pipeline, the number that its first layer has in the whole model.
        num_layers: for a stage, how many layers the whole model has: every stage can then be given the same configuration.
        strict: make every warning an error.
        fullgraph: as for ``torch.compile``: an error where the graph breaks.
        dynamic: as for ``torch.compile``.
        options: inductor's configuration patches.
        ranks_timeout: seconds to wait for the other ranks of a process group, with which every graph that has collectives is
            compared before it is lowered.

    Raises:
        ConfigError: the configuration is wrong, by itself or for this model; every problem is listed.
        LayersError: the layers can't be told, or are not where ``layers`` says.
        ValueError, TypeError: an argument is wrong; the message names it and what is allowed.

    With ``strict``, calling the model raises ``PolicyNotApplied`` where a part of the configuration had no effect. With several
    processes, it raises ``RanksDisagreeError`` on every rank where their plans or the order of their collectives differ.
    """
    check_arguments(model, backend, options, strict=strict, fullgraph=fullgraph, dynamic=dynamic)
    check_seconds("ranks_timeout", ranks_timeout)
    config = load_config(cfg)
    _check_scope(scope)
    _refuse_cuda_graphs(config, backend, options)
    _refuse_missing_directory(config)
    plan = resolve(
        model,
        config,
        layers=layers,
        pipeline_parallel_size=pipeline_parallel_size,
        layer_offset=layer_offset,
        num_layers=num_layers,
        strict=strict,
    )
    settings = Settings(config, plan, backend, fullgraph, dynamic, dict(options) if options else None, ranks_timeout)
    original = _own_forward(model)
    replaced = getattr(model, "_compiled_call_impl", None) is not None
    note = ["model.compile() was called before; compile_with_memopt replaces what it compiled."] if replaced else []
    if config.swap.enable and backend == "inductor":
        held = [
            name for name, value in (options or {}).items() if value and name.replace("-", "_") in torch_bridge.HELD_WITH_SWAP
        ]
        note += [
            f"options: {name} has no effect together with swap, which needs the order and the memory it plans." for name in held
        ]
    forward: CompiledForward | LayeredForward
    if scope == "layer":
        stack = find_layers(model, layers, first=layer_offset)
        shared = shared_with_other_rules(plan, stack)
        forward = LayeredForward(model, settings, original, shared.keys())
        note += [conflict(*pair) for pair in shared.items()]
    else:
        forward = CompiledForward(model, settings, original)
    forward.session.say([*plan.warnings, *note])
    detach(model)
    if isinstance(forward, LayeredForward):
        attach(forward, stack)
    if replaced:
        model._compiled_call_impl = None
    object.__setattr__(model, "forward", forward)
    return model


def trace(
    model: nn.Module,
    cfg: ConfigSource,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: Backend = "inductor",
    layers: Layers = None,
    pipeline_parallel_size: int = 1,
    layer_offset: int = 0,
    num_layers: int | None = None,
    strict: bool = False,
    dynamic: bool | None = None,
    options: Mapping[str, Any] | None = None,
    device: str = "cpu",
) -> Explanation:
    """Show what a configuration would do to a model, without lowering or running anything.

    The model is captured and rewritten on fake tensors: no memory is allocated for activations, parameters may lie on the
    meta device. Afterwards the model's tensors and attributes, and the random states, are what they were, whatever the
    forward assigns.

    Where the model asks for a tensor's value (``.item()``, ``if x.sum() > 0``) the graph breaks, and the trace stops: a warning
    tells where, and which layers are left open.

    Args:
        model: the module, in training mode if training is meant.
        cfg: as for :func:`compile_with_memopt`.
        args, kwargs: what the model would be called with.
        device: the device that tensors on the meta device stand for.
        backend, layers, pipeline_parallel_size, layer_offset, num_layers, strict, dynamic, options: as for
            :func:`compile_with_memopt`.

    Raises:
        What :func:`compile_with_memopt` raises.
        ValueError: also, the trace stopped before the first graph with a backward.
    """
    check_arguments(model, backend, options, strict=strict, dynamic=dynamic)
    check_call(args, kwargs)
    torch_bridge.check_device(device)
    config = load_config(cfg)
    _refuse_cuda_graphs(config, backend, options)
    plan = resolve(
        model,
        config,
        layers=layers,
        pipeline_parallel_size=pipeline_parallel_size,
        layer_offset=layer_offset,
        num_layers=num_layers,
        strict=strict,
    )
    settings = Settings(config, plan, backend, fullgraph=False, dynamic=dynamic, options=dict(options) if options else None)
    session = Session(model, plan, backend, settings.options, lowers=False)
    original = _own_forward(model)
    compiled = compiled_forward(session, type(model).__name__, settings, is_instances=original is not None)
    breaks = torch_bridge.watch_breaks()
    stop: torch_bridge.NeedsValue | None = None
    try:
        with (
            untouched(model, original, args, kwargs),
            torch_bridge.fake_tensors(device) as fake,
            replaced_meta_tensors(model, fake),
            torch.enable_grad(),
        ):
            given = tree_map_only(torch.Tensor, fake, (tuple(args), dict(kwargs or {})))
            compiled(model, *([] if original is None else [original]), *given[0], **given[1])
    except torch_bridge.BackendCompilerFailed as error:
        if isinstance(error.inner_exception, ValueError | AssertionError):
            raise error.inner_exception from error
        raise
    except torch_bridge.NEEDS_VALUE as error:
        stop = error
    new_breaks = breaks()
    whole = stop is None or is_whole(session.captures, new_breaks)
    if stop is None or whole:
        missing = unapplied(plan, session.captures, new_breaks)
    else:
        missing = [stopped(plan, session.captures, stop)]
        if not any(seen.trains for seen in session.captures):
            raise ValueError(missing[0]) from stop
    session.say([*plan.warnings, *session.found_in_graphs(), *missing])
    return explain_session(session, is_whole=whole)


def explain(model: nn.Module) -> Explanation:
    """Tell what was decided for a compiled model, value by value.

    Works after a warm compile cache too: what the cache spared is derived again, without lowering.

    Args:
        model: what :func:`compile_with_memopt` returned, after at least one call in training.

    Raises:
        ValueError: the model was not compiled by memopt, or has not been called with gradients yet.
    """
    forward = model.__dict__.get("forward") if isinstance(model, nn.Module) else None
    if not isinstance(forward, CompiledForward | LayeredForward):
        raise ValueError("model: it was not compiled by memopt. Call compile_with_memopt(model, cfg) first.")
    if not any(c.trains for c in forward.session.captures):
        raise ValueError(
            "model: no graph with a backward has been compiled yet. Call the model once with gradients enabled, or use "
            "memopt.trace(model, cfg, args) to look before running."
        )
    return explain_session(forward.session)


def _own_forward(model: nn.Module) -> Any:
    """The ``forward`` that lies on the instance, if it is not ours."""
    own = model.__dict__.get("forward")
    return own.original if isinstance(own, CompiledForward | LayeredForward) else own


def _refuse_cuda_graphs(config: MemoptConfig, backend: Backend, options: Mapping[str, Any] | None) -> None:
    by_inductor = backend == "inductor" and torch_bridge.uses_cuda_graphs(options)
    if config.swap.enable and (by_inductor or backend == "cudagraphs"):
        allowed = "False under CUDA graphs, which would replay one step's copies for every step"
        hint = "Compile without CUDA graphs (mode reduce-overhead, options={'triton.cudagraphs': True}, backend 'cudagraphs')."
        raise ConfigError([Problem("swap.enable", None, "True", allowed, hint)])


def _refuse_missing_directory(config: MemoptConfig) -> None:
    directory = config.swap.dir
    if config.swap.enable and directory is not None and not os.path.isdir(os.path.expanduser(directory)):
        line = line_of(("swap", "dir"), config.origin.lines)
        hint = "Create it, or leave the field out for the system's temporary directory."
        raise ConfigError([Problem("swap.dir", line, quoted(directory), "a directory that exists", hint)], config.origin.source)


def _check_scope(scope: str) -> None:
    if scope not in ("model", "layer"):
        raise ValueError(f"scope: found {scope!r}; allowed: 'model' or 'layer'.")
