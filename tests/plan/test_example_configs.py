"""Every configuration of the specification: it loads, resolves, and does what its comments say."""

from __future__ import annotations

from pathlib import Path

import pytest
from memopt.compiler.config.load import load_config
from memopt.compiler.plan.resolve import LayerPlan, resolve, unmatched
from memopt.passes.policy import Rule, RuleKind
from plan_models import Gpt

CONFIGS = Path(__file__).parents[2] / "examples" / "configs"

EXPECTED: dict[str, tuple[int, dict[str, dict[str, object]]]] = {
    "level1_select_mlp": (32, {"0-31": {"recompute": ("mlp",)}}),
    "level2_full_first_half": (32, {"0-15": {"recompute_full": True}, "16-31": {}}),
    "level2_full_exclude_communication": (32, {"0-15": {"recompute_full": True}, "16-31": {}}),
    "level3_full_all": (32, {"0-31": {"recompute_full": True}}),
    "level3_recompute_and_swap": (
        32,
        {"0-15": {"recompute_full": True}, "16-30": {"swap_full": True, "ahead": 1}, "31-31": {}},
    ),
    "select_attention_and_mlp": (8, {"0-3": {"recompute": ("attention",)}, "4-7": {"recompute": ("mlp",)}}),
    "comm_all_gather": (8, {"0-7": {}}),
    "swap_layer_and_op": (8, {"0-1": {"swap_full": True, "ahead": 1}, "2-3": {"swap": ("mlp",), "ahead": 1}, "4-7": {}}),
}


def test_each_file_is_expected() -> None:
    assert {path.stem for path in CONFIGS.glob("*.yaml")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_resolves_to_the_documented_plan(name: str) -> None:
    num_layers, ranges = EXPECTED[name]
    plan = resolve(Gpt(num_layers), CONFIGS / f"{name}.yaml", strict=True)
    assert plan.warnings == ()
    assert plan.num_layers == num_layers
    for span, settings in ranges.items():
        first, last = map(int, span.split("-"))
        for index in range(first, last + 1):
            wanted = dict(settings)
            ahead = wanted.pop("ahead", None)
            prefetch_at = index + int(str(ahead)) if ahead is not None else None
            got = plan.layers[index]
            expected = LayerPlan(index=index, path=f"layers.{index}", prefetch_at=prefetch_at, rules=got.rules, **wanted)  # type: ignore[arg-type]
            assert got == expected


def test_excluded_communication_holds_in_every_layer() -> None:
    plan = resolve(Gpt(32), CONFIGS / "level2_full_exclude_communication.yaml")
    every = tuple(range(32))
    assert plan.exclude == tuple(
        Rule(RuleKind.EXCLUDE_OP, f"recompute.exclude_op['{name}']", name, every, literal=True)
        for name in ("AllGather", "ReduceScatter", "AllToAll")
    )


def test_all_gather_is_looked_for_in_the_graph() -> None:
    plan = resolve(Gpt(8), CONFIGS / "comm_all_gather.yaml")
    field = r"recompute_comm.select_module['.*\.all_gather']"
    assert plan.pending == (Rule(RuleKind.RECOMPUTE_COMM, field, r".*\.all_gather", (0, 1, 2, 3)),)
    assert unmatched(plan) == ()
    assert not plan.is_empty


@pytest.mark.parametrize("name", EXPECTED)
def test_normal_form_reads_back(name: str) -> None:
    config = load_config(CONFIGS / f"{name}.yaml")
    assert load_config(config.to_dict()) == config
