"""The ``forward`` of a model that is compiled as a whole, and what both scopes share."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import pickle
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...passes.policy import Plan
from .. import torch_bridge
from ..config.load import MemoptConfig
from ..lowering import Backend
from ..ranks.agreement import DEFAULT_TIMEOUT, Agreement, RanksDisagreeError
from ..session import PolicyNotApplied, Session

_NUMBER = itertools.count()


@dataclass(frozen=True)
class Settings:
    """What a compiled model was compiled with: plain data, which goes along when the model is copied or pickled."""

    config: MemoptConfig
    plan: Plan
    backend: Backend
    fullgraph: bool
    dynamic: bool | None
    options: dict[str, Any] | None
    ranks_timeout: float = DEFAULT_TIMEOUT

    def session(self, model: nn.Module) -> Session:
        """A new session for the model."""
        return Session(model, self.plan, self.backend, self.options, agreement=Agreement(self.ranks_timeout))

    def check_picklable(self) -> None:
        """Refuse to pickle a model whose backend cannot be pickled.

        Raises:
            pickle.PicklingError: it cannot.
        """
        try:
            pickle.dumps(self.backend)
        except Exception as error:
            raise pickle.PicklingError(
                f"backend: {self.backend!r} cannot be pickled, so this compiled model cannot be. Save "
                "model.state_dict() instead, or compile with a backend that is a name or a module-level function."
            ) from error


class CompiledForward:
    """The ``forward`` of a compiled model. It lies on the instance, so that the model stays what it was.

    State-dict keys, ``isinstance``, hooks and device moves are untouched; a deep copy, or an unpickled model, gets a compiled
    forward of its own with the same configuration.
    """

    def __init__(self, model: nn.Module, settings: Settings, original: Callable[..., Any] | None = None) -> None:
        self.model = model
        self.settings = settings
        self.original = original
        self.session = settings.session(model)
        compiled = compiled_forward(self.session, type(model).__name__, settings, is_instances=original is not None)
        self._compiled = functools.partial(compiled, model, *([] if original is None else [original]))
        functools.update_wrapper(self, original or types.MethodType(type(model).forward, model), updated=())

    @torch.compiler.disable(reason="memopt compiles this module by itself")  # type: ignore[no-untyped-call, untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's forward, compiled."""
        session = self.session
        session.refuse()
        session.calls += 1
        runs, news, breaks = session.runs, session.news, torch_bridge.watch_breaks()
        with causes_raised():
            result = self._compiled(*args, **kwargs)
        session.tidy()
        if session.news != news:
            session.after_capture(breaks())
        elif session.runs == runs:
            session.after_eager(breaks())
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledForward:
        model = memo.get(id(self.model))
        if model is None:  # not its truth value: a half-copied Sequential has no length yet
            model = copy.deepcopy(self.model, memo)
        return CompiledForward(model, self.settings, copy.deepcopy(self.original, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        self.settings.check_picklable()
        return CompiledForward, (self.model, self.settings, self.original)


@contextlib.contextmanager
def causes_raised() -> Iterator[None]:
    """Within, what memopt raises while torch compiles is raised as it is, not as a failure of the backend."""
    try:
        yield
    except torch_bridge.BackendCompilerFailed as error:
        cause = error.inner_exception
        if isinstance(cause, PolicyNotApplied | RanksDisagreeError | ValueError | AssertionError):
            raise cause from error
        raise


def compiled_forward(backend: Callable[..., Any], title: str, settings: Settings, *, is_instances: bool) -> Callable[..., Any]:
    """What runs a module's forward, compiled under a code object of its own.

    By code object torch counts recompilations, and by its name it learns which sizes change: models must not share one.

    Args:
        backend: what torch.compile gives the captured graphs to: a session, or what hands them to one.
        title: names the code object, for people who read torch's logs.
        settings: how to compile.
        is_instances: the module has a ``forward`` of its own, which is given after it; else that of its class runs.
    """
    template = _call_instance_forward if is_instances else _call_class_forward
    name = f"{title}_forward_{next(_NUMBER)}"
    forward = types.FunctionType(template.__code__.replace(co_name=name), template.__globals__, name)
    compiled: Callable[..., Any] = torch.compile(
        forward, backend=backend, fullgraph=settings.fullgraph, dynamic=settings.dynamic
    )
    return compiled


def _call_class_forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return type(self).forward(self, *args, **kwargs)


def _call_instance_forward(self: nn.Module, original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    _ = self.training  # torch then finds the modules through `self`, not through whatever the original closes over
    return original(*args, **kwargs)
