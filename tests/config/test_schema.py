from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from memopt.compiler.config.load import MemoptConfig, load_config
from memopt.compiler.errors import ConfigError
from mini_schema import matches

SCHEMA = MemoptConfig.json_schema()
CONFIGS = sorted((Path(__file__).parents[2] / "examples" / "configs").glob("*.yaml"))

GOOD: list[Any] = [
    {},
    {"recompute": None},
    {"recompute": {"mode": None}},
    {"recompute": {"mode": "none"}},
    {"recompute": {"mode": "full", "full_recompute_layer": 5}},
    {"recompute": {"mode": "full", "full_recompute_layer": " 0 - 3 ", "exclude_op": {".*linear": ["0-3", 8]}}},
    {"recompute": {"mode": "select", "select_module": {".*mlp": [0, "2-3"]}, "full_recompute_layer": None}},
    {"recompute_comm": {"enable": True, "select_module": {"a": 1}}},
    {
        "swap": {
            "enable": True,
            "layer_swap": [{"layers": [1]}],
            "op_swap": [{"op_name": "a", "layers": "0-1"}],
            "store": "disk",
        }
    },
    {"swap": {"dir": "/tmp", "min_bytes": 0, "in_flight_bytes": "1.5 GiB", "host_limit": "64MiB", "default_prefetch": 3}},
]
BAD: list[Any] = [
    [],
    {"recompte": {}},
    {"recompute": {"mode": "ful"}},
    {"recompute": {"mode": "full"}},
    {"recompute": {"mode": "select", "full_recompute_layer": [0]}},
    {"recompute": {"mode": False}},
    {"recompute": {"mode": "full", "full_recompute_layer": [True]}},
    {"recompute": {"mode": "full", "full_recompute_layer": ["1:30"]}},
    {"recompute": {"mode": "full", "full_recompute_layer": [-1]}},
    {"recompute": {"mode": "full", "full_recompute_layer": [1.5]}},
    {"recompute": {"select_module": {"": [0]}}},
    {"recompute": {"select_module": [0]}},
    {"recompute": {"exclude_op": "AllGather"}},
    {"recompute_comm": {"enable": True}},
    {"recompute_comm": {"enable": 1}},
    {"swap": {"layer_swap": {"layers": [0]}}},
    {"swap": {"op_swap": [{"layers": [0]}]}},
    {"swap": {"store": "ram"}},
    {"swap": {"min_bytes": "3 miles"}},
    {"swap": {"default_prefetch": 0}},
]


def test_is_json_of_the_2020_draft() -> None:
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert SCHEMA["title"] == "memopt configuration"
    assert list(SCHEMA["properties"]) == ["recompute", "recompute_comm", "swap"]


def test_every_field_is_described_and_nothing_else_is_allowed() -> None:
    for part in (SCHEMA, *SCHEMA["$defs"].values()):
        assert part["additionalProperties"] is False
        assert part["description"]
        for field in part["properties"].values():
            assert field["description"]
    assert {name: list(part["properties"]) for name, part in SCHEMA["$defs"].items()} == {
        "RecomputeConfig": ["mode", "full_recompute_layer", "select_module", "exclude_op"],
        "RecomputeCommConfig": ["enable", "select_module"],
        "LayerSwap": ["layers"],
        "OpSwap": ["op_name", "layers"],
        "SwapConfig": [
            "enable", "default_prefetch", "layer_swap", "op_swap", "store", "dir", "min_bytes", "in_flight_bytes", "host_limit",
        ],
    }  # fmt: skip


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_example_files_match(path: Path) -> None:
    assert matches(yaml.safe_load(path.read_text()), SCHEMA, SCHEMA)


@pytest.mark.parametrize("data", GOOD, ids=str)
def test_schema_and_loader_accept(data: Any) -> None:
    load_config(data)
    assert matches(data, SCHEMA, SCHEMA)


@pytest.mark.parametrize("data", BAD, ids=str)
def test_schema_and_loader_refuse(data: Any) -> None:
    with pytest.raises(ConfigError):
        load_config(yaml.safe_dump(data) + "\n")
    assert not matches(data, SCHEMA, SCHEMA)


def test_normal_form_matches() -> None:
    for data in GOOD:
        assert matches(load_config(data).to_dict(), SCHEMA, SCHEMA)
