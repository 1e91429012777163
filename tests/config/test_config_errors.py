"""Every rule of validation that needs no model, with its complete message."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from memopt.compiler.config.load import ConfigError, Problem, load_config

ITEM = "a layer number such as 5, or a range such as 0-3"
PATTERN = "a regular expression over paths within a layer, such as '.*mlp'"
SIZE = "a number of bytes, or a text such as '64MiB' with one of the units B, KB, MB, GB, TB, kB, KiB, MiB, GiB, TiB"
RECOMPUTE_KEYS = "mode, full_recompute_layer, select_module or exclude_op"
SWAP_KEYS = "enable, default_prefetch, layer_swap, op_swap, store, dir, min_bytes, in_flight_bytes or host_limit"


def message(source: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(source)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "recompute: {mode: ful}",
            "recompute.mode (line 1): found 'ful'; allowed: None, 'full' or 'select'. Did you mean 'full'?",
        ),
        (
            "recompute: {mode: SELECT}",
            "recompute.mode (line 1): found 'SELECT'; allowed: None, 'full' or 'select'. Did you mean 'select'?",
        ),
        ("recompute: {mode: 3}", "recompute.mode (line 1): found 3; allowed: None, 'full' or 'select'"),
        (
            "recompute: {mode: off}",
            "recompute.mode (line 1): found False; allowed: None, 'full' or 'select'. Write null or None to switch "
            "recomputation off.",
        ),
        (
            "recompute: {mode: full}",
            "recompute.full_recompute_layer (line 1): found nothing; allowed: layers such as [0-3, 8]: the field is "
            "required when mode "
            "is 'full'",
        ),
        (
            "recompute: {mode: full, full_recompute_layer: []}",
            "recompute.full_recompute_layer (line 1): found nothing; allowed: layers such as [0-3, 8]: the field is "
            "required when mode "
            "is 'full'",
        ),
        (
            "recompute: {mode: select, full_recompute_layer: [0]}",
            "recompute.select_module (line 1): found nothing; allowed: a mapping such as {'.*mlp': [0-3]}: the field "
            "is required when "
            "mode is 'select'",
        ),
        (
            "recompute_comm: {enable: True}",
            r"recompute_comm.select_module (line 1): found nothing; allowed: a mapping such as {'.*\.all_gather': "
            r"[0-3]}: the field is "
            "required when enable is True",
        ),
        ("recompute_comm: {enable: 1}", "recompute_comm.enable (line 1): found 1; allowed: True or False"),
        ("swap: {enable: 'True'}", "swap.enable (line 1): found 'True'; allowed: True or False. Remove the quotation marks."),
        ("swap: {enable: }", "swap.enable (line 1): found None; allowed: True or False"),
        ("recompute: full", "recompute (line 1): found 'full'; allowed: a mapping"),
        ("- a\n", "configuration (line 1): found ['a']; allowed: a mapping"),
        (
            "recompute:\n  select_module: [0-3]",
            "recompute.select_module (line 2): found ['0-3']; allowed: a mapping from regular expressions to layers, such as "
            "{'.*mlp': [0-3]}",
        ),
        (
            "recompute:\n  select_module:\n    '.*mlp':",
            f"recompute.select_module['.*mlp'] (line 3): found None; allowed: {ITEM}",
        ),
        (
            "recompute:\n  select_module:\n    '.*mlp': []",
            f"recompute.select_module['.*mlp'] (line 3): found [], which names no layer; allowed: {ITEM}, or a list of them",
        ),
        (
            "recompute:\n  select_module:\n    '.*mlp':\n    - 0\n    - yes",
            f"recompute.select_module['.*mlp'][1] (line 5): found True; allowed: {ITEM}. true and false are not layer numbers.",
        ),
        (
            "recompute:\n  select_module: {0: [1]}",
            f"recompute.select_module[0] (line 2): found 0; allowed: {PATTERN}. Put the expression in quotation marks.",
        ),
        (
            "recompute:\n  select_module: {'': [1]}",
            f"recompute.select_module[''] (line 2): found an empty pattern, which matches no path; allowed: {PATTERN}",
        ),
        (
            "recompute:\n  select_module: {'*mlp': [1]}",
            "recompute.select_module['*mlp'] (line 2): found '*mlp', an invalid regular expression (nothing to repeat "
            "at position 0); "
            f"allowed: {PATTERN}. Did you mean '.*mlp'?",
        ),
        (
            "recompute_comm:\n  select_module: {'(a': [1]}",
            "recompute_comm.select_module['(a'] (line 2): found '(a', an invalid regular expression (missing ) at position 2); "
            f"allowed: {PATTERN}",
        ),
        (
            "swap:\n  op_swap:\n  - op_name: '(a'\n    layers: 1",
            f"swap.op_swap[0].op_name (line 3): found '(a', an invalid regular expression (missing ) at position 2); "
            f"allowed: {PATTERN}",
        ),
        (
            "recompute:\n  exclude_op: {'(a': [1]}",
            "recompute.exclude_op['(a'] (line 2): found '(a', an invalid regular expression (missing ) at position 2); "
            f"allowed: {PATTERN}",
        ),
        (
            "recompute: {exclude_op: AllGather}",
            "recompute.exclude_op (line 1): found 'AllGather'; allowed: a list of operator names such as "
            "['AllGather'], or a mapping "
            "from regular expressions to layers. Did you mean ['AllGather']?",
        ),
        (
            "recompute: {exclude_op: [AllGather, '']}",
            "recompute.exclude_op[1] (line 1): found '', which every operator's name contains; allowed: a part of an "
            "operator's name",
        ),
        (
            "recompute: {exclude_op: ['_.']}",
            "recompute.exclude_op[0] (line 1): found '_.', which every operator's name contains; allowed: a part of an "
            "operator's name",
        ),
        (
            "recompute: {exclude_op: [3]}",
            "recompute.exclude_op[0] (line 1): found 3; allowed: the name of an operator, or a part of it, such as 'AllGather'",
        ),
        (
            "swap: {default_prefetch: 0}",
            "swap.default_prefetch (line 1): found 0; allowed: 1 <= default_prefetch <= num_layers - 1, an integer",
        ),
        (
            "swap: {default_prefetch: true}",
            "swap.default_prefetch (line 1): found True; allowed: 1 <= default_prefetch <= num_layers - 1, an integer",
        ),
        (
            "swap: {layer_swap: {layers: [0]}}",
            "swap.layer_swap (line 1): found {'layers': [0]}; allowed: a list of entries, each such as {layers: "
            "[0-3]}. Put '- ' before "
            "the entry.",
        ),
        (
            "swap:\n  layer_swap:\n  - 0-3",
            "swap.layer_swap[0] (line 3): found '0-3'; allowed: an entry such as {layers: [0-3]}",
        ),
        (
            "swap:\n  layer_swap:\n  - {}",
            "swap.layer_swap[0].layers (line 3): found nothing; allowed: a value: the field is required",
        ),
        (
            "swap:\n  op_swap:\n  - op_name: a",
            "swap.op_swap[0].layers (line 3): found nothing; allowed: a value: the field is required",
        ),
        (
            "swap:\n  op_swap:\n  - op_name: a\n    layers: [3, 1]",
            "swap.op_swap[0].layers[1] (line 4): found 1 after 3; allowed: layer numbers in ascending order that do "
            "not overlap. The "
            "entry before ends at layer 3.",
        ),
        ("swap: {store: ram}", "swap.store (line 1): found 'ram'; allowed: 'auto', 'host' or 'disk'"),
        ("swap: {store: dsik}", "swap.store (line 1): found 'dsik'; allowed: 'auto', 'host' or 'disk'. Did you mean 'disk'?"),
        (
            "swap: {dir: ''}",
            "swap.dir (line 1): found ''; allowed: the path of a directory, or null for the system's temporary directory",
        ),
        ("swap: {min_bytes: 64mib}", f"swap.min_bytes (line 1): found '64mib'; allowed: {SIZE}. Did you mean 'MiB'?"),
        ("swap: {min_bytes: 3 miles}", f"swap.min_bytes (line 1): found '3 miles'; allowed: {SIZE}. The unit is not known."),
        ("swap: {min_bytes: -1}", f"swap.min_bytes (line 1): found -1; allowed: {SIZE}"),
        ("swap: {min_bytes: 1.5}", f"swap.min_bytes (line 1): found 1.5; allowed: {SIZE}"),
        ("swap: {min_bytes: 1.5B}", f"swap.min_bytes (line 1): found '1.5B'; allowed: {SIZE}. There are no parts of a byte."),
        ("swap: {host_limit: 0}", f"swap.host_limit (line 1): found 0; allowed: more than 0 bytes: {SIZE}"),
        ("swap: {in_flight_bytes: 0}", f"swap.in_flight_bytes (line 1): found 0; allowed: more than 0 bytes: {SIZE}"),
        (
            "recompte: {}",
            "recompte (line 1): found the unknown key 'recompte'; allowed: recompute, recompute_comm or swap. Did you "
            "mean 'recompute'?",
        ),
        (
            "mode: full",
            "mode (line 1): found the unknown key 'mode'; allowed: recompute, recompute_comm or swap. It belongs under "
            "recompute.",
        ),
        (
            "select_module: {}",
            "select_module (line 1): found the unknown key 'select_module'; allowed: recompute, recompute_comm or "
            "swap. It belongs under "
            "recompute or recompute_comm.",
        ),
        ("true: {}", "[True] (line 1): found the unknown key True; allowed: recompute, recompute_comm or swap"),
        (
            "recompute:\n  full_recompute_layers: [0]",
            f"recompute.full_recompute_layers (line 2): found the unknown key 'full_recompute_layers'; allowed: "
            f"{RECOMPUTE_KEYS}. Did you "
            "mean 'full_recompute_layer'?",
        ),
        (
            "swap:\n  prefetch: 1",
            f"swap.prefetch (line 2): found the unknown key 'prefetch'; allowed: {SWAP_KEYS}. Did you mean 'default_prefetch'?",
        ),
        (
            "swap:\n  op_swap:\n  - {op_nme: a, op_name: b, layers: 1}",
            "swap.op_swap[0].op_nme (line 3): found the unknown key 'op_nme'; allowed: op_name or layers. Did you mean "
            "'op_name'?",
        ),
        (
            "swap:\n  enable: True\n  enable: False",
            "swap.enable (line 3): found the key a second time on line 3; allowed: each key once; it stands on line 2 already",
        ),
        (
            "recompute:\n  select_module:\n    a: [0]\n    'a': [1]",
            "recompute.select_module['a'] (line 4): found the key a second time on line 4; allowed: each key once; it "
            "stands on line 3 "
            "already",
        ),
    ],
)
def test_messages(text: str, expected: str) -> None:
    assert message(text if "\n" in text else text + "\n") == f"1 problem in the configuration:\n  {expected}"


@pytest.mark.parametrize(
    ("spec", "found", "hint"),
    [
        ("1:30", "'1:30'", ". Did you mean '1-30'?"),
        ("2024-01-02", "'2024-01-02'", ""),
        ("010", "'010'", ". Write decimal numbers without leading zeros."),
        ("0x1f", "'0x1f'", ". Write decimal numbers without leading zeros."),
        ("0o17", "'0o17'", ". Write decimal numbers without leading zeros."),
        ("1_000", "'1_000'", ""),
        ("3.0", "3.0", ""),
        ("1e3", "1000.0", ""),
        (".inf", "inf", ""),
        ("on", "True", ". true and false are not layer numbers."),
        ("~", "None", ""),
        ("-1", "-1", ". Layer numbers start at 0."),
        ("+5-6", "'+5-6'", ""),
    ],
)
def test_surprises_of_yaml_are_not_layer_numbers(spec: str, found: str, hint: str) -> None:
    expected = f"recompute.full_recompute_layer[0] (line 3): found {found}; allowed: {ITEM}{hint}"
    assert (
        message(f"recompute:\n  mode: full\n  full_recompute_layer: [{spec}]\n")
        == f"1 problem in the configuration:\n  {expected}"
    )


def test_everything_is_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(
        """recompute:
  mode: full
  select_module:
    '.*mlp': [0-3, 2]
    '(': [x]
swp:
  enable: True
swap:
  enable: maybe
  default_prefetch: 0
recompute_comm:
  enable: True
"""
    )
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value) == (
        f"8 problems in {path}:\n"
        "  swp (line 6): found the unknown key 'swp'; allowed: recompute, recompute_comm or swap. Did you mean 'swap'?\n"
        "  recompute.select_module['.*mlp'][1] (line 4): found 2 after '0-3'; allowed: layer numbers in ascending "
        "order that do not "
        "overlap. The entry before ends at layer 3.\n"
        f"  recompute.select_module['('] (line 5): found '(', an invalid regular expression (missing ) at position 1); "
        f"allowed: {PATTERN}\n"
        f"  recompute.select_module['('][0] (line 5): found 'x'; allowed: {ITEM}\n"
        "  recompute.full_recompute_layer (line 1): found nothing; allowed: layers such as [0-3, 8]: the field is "
        "required when mode is "
        "'full'\n"
        r"  recompute_comm.select_module (line 11): found nothing; allowed: a mapping such as {'.*\.all_gather': "
        r"[0-3]}: the field is "
        "required when enable is True\n"
        "  swap.enable (line 9): found 'maybe'; allowed: True or False\n"
        "  swap.default_prefetch (line 10): found 0; allowed: 1 <= default_prefetch <= num_layers - 1, an integer"
    )
    assert caught.value.problems[6] == Problem("swap.enable", 9, "'maybe'", "True or False", "")
    assert caught.value.source == str(path)


def test_mappings_have_no_lines() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config({"recompute": {"mode": "ful"}})
    assert caught.value.problems == (
        Problem("recompute.mode", None, "'ful'", "None, 'full' or 'select'", "Did you mean 'full'?"),
    )


PATH = "the path of a YAML file"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "nowhere.yaml",
            f"1 problem in nowhere.yaml:\n  configuration: found no file at 'nowhere.yaml'; allowed: {PATH}. YAML text "
            f"is told from a path "
            "by a line break or ': ' in it.",
        ),
        (
            Path("nowhere.yaml"),
            f"1 problem in nowhere.yaml:\n  configuration: found no file at 'nowhere.yaml'; allowed: {PATH}",
        ),
        ("/", f"1 problem in /:\n  configuration: found '/', which cannot be read (Is a directory); allowed: {PATH}"),
        (
            "",
            f"1 problem in the configuration:\n  configuration: found '', which cannot be read (Is a directory); "
            f"allowed: {PATH}",
        ),
        (
            "\0",
            f"1 problem in the configuration:\n  configuration: found '\\x00', which cannot be read (embedded null "
            f"byte); allowed: {PATH}",
        ),
        (
            3,
            "1 problem in the configuration:\n  configuration: found 3; allowed: the path of a YAML file, YAML text, a "
            "mapping or a "
            "MemoptConfig",
        ),
        (
            "a: [\n",
            "1 problem in the configuration:\n  configuration (line 2): found invalid YAML (while parsing a flow node: "
            "expected the node "
            "content, but found '<stream end>'); allowed: one YAML document",
        ),
        (
            "a: 1\n---\nb: 1\n",
            "1 problem in the configuration:\n  configuration (line 2): found invalid YAML (expected a single document "
            "in the stream: but "
            "found another document); allowed: one YAML document",
        ),
        (
            "a: !!python/object:os.system {}\n",
            "1 problem in the configuration:\n  configuration (line 1): found invalid YAML (could not determine a "
            "constructor for the tag "
            "'tag:yaml.org,2002:python/object:os.system'); allowed: one YAML document",
        ),
        (
            "a: " + "[" * 5000,
            "1 problem in the configuration:\n  configuration: YAML that is nested too deeply",
        ),
        (
            "? [a]\n: b\n",
            "1 problem in the configuration:\n  configuration (line 1): found invalid YAML (while constructing a "
            "mapping: found unhashable "
            "key); allowed: one YAML document",
        ),
    ],
    ids=lambda value: str(value)[:20],
)
def test_sources_that_cannot_be_read(source: Any, expected: str) -> None:
    assert message(source) == expected


def test_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"recompute: \xff\xfe\x00")
    assert (
        message(path)
        == f"1 problem in {path}:\n  configuration: found bytes that are not UTF-8 text (at byte 11); allowed: {PATH}"
    )


def test_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(b"recompute: \x01\n")
    assert message(path) == (
        f"1 problem in {path}:\n  configuration: found invalid YAML (the character 1, which text does not contain); "
        f"allowed: one YAML "
        "document"
    )


def test_a_bomb_of_aliases_is_refused_quickly() -> None:
    text = "a: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"{chr(98 + i)}: &a{i + 1} [{', '.join([f'*a{i}'] * 10)}]\n" for i in range(9))
    start = time.perf_counter()
    message("recompute: &a [" + ", ".join(["*a"] * 1000) + "]")
    assert message(text).startswith("10 problems in the configuration:\n  a (line 1): found the unknown key 'a'; allowed: ")
    assert time.perf_counter() - start < 20


def test_deep_data_in_python() -> None:
    data: Any = {}
    for _ in range(100_000):
        data = {"recompute": data}
    assert message(data) == "1 problem in the configuration:\n  configuration: data that is nested too deeply"


def test_recursive_aliases() -> None:
    assert (
        message("recompute: &a [*a]\n")
        == "1 problem in the configuration:\n  recompute (line 1): found [[[[...]]]]; allowed: a mapping"
    )


def test_huge_numbers_in_python() -> None:
    assert message({"recompute": {"mode": 10**5000}}) == (
        "1 problem in the configuration:\n  recompute.mode: found a value of int that is too long to print; allowed: "
        "None, 'full' or "
        "'select'"
    )
