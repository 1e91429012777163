"""Everything memopt needs from torch's private modules, behind names that say what is needed.

No other file imports ``torch._functorch``, ``torch._inductor``, ``torch._dynamo``, ``torch._guards`` or
``torch._subclasses``: a new torch release is checked, and mended, here. Works with torch 2.11 to 2.14.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from unittest import mock

import torch
import torch._dynamo.config as dynamo_config
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition  # type: ignore[import-untyped]
from torch import distributed
from torch._dynamo.backends import common as dynamo_backends
from torch._dynamo.backends.registry import lookup_backend
from torch._dynamo.eval_frame import OptimizedModule
from torch._dynamo.exc import BackendCompilerFailed
from torch._dynamo.utils import counters, get_compilation_metrics, graph_break_reasons
from torch._functorch._aot_autograd import graph_compile
from torch._functorch.compile_utils import fx_graph_cse
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    is_fake,
)
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from ..passes.turns import keep_apart
from .places import last_place

Partition = Callable[..., tuple[GraphModule, GraphModule]]
Compiled = Callable[..., Any]
GraphCompiler = Callable[[GraphModule, Sequence[Any]], Compiled]

Store = Any
"""A key-value store that all ranks see: ``torch.distributed.Store``, which a torch without distributed does not have."""

# What a store raises when nobody answers.
StoreError = getattr(distributed, "DistError", ConnectionError)

# What fake tensors raise where a value decides: `.item()`, a tensor as a condition, `nonzero`; `func` is the operator.
NeedsValue = DataDependentOutputException | DynamicOutputShapeException
NEEDS_VALUE = (DataDependentOutputException, DynamicOutputShapeException)

__all__ = [
    "BackendCompilerFailed",
    "FakeTensorMode",
    "InductorPartitioner",
    "OptimizedModule",
    "memory_budget_in_force",
]


# ---------------------------------------------------------------- the joint graph


def simplify(joint: GraphModule) -> None:
    """Remove dead code and common subexpressions, as the partitioner would, so that decisions land on final nodes."""
    joint.graph.eliminate_dead_code()
    if functorch_config.cse:
        joint.graph = fx_graph_cse(joint.graph)
    joint.recompile()


def min_cut(
    joint: GraphModule, joint_inputs: Sequence[Any], num_fwd_outputs: int, static_lifetime_input_indices: list[int] | None
) -> tuple[GraphModule, GraphModule]:
    """Split a simplified joint graph with torch's own min-cut partitioner, obeying the tags on its nodes.

    The activation memory budget is held at 1: below that, torch's solver overrides saved values and redraws random masks.
    """
    with functorch_config.patch(cse=False, activation_memory_budget=1.0), _mode_of(joint):
        forward, backward = min_cut_rematerialization_partition(
            joint,
            joint_inputs,
            num_fwd_outputs=num_fwd_outputs,
            static_lifetime_input_indices=static_lifetime_input_indices,
        )
    return forward, backward


@contextlib.contextmanager
def _mode_of(joint: GraphModule) -> Iterator[None]:
    """Within, torch finds the fake mode of a graph's own values, also when no compilation is going on."""
    values = (node.meta.get("val") for node in joint.graph.nodes)
    mode = next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)
    if mode is None or TracingContext.try_get() is not None:
        yield
        return
    with tracing(TracingContext(mode)):
        yield


def activation_memory_budget() -> float:
    """Torch's activation memory budget, as set globally."""
    return float(functorch_config.activation_memory_budget)


def memory_budget_in_force(joint: GraphModule) -> float | None:
    """Torch's activation memory budget if somebody set one below 1, globally or around a region of the model."""
    for node in joint.graph.nodes:
        custom = node.meta.get("custom")
        regional = node.meta.get("memory_budget")
        if isinstance(custom, dict):
            regional = next((v for k, v in custom.items() if "memory_budget" in str(k)), regional)
        if isinstance(regional, float):
            return regional
    budget = activation_memory_budget()
    return budget if budget < 1 else None


def drop_memory_budgets(joint: GraphModule) -> None:
    """Remove regional memory budgets from the graph: the partitioner would let them override every tag."""
    for node in joint.graph.nodes:
        node.meta.pop("memory_budget", None)
        custom = node.meta.get("custom")
        if isinstance(custom, dict):
            node.meta["custom"] = {k: v for k, v in custom.items() if "memory_budget" not in str(k)}


def mutated_inputs(joint: GraphModule, num_fwd_outputs: int) -> set[Node]:
    """The placeholders whose tensors the forward changes in place, whether in the graph or by its caller."""
    placeholders = {n.meta["desc"]: n for n in joint.graph.find_nodes(op="placeholder") if "desc" in n.meta}
    (output,) = joint.graph.find_nodes(op="output")
    mutated = set()
    for desc in list(output.meta.get("desc", ()))[:num_fwd_outputs]:
        source = getattr(desc, "mutated_input", None)
        if type(desc).__name__ == "InputMutationAOTOutput" and source in placeholders:
            mutated.add(placeholders[source])
    for node in joint.graph.nodes:
        if node.op != "call_function" or node.meta.get("partitioner_tag") == "must_be_in_backward":
            continue
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable or node.meta.get("partitioner_tag") == "is_backward":
            continue
        for argument, spec in zip(node.args, schema.arguments, strict=False):
            written = spec.alias_info is not None and spec.alias_info.is_write
            if written and isinstance(argument, Node) and argument.op == "placeholder":
                mutated.add(argument)
    return mutated


def is_tangent(node: Node) -> bool:
    """Whether a placeholder carries a gradient that arrives at the backward."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def write_tag(node: Node, *, recompute: bool) -> None:
    """Tell torch's partitioner to recompute the node's value, or never to."""
    node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE if recompute else CheckpointPolicy.MUST_SAVE
    node.meta.pop("ac_graph_id", None)


def clear_tag(node: Node) -> None:
    """Leave the node to torch's partitioner."""
    node.meta.pop("recompute", None)
    node.meta.pop("ac_graph_id", None)


def checkpoint_tag(node: Node) -> tuple[bool, int] | None:
    """What ``torch.utils.checkpoint`` in the user's own code asks for: (recompute?, its region), or None."""
    policy = node.meta.get("recompute")
    if not isinstance(policy, CheckpointPolicy) or policy is CheckpointPolicy.PREFER_SAVE:
        return None  # torch's partitioner takes a preference to save for no preference
    recompute = policy in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
    return recompute, int(node.meta.get("ac_graph_id", 0))


# ---------------------------------------------------------------- lowering


class InductorPartitioner(CustomPartitionerFn):
    """Hands inductor's joint graph to memopt; its ``key`` is part of both of torch's compile-cache keys."""

    def __init__(self, partition: Partition, key: str) -> None:
        self._partition = partition
        self._key = key

    def __call__(self, gm: GraphModule, joint_inputs: Sequence[Any], **kwargs: Any) -> tuple[GraphModule, GraphModule]:
        """Split ``gm`` into forward and backward."""
        kwargs.pop("compiler", None)
        return self._partition(gm, joint_inputs, **kwargs)

    def __deepcopy__(self, _memo: dict[int, Any]) -> InductorPartitioner:
        # Inductor copies its configuration by value; what was captured is shared.
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Torch's cache keys are digests of pickles: the key says all that matters.
        return str, (self._key,)

    def uuid(self) -> str:
        """Return the text by which torch's caches tell one policy from another."""
        return self._key


HELD_WITH_SWAP = ("reorder_for_peak_memory", "allow_buffer_reuse", "memory_planning")
"""Options of inductor's that are off where values are swapped, whatever was asked for."""


def _saved_buffers_not_given_away() -> contextlib.AbstractContextManager[Any]:
    """Within, compiled backwards may not reuse saved buffers: they would refuse ``retain_graph`` after a plain backward.

    Only inductor makes use of them (2% of the peak of a small GPT), and keeps them; elsewhere nothing is lost.
    """
    return mock.patch.object(graph_compile, "collect_bw_donated_buffer_idxs", return_value=[])


def compile_inductor(
    gm: GraphModule,
    inputs: Sequence[Any],
    partition: Partition,
    key: str,
    options: dict[str, Any] | None,
    *,
    copies_in_background: bool = False,
    spares_memory: bool = False,
) -> Compiled:
    """Compile a captured graph with inductor, split by ``partition``.

    ``spares_memory``: memory is given back as soon as nothing reads it. Inductor otherwise keeps it for the next value of the
    same size, idle until then, which raised the peak of recomputed models by 4 to 10% and gained no time.

    ``copies_in_background``: operators of the graph read and write memory after they have returned. Nodes then keep their
    order (inductor would move reloads to just before their use, to save memory), and the memory of a value is freed, not given
    to another value by inductor's own plan, which does not ask whether somebody still holds it.
    """
    spared = {"allow_buffer_reuse": False} if spares_memory else {}
    asked = {name.replace("-", "_"): value for name, value in (options or {}).items()}
    # Torch's key of compiled graphs does not tell which saved values a backward may write over.
    key = f"{key}, donated buffers: {functorch_config.donated_buffer}"
    patches = {**spared, **asked, "custom_partitioner_fn": InductorPartitioner(partition, key)}
    if copies_in_background:
        patches |= dict.fromkeys(HELD_WITH_SWAP, False)
    inner = functools.partial(_compile_half, copies_in_background=copies_in_background)
    return cast(Compiled, compile_fx(gm, inputs, inner_compile=inner, config_patches=patches))


_BRANCHING = frozenset({"cond", "while_loop", "while_loop_stack_output", "scan", "associative_scan", "map_impl"})


def _compile_half(*args: Any, copies_in_background: bool, **kwargs: Any) -> Any:
    """Inductor's own compilation of a forward or a backward graph.

    No kernel recomputes a layer in the backward of another. While values may be on their way out, no kernel writes over one of
    its inputs either: it could be one of those. Nothing is on its way out of a backward, and what came back is its own. Where
    the graph branches none does either: inductor has been seen to write over what a branch still reads.
    """
    leaves = copies_in_background and not kwargs.get("is_backward")
    parts = (part for part in args[0].modules() if isinstance(part, GraphModule))
    keeps = leaves or any(str(node.target) in _BRANCHING for part in parts for node in part.graph.nodes)
    in_place = inductor_config.patch(inplace_buffers=False) if keeps else contextlib.nullcontext()
    with V.set_choices_handler(_KeepingApart(V.choices)), in_place:
        return compile_fx_inner(*args, **kwargs)


class _KeepingApart:
    """Inductor's choices as they are, but for kernels that would recompute a layer in the backward of another."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def __getattr__(self, name: str) -> Any:
        if name == "_usual":  # not there yet, while it is copied
            raise AttributeError(name)
        return getattr(self._usual, name)

    def can_fuse_horizontal(self, scheduler: Any, node1: Any, node2: Any, *rest: Any) -> bool:
        """Whether two kernels that do not depend on each other may become one."""
        apart = keep_apart(_operators_of(node1), _operators_of(node2))
        return not apart and bool(self._usual.can_fuse_horizontal(scheduler, node1, node2, *rest))


def _operators_of(kernel: Any) -> Iterator[Node]:
    """The operators of the graph that a kernel of inductor's computes."""
    for part in kernel.get_nodes():
        yield from getattr(part.node, "origins", ())


def uses_cuda_graphs(options: Mapping[str, Any] | None) -> bool:
    """Whether inductor would record CUDA graphs, by its options or globally."""
    return bool((options or {}).get("triton.cudagraphs", inductor_config.triton.cudagraphs))


def _run_as_is(gm: GraphModule, _inputs: Sequence[Any], **_: Any) -> Compiled:
    boxed: Compiled = make_boxed_func(gm.forward)
    return boxed


def split_inductor(gm: GraphModule, inputs: Sequence[Any], partition: Partition, options: dict[str, Any] | None) -> Compiled:
    """Do what :func:`compile_inductor` does up to the split, and lower nothing: the graphs run as they are."""
    patches = {
        **(options or {}),
        "custom_partitioner_fn": InductorPartitioner(partition, "split only"),
        "force_disable_caches": True,
    }
    with functorch_config.patch(enable_autograd_cache=False):
        return cast(Compiled, compile_fx(gm, inputs, inner_compile=cast(Any, _run_as_is), config_patches=patches))


@contextlib.contextmanager
def _partitioner_replaced(partition: Partition) -> Iterator[list[bool]]:
    """Within, every backend built on AOTAutograd splits its joint graph with ``partition``. Yields [] or [True] if one did."""
    original = dynamo_backends.aot_module_simplified  # type: ignore[attr-defined]
    used: list[bool] = []

    def aot_module_simplified(*args: Any, **kwargs: Any) -> Any:
        used[:] = [True]
        return original(*args, **{**kwargs, "partition_fn": partition})

    with mock.patch.object(dynamo_backends, "aot_module_simplified", aot_module_simplified):
        yield used


def compile_aot_backend(backend: Compiled, gm: GraphModule, inputs: Sequence[Any], partition: Partition) -> Compiled | None:
    """Compile with a backend that runs AOTAutograd itself, split by ``partition``; None if it turns out not to run it."""
    with _partitioner_replaced(partition) as used, _saved_buffers_not_given_away():
        compiled: Compiled = backend(gm, inputs)
    return compiled if used else None


def compile_graphs(compiler: GraphCompiler, gm: GraphModule, inputs: Sequence[Any], partition: Partition) -> Compiled:
    """Run AOTAutograd, split by ``partition``, and give the forward and the backward graph to ``compiler``."""

    def boxed(graph: GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        compiled: Any = compiler(graph, example_inputs)
        if not callable(compiled):
            name = getattr(compiler, "__name__", compiler)
            raise ValueError(f"backend: {name!r} returned {compiled!r} for a graph; allowed: a callable that runs the graph.")
        return cast(Compiled, compiled if getattr(compiled, "_boxed_call", False) else make_boxed_func(compiled))

    backend = dynamo_backends.aot_autograd(fw_compiler=boxed, partition_fn=partition, keep_inference_input_mutations=True)
    with _saved_buffers_not_given_away():
        compiled: Compiled = backend(gm, inputs)
    return compiled


def is_aot_backend(backend: object) -> bool:
    """Whether a callable was made by ``aot_autograd(...)``, and so takes captured graphs and runs AOTAutograd."""
    return isinstance(backend, dynamo_backends.AotAutograd)


def find_backend(name: str) -> Compiled:
    """The backend that torch.compile knows by this name; raises torch's own error when there is none."""
    found: Compiled = lookup_backend(name)
    return found


def backend_names() -> list[str]:
    """Every name that torch.compile takes, debugging backends among them."""
    return list(torch._dynamo.list_backends(None))


# ---------------------------------------------------------------- several processes


def own_rank() -> int:
    """This process's rank among all; 0 without a process group."""
    return distributed.get_rank() if _communicates() else 0


def world_size() -> int:
    """How many processes there are; 1 without a process group, and where torch only pretends that there are others."""
    return distributed.get_world_size() if _communicates() else 1


def ranks_of_group(name: str) -> tuple[int, ...]:
    """The ranks of a process group, by its name in a graph; of all processes where the name says nothing."""
    if not _communicates():
        return ()
    try:
        group = distributed.distributed_c10d._resolve_process_group(name)  # type: ignore[attr-defined,arg-type]
    except (RuntimeError, LookupError, ValueError):
        group = None
    return tuple(sorted(distributed.get_process_group_ranks(group)))


def default_group() -> object:
    """The process group of all processes, to tell one from the next; None without."""
    return distributed.group.WORLD if _communicates() else None


def store_of_ranks(prefix: str) -> Store:
    """What ranks can write to and read from without a collective: a part of the store that the process group was made with."""
    return distributed.PrefixStore(prefix, distributed.distributed_c10d._get_default_store())  # type: ignore[attr-defined]


def _communicates() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_backend() != "fake"


# ---------------------------------------------------------------- capture


def parameter_inputs(gm: GraphModule, inputs: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The parameters that a captured graph takes from the module whose forward it is, or from another local variable.

    Yields where torch found each (its source, ``L['self']._modules['mlp']._parameters['weight']``), and the tensor.

    Where DistributedDataParallel's buckets split a graph, its parts are given stand-ins; torch's note of the input still leads
    to the tensor.
    """
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs, strict=False):
        if _is_own_parameter(node):
            noted = getattr(node.meta.get("grapharg"), "_example", None)
            own = noted() if is_fake(value) and callable(noted) else None
            yield _source_name(node), value if own is None else own


def first_differentiable_argument(gm: GraphModule) -> tuple[int, ...]:
    """The place among a captured graph's inputs of the first that needs a gradient, of those given by the caller as such."""
    found = []
    for place, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        value = node.meta.get("example_value")
        source = _source_name(node)
        # An argument, or a part of one: what is read from an attribute is not given.
        if isinstance(value, torch.Tensor) and value.requires_grad and _GIVEN.fullmatch(source):
            position = [(0, int(part)) if part.isdigit() else (1, 0) for part in _SUBSCRIPT.findall(source)]
            found.append((source.startswith("L['kwargs']"), position, place))
    return (min(found)[2],) if found else ()


_GIVEN = re.compile(r"L\['\w+'\](\[['\w]+\])*")
_SUBSCRIPT = re.compile(r"\[([^\]]+)\]")
_raised: list[int] = []
_limits_lock = threading.Lock()


@contextlib.contextmanager
def recompilations(most: int) -> Iterator[None]:
    """Within, torch compiles one code object at least ``most`` times before it gives up and runs it as it is."""
    names = ("recompile_limit", "accumulated_recompile_limit")
    with _limits_lock:  # other threads may be within too: the last one out restores
        if not _raised:
            _before[:] = [getattr(dynamo_config, name) for name in names]
        for name in names:
            if getattr(dynamo_config, name) < most:
                setattr(dynamo_config, name, most)
        _raised.append(most)
    try:
        yield
    finally:
        with _limits_lock:
            _raised.pop()
            for name, limit in zip(names, _before, strict=True) if not _raised else ():
                if getattr(dynamo_config, name) != limit:
                    setattr(dynamo_config, name, limit)


_before: list[int] = []


def is_in_backward() -> bool:
    """Whether this thread runs a backward: what it calls is run again, as by a checkpoint."""
    return torch._C._current_graph_task_id() != -1


def first_parameter_input(gm: GraphModule) -> tuple[int, str] | None:
    """The place among a captured graph's inputs of a parameter of a module, and where torch found it."""
    for place, node in enumerate(gm.graph.find_nodes(op="placeholder")):
        if _is_own_parameter(node):
            return place, _source_name(node)
    return None


def _is_own_parameter(node: Node) -> bool:
    name = _source_name(node)
    return name.startswith("L['") and "_parameters[" in name


def _source_name(node: Node) -> str:
    """Where torch found an input of a captured graph, as text; empty when it does not say."""
    source = getattr(node, "_dynamo_source", None)
    if source is None:
        return ""
    return str(source.name if isinstance(source.name, str) else source.name())


def copy_sources(module: GraphModule, copy: GraphModule, copies: dict[Node, Node]) -> None:
    """Give a copied graph what torch reads to tell parameters from inputs: where it found each, outside ``node.meta``."""
    copy.meta.update(module.meta)
    if hasattr(module, "_param_name_to_source"):
        copy._param_name_to_source = module._param_name_to_source
    for node, its_copy in copies.items():
        if hasattr(node, "_dynamo_source"):
            its_copy._dynamo_source = node._dynamo_source


def fake_inputs(gm: GraphModule) -> list[Any] | None:
    """Stand-ins for the inputs of a captured graph that hold no memory; None when torch did not record them."""
    values = [n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder")]
    return None if any(v is None for v in values) else values


def watch_breaks() -> Callable[[], list[str]]:
    """Return what tells the graph breaks since now: each reason in one line, with the place where torch gives it.

    Torch notes a break in the middle of a frame in one list, a frame that it gave up in another, and counts both by reason.
    """
    counts, noted, frames = dict(counters["graph_break"]), list(graph_break_reasons), get_compilation_metrics()

    def since() -> list[str]:
        known = {id(entry) for entry in (*noted, *frames)}
        found = [(e.reason, [(f.filename, f.lineno) for f in e.user_stack]) for e in graph_break_reasons if id(e) not in known]
        found += [
            (e.fail_reason, [(e.fail_user_frame_filename, e.fail_user_frame_lineno)])
            for e in get_compilation_metrics()
            if id(e) not in known and e.fail_reason and e.fail_user_frame_filename
        ]
        texts = {f"{_first_line(reason)} ({last_place(at) or '{}:{}'.format(*at[-1])})": None for reason, at in found if at}
        placed = {_first_line(reason) for reason, at in found if at}
        counted = (_first_line(reason) for reason, n in counters["graph_break"].items() if n > counts.get(reason, 0))
        return [*texts, *(reason for reason in counted if reason not in placed)]

    return since


def count_breaks() -> int:
    """How many graph breaks torch has noted so far: the cheap question before that for their reasons."""
    return len(graph_break_reasons) + sum(counters["graph_break"].values())


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def cache_dir() -> str:
    """Where inductor keeps its compile caches."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir as inductor_cache_dir

    return str(inductor_cache_dir())


def inductor_option_names() -> frozenset[str]:
    """The names inductor's ``options`` accepts."""
    return frozenset(inductor_config.get_config_copy())


def mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """Ask torch to capture a dimension as a size that may vary; it may find that the model fixes it."""
    torch._dynamo.maybe_mark_dynamic(tensor, dim)


def check_device(device: str) -> None:
    """Refuse a device that tensors cannot stand for here: torch would end the process instead of raising."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    allowed = {"cpu", *([found.type] if found is not None else [])}
    if torch.device(device).type not in allowed:
        raise ValueError(f"device: found {device!r}; allowed: {', '.join(sorted(allowed))}, which this machine's torch has.")


@contextlib.contextmanager
def fake_tensors(device: str) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Within, operators run on fake tensors; yields what makes a tensor fake. A meta tensor becomes one on ``device``."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        made = plain(tensor)
        if made is not tensor:
            vars(made).update({name: marks for name, marks in vars(tensor).items() if name.startswith("_dynamo_")})
        return made

    def plain(tensor: torch.Tensor) -> torch.Tensor:
        if is_fake(tensor) and tensor.device.type != "meta":
            return tensor
        if tensor.device.type != "meta":
            return mode.from_tensor(tensor)
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(made, tensor.requires_grad)
        return made.requires_grad_(tensor.requires_grad)

    with mode:
        yield fake
