"""``memopt verify``: verdicts, exit codes, and refusals."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from memopt.cli import app
from memopt.cli.verify import Scope

MODELS = """
import torch
from torch import nn

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (2.0 if torch.compiler.is_compiling() else 1.0)

class Block(nn.Module):
    def __init__(self, wrong=False):
        super().__init__()
        self.fc1, self.fc2, self.dropout, self.wrong = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.5), wrong

    def forward(self, x):
        hidden = torch.tanh(self.fc1(x))
        return x + self.dropout(self.fc2(Double.apply(hidden) if self.wrong else hidden))

class Tower(nn.Module):
    def __init__(self, wrong=False):
        super().__init__()
        self.layers = nn.ModuleList(Block(wrong) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

def inputs():
    return (torch.randn(4, 8),)

def tower():
    return Tower(), inputs()

def calm():
    model = Tower()
    for layer in model.layers:
        layer.dropout.p = 0.0
    return model, inputs()

def wrong():
    return Tower(wrong=True), inputs()

def alone():
    return Tower()

def meta():
    with torch.device("meta"):
        return Tower(), inputs()

class Flaky(Tower):
    calls = 0

    def forward(self, x):
        Flaky.calls += 1
        return super().forward(x) * Flaky.calls

def flaky():
    return Flaky(), inputs()

class Raises(Tower):
    def forward(self, x):
        raise RuntimeError("out of tune")

def raises():
    return Raises(), inputs()

def frozen():
    return Tower().requires_grad_(False), inputs()

def values():
    return Tower(), (torch.full((4, 8), torch.ones(1).item()),)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "verify_models.py").write_text(MODELS)
    (tmp_path / "good.yaml").write_text("recompute:\n  mode: full\n  full_recompute_layer: [0-1]\n")
    (tmp_path / "bad.yaml").write_text("recompute: {mode: ful}\n")
    (tmp_path / "typo.yaml").write_text("recompute: {mode: select, select_module: {nope: [0]}}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("verify_models", None)
    return tmp_path


def run(model: str, *options: str, config: str = "good.yaml") -> Result:
    command = ["verify", config, "--model", f"verify_models:{model}", "--backend", "aot_eager", *options]
    result = CliRunner().invoke(app, command)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return result


@pytest.mark.parametrize("scope", Scope)
def test_the_same(scope: Scope) -> None:
    result = run("tower", "--scope", scope.value, "--steps", "2")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1] == "the same bit for bit"
    rows = (line.strip("│").split("│") for line in result.stdout.splitlines() if line.startswith("│"))
    cells = [[cell.strip() for cell in row] for row in rows]
    assert cells == [
        ["output", "1", "1", "0", ""],
        ["gradient", "8", "8", "0", ""],
        ["random state", "1", "1", "0", ""],
    ]


def test_within_a_tolerance() -> None:
    result = run("calm", "--backend", "aot_eager_decomp_partition", "--tolerance", "1e-3")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith("the same ")


def test_different() -> None:
    result = run("wrong")
    assert result.exit_code == 1
    verdict = result.stdout.splitlines()[-1]
    assert verdict.startswith("DIFFERENT: the gradient of layers.")
    assert "relative difference " in verdict
    assert "DIFFERENT" in result.stdout.split("What differs", 1)[1]


def test_not_deterministic() -> None:
    result = run("flaky")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1].startswith("NOT DETERMINISTIC: the output in step 0: ")


def test_inputs_may_be_given_apart_and_have_values() -> None:
    assert run("alone", "--inputs", "verify_models:inputs").exit_code == 0
    assert run("values").exit_code == 0


def test_the_seed_decides_about_weights_and_inputs() -> None:
    one, same, other = (run("wrong", "--seed", seed).stdout for seed in ("1", "1", "2"))
    assert one == same != other


@pytest.mark.parametrize(("strict", "code"), [((), 0), (("--strict",), 2)])
def test_warnings_are_told(strict: tuple[str, ...], code: int) -> None:
    result = run("tower", *strict, config="typo.yaml")
    assert result.exit_code == code
    assert "warning: recompute.select_module['nope']" in result.stdout


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("raises", (), "error: running the model failed: RuntimeError: out of tune ("),
        ("frozen", (), "error: the model's output needs no gradient"),
        ("meta", (), "error: model: found the parameter layers.0.fc1.weight on the meta device, which has no values; allowed:"),
        ("alone", (), "The model was called without inputs: --input gives them."),
        ("tower", ("--backend", "nope"), "error: backend: found 'nope'; allowed: "),
        ("tower", ("--layers", "blocks"), "blocks"),
        ("nothing", (), "error: --model verify_models:nothing: verify_models has no 'nothing'."),
    ],
)
def test_refusals(model: str, options: tuple[str, ...], message: str) -> None:
    result = run(model, *options)
    assert (result.exit_code, result.stdout) == (1, "")
    assert message in result.stderr.replace("\n", " ")


def test_a_wrong_configuration_is_told() -> None:
    result = run("tower", config="bad.yaml")
    assert result.exit_code == 1
    assert "Did you mean 'full'?" in result.stderr


@pytest.mark.parametrize("option", ["--steps=0", "--seed=-1", "--tolerance=-1", "--tolerance=nan", "--scope=both"])
def test_what_help_does_not_know(option: str) -> None:
    assert run("tower", option).exit_code == 2
