"""Every rule between a configuration and a model, with its complete message."""

from __future__ import annotations

from typing import Any

import pytest
from memopt.compiler.config.load import MemoptConfig, RecomputeConfig, load_config
from memopt.compiler.errors import ConfigError, Problem
from memopt.compiler.plan.resolve import resolve
from plan_models import Gpt

EITHER = "either recompute or swap for a layer, or for a module with its parents and children"


def problems(config: Any, num_layers: int = 8, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(Gpt(num_layers), config, **options)
    return [str(problem) for problem in caught.value.problems]


def warnings(config: Any, num_layers: int = 8) -> list[str]:
    found = list(resolve(Gpt(num_layers), config).warnings)
    with pytest.raises(ConfigError) as caught:
        resolve(Gpt(num_layers), config, strict=True)
    assert [f"{problem.field}: {problem.found}" for problem in caught.value.problems] == found
    return found


def bounds(num_layers: int) -> str:
    return f"layer numbers within [0, {num_layers - 1}]: the model has {num_layers} layers"


@pytest.mark.parametrize(
    ("text", "field", "line", "found"),
    [
        ("recompute:\n  mode: full\n  full_recompute_layer: [0-3, 6-8]", "recompute.full_recompute_layer[1]", 3, "'6-8'"),
        ("recompute:\n  mode: full\n  full_recompute_layer: 8", "recompute.full_recompute_layer", 3, "8"),
        (
            "recompute:\n  mode: full\n  full_recompute_layer:\n  - 0\n  - 99999",
            "recompute.full_recompute_layer[1]",
            5,
            "99999",
        ),
        ("recompute:\n  mode: select\n  select_module:\n    '.*mlp': [0-8]", "recompute.select_module['.*mlp'][0]", 4, "'0-8'"),
        (
            "recompute:\n  mode: select\n  select_module: {a: 0}\n  full_recompute_layer: [8]",
            "recompute.full_recompute_layer[0]",
            4,
            "8",
        ),
        (
            "recompute:\n  mode: full\n  full_recompute_layer: 0\n  exclude_op: {a: [0, 8]}",
            "recompute.exclude_op['a'][1]",
            4,
            "8",
        ),
        (
            "recompute_comm:\n  enable: True\n  select_module: {a: [8]}",
            "recompute_comm.select_module['a'][0]",
            3,
            "8",
        ),
        ("swap:\n  enable: True\n  layer_swap:\n  - layers: [0, 8]", "swap.layer_swap[0].layers[1]", 4, "8"),
        ("swap:\n  enable: True\n  op_swap:\n  - op_name: a\n    layers: [0, 8]", "swap.op_swap[0].layers[1]", 5, "8"),
    ],
)
def test_out_of_bounds(text: str, field: str, line: int, found: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(Gpt(8), text)
    assert caught.value.problems == (Problem(field, line, found, bounds(8), ""),)


def test_bounds_of_a_configuration_without_a_file() -> None:
    config = MemoptConfig(recompute=RecomputeConfig(mode="full", full_recompute_layer=[0, "6-8", 12]))
    where = "recompute.full_recompute_layer"
    assert problems(config) == [f"{where}: found '6-8'; allowed: {bounds(8)}", f"{where}: found 12; allowed: {bounds(8)}"]


def test_places_of_another_configuration_are_not_used() -> None:
    config = load_config("recompute:\n  mode: full\n  full_recompute_layer: [0-3]\n")
    other = config.model_copy(update={"recompute": RecomputeConfig(mode="full", full_recompute_layer="2-9")})
    assert problems(other) == [f"recompute.full_recompute_layer (line 3): found '2-9'; allowed: {bounds(8)}"]


@pytest.mark.parametrize(
    ("swap", "expected"),
    [
        (
            {"layer_swap": [{"layers": ["0-3", "5-7"]}]},
            "swap.layer_swap[0].layers[1]: found '5-7'; allowed: layers up to 6: the highest layer plus "
            "default_prefetch (1) must be less "
            "than num_layers (8)",
        ),
        (
            {"op_swap": [{"op_name": "mlp", "layers": 6}], "default_prefetch": 2},
            "swap.op_swap[0].layers: found 6; allowed: layers up to 5: the highest layer plus default_prefetch (2) "
            "must be less than "
            "num_layers (8)",
        ),
        (
            {"layer_swap": [{"layers": 0}], "default_prefetch": 8},
            "swap.default_prefetch: found 8; allowed: 1 <= default_prefetch <= num_layers - 1 = 7",
        ),
        ({"default_prefetch": 8}, "swap.default_prefetch: found 8; allowed: 1 <= default_prefetch <= num_layers - 1 = 7"),
    ],
)
def test_prefetch_bounds(swap: dict[str, Any], expected: str) -> None:
    assert problems({"swap": {"enable": True, **swap}}) == [expected]


def test_prefetch_at_its_bounds() -> None:
    plan = resolve(Gpt(8), {"swap": {"enable": True, "default_prefetch": 7, "layer_swap": [{"layers": 0}]}})
    assert plan.layers[0].prefetch_at == 7
    resolve(Gpt(8), {"swap": {"enable": True, "default_prefetch": 1, "layer_swap": [{"layers": "0-6"}]}})


def test_one_layer_cannot_swap() -> None:
    assert problems({"swap": {"enable": True, "layer_swap": [{"layers": 0}]}}, 1) == [
        "swap.default_prefetch: found 1; allowed: 1 <= default_prefetch <= num_layers - 1 = 0. A model of one layer "
        "has none to prefetch "
        "from, so it cannot swap."
    ]


def test_pipeline_parallelism() -> None:
    swap = {"swap": {"enable": True, "layer_swap": [{"layers": 0}]}}
    assert problems(swap, pipeline_parallel_size=2) == [
        "swap.enable: found True with pipeline_parallel_size=2; allowed: swap without pipeline parallelism. To save "
        "memory under pipeline "
        "parallelism, use recompute."
    ]
    resolve(Gpt(8), swap, pipeline_parallel_size=1)
    resolve(Gpt(8), {"recompute": {"mode": "full", "full_recompute_layer": 0}}, pipeline_parallel_size=4)
    for size in (0, -1, True, 1.0, "2", None):
        shown = f"'{size}'" if isinstance(size, str) else size
        assert problems({}, pipeline_parallel_size=size) == [
            f"pipeline_parallel_size: found {shown}; allowed: an integer of at least 1"
        ]


FULL = {"mode": "full", "full_recompute_layer": "0-3"}


@pytest.mark.parametrize(
    ("recompute", "swap", "expected"),
    [
        (
            FULL,
            {"layer_swap": [{"layers": "2-5"}]},
            ["recompute.full_recompute_layer: found layers 2-3, where swap.layer_swap[0] swaps"],
        ),
        (
            FULL,
            {"op_swap": [{"op_name": ".*mlp", "layers": [3, 4]}]},
            ["recompute.full_recompute_layer: found layer 3, where swap.op_swap[0]['.*mlp'] swaps"],
        ),
        (
            {"mode": "select", "select_module": {".*mlp": "0-3"}},
            {"layer_swap": [{"layers": "2-5"}]},
            ["recompute.select_module['.*mlp']: found layers 2-3, where swap.layer_swap[0] swaps"],
        ),
        (
            {"mode": "select", "select_module": {"mlp": "0-3"}},
            {"op_swap": [{"op_name": ".*mlp", "layers": "2-5"}]},
            ["recompute.select_module['mlp']: found 'mlp' in layers 2-3, where swap.op_swap[0]['.*mlp'] swaps 'mlp'"],
        ),
        (
            {"mode": "select", "select_module": {"mlp": "0-3"}},
            {"op_swap": [{"op_name": r"mlp\.fc.", "layers": 1}]},
            [
                rf"recompute.select_module['mlp']: found 'mlp' in layer 1, where swap.op_swap[0]['mlp\.fc.'] swaps '{path}'"
                for path in ("mlp.fc1", "mlp.fc2")
            ],
        ),
        (
            {"mode": "select", "select_module": {r"attention\.core": "0-3"}},
            {"op_swap": [{"op_name": "attention", "layers": [1, 3]}]},
            [
                r"recompute.select_module['attention\.core']: found 'attention.core' in layers 1, 3, where "
                r"swap.op_swap[0]['attention'] "
                "swaps 'attention'"
            ],
        ),
        (
            {"mode": "select", "select_module": {r".*\.gelu": "0-3"}},
            {"op_swap": [{"op_name": r".*\.gelu", "layers": "3-4"}]},
            [
                r"recompute.select_module['.*\.gelu']: found '.*\.gelu' in layer 3, where swap.op_swap[0]['.*\.gelu'] "
                r"swaps '.*\.gelu'"
            ],
        ),
        (
            {"mode": "select", "select_module": {"mlp": "0-3"}, "full_recompute_layer": "4-5"},
            {"layer_swap": [{"layers": "3-4"}], "op_swap": [{"op_name": "mlp", "layers": "0-4"}]},
            [
                "recompute.select_module['mlp']: found 'mlp' in layers 0-2, where swap.op_swap[0]['mlp'] swaps 'mlp'",
                "recompute.select_module['mlp']: found layer 3, where swap.layer_swap[0] swaps",
                "recompute.full_recompute_layer: found layer 4, where swap.layer_swap[0] swaps",
                "recompute.full_recompute_layer: found layer 4, where swap.op_swap[0]['mlp'] swaps",
            ],
        ),
    ],
)
def test_overlap(recompute: dict[str, Any], swap: dict[str, Any], expected: list[str]) -> None:
    config = {"recompute": recompute, "swap": {"enable": True, **swap}}
    assert problems(config) == [f"{text}; allowed: {EITHER}" for text in expected]


def test_communication_and_swap_of_one_pattern_overlap() -> None:
    config = {
        "recompute_comm": {"enable": True, "select_module": {r".*\.all_gather": "0-3"}},
        "swap": {"enable": True, "op_swap": [{"op_name": r".*\.all_gather", "layers": 2}]},
    }
    assert problems(config) == [
        r"recompute_comm.select_module['.*\.all_gather']: found '.*\.all_gather' in layer 2, where "
        r"swap.op_swap[0]['.*\.all_gather'] swaps "
        rf"'.*\.all_gather'; allowed: {EITHER}"
    ]


def test_disabled_sections_do_not_overlap() -> None:
    config = {"recompute": {**FULL, "mode": None}, "swap": {"enable": True, "layer_swap": [{"layers": "0-3"}]}}
    assert resolve(Gpt(8), config).layers[0].swap_full


def test_ignored_entries_of_layer_swap() -> None:
    config = {"swap": {"enable": True, "layer_swap": [{"layers": "0-1"}, {"layers": ["1-2", 5]}, {"layers": 99}]}}
    assert warnings(config) == [
        "swap.layer_swap: only the first entry is used; layers 2, 5, 99 of the others will be ignored. Write all layers into "
        "swap.layer_swap[0].layers"
    ]
    plan = resolve(Gpt(8), config)
    assert [layer.index for layer in plan.layers if layer.swap_full] == [0, 1]
    repeated = {"swap": {"enable": True, "layer_swap": [{"layers": "0-1"}, {"layers": 1}]}}
    assert warnings(repeated) == [
        "swap.layer_swap: only the first entry is used; the others will be ignored. Write all layers into "
        "swap.layer_swap[0].layers"
    ]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"recompute": {"full_recompute_layer": 99, "exclude_op": ["a"], "select_module": {"a": 99}}},
            [
                "recompute.select_module: has no effect with mode: None",
                "recompute.full_recompute_layer: has no effect with mode: None",
                "recompute.exclude_op: has no effect with mode: None",
            ],
        ),
        ({"recompute": {**FULL, "select_module": {"a": 99}}}, ["recompute.select_module: has no effect with mode: full"]),
        (
            {"recompute": {**FULL, "exclude_op": {"a": "4-5", "b": "3-4"}}},
            ["recompute.exclude_op['a']: has no effect: nothing is recomputed in layers 4-5"],
        ),
        ({"recompute_comm": {"select_module": {"a": 99}}}, ["recompute_comm.select_module: has no effect with enable: False"]),
        (
            {
                "swap": {
                    "default_prefetch": 99,
                    "layer_swap": [{"layers": 99}],
                    "op_swap": [{"op_name": "a", "layers": 99}],
                    "dir": "x",
                }
            },
            [f"swap.{name}: has no effect with enable: False" for name in ("default_prefetch", "layer_swap", "op_swap", "dir")],
        ),
        (
            {"swap": {"enable": True}},
            ["swap.enable: True has no effect: neither layer_swap nor op_swap names anything to swap"],
        ),
        (
            {"swap": {"enable": True, "layer_swap": [{"layers": 0}], "store": "host", "dir": "x"}},
            ["swap.dir: has no effect with store: host"],
        ),
        (
            {"swap": {"enable": True, "layer_swap": [{"layers": 0}], "store": "disk", "host_limit": "1GiB"}},
            ["swap.host_limit: has no effect with store: disk"],
        ),
    ],
)
def test_settings_without_effect(config: Any, expected: list[str]) -> None:
    assert warnings(config) == expected


def test_disabled_sections_with_nothing_else_are_silent() -> None:
    text = "recompute:\n  mode: None\nrecompute_comm:\n  enable: False\nswap:\n  enable: False\n  default_prefetch: 1\n"
    assert resolve(Gpt(8), text, strict=True).warnings == ()


def test_warnings_know_their_line_only_as_errors() -> None:
    text = "swap:\n  enable: False\n  store: disk\n"
    assert resolve(Gpt(8), text).warnings == ("swap.store: has no effect with enable: False",)
    assert problems(text, strict=True) == ["swap.store (line 3): has no effect with enable: False"]


def test_everything_is_reported_at_once() -> None:
    text = """
recompute:
  mode: full
  full_recompute_layer: [0-3, 40]
  select_module: {a: [0]}
swap:
  enable: True
  layer_swap:
  - layers: [2-3, 7]
  - layers: [5]
"""
    assert problems(text, pipeline_parallel_size=2, strict=True) == [
        "swap.enable (line 7): found True with pipeline_parallel_size=2; allowed: swap without pipeline parallelism. "
        "To save memory under "
        "pipeline parallelism, use recompute.",
        f"recompute.full_recompute_layer[1] (line 4): found 40; allowed: {bounds(8)}",
        "swap.layer_swap[0].layers[1] (line 9): found 7; allowed: layers up to 6: the highest layer plus "
        "default_prefetch (1) must be less "
        "than num_layers (8)",
        f"recompute.full_recompute_layer (line 4): found layers 2-3, where swap.layer_swap[0] swaps; allowed: {EITHER}",
        "recompute.select_module (line 5): has no effect with mode: full",
        "swap.layer_swap (line 8): only the first entry is used; layer 5 of the others will be ignored. Write all layers into "
        "swap.layer_swap[0].layers",
    ]
