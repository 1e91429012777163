from __future__ import annotations

import copy
import json
import pickle
from collections import UserDict
from pathlib import Path
from typing import Any

import pytest
from memopt.compiler.config.load import ConfigError, MemoptConfig, RecomputeConfig, SwapConfig, load_config

OFF = MemoptConfig()
FULL = """
recompute:
  mode: full
  full_recompute_layer: [0-15]   # half
  exclude_op: ["AllGather"]
recompute_comm:
  enable: False
swap:
  enable: False
"""


def test_defaults() -> None:
    assert OFF.to_dict() == {
        "recompute": {"mode": "None", "full_recompute_layer": None, "select_module": None, "exclude_op": None},
        "recompute_comm": {"enable": False, "select_module": None},
        "swap": {
            "enable": False,
            "default_prefetch": 1,
            "layer_swap": None,
            "op_swap": None,
            "store": "auto",
            "dir": None,
            "min_bytes": 1024,
            "in_flight_bytes": None,
            "host_limit": None,
        },
    }


@pytest.mark.parametrize(
    "source", [None, {}, "\n", "# nothing: here\n", "recompute:\nswap: null\n", "{recompute: {}, swap: {}}", "---\n"]
)
def test_nothing_is_everything_off(source: Any) -> None:
    assert load_config(source) == OFF


def test_empty_file_is_everything_off(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.touch()
    assert load_config(path) == OFF


def test_path_text_mapping_and_config_agree(tmp_path: Path) -> None:
    path = tmp_path / "train: 1.yaml"
    path.write_text(FULL, encoding="utf-8-sig")
    expected = MemoptConfig(
        recompute=RecomputeConfig(mode="full", full_recompute_layer=tuple(range(16)), exclude_op=("AllGather",))
    )
    sections = {"recompute": {"mode": "full", "full_recompute_layer": "0-15", "exclude_op": ["AllGather"]}}
    for source in (path, str(path), FULL, sections, UserDict(recompute=UserDict(sections["recompute"])), expected):
        assert load_config(source) == expected
    assert load_config(expected) is expected


@pytest.mark.parametrize("mode", ["None", "'None'", "null", "none", "~", ""])
def test_ways_to_write_no_mode(mode: str) -> None:
    assert load_config(f"recompute:\n  mode: {mode}\n").recompute.mode == "None"


@pytest.mark.parametrize("mode", [None, "None", "none"])
def test_ways_to_write_no_mode_in_python(mode: Any) -> None:
    assert load_config({"recompute": {"mode": mode}}).recompute.mode == "None"


@pytest.mark.parametrize("spec", ["[0-3]", "0-3", "' 0 - 3 '", "[0, 1, 2, 3]", "['0-1', 2-3]", "[0 - 3]", "\n  - 0-2\n  - 3"])
def test_spellings_of_layers_have_one_form(spec: str) -> None:
    config = load_config(f"recompute:\n  mode: full\n  full_recompute_layer: {spec}\n")
    assert config.recompute.full_recompute_layer == (0, 1, 2, 3)
    assert config.to_dict()["recompute"]["full_recompute_layer"] == ["0-3"]


def test_normal_form_is_one_for_all_spellings() -> None:
    one = load_config("swap: {in_flight_bytes: 64MiB, min_bytes: '2 KiB', enable: yes, layer_swap: [{layers: 0-1}]}")
    two = load_config(
        {"swap": {"layer_swap": ({"layers": (0, 1)},), "enable": True, "min_bytes": 2048, "in_flight_bytes": 1 << 26}}
    )
    assert one == two
    assert hash(one) == hash(two)
    assert json.dumps(one.to_dict(), sort_keys=True) == json.dumps(two.to_dict(), sort_keys=True)
    assert one != OFF
    assert one.to_dict() != OFF.to_dict()


def test_order_of_patterns_and_names_makes_no_difference() -> None:
    one = load_config("recompute: {mode: select, select_module: {a: 1, b: 2}, exclude_op: [x, y, x]}")
    two = load_config("recompute: {mode: select, select_module: {b: 2, a: 1}, exclude_op: [y, x]}")
    assert one == two
    assert json.dumps(one.to_dict()) == json.dumps(two.to_dict())


def test_empty_collections_are_not_given() -> None:
    data = {
        "recompute": {"full_recompute_layer": [], "select_module": {}, "exclude_op": []},
        "swap": {"layer_swap": [], "op_swap": []},
    }
    assert load_config(data) == OFF


def test_plain_data() -> None:
    config = load_config(FULL)
    assert config.origin.lines[("recompute", "mode")] == 3
    for clone in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), copy.copy(config)):
        assert clone == config
        assert hash(clone) == hash(config)
    assert pickle.dumps(config) == pickle.dumps(load_config("\n\n" + FULL))
    with pytest.raises(ValueError, match="frozen"):
        config.recompute.mode = "None"  # type: ignore[misc]


def test_lines_do_not_count() -> None:
    assert load_config(FULL) == load_config("\n\n\n" + FULL)


def test_aliases_and_merges() -> None:
    text = """
recompute:
  mode: select
  select_module: {a: &low [0-3], b: *low}
swap: {<<: {default_prefetch: 2, store: disk}, default_prefetch: 3}
"""
    config = load_config(text)
    assert config.recompute.select_module == {"a": (0, 1, 2, 3), "b": (0, 1, 2, 3)}
    assert (config.swap.default_prefetch, config.swap.store) == (3, "disk")


@pytest.mark.parametrize(
    ("raw", "size"),
    [
        (0, 0),
        (4096, 4096),
        ("4096", 4096),
        ("64MiB", 64 << 20),
        ("64 MB", 64_000_000),
        ("1.5GiB", 3 << 29),
        ("7B", 7),
        ("1kB", 1000),
    ],
)
def test_sizes(raw: Any, size: int) -> None:
    assert load_config({"swap": {"min_bytes": raw}}).swap.min_bytes == size


def test_sections_may_be_models_or_mappings() -> None:
    swap = SwapConfig(enable=True, layer_swap=[{"layers": "0-3"}])
    assert swap.layer_swap is not None
    assert swap.layer_swap[0].layers == (0, 1, 2, 3)
    assert load_config({"swap": swap}).swap == swap


def test_constructors_raise_config_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        RecomputeConfig(mode="ful", exclude_op=[""])
    assert str(caught.value) == (
        "2 problems in the configuration:\n"
        "  mode: found 'ful'; allowed: None, 'full' or 'select'. Did you mean 'full'?\n"
        "  exclude_op[0]: found '', which every operator's name contains; allowed: a part of an operator's name"
    )


def test_errors_are_plain_data() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("recompute: {mode: ful}")
    clone = pickle.loads(pickle.dumps(caught.value))
    assert clone.problems == caught.value.problems
    assert str(clone) == str(caught.value)
