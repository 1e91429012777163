"""Which rule holds where."""

from __future__ import annotations

import copy
import pickle
import time
from typing import Any

import pytest
import torch
from memopt.compiler.errors import ConfigError, LayersError
from memopt.compiler.plan.resolve import Plan, resolve, unmatched
from memopt.passes.policy import LayerPlan, Rule, RuleKind
from plan_models import Block, EncoderDecoder, Gpt, MoeBlock, OtherBlock
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

CATASTROPHE = "(a|a)*b"
LONG = "a" * 40 + "b"


def select(patterns: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {"recompute": {"mode": "select", "select_module": patterns, **other}}


def swap(*layers: Any, ops: dict[str, Any] | None = None, **other: Any) -> dict[str, Any]:
    return {
        "enable": True,
        "layer_swap": [{"layers": entry} for entry in layers],
        "op_swap": [{"op_name": pattern, "layers": entry} for pattern, entry in (ops or {}).items()],
        **other,
    }


def recomputed(plan: Plan) -> list[tuple[str, ...] | bool]:
    return [layer.recompute_full or layer.recompute for layer in plan.layers]


def swapped(plan: Plan) -> list[tuple[str, ...] | bool]:
    return [layer.swap_full or layer.swap for layer in plan.layers]


def test_full() -> None:
    plan = resolve(Gpt(3), {"recompute": {"mode": "full", "full_recompute_layer": [0, 2]}})
    rule = Rule(RuleKind.RECOMPUTE_FULL, "recompute.full_recompute_layer", "", (0, 2))
    assert plan.layers == (
        LayerPlan(0, "layers.0", recompute_full=True, rules={"": rule}),
        LayerPlan(1, "layers.1"),
        LayerPlan(2, "layers.2", recompute_full=True, rules={"": rule}),
    )
    assert (plan.pending, plan.exclude, plan.warnings, plan.hints, plan.strict) == ((), (), (), {}, False)
    assert plan.num_layers == 3


def test_select_covers_children_and_stays_pending() -> None:
    plan = resolve(Gpt(3), select({".*mlp.*": "0-1", r"attention\.core": [1]}))
    assert recomputed(plan) == [("mlp",), ("attention.core", "mlp"), ()]
    mlp = Rule(RuleKind.RECOMPUTE_SELECT, "recompute.select_module['.*mlp.*']", ".*mlp.*", (0, 1))
    core = Rule(RuleKind.RECOMPUTE_SELECT, r"recompute.select_module['attention\.core']", r"attention\.core", (1,))
    assert plan.layers[1].rules == {"attention.core": core, "mlp": mlp}
    assert plan.pending == (mlp, core)
    assert plan.hints == {}
    assert unmatched(plan) == ()


def test_parent_covers_child_of_another_pattern() -> None:
    plan = resolve(Gpt(1), select({r"attention\.core": 0, "attention": 0}))
    assert recomputed(plan) == [("attention",)]
    assert plan.layers[0].rules["attention"].pattern == "attention"


def test_names_that_begin_alike_are_not_parents() -> None:
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.Linear(1, 1)
            self.mlp2 = nn.Linear(1, 1)

    assert recomputed(resolve(Gpt(1, Twins), select({".*": 0}))) == [("mlp", "mlp2")]


def test_full_covers_select() -> None:
    plan = resolve(Gpt(4), select({".*mlp": "0-3"}, full_recompute_layer="0-1"))
    assert recomputed(plan) == [True, True, ("mlp",), ("mlp",)]
    assert [rule.layers for rule in plan.pending] == [(2, 3)]
    assert plan.layers[3].rules["mlp"].layers == (0, 1, 2, 3)


def test_a_pattern_has_to_match_the_whole_path() -> None:
    assert recomputed(resolve(Gpt(1), select({"attention.*": 0}))) == [("attention",)]
    assert recomputed(resolve(Gpt(1), select({"core": 0}))) == [()]


def test_experts_come_in_the_order_of_the_model() -> None:
    plan = resolve(Gpt(1, lambda: MoeBlock(12)), select({r"experts\.\d+": 0}))
    assert plan.layers[0].recompute == tuple(f"experts.{index}" for index in range(12))


def test_swap() -> None:
    plan = resolve(Gpt(8), {"swap": swap("0-1", ops={".*mlp": "2-3"}, default_prefetch=3)})
    assert swapped(plan) == [True, True, ("mlp",), ("mlp",), (), (), (), ()]
    assert [layer.prefetch_at for layer in plan.layers] == [3, 4, 5, 6, None, None, None, None]
    layer_rule = Rule(RuleKind.SWAP_LAYER, "swap.layer_swap[0]", "", (0, 1))
    op_rule = Rule(RuleKind.SWAP_OP, "swap.op_swap[0]['.*mlp']", ".*mlp", (2, 3))
    assert plan.layers[1].rules == {"": layer_rule}
    assert plan.layers[2].rules == {"mlp": op_rule}
    assert plan.pending == (op_rule,)


def test_a_swapped_layer_covers_its_modules() -> None:
    plan = resolve(Gpt(4), {"swap": swap("0-1", ops={".*mlp": "1-2"})})
    assert swapped(plan) == [True, True, ("mlp",), ()]
    assert [rule.layers for rule in plan.pending] == [(2,)]


def test_swapped_operators_are_prefetched_too() -> None:
    plan = resolve(Gpt(4), {"swap": swap(ops={r".*\.gelu": "0-1"})})
    assert swapped(plan) == [(), (), (), ()]
    assert [layer.prefetch_at for layer in plan.layers] == [1, 2, None, None]


def test_recompute_and_swap_of_different_modules_of_a_layer() -> None:
    plan = resolve(Gpt(4), {**select({".*mlp": "0-2"}), "swap": swap(ops={"attention": "0-2"})})
    assert recomputed(plan) == [("mlp",), ("mlp",), ("mlp",), ()]
    assert swapped(plan) == [("attention",), ("attention",), ("attention",), ()]
    assert set(plan.layers[0].rules) == {"mlp", "attention"}


def test_communication_is_pending_outside_full_layers() -> None:
    config = {
        "recompute": {"mode": "full", "full_recompute_layer": [0]},
        "recompute_comm": {"enable": True, "select_module": {r".*\.all_gather": "0-2"}},
    }
    plan = resolve(Gpt(3), config)
    field = r"recompute_comm.select_module['.*\.all_gather']"
    assert plan.pending == (Rule(RuleKind.RECOMPUTE_COMM, field, r".*\.all_gather", (1, 2)),)
    assert (plan.warnings, unmatched(plan)) == ((), ())
    assert not resolve(Gpt(3), {"recompute_comm": config["recompute_comm"]}).is_empty


def test_communication_that_names_modules() -> None:
    config = {"recompute_comm": {"enable": True, "select_module": {".*(mlp|core)": "0-1"}}}
    plan = resolve(Gpt(3), config)
    text = (
        "recompute_comm.select_module['.*(mlp|core)']: '.*(mlp|core)' is expected to be operation but got cell, this "
        "configuration will "
        "not be effective: it matches module 'attention.core' in layers 0-1; module 'mlp' in layers 0-1. Operators "
        "below a module are "
        "matched by their own paths"
    )
    assert plan.warnings == (text,)
    assert [rule.pattern for rule in plan.pending] == [".*(mlp|core)"]
    with pytest.raises(ConfigError) as caught:
        resolve(Gpt(3), config, strict=True)
    assert str(caught.value) == f"1 problem in the configuration:\n  {text}"


def test_exclude_op() -> None:
    full = {"mode": "full", "full_recompute_layer": "0-1"}
    plan = resolve(Gpt(3), {"recompute": {**full, "exclude_op": ["MatMul", "a.b"]}})
    assert plan.exclude == (
        Rule(RuleKind.EXCLUDE_OP, "recompute.exclude_op['MatMul']", "MatMul", (0, 1, 2), literal=True),
        Rule(RuleKind.EXCLUDE_OP, "recompute.exclude_op['a.b']", "a.b", (0, 1, 2), literal=True),
    )
    plan = resolve(Gpt(3), {"recompute": {**full, "exclude_op": {r".*\.linear": "1-2"}}})
    assert plan.exclude == (Rule(RuleKind.EXCLUDE_OP, r"recompute.exclude_op['.*\.linear']", r".*\.linear", (1, 2)),)
    assert plan.pending == ()


def test_nothing_matched_has_hints() -> None:
    plan = resolve(Gpt(4), select({".*mpl": "0-2"}))
    assert plan.warnings == ()
    assert plan.hints == {".*mpl": ("mlp",)}
    assert unmatched(plan) == (
        "recompute.select_module['.*mpl'] matches no module in layers 0-2; unless it names an operator, which is "
        "checked when the graph is "
        "compiled, it has no effect. Nearest paths: mlp.",
    )


def test_layers_of_two_classes() -> None:
    model = nn.Module()
    model.layers = nn.ModuleList([Block(), OtherBlock(), Block(), OtherBlock()])
    plan = resolve(model, select({"attention": "0-3", "mlp": "0-3"}), layers="layers")
    assert recomputed(plan) == [("attention", "mlp"), ("mlp",), ("attention", "mlp"), ("mlp",)]
    assert unmatched(plan) == (
        "recompute.select_module['attention'] matches no module in layers 1, 3; unless it names an operator, which is "
        "checked when the "
        "graph is compiled, it has no effect there. Nearest paths: mamba, mlp.",
    )
    assert [rule.layers for rule in plan.pending] == [(0, 1, 2, 3), (0, 1, 2, 3)]


def test_strict_leaves_operators_to_the_graph() -> None:
    plan = resolve(Gpt(2), select({r"mlp\.gelu": "0-1"}), strict=True)
    assert plan.strict
    assert unmatched(plan) != ()


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ab = nn.Linear(1, 1)
        self.add_module(LONG, nn.ModuleDict({"x": nn.Linear(1, 1), "y": nn.Linear(1, 1)}))


def test_a_catastrophic_pattern_is_given_up() -> None:
    start = time.perf_counter()
    config = select({CATASTROPHE + r"\.[xyz]{2}": "0-7", ".*b": "0-7"})
    plan = resolve(Gpt(8, Slow), config)
    assert time.perf_counter() - start < 20
    assert recomputed(plan) == [("ab", LONG)] * 8
    field = rf"recompute.select_module['{CATASTROPHE}\.[xyz]{{2}}']"
    shown = [f"{LONG[:40]}...{path[-40:]}" if len(path) > 80 else path for path in (f"{LONG}.x", f"{LONG}.y")]
    assert plan.warnings == (
        f"{field}: matching the pattern took more than 1 s on '{shown[0]}' and '{shown[1]}', which counts as no match; "
        f"it is given up after "
        "2 timeouts, without trying any operator",
    )
    assert [rule.pattern for rule in plan.pending] == [".*b"]
    with pytest.raises(ConfigError) as caught:
        resolve(Gpt(8, Slow), config, strict=True)
    assert [problem.field for problem in caught.value.problems] == [field]


def test_one_slow_path_does_not_stop_the_others() -> None:
    class OneSlow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ab = nn.Linear(1, 1)
            self.add_module(LONG + "c", nn.Linear(1, 1))
            self.add_module("b" * 60, nn.Linear(1, 1))

    plan = resolve(Gpt(2, OneSlow), select({"(a|a)*b+": "0-1"}))
    assert recomputed(plan) == [("ab", "b" * 60)] * 2
    assert plan.warnings == (
        f"recompute.select_module['(a|a)*b+']: matching the pattern took more than 1 s on '{LONG}c', which counts as no match",
    )
    assert [rule.pattern for rule in plan.pending] == ["(a|a)*b+"]


def test_wrappers_are_no_part_of_paths() -> None:
    model = Gpt(3)
    expected = resolve(model, select({r"mlp\.fc1|attention": "0-2"}))
    model.layers[1] = checkpoint_wrapper(model.layers[1])
    model.layers[2].mlp = torch.compile(model.layers[2].mlp)  # type: ignore[assignment, arg-type]
    compiled = torch.compile(model)
    assert isinstance(compiled, nn.Module)
    assert resolve(compiled, select({r"mlp\.fc1|attention": "0-2"})) == expected
    assert recomputed(expected) == [("attention", "mlp.fc1")] * 3


def test_stacks_are_numbered_through() -> None:
    config = {"recompute": {"mode": "full", "full_recompute_layer": "1-2"}}
    plan = resolve(EncoderDecoder(2, 2), config, layers=["encoder.block", "decoder.block"])
    assert [layer.path for layer in plan.layers if layer.recompute_full] == ["encoder.block.1", "decoder.block.0"]
    with pytest.raises(LayersError):
        resolve(EncoderDecoder(2, 2), config)


def test_exactly_the_asked_layers_of_seven() -> None:
    every_third = resolve(Gpt(7), {"recompute": {"mode": "full", "full_recompute_layer": [0, 3, 6]}})
    assert recomputed(every_third) == [True, (), (), True, (), (), True]
    first_three = resolve(Gpt(7), {"swap": swap("0-2", default_prefetch=4)})
    assert swapped(first_three) == [True, True, True, (), (), (), ()]
    assert [layer.prefetch_at for layer in first_three.layers][:3] == [4, 5, 6]


def test_nothing_asked_needs_no_layers() -> None:
    for config in (None, {}, {"recompute": {"mode": None}, "swap": {"enable": False}}):
        plan = resolve(nn.Linear(1, 1), config)
        assert plan.is_empty
        assert plan.layers == ()
        assert resolve(Gpt(2), config).num_layers == 2
    with pytest.raises(LayersError):
        resolve(nn.Linear(1, 1), select({"a": 0}))
    with pytest.raises(LayersError):
        resolve(nn.Linear(1, 1), None, layers="layers")


def test_pure_and_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = Gpt(40)
    before = dict(model.named_modules())
    plan = resolve(model, select({".*mlp": "0-39"}))
    assert recomputed(plan) == [("mlp",)] * 40
    assert dict(model.named_modules()) == before
    assert resolve(Gpt(40), select({".*mlp": "0-39"})) == plan


def test_a_plan_is_plain_data() -> None:
    plan = resolve(Gpt(2), select({".*mpl": 0}))
    for clone in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert clone == plan
        assert hash(clone) == hash(plan)
        assert unmatched(clone) == unmatched(plan)


def test_large_models_take_no_time() -> None:
    with torch.device("meta"):
        model = Gpt(60, lambda: MoeBlock(128))
    start = time.perf_counter()
    plan = resolve(model, {**select({r"experts\..*": "0-29", ".*atention": "0-59"}), "swap": swap(ops={"attention": "30-58"})})
    assert time.perf_counter() - start < 30
    assert len(plan.layers[0].recompute) == 128
