"""What the examples beside it share: one line per rank about a training step, and its gradients against one process."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler counts, and need not say that it does

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.profiler import ProfilerActivity, profile

import memopt

TOLERANCE = 1e-5
_SHORT = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")

Gradients = dict[str, Tensor]


def options_for(script: str, **more: Mapping[str, object]) -> argparse.Namespace:
    """The command line of an example: configurations, each run after the other, and a backend."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__.splitlines()[0])
    default = str(Path(script).with_suffix(".yaml"))
    parser.add_argument("--config", nargs="+", default=[default], help="one or several, beside the script or anywhere")
    parser.add_argument("--backend", default="aot_eager", help="inductor is faster in training, and slower to compile")
    for name, settings in more.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    options = parser.parse_args()
    beside = Path(script).parent
    options.config = [str(beside / c) if (beside / c).exists() else c for c in options.config]
    return options


def gradients_of(model: nn.Module) -> Gradients:
    """Whole gradients by the names of the parameters, whatever the ranks hold of each."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            grad = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
            found[name] = grad.detach().clone()
    return found


def difference(found: Gradients, expected: Gradients) -> float:
    """The largest difference, relative to the largest element of the same gradient; infinite where one is missing."""
    if found.keys() != expected.keys():
        return float("inf")
    return max(((found[n] - g).abs().max() / g.abs().max()).item() for n, g in expected.items())


def collectives_in(run: Callable[[], Tensor]) -> tuple[Tensor, Counter[str]]:
    """Run something, and count the collectives that were executed: torch's profiler counts, not memopt."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        result = run()
    names = [event.name.removeprefix("_c10d_functional::") for event in seen.events() if "c10d_functional::" in event.name]
    found = (next((short for short in _SHORT if name.startswith(short)), None) for name in names)
    return result, Counter(short for short in found if short is not None)


def spoken(counted: Counter[str]) -> str:
    """``2 all_gather, 1 reduce_scatter``."""
    return ", ".join(f"{counted[name]} {name}" for name in _SHORT if counted[name]) or "none"


def report(model: nn.Module, name: str, forward: Counter[str], backward: Counter[str], differs: float) -> bool:
    """Print what happened on this rank in one line; return whether its gradients are those of one process."""
    found = memopt.explain(model)
    again = Counter(row.op for row in found.collectives if row.again)
    layers = [str(t.layer) for t in found.totals if t.layer is not None and t.recomputed]
    operators = sum(t.recomputed for t in found.totals if t.layer is not None)
    graphs = f"{len(found.current)} graph{'s' if len(found.current) > 1 else ''}"
    parts = (
        f"rank {dist.get_rank()}: {Path(name).stem}",
        f"recomputed: {operators} operators of layers {', '.join(layers)} in {graphs}" if layers else "recomputed: nothing",
        f"collectives in forward: {spoken(forward)}",
        f"in backward: {spoken(backward)}",
        f"of them again: {spoken(again)}",
        f"gradients differ by {differs:.0e}",
        f"saved: {found.saved_before:,} -> {found.saved_after:,} bytes, {found.swapped:,} swapped",
    )
    print(" | ".join(parts) + "\n", end="", flush=True)  # in one piece, whatever other ranks print
    return differs <= TOLERANCE


def leave(right: bool) -> None:
    """End this process, with an error where gradients were wrong."""
    dist.destroy_process_group()
    sys.exit(0 if right else f"gradients differ by more than {TOLERANCE:g} from those of one process")
