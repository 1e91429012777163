"""The command line: exit codes, messages, and what goes where."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from memopt.compiler.config.load import MemoptConfig
from typer.testing import CliRunner, Result

from memopt import __version__, load_config
from memopt.cli import app

MODELS = """
import torch
from torch import nn
from memopt.demo.gpt import GPT, GPTConfig

NOT_A_FUNCTION = 3

def gpt(layers=2):
    return GPT(GPTConfig(layers=layers, width=16, heads=2, context=8))

ready = gpt()

def inputs():
    return torch.zeros(2, 8, dtype=torch.long), torch.zeros(2, 8, dtype=torch.long)

def by_name():
    symbols, targets = inputs()
    return {"symbols": symbols, "targets": targets}

def both():
    symbols, targets = inputs()
    return (symbols,), {"targets": targets}

def with_args():
    return gpt(), inputs()

def with_kwargs():
    symbols, targets = inputs()
    return gpt(), (symbols,), {"targets": targets}

def no_module():
    return "a text"

def fails():
    raise RuntimeError("the weights are lost")

def ends():
    raise SystemExit(3)

def needs_values():
    return nn.Linear(int(torch.ones(1).item()), 2)

def wrong_inputs():
    return (torch.zeros(3),)

class Ends(nn.Sequential):
    def forward(self, h):
        raise SystemExit(0)

def ends_when_called():
    return Ends(nn.Linear(3, 3), nn.Linear(3, 3)), (torch.zeros(2, 3),)

def wrong_width():
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), (torch.zeros(2, 4),)

class Asks(nn.Sequential):
    def forward(self, h):
        return super().forward(h * int(h.sum().item()))

def asks():
    return Asks(nn.Linear(3, 3), nn.Linear(3, 3)), (torch.zeros(2, 3),)

def a_number():
    return 5

def frozen():
    model = gpt()
    model.requires_grad_(False)
    return model, inputs()

class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

    def forward(self, x):
        raise RuntimeError("out of tune")

def raises():
    return Raises(), (torch.zeros(1, 2),)
"""

GOOD = "recompute:\n  mode: select\n  select_module: {'.*mlp': [0-1]}\n"
TYPO = "recompute:\n  mode: select\n  select_module: {'.*mpl': [0-1]}\n"
UNUSED = "recompute:\n  mode: None\n  full_recompute_layer: [0-1]\n"
BAD = "recompute:\n  mode: ful\n  full_recompute_layer: [0-3, x]\n  selct_module: {'.*mlp': [1]}\n"
FAR = "recompute:\n  mode: full\n  full_recompute_layer: [0-7]\n"
SWAP = "swap:\n  enable: True\n  layer_swap: [{layers: [0]}]\n"
UNMATCHED_KEPT = GOOD + "  exclude_op: [Nope]\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with a module of models and one file for each configuration."""
    (tmp_path / "cli_models.py").write_text(MODELS)
    (tmp_path / "cli_broken.py").write_text("import memopt\ndef gpt(:\n")
    (tmp_path / "cli_ends.py").write_text("import sys\nsys.exit()\n")
    (tmp_path / "cli_imports.py").write_text("import no_such_package_at_all\n")
    for name in ("good", "typo", "unused", "bad", "far", "swap", "unmatched_kept"):
        (tmp_path / f"{name}.yaml").write_text(globals()[name.upper()])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("cli_models", None)
    return tmp_path


def run(*args: str) -> Result:
    result = CliRunner().invoke(app, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return result


# ---------------------------------------------------------------- check


def test_check_prints_the_normal_form() -> None:
    result = run("check", "good.yaml")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert load_config(result.stdout) == load_config("good.yaml")


def test_check_with_a_model_prints_the_plan() -> None:
    result = run("check", "good.yaml", "--model", "cli_models:gpt")
    assert result.exit_code == 0
    assert result.stderr == ""
    row = next(line for line in result.stdout.splitlines() if "layers.0-1" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "0-1",
        "layers.0-1",
        "mlp",
        "-",
        "-",
        "-",
        "recompute.select_module['.*mlp']",
    ]


def test_check_takes_a_module_instead_of_a_factory() -> None:
    assert run("check", "good.yaml", "--model", "cli_models:ready").exit_code == 0


def test_check_prints_every_problem() -> None:
    result = run("check", "bad.yaml")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "error: 3 problems in bad.yaml",
        "  recompute.selct_module (line 4)",
        "    found:   the unknown key 'selct_module'",
        "    allowed: mode, full_recompute_layer, select_module or exclude_op",
        "    Did you mean 'select_module'?",
        "  recompute.mode (line 2)",
        "    found:   'ful'",
        "    allowed: None, 'full' or 'select'",
        "    Did you mean 'full'?",
        "  recompute.full_recompute_layer[1] (line 3)",
        "    found:   'x'",
        "    allowed: a layer number such as 5, or a range such as 0-3",
    ]


def test_check_of_a_file_that_is_not_there() -> None:
    result = run("check", "nothing.yaml")
    assert result.exit_code == 1
    assert "no file at 'nothing.yaml'" in result.stderr


def test_check_takes_its_argument_for_a_path_always() -> None:
    assert run("check", "recompute: {mode: full}").exit_code == 1


def test_check_finds_what_is_wrong_for_the_model() -> None:
    result = run("check", "far.yaml", "--model", "cli_models:gpt")
    assert result.exit_code == 1
    assert "recompute.full_recompute_layer[0] (line 3)" in result.stderr
    assert "layer numbers within [0, 1]: the model has 2 layers" in result.stderr


@pytest.mark.parametrize(("strict", "code"), [((), 0), (("--strict",), 2)])
def test_check_warns_of_a_pattern_that_matches_nothing(strict: tuple[str, ...], code: int) -> None:
    result = run("check", "typo.yaml", "--model", "cli_models:gpt", *strict)
    assert result.exit_code == code
    assert "warning: recompute.select_module['.*mpl'] matches no module in layers 0-1" in result.stderr
    assert "Nearest paths: mlp" in result.stderr
    assert "memopt plan" in result.stdout


@pytest.mark.parametrize("model", [(), ("--model", "cli_models:gpt")])
@pytest.mark.parametrize(("strict", "code"), [((), 0), (("--strict",), 2)])
def test_check_warns_of_what_has_no_effect(model: tuple[str, ...], strict: tuple[str, ...], code: int) -> None:
    result = run("check", "unused.yaml", *model, *strict)
    assert result.exit_code == code
    assert "warning: recompute.full_recompute_layer: has no effect with mode: None" in result.stderr


def test_strict_without_warnings_is_fine() -> None:
    assert run("check", "good.yaml", "--model", "cli_models:gpt", "--strict").exit_code == 0


def test_check_refuses_swap_with_pipeline_stages() -> None:
    assert run("check", "swap.yaml", "--model", "cli_models:gpt").exit_code == 0
    result = run("check", "swap.yaml", "--model", "cli_models:gpt", "--pipeline-parallel-size", "2")
    assert result.exit_code == 1
    assert "swap.enable" in result.stderr


def test_check_layers_option() -> None:
    assert run("check", "good.yaml", "--model", "cli_models:gpt", "--layers", "layers").exit_code == 0
    result = run("check", "good.yaml", "--model", "cli_models:gpt", "--layers", "blocks")
    assert result.exit_code == 1
    assert "blocks" in result.stderr


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("cli_models", "--model: found 'cli_models'; allowed: pkg.module:name"),
        ("cli_models:", "--model: found 'cli_models:'; allowed: pkg.module:name"),
        ("../models:gpt", "allowed: pkg.module:name"),
        ("no_such_module_here:gpt", "there is no module 'no_such_module_here'"),
        ("cli_models.inner:gpt", "there is no module 'cli_models.inner'"),
        ("cli_models:gtp", "cli_models has no 'gtp'. Did you mean 'gpt'?"),
        ("cli_models:NOT_A_FUNCTION", "cli_models.NOT_A_FUNCTION is an int; allowed: a function"),
        ("cli_models:no_module", "the factory returned a str; allowed: a torch.nn.Module, (model, args) or"),
        ("cli_models:inputs", "the factory returned a tuple of Tensor, Tensor; allowed: a torch.nn.Module"),
        ("cli_models:fails", "calling it failed: RuntimeError: the weights are lost ("),
        ("cli_models:ends", "calling it failed: SystemExit: 3 ("),
        ("cli_ends:gpt", "importing cli_ends failed: SystemExit ("),
        ("cli_broken:gpt", "importing cli_broken failed: SyntaxError"),
        ("cli_imports:gpt", "importing cli_imports failed: ModuleNotFoundError: No module named 'no_such_package_at_all'"),
    ],
)
def test_bad_factories(model: str, message: str) -> None:
    result = run("check", "good.yaml", "--model", model)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert message in result.stderr


def test_a_model_that_needs_values_is_built_for_real() -> None:
    result = run("check", "unused.yaml", "--model", "cli_models:needs_values")
    assert result.exit_code == 1
    assert "--real builds real ones" in result.stderr
    assert run("check", "unused.yaml", "--model", "cli_models:needs_values", "--real").exit_code == 0


# ---------------------------------------------------------------- explain


def explain(*args: str) -> Result:
    return run("explain", args[0], "--backend", "aot_eager", *args[1:])


@pytest.mark.parametrize(
    "how",
    [
        ("--model", "cli_models:with_args"),
        ("--model", "cli_models:with_kwargs"),
        ("--model", "cli_models:gpt", "--input", "cli_models:inputs"),
        ("--model", "cli_models:gpt", "--input", "cli_models:by_name"),
        ("--model", "cli_models:gpt", "--input", "cli_models:both"),
        ("--model", "cli_models:gpt", "--input", "cli_models:inputs", "--real"),
    ],
)
def test_explain_json(how: tuple[str, ...]) -> None:
    result = explain("good.yaml", "--json", *how)
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    recomputed = [row for row in rows if row["rule"] == "recompute.select_module['.*mlp']" and row["action"] == "recompute"]
    assert {row["layer"] for row in recomputed} == {0, 1}
    assert all(row["path"].split(".")[0] == "mlp" for row in recomputed)
    assert set(rows[0]) >= {"name", "layer", "path", "op", "shape", "dtype", "bytes", "action", "rule", "reason"}


def test_explain_prints_tables() -> None:
    result = explain("good.yaml", "--model", "cli_models:with_args")
    assert result.exit_code == 0
    assert "Activations saved for backward" in result.stdout
    assert "0-1 (each)" in result.stdout
    assert result.stderr.strip() == ""


@pytest.mark.parametrize(("strict", "code"), [((), 0), (("--strict",), 2)])
def test_explain_warns(strict: tuple[str, ...], code: int) -> None:
    result = explain("unmatched_kept.yaml", "--model", "cli_models:with_args", *strict)
    assert result.exit_code == code
    assert "recompute.exclude_op['Nope']" in result.stdout
    as_json = explain("unmatched_kept.yaml", "--model", "cli_models:with_args", "--json", *strict)
    assert as_json.exit_code == code
    assert json.loads(as_json.stdout)
    assert "warning: recompute.exclude_op['Nope']" in as_json.stderr


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (("--model", "cli_models:gpt"), "The model was called without inputs: --input gives them."),
        (("--model", "cli_models:gpt", "--input", "cli_models:a_number"), "the function returned an int; allowed: a tensor"),
        (("--model", "cli_models:gpt", "--input", "cli_models:none"), "cli_models has no 'none'"),
        (("--model", "cli_models:gpt", "--input", "cli_models:wrong_inputs"), "tracing the model failed: TypeError"),
        (("--model", "cli_models:gpt", "--input", "cli_models:fails"), "calling it failed: RuntimeError: the weights are lost"),
        (("--model", "cli_models:raises"), "tracing the model failed:"),
        (("--model", "cli_models:ends_when_called"), "tracing the model failed: SystemExit: 0 ("),
        (
            ("--model", "cli_models:asks"),
            "where aten._local_scalar_dense.default (`.item()`, or a tensor as a condition) asks for",
        ),
        (("--model", "cli_models:frozen"), "no graph with a backward"),
        (("--model", "cli_models:with_args", "--device", "nowhere"), "--device: found 'nowhere'"),
    ],
)
def test_explain_errors(how: tuple[str, ...], message: str) -> None:
    result = explain("good.yaml", *how)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stdout == ""


def test_explain_of_a_backend_that_is_not_there() -> None:
    result = run("explain", "good.yaml", "--model", "cli_models:with_args", "--backend", "indctor")
    assert result.exit_code == 1
    assert "Did you mean 'inductor'?" in result.stderr


def test_explain_of_a_bad_file() -> None:
    result = explain("bad.yaml", "--model", "cli_models:with_args")
    assert result.exit_code == 1
    assert "3 problems in bad.yaml" in result.stderr


# ---------------------------------------------------------------- the rest


def test_schema_is_the_configurations() -> None:
    result = run("schema")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == MemoptConfig.json_schema()


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"memopt {__version__}\n")


def test_demo_refuses_a_bad_configuration_before_training() -> None:
    result = run("demo", "--config", "bad.yaml")
    assert result.exit_code == 1
    assert "3 problems in bad.yaml" in result.stderr
    assert "loss" not in result.output


def test_demo_refuses_layers_it_has_not() -> None:
    result = run("demo", "--config", "far.yaml", "--backend", "aot_eager")
    assert result.exit_code == 1
    assert "the model has 6 layers" in result.stderr


def test_python_m_finds_models_in_the_current_directory(folder: Path) -> None:
    command = [sys.executable, "-m", "memopt", "check", "good.yaml", "--model", "cli_models:gpt"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "layers.0-1" in done.stdout


def test_inputs_of_a_wrong_shape_are_explained() -> None:
    result = run("explain", "unused.yaml", "--backend", "aot_eager", "--model", "cli_models:wrong_width")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: tracing the model failed: RuntimeError: a and b must have same reduction dim, but got [2, 4] X [3, 3].\n"
    )
