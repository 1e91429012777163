"""What tests of verbs share: a folder with models and configurations, and how a verb is run in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from memopt.cli import app

MODELS = '''
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, hidden), nn.Linear(hidden, 8)

    def forward(self, x):
        return x + self.fc2(torch.tanh(self.fc1(x)))

class Tower(nn.Module):
    """Saves the input of every block but the first, which is the model's, and what tanh makes."""

    def __init__(self, layers=3, hidden=16):
        super().__init__()
        self.layers = nn.ModuleList(Block(hidden) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

class Other(Tower):
    pass

class Raises(Tower):
    def forward(self, x):
        raise ValueError("out of tune")

class Stops(Tower):
    """Asks for a value behind its layers, which a trace does not have."""

    def forward(self, x):
        x = super().forward(x)
        return x * 2 if x.sum().item() > 0 else x

def stops():
    return Stops(), inputs()

def inputs():
    return (torch.zeros(4, 8),)

def other_inputs():
    return (torch.zeros(5, 8),)

def wrong_inputs():
    return (torch.zeros(4, 8), torch.zeros(4, 8))

def tower():
    return Tower(), inputs()

def wide():
    return Tower(hidden=32), inputs()

def narrow():
    return Tower(hidden=8), inputs()

def deep():
    return Tower(4), inputs()

def other():
    return Other(), inputs()

def alone():
    return Tower()

def raises():
    return Raises(), inputs()

def frozen():
    return Tower().requires_grad_(False), inputs()

def fails():
    raise RuntimeError("the weights are lost")

def needs(size):
    return Tower()

def no_module():
    return "a text"
'''

CONFIGS = {
    "none": "{}\n",
    "full": "recompute:\n  mode: full\n  full_recompute_layer: [1]\n",
    "swap": "swap:\n  enable: True\n  min_bytes: 1\n  layer_swap:\n  - layers: [0, 1]\n",
    "unused": "recompute: {mode: None, full_recompute_layer: [1]}\n",
    "bad": "recompute: {mode: ful}\n",
}
EAGER = ("--backend", "aot_eager")
TOWER = ("--model", "verb_models:tower", *EAGER)
X, TANH = 4 * 8 * 4, 4 * 16 * 4
"""Bytes of a block's input, and of what its tanh makes."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory of the test."""
    (tmp_path / "verb_models.py").write_text(MODELS)
    for name, text in CONFIGS.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("verb_models", None)
    return tmp_path


def run(*args: str) -> Result:
    """Run ``memopt`` in this process; whatever happens, no traceback comes out of it."""
    result = CliRunner().invoke(app, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert "this is a fault of memopt" not in result.output
    return result


def said(result: Result) -> str:
    """What went to standard error, in one line, without the folder."""
    return " ".join(result.stderr.split()).replace(f"{os.getcwd()}/", "")


def new_files(folder: Path) -> list[str]:
    """What a verb left in the folder."""
    known = {"verb_models.py", "__pycache__", *(f"{name}.yaml" for name in CONFIGS)}
    return sorted(path.name for path in folder.iterdir() if path.name not in known)


def cells(text: str) -> list[list[str]]:
    """The rows of tables, as their cells."""
    lines = [line for line in text.splitlines() if line.startswith(("│", "┃"))]
    return [[cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")] for line in lines]
