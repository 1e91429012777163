"""The configuration: its three sections and every field, as typed and frozen data.

The language is that of MindSpore Transformers' "Training Memory Optimization"; what each field means is said where it is
declared, and editors are told the same through `MemoptConfig.json_schema`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PrivateAttr, WithJsonSchema

from ..errors import Finding, Findings, one_of, show
from . import schema, values
from .layer_specs import canonical, parse_layers
from .section import Origin, Section

Layers = Annotated[tuple[int, ...], BeforeValidator(parse_layers), WithJsonSchema(schema.LAYERS)]
OptionalLayers = Annotated[
    tuple[int, ...] | None, BeforeValidator(values.optional(parse_layers)), WithJsonSchema(schema.or_null(schema.LAYERS))
]
PatternLayers = Annotated[
    Mapping[str, tuple[int, ...]] | None,
    BeforeValidator(values.optional(values.parse_pattern_layers)),
    WithJsonSchema(schema.or_null(schema.PATTERN_LAYERS)),
]
ExcludeOp = Annotated[
    tuple[str, ...] | Mapping[str, tuple[int, ...]] | None,
    BeforeValidator(values.optional(values.parse_exclude_op)),
    WithJsonSchema(schema.or_null(schema.EXCLUDE_OP)),
]
Pattern = Annotated[str, BeforeValidator(values.parse_pattern), WithJsonSchema(schema.PATTERN)]
Mode = Annotated[Literal["None", "full", "select"], BeforeValidator(values.parse_mode), WithJsonSchema(schema.MODE)]
Flag = Annotated[bool, BeforeValidator(values.parse_flag)]
Store = Annotated[Literal["auto", "host", "disk"], BeforeValidator(values.parse_store)]
Directory = Annotated[str | None, BeforeValidator(values.optional(values.parse_directory))]
Prefetch = Annotated[int, BeforeValidator(values.parse_prefetch), WithJsonSchema(schema.PREFETCH)]
Size = Annotated[int, BeforeValidator(values.parse_size), WithJsonSchema(schema.SIZE)]
OptionalSize = Annotated[
    int | None, BeforeValidator(values.optional(values.parse_positive_size)), WithJsonSchema(schema.or_null(schema.SIZE))
]


def _entries(raw: object) -> object:
    """A YAML list for a field that holds a tuple of entries."""
    if raw is None or isinstance(raw, (list, tuple)):
        return tuple(raw) if raw else None
    raise Findings(Finding((), show(raw), "a list of entries, each such as {layers: [0-3]}", "Put '- ' before the entry."))


class RecomputeConfig(Section):
    """Which activations are dropped in the forward and computed again in the backward."""

    model_config = ConfigDict(json_schema_extra=schema.recompute_conditions)

    mode: Mode = "None"
    """What is recomputed. None: nothing. full: the layers of full_recompute_layer, whole. select: the modules and operators
    that select_module names, and, whole, the layers of full_recompute_layer."""
    full_recompute_layer: OptionalLayers = None
    """Layers that are recomputed whole, for example [0-3, 8]: each keeps what it was given, and nothing that it computes.
    Required with mode: full, optional with mode: select, without effect with mode: None."""
    select_module: PatternLayers = None
    """Regular expression over the paths within a layer -> the layers in which it holds. The whole path must match: '.*mlp'
    matches mlp. A module covers the modules within it; a path may also name an operator: '.*\\.gelu'. Required with mode:
    select, without effect otherwise."""
    exclude_op: ExcludeOp = None
    """Operators whose results are kept inside what is recomputed: a list of parts of names (["AllGather"]), compared without
    case, _ and ., which holds in every layer; or a mapping from regular expressions over operator paths to layers. Without
    effect with mode: None."""

    @classmethod
    def _missing(cls, data: Mapping[str, object]) -> list[Finding]:
        try:
            mode = values.parse_mode(data.get("mode"))
        except Findings:
            return []
        if mode == "full" and _not_given(data.get("full_recompute_layer")):
            allowed = "layers such as [0-3, 8]: the field is required when mode is 'full'"
            return [Finding(("full_recompute_layer",), "nothing", allowed)]
        if mode == "select" and _not_given(data.get("select_module")):
            allowed = "a mapping such as {'.*mlp': [0-3]}: the field is required when mode is 'select'"
            return [Finding(("select_module",), "nothing", allowed)]
        return []


class RecomputeCommConfig(Section):
    """Which communication operators are repeated in the backward instead of keeping what they received."""

    model_config = ConfigDict(json_schema_extra=schema.recompute_comm_conditions)

    enable: Flag = False
    """Whether the communication operators that select_module names are recomputed; independent of recompute.mode."""
    select_module: PatternLayers = None
    """Regular expression over operator paths within a layer ('.*\\.all_gather') -> the layers in which it holds. One that names
    a module has no effect, and a warning says so. Required with enable: True."""

    @classmethod
    def _missing(cls, data: Mapping[str, object]) -> list[Finding]:
        if data.get("enable") is True and _not_given(data.get("select_module")):
            allowed = "a mapping such as {'.*\\.all_gather': [0-3]}: the field is required when enable is True"
            return [Finding(("select_module",), "nothing", allowed)]
        return []


class LayerSwap(Section):
    """One entry of ``swap.layer_swap``."""

    _shape: ClassVar[str] = "an entry such as {layers: [0-3]}"

    layers: Layers
    """Layers that are swapped whole: everything that only their backward reads."""


class OpSwap(Section):
    """One entry of ``swap.op_swap``."""

    _shape: ClassVar[str] = "an entry such as {op_name: '.*mlp', layers: [0-3]}"

    op_name: Pattern
    """Regular expression over the module and operator paths within a layer; the whole path must match."""
    layers: Layers
    """Layers in which op_name holds."""


class SwapConfig(Section):
    """Which activations wait for the backward in another memory tier."""

    enable: Flag = False
    """Whether activations are swapped. Refused under pipeline parallelism, and with CUDA graphs."""
    default_prefetch: Prefetch = 1
    """How many layers ahead of its backward a layer's activations are fetched: 1 <= default_prefetch <= num_layers - 1,
    and the highest swapped layer plus default_prefetch must be less than num_layers. One more hides more of the copies, and
    keeps up to one more layer's values in memory."""
    layer_swap: Annotated[tuple[LayerSwap, ...] | None, BeforeValidator(_entries)] = None
    """Layers that are swapped whole. Only the first entry is used, and a warning names the layers of the others: write all
    layers into it."""
    op_swap: Annotated[tuple[OpSwap, ...] | None, BeforeValidator(_entries)] = None
    """Modules and operators that are swapped, by pattern: everything that only their backward reads."""
    store: Store = "auto"
    """Where swapped values wait. host: pinned host memory, for a model on an accelerator. disk: a file in dir. auto: host for
    an accelerator, disk for the CPU."""
    dir: Directory = None
    """Directory of the file for what goes to disk. It must exist; ~ is the home directory. null: the system's temporary
    directory."""
    min_bytes: Size = 1024
    """Smaller values stay where they are: copying them costs more than they take. Bytes, or a text such as 64KiB; 0: every
    size moves."""
    in_flight_bytes: OptionalSize = None
    """How much may be on its way out at a time: the forward waits above it, as these values still take device memory.
    Bytes, or a text such as 64MiB; null: 256 MiB on an accelerator, 16 MiB on the CPU."""
    host_limit: OptionalSize = None
    """The most host memory that swapped values may take; above it, they go to disk, in dir. Without effect with store: disk.
    Bytes, or a text such as 16GiB; null: no limit."""


class MemoptConfig(Section):
    """The whole configuration. Equality, hash and `to_dict` are those of its meaning: spelling and file make no difference."""

    recompute: RecomputeConfig = Field(default_factory=RecomputeConfig)
    """Drop activations in the forward and compute them again in the backward: time for memory."""
    recompute_comm: RecomputeCommConfig = Field(default_factory=RecomputeCommConfig)
    """Repeat communication in the backward instead of keeping what was received: communication for memory."""
    swap: SwapConfig = Field(default_factory=SwapConfig)
    """Move activations to another memory tier until the backward needs them: bandwidth for memory."""

    _origin: Origin = PrivateAttr(default_factory=Origin)

    @classmethod
    def _belongs_to(cls, key: object) -> str:
        owners = [name for name, part in _SECTIONS.items() if key in part.model_fields]
        return f"It belongs under {one_of(owners)}." if owners else ""

    @property
    def origin(self) -> Origin:
        """Where the configuration was written; empty when it was built in Python or unpickled."""
        return self._origin

    def with_origin(self, origin: Origin) -> MemoptConfig:
        """An equal configuration that knows where it was written."""
        made = self.model_copy()
        made._origin = origin
        return made

    def to_dict(self) -> dict[str, Any]:
        """The normal form, for JSON and for cache keys: configurations that mean the same give the same form.

        `load_config` reads it back to an equal configuration.
        """
        swap = self.swap
        return {
            "recompute": {
                "mode": self.recompute.mode,
                "full_recompute_layer": _layers_form(self.recompute.full_recompute_layer),
                "select_module": _patterns_form(self.recompute.select_module),
                "exclude_op": sorted(exclude)
                if isinstance(exclude := self.recompute.exclude_op, tuple)
                else _patterns_form(exclude),
            },
            "recompute_comm": {
                "enable": self.recompute_comm.enable,
                "select_module": _patterns_form(self.recompute_comm.select_module),
            },
            "swap": {
                **swap.model_dump(exclude={"layer_swap", "op_swap"}),
                "layer_swap": swap.layer_swap and [{"layers": canonical(entry.layers)} for entry in swap.layer_swap],
                "op_swap": swap.op_swap
                and [{"op_name": entry.op_name, "layers": canonical(entry.layers)} for entry in swap.op_swap],
            },
        }

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A JSON Schema (draft 2020-12) of the YAML file, for editors and validators."""
        made = cls.model_json_schema()
        made["$schema"] = "https://json-schema.org/draft/2020-12/schema"
        made["title"] = "memopt configuration"
        for name, part in made["properties"].items():
            made["properties"][name] = {"anyOf": [{"$ref": part["$ref"]}, {"type": "null"}], "description": part["description"]}
        return made

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, MemoptConfig) else NotImplemented

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_dict(), sort_keys=True))

    def __getstate__(self) -> dict[Any, Any]:
        return {**super().__getstate__(), "__pydantic_private__": {"_origin": Origin()}}


_SECTIONS: dict[str, type[Section]] = {"recompute": RecomputeConfig, "recompute_comm": RecomputeCommConfig, "swap": SwapConfig}


def _not_given(raw: object) -> bool:
    return raw is None or (isinstance(raw, (list, tuple, Mapping)) and not raw)


def _layers_form(layers: tuple[int, ...] | None) -> list[int | str] | None:
    return None if layers is None else canonical(layers)


def _patterns_form(patterns: Mapping[str, tuple[int, ...]] | None) -> dict[str, list[int | str]] | None:
    return None if patterns is None else {pattern: canonical(patterns[pattern]) for pattern in sorted(patterns)}
