"""The generated reference: as the schema is now, complete, and with examples that the loader takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from memopt.compiler.config.load import MemoptConfig, load_config
from memopt.compiler.config.reference import EXAMPLES, reference
from memopt.compiler.plan.checks import Report, check_no_effect

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference.md"
SCHEMA = MemoptConfig.json_schema()
SECTIONS = {"recompute": "RecomputeConfig", "recompute_comm": "RecomputeCommConfig", "swap": "SwapConfig"}
ENTRIES = {"swap.layer_swap[]": "LayerSwap", "swap.op_swap[]": "OpSwap"}


def fields() -> list[str]:
    owners = {**SECTIONS, **ENTRIES}
    assert set(owners.values()) == set(SCHEMA["$defs"])
    return [f"{path}.{name}" for path, owner in owners.items() for name in SCHEMA["$defs"][owner]["properties"]]


def part_about(field: str) -> str:
    _, _, rest = reference().partition(f"### `{field}`\n")
    return rest.partition("\n##")[0]


def test_the_document_is_up_to_date() -> None:
    remedy = "run: python -m memopt.compiler.config.reference > docs/reference.md"
    assert DOCUMENT.read_text(encoding="utf-8") == reference(), remedy


@pytest.mark.parametrize("field", fields())
def test_every_field_is_told_with_its_values(field: str) -> None:
    assert reference().count(f"### `{field}`\n") == 1
    about = part_about(field)
    assert "\n- values: " in about
    assert ("\n- default: " in about) != ("\n- required\n" in f"{about}\n")


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_has_an_example_that_loads_and_names_every_field(section: str) -> None:
    config = load_config(EXAMPLES[section])
    report = Report(config)
    check_no_effect(config, report)
    assert report.warnings == ()
    assert EXAMPLES[section].strip() in reference()
    (written,) = yaml.safe_load(EXAMPLES[section]).values()
    assert set(written) == set(SCHEMA["$defs"][SECTIONS[section]]["properties"])


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("recompute.mode", "- values: `None`, `full`, `select`, `none` or `null`"),
        ("recompute.full_recompute_layer", "- required with `mode: full`"),
        ("recompute_comm.select_module", "- required with `enable: True`"),
        ("recompute.exclude_op", "- values: a list of texts, [patterns with layers](#patterns-with-layers) or `null`"),
        ("swap.default_prefetch", "- unit: layers"),
        ("swap.in_flight_bytes", "- unit: bytes"),
        ("swap.min_bytes", "- default: `1024`"),
        ("swap.store", "- values: `auto`, `host` or `disk`"),
        ("swap.op_swap[].op_name", "- required"),
    ],
)
def test_what_the_schema_says_is_told(field: str, line: str) -> None:
    assert line in part_about(field).splitlines()


def test_the_defaults_are_those_of_an_empty_file() -> None:
    defaults = reference().rpartition("```yaml\n")[2].removesuffix("```\n")
    assert load_config(defaults) == MemoptConfig()


def test_links_within_the_document_lead_somewhere() -> None:
    text = reference()
    for title in ("layers", "pattern", "patterns-with-layers", "size"):
        assert f"(#{title})" in text
        assert f"\n### {title.replace('-', ' ').capitalize()}\n" in text
