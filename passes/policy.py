"""What can be decided about a value, and the rules that decide it.

Everything here is plain frozen data: a plan can be compared, hashed, pickled and printed. The plan says what holds in
which layer before anything is compiled; a decision says what happens to one node of a graph, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Action(Enum):
    """What happens to a forward value that the backward reads: a closed set."""

    SAVE = "save"
    RECOMPUTE = "recompute"
    OFFLOAD = "offload"


class RuleKind(Enum):
    """Which part of the configuration a rule comes from."""

    RECOMPUTE_FULL = "full_recompute_layer"
    RECOMPUTE_SELECT = "recompute.select_module"
    RECOMPUTE_COMM = "recompute_comm.select_module"
    SWAP_LAYER = "layer_swap"
    SWAP_OP = "op_swap"
    EXCLUDE_OP = "exclude_op"


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the configuration, as it holds in the layers of one model.

    Attributes:
        kind: the part of the configuration.
        field: where it stands, as errors name it: ``recompute.select_module['.*mlp']``.
        pattern: the regular expression (or, for a list of ``exclude_op``, the literal text); empty for whole layers.
        layers: the layer numbers the rule names, ascending. An ``exclude_op`` list names every layer.
        literal: ``pattern`` is text to be found in operator names, not a regular expression over paths.
    """

    kind: RuleKind
    field: str
    pattern: str
    layers: tuple[int, ...]
    literal: bool = False


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What holds in one layer. Paths are relative to the layer (``mlp``, ``attention.core``), wrappers removed.

    Attributes:
        index: the layer's number, counted through all stacks.
        path: the layer's module path in the model, wrappers removed (``model.layers.7``).
        recompute_full: every activation of the layer is recomputed.
        recompute: module paths that are recomputed; a parent stands for its children.
        recompute_comm: operator paths whose communication is recomputed; known once a graph exists.
        swap_full: every activation of the layer is swapped.
        swap: module paths that are swapped.
        prefetch_at: the layer in whose backward this layer's reloads begin, if there is room; None when nothing is swapped.
        rules: for each entry above, the rule that put it there: keys are module paths, ``""`` for the whole layer.
    """

    index: int
    path: str
    recompute_full: bool = False
    recompute: tuple[str, ...] = ()
    recompute_comm: tuple[str, ...] = ()
    swap_full: bool = False
    swap: tuple[str, ...] = ()
    prefetch_at: int | None = None
    rules: Mapping[str, Rule] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class SwapPolicy:
    """How swapped values travel, and where they wait for the backward.

    Attributes:
        prefetch: a layer's reloads begin in the backward of the layer so many positions later, if there is room.
        store: ``host``, ``disk``, or ``auto``: host for an accelerator, disk for the CPU.
        directory: where the files of a disk store are made; None for the system's temporary directory.
        min_bytes: smaller values stay.
        in_flight_bytes: how much may be on its way out at a time; None for a default that depends on the device.
        host_limit: the most bytes of host memory, above which values go to disk; None for no limit.
    """

    prefetch: int
    store: str = "auto"
    directory: str | None = None
    min_bytes: int = 0
    in_flight_bytes: int | None = None
    host_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Which rule holds where, before anything is compiled.

    Attributes:
        layers: one entry per layer, in order.
        pending: rules over paths that may name an operator, which only a graph can tell. Each names the layers where
            it is still to be looked for (all its layers: a pattern can match a module in one and operators in another).
        exclude: the rules of ``exclude_op``.
        warnings: what was configured and has no effect, each a sentence for the user.
        hints: pattern -> the nearest existing paths, for the warning about a pending rule that matched no operator either.
        no_module: rules of ``pending``, with the layers in which their pattern matches no module. Whether it names an operator
            there, only a graph can tell.
        strict: warnings are errors.
        swap: how values are swapped; None when nothing is.
        whole: how many layers the whole model has, of which a stage of a pipeline has some; None for all of them here.
    """

    layers: tuple[LayerPlan, ...]
    pending: tuple[Rule, ...] = ()
    exclude: tuple[Rule, ...] = ()
    warnings: tuple[str, ...] = ()
    hints: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    no_module: tuple[Rule, ...] = ()
    strict: bool = False
    swap: SwapPolicy | None = None
    whole: int | None = None

    @property
    def num_layers(self) -> int:
        """How many layers the whole model has, through all stacks and stages."""
        return len(self.layers) if self.whole is None else self.whole

    def layer(self, number: int) -> LayerPlan:
        """What holds in the layer of this number."""
        return self.layers[number - self.layers[0].index]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked of any layer."""
        return not self.pending and not any(p.recompute_full or p.recompute or p.swap_full or p.swap for p in self.layers)


@dataclass(frozen=True, slots=True)
class Decision:
    """What happens to the value of one node.

    Attributes:
        action: save, recompute or offload.
        rule: the rule that decided, as the configuration names it; empty for a decision that correctness asks for.
        layer: the layer the node belongs to; None outside the layer stacks.
        path: the node's module path relative to its layer (or to the model, outside the layers).
        reason: one clause for people: why this action.
        region: the call of a layer, module or operator whose values are recomputed together; a value that is saved
            keeps the number of the region it lies in. None outside regions.
    """

    action: Action
    rule: str
    layer: int | None
    path: str
    reason: str
    region: int | None = None
