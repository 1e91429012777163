"""Pipeline stages: one configuration for all, layer numbers of the whole model, several microbatches in flight."""

from __future__ import annotations

import warnings

import pytest
import torch
from launching import run_example
from torch import nn

import memopt
from memopt import ConfigError, MemoptWarning

BORDER = 2 * 32 * 64 * 4  # a microbatch of 2, the context, the width, bytes of an element: what lies between two layers


@pytest.mark.parametrize(
    ("backend", "schedule"),
    [("aot_eager", "1f1b"), ("aot_eager", "gpipe"), pytest.param("inductor", "1f1b", marks=pytest.mark.inductor)],
)
def test_stages_share_a_configuration(backend: str, schedule: str) -> None:
    first, second = sorted(run_example("pipeline", 2, "--backend", backend, "--schedule", schedule), key=lambda x: x.rank)
    assert first.recomputed.endswith(" of layers 0, 1 in 1 graph")
    assert second.recomputed.endswith(" of layers 2, 3 in 1 graph")
    assert max(first.difference, second.difference) < 1e-5
    # What the two layers of the first stage keep: where each begins, and the random states attention would replay.
    assert 2 * BORDER <= first.after < 2 * BORDER + 16_384 < first.before / 10
    assert second.after < second.before


class _Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


FULL = {"recompute": {"mode": "full", "full_recompute_layer": ["0-2"]}}


def test_a_plan_has_the_numbers_of_the_whole_model() -> None:
    plan = memopt.resolve(_Stage(), FULL, layer_offset=2, num_layers=6)
    assert [(layer.index, layer.path, layer.recompute_full) for layer in plan.layers] == [
        (2, "layers.0", True),
        (3, "layers.1", False),
    ]
    assert plan.num_layers == 6
    assert plan.layer(3) is plan.layers[1]


def test_layers_of_other_stages_are_no_errors_and_cause_no_warnings() -> None:
    both = {"recompute": {"mode": "select", "select_module": {"0": ["0-1"], "absent": [4]}, "exclude_op": ["linear"]}}
    for offset in (2, 6):
        with warnings.catch_warnings():
            warnings.simplefilter("error", MemoptWarning)
            model = memopt.compile_with_memopt(_Stage(), both, backend="aot_eager", layer_offset=offset, num_layers=8)
            model(torch.randn(3, 8, requires_grad=True)).sum().backward()
        assert {total.layer for total in memopt.explain(model).totals} == {offset, offset + 1}


def test_a_warning_names_the_layer_of_the_whole_model() -> None:
    select = {"recompute": {"mode": "select", "select_module": {"absent": ["0-5"]}}}
    model = memopt.compile_with_memopt(_Stage(), select, backend="aot_eager", layer_offset=2, num_layers=6)
    with pytest.warns(MemoptWarning, match=r"\['absent'\] did not match any module or operator.*"):
        model(torch.randn(3, 8))
    (warning,) = memopt.resolve(_Stage(), select, layer_offset=2, num_layers=6).no_module
    assert warning.layers == (2, 3)


def test_trace_and_explain_have_the_numbers_of_the_whole_model() -> None:
    found = memopt.trace(_Stage(), FULL, (torch.randn(3, 8),), backend="aot_eager", layer_offset=2, num_layers=6)
    decided = {row.layer for row in found.values if row.rule == "recompute.full_recompute_layer"}
    assert decided == {2}
    assert {total.layer for total in found.totals} == {2, 3}


def test_gradients_of_a_stage_are_those_of_eager() -> None:
    torch.manual_seed(0)
    eager, x = _Stage(), torch.randn(3, 8)
    model = _Stage()
    model.load_state_dict(eager.state_dict())
    memopt.compile_with_memopt(model, FULL, backend="aot_eager", layer_offset=1, num_layers=4)
    model(x).square().sum().backward()
    eager(x).square().sum().backward()
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0)


def test_layers_that_no_stage_has_are_errors() -> None:
    too_high = {"recompute": {"mode": "full", "full_recompute_layer": [6]}}
    with pytest.raises(ConfigError, match=r"found 6; allowed: layer numbers within \[0, 5\]: the model has 6 layers"):
        memopt.resolve(_Stage(), too_high, layer_offset=2, num_layers=6)
    with pytest.raises(ConfigError, match=r"within \[0, 3\]"):
        memopt.resolve(_Stage(), too_high, layer_offset=2)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"layer_offset": -1}, ValueError, r"layer_offset: found -1; allowed: an integer of at least 0"),
        ({"layer_offset": True}, TypeError, r"layer_offset: found True; allowed: an integer of at least 0"),
        ({"num_layers": 0}, ValueError, r"num_layers: found 0; allowed: an integer of at least 1"),
        ({"layer_offset": 2, "num_layers": 3}, ConfigError, r"num_layers: found 3, and this model's layers are 2 to 3; .* 4"),
    ],
)
def test_wrong_numbers_are_refused(arguments: dict[str, int], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        memopt.resolve(_Stage(), FULL, **arguments)


def test_a_stage_does_not_swap() -> None:
    swap = {"swap": {"enable": True, "layer_swap": [{"layers": [0]}]}}
    with pytest.raises(ConfigError, match=r"swap.enable: .*a model that has 2 layers of 6: a stage of a pipeline"):
        memopt.resolve(_Stage(), swap, layer_offset=2, num_layers=6)
