"""Random configurations: memopt and the oracle have to agree on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from memopt.compiler.config.load import MemoptConfig, load_config
from memopt.compiler.errors import ConfigError
from memopt.compiler.plan.paths import relative_module_paths
from memopt.compiler.plan.resolve import Plan, resolve
from memopt.passes.policy import RuleKind
from oracle import Answer, answer
from plan_models import Block, Gpt, MoeBlock, OtherBlock
from torch import nn

PATTERNS = [
    ".*mlp", "mlp", "mlp.*", r"mlp\.fc1", ".*fc.", "attention", r"attention\.core", ".*core|.*out", ".*", "", r".*\.all_gather",
    r"mlp\.gelu", r"experts\.[01]", "(mlp|mamba)", "nothing",
]  # fmt: skip


def _stack(*blocks: Callable[[], nn.Module]) -> nn.Module:
    model = nn.Module()
    model.layers = nn.ModuleList(block() for block in blocks)
    return model


MODELS = [
    Gpt(1),
    Gpt(4),
    Gpt(7),
    _stack(Block, OtherBlock, Block, lambda: MoeBlock(2), OtherBlock, Block),
]
PATHS = [[list(relative_module_paths(layer)) for layer in model.layers] for model in MODELS]

item = st.one_of(st.integers(0, 8), st.builds("{}-{}".format, st.integers(0, 6), st.integers(0, 8)))
in_order = st.lists(st.integers(0, 7), unique=True, min_size=1, max_size=4).map(sorted)
layer_spec = st.one_of(
    in_order,
    in_order.map(lambda layers: [str(layer) for layer in layers]),
    st.builds(lambda a, b: f"{a} - {a + b}", st.integers(0, 5), st.integers(0, 2)),
    item,
    st.lists(item, max_size=3),
    st.sampled_from([True, 1.5, -1, "x", "1:30"]),
)
good_spec = st.one_of(in_order, st.builds(lambda a, b: [f"{a}-{a + b}"], st.integers(0, 3), st.integers(0, 2)))
spec = st.one_of(good_spec, good_spec, good_spec, layer_spec)
pattern = st.sampled_from([text for text in PATTERNS if text])
select_module = st.dictionaries(pattern, spec, max_size=3)


def section(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any] | None]:
    return st.one_of(st.none(), st.fixed_dictionaries({}, optional=fields), st.fixed_dictionaries({}, optional=fields))


wild = st.fixed_dictionaries(
    {},
    optional={
        "recompute": section(
            mode=st.sampled_from([None, "None", "none", "full", "full", "select", "select", "select"]),
            full_recompute_layer=st.one_of(st.none(), spec, spec),
            select_module=select_module,
        ),
        "recompute_comm": section(enable=st.booleans(), select_module=select_module),
        "swap": section(
            enable=st.sampled_from([True, True, False]),
            default_prefetch=st.integers(0, 4),
            layer_swap=st.lists(st.fixed_dictionaries({"layers": spec}), max_size=2),
            op_swap=st.lists(st.fixed_dictionaries({"op_name": pattern, "layers": spec}), max_size=2),
        ),
    },
)

low = st.sets(st.integers(0, 3), min_size=1, max_size=3).map(sorted)
high = st.one_of(low, st.sets(st.integers(2, 5), min_size=1, max_size=3).map(sorted))
low_patterns = st.dictionaries(pattern, low, min_size=1, max_size=3)
tame = st.fixed_dictionaries(
    {
        "recompute": st.one_of(
            st.fixed_dictionaries({"mode": st.just("full"), "full_recompute_layer": low}),
            st.fixed_dictionaries(
                {"mode": st.just("select"), "select_module": low_patterns}, optional={"full_recompute_layer": low}
            ),
            st.none(),
        )
    },
    optional={
        "recompute_comm": st.fixed_dictionaries({"enable": st.just(True), "select_module": low_patterns}),
        "swap": st.fixed_dictionaries(
            {"enable": st.just(True)},
            optional={
                "layer_swap": st.lists(st.fixed_dictionaries({"layers": high}), max_size=2),
                "op_swap": st.lists(st.fixed_dictionaries({"op_name": pattern, "layers": high}), max_size=2),
            },
        ),
    },
)
configs = st.one_of(tame, wild)


def told(plan: Plan) -> tuple[dict[int, Any], dict[int, Any], dict[int, set[str]]]:
    return (
        {layer.index: "full" if layer.recompute_full else set(layer.recompute) for layer in plan.layers},
        {layer.index: "full" if layer.swap_full else set(layer.swap) for layer in plan.layers},
        {
            layer.index: {
                rule.pattern for rule in plan.pending if rule.kind is RuleKind.RECOMPUTE_COMM and layer.index in rule.layers
            }
            for layer in plan.layers
        },
    )


@settings(max_examples=1500)
@given(configs, st.integers(0, len(MODELS) - 1), st.sampled_from([1, 1, 1, 2]))
def test_agrees_with_the_oracle(config: dict[str, Any], which: int, pipeline_parallel_size: int) -> None:
    expected = answer(config, PATHS[which], pipeline_parallel_size)
    options: dict[str, Any] = {"layers": "layers", "pipeline_parallel_size": pipeline_parallel_size}
    if not expected.valid:
        with pytest.raises(ConfigError):
            resolve(MODELS[which], config, **options)
        return
    plan = resolve(MODELS[which], config, **options)
    assert told(plan) == (expected.recomputed, expected.swapped, expected.communication)
    assert bool(plan.warnings) == expected.warned
    ahead = (config.get("swap") or {}).get("default_prefetch", 1)
    for layer in plan.layers:
        if layer.swap_full or layer.swap:
            assert layer.prefetch_at == layer.index + ahead
            assert layer.prefetch_at < plan.num_layers
        assert set(layer.rules) == {
            *([""] if layer.recompute_full or layer.swap_full else []),
            *layer.recompute,
            *layer.swap,
        }
        assert all(layer.index in rule.layers for rule in layer.rules.values())
    if expected.warned:
        with pytest.raises(ConfigError):
            resolve(MODELS[which], config, strict=True, **options)


def loaded_or_fields(source: Any) -> tuple[MemoptConfig | None, list[str]]:
    """The configuration, or the fields that are wrong."""
    try:
        return load_config(source), []
    except ConfigError as error:
        return None, [problem.field for problem in error.problems]


@settings(max_examples=300)
@given(configs)
def test_spelling_makes_no_difference(config: dict[str, Any]) -> None:
    loaded, fields = loaded_or_fields(config)
    written, written_fields = loaded_or_fields(yaml.safe_dump(config) + "\n")
    # Problems come in the order of a mapping's keys, which dumping sorts.
    assert sorted(fields) == sorted(written_fields)
    if loaded is None or written is None:
        return
    assert written == loaded == load_config(loaded.to_dict())
    assert hash(written) == hash(loaded)
    assert written.to_dict() == loaded.to_dict()


@pytest.mark.parametrize("valid", [True, False])
def test_both_kinds_are_common_enough(valid: bool) -> None:
    """Random configurations would prove little if nearly all were wrong, or none."""
    seen: list[Answer] = []

    @settings(max_examples=300, database=None, derandomize=True)
    @given(configs)
    def collect(config: dict[str, Any]) -> None:
        assume(config)
        seen.append(answer(config, PATHS[2]))

    collect()
    assert sum(result.valid is valid for result in seen) > 40
    if valid:
        assert sum(result.valid and any(result.recomputed.values()) for result in seen) > 8
        assert sum(result.valid and any(result.swapped.values()) for result in seen) > 8
