"""``memopt graph``: formats, files, and refusals."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from memopt.cli import app
from memopt.cli.files import check_place, write_file
from memopt.cli.graph import Format, Which

MODELS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.fc2(nn.functional.gelu(self.fc1(x)))

class Tower(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

def tower():
    return Tower(), (torch.zeros(4, 8),)

def alone():
    return Tower()

def frozen():
    model = Tower()
    model.requires_grad_(False)
    return model, (torch.zeros(4, 8),)

def inputs():
    return (torch.zeros(4, 8),)

def raises():
    return Tower(), (torch.zeros(4, 9),)
"""

CONFIG = "recompute:\n  mode: full\n  full_recompute_layer: [1]\n"
MODEL = ("good.yaml", "--model", "graph_models:tower", "--backend", "aot_eager")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "graph_models.py").write_text(MODELS)
    (tmp_path / "good.yaml").write_text(CONFIG)
    (tmp_path / "bad.yaml").write_text("recompute: {mode: ful}\n")
    (tmp_path / "unused.yaml").write_text("recompute: {mode: None, full_recompute_layer: [1]}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("graph_models", None)
    return tmp_path


def run(*args: str) -> Result:
    result = CliRunner().invoke(app, ["graph", *args])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return result


def test_text_goes_to_standard_output() -> None:
    result = run(*MODEL, "--layer", "1")
    assert result.exit_code == 0
    assert result.stderr == ""
    first, *lines = result.stdout.splitlines()
    assert first.startswith("# joint graph: layer 1, ")
    (gelu,) = (line for line in lines if " = aten.gelu(" in line)
    assert gelu.split("  ")[0] == "gelu_1 = aten.gelu(addmm_2)"
    assert gelu.endswith("recompute: recompute.full_recompute_layer — its layer is recomputed")
    assert all("layer 1" in line for line in lines)


@pytest.mark.parametrize(("given", "title"), [(("0-1",), "layers 0-1"), (("0", "2"), "layers 0, 2"), ((), "layers 0-2")])
def test_layers_are_chosen(given: tuple[str, ...], title: str) -> None:
    result = run(*MODEL, "--which", "forward", *(part for text in given for part in ("--layer", text)))
    assert result.exit_code == 0
    assert result.stdout.startswith(f"# forward graph: {title}, ")


def test_outside() -> None:
    assert "  head" in run(*MODEL, "--outside").stdout
    assert "  head" not in run(*MODEL).stdout


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("g.svg", "<?xml"),
        ("g.SVG", "<?xml"),
        ("g.dot", "digraph memopt {"),
        ("g.gv", "digraph memopt {"),
        ("g.txt", "# backward graph"),
    ],
)
def test_the_suffix_tells_the_format(folder: Path, name: str, start: str) -> None:
    result = run(*MODEL, "--which", "backward", "--layer", "1", "-o", name)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert (folder / name).read_text().startswith(start)
    assert sorted(p.name for p in folder.iterdir() if p.name.startswith((".", "g."))) == [name]


def test_a_format_may_be_named(folder: Path) -> None:
    assert run(*MODEL, "--layer", "1", "--format", "svg", "-o", "picture").exit_code == 0
    ElementTree.parse(folder / "picture")
    result = run(*MODEL, "--layer", "1", "--format", "dot")
    assert result.stdout.startswith("digraph memopt {")
    assert result.stdout.endswith("}\n")


@pytest.mark.parametrize("which", Which)
@pytest.mark.parametrize("form", Format)
def test_every_graph_in_every_format(which: Which, form: Format) -> None:
    result = run(*MODEL, "--which", which.value, "--format", form.value, "--outside")
    assert (result.exit_code, result.stderr) == (0, "")
    title = f"{which.value} graph: layers 0-2 and what lies outside the layers, "
    assert title in result.stdout


def test_inputs_may_be_given_apart() -> None:
    result = run("good.yaml", "--model", "graph_models:alone", "--input", "graph_models:inputs", "--backend", "aot_eager")
    assert result.exit_code == 0


def test_warnings_are_told() -> None:
    command = ("unused.yaml", *MODEL[1:])
    result = run(*command)
    assert result.exit_code == 0
    assert "warning: recompute.full_recompute_layer: has no effect with mode: None" in result.stderr
    assert run(*command, "--strict").exit_code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--layer", "3"), "error: layer: found 3; the joint graph has layers 0-2."),
        (("--layer", "x"), "error: --layer: found 'x'; allowed: a layer number such as 5, or a range such as 0-3."),
        (
            ("--layer", "2-1"),
            "error: --layer: found '2-1'; allowed: a range whose start is not above its end. Did you mean '1-2'?",
        ),
        (("-o", "g.png"), "error: --output: found 'g.png', whose suffix tells no format; allowed: .txt, .dot, .gv or .svg, or"),
        (("-o", "."), "error: --output: found '.', whose suffix tells no format"),
        (("-o", "nowhere/g.svg"), "error: nowhere/g.svg: there is no directory "),
        (("--format", "svg", "-o", "."), "error: .: is a directory; a file is to be written."),
        (("--model", "graph_models:frozen"), "error: the model has no graph with a backward"),
        (("--model", "graph_models:raises"), "error: tracing the model failed: "),
        (("--model", "graph_models:alone"), "The model was called without inputs: --input gives them."),
        (("--backend", "nope"), "error: backend: found 'nope'; allowed: "),
        (("--layers", "blocks"), "blocks"),
        (("--device", "nope"), "error: --device: found 'nope'"),
    ],
)
def test_refusals(folder: Path, options: tuple[str, ...], message: str) -> None:
    before = sorted(p.name for p in folder.iterdir())
    result = run(*MODEL, *options)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert message in result.stderr.replace("\n", " ")
    assert sorted(p.name for p in folder.iterdir() if p.name != "__pycache__") == [n for n in before if n != "__pycache__"]


@pytest.mark.parametrize("options", [("--format", "png"), ("--which", "both")])
def test_what_help_does_not_know(options: tuple[str, ...]) -> None:
    assert run(*MODEL, *options).exit_code == 2


def test_a_wrong_configuration_is_told() -> None:
    result = run("bad.yaml", *MODEL[1:])
    assert result.exit_code == 1
    assert "Did you mean 'full'?" in result.stderr


def test_too_many_nodes_for_a_picture(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import memopt.compiler.draw.svg as svg

    monkeypatch.setattr(svg, "MOST_NODES", 10)
    result = run(*MODEL, "-o", "g.svg")
    assert result.exit_code == 1
    assert "allowed: up to 10. Choose layers (--layer 0-1), or write text or DOT." in result.stderr.replace("\n", " ")
    assert not (folder / "g.svg").exists()


def test_no_colours_where_nobody_looks(folder: Path) -> None:
    command = [sys.executable, "-c", "import memopt.cli.graph; from memopt.cli import main; main()", "graph", *MODEL]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout


# ---------------------------------------------------------------- files


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def test_an_existing_file_is_replaced_and_keeps_its_permissions(place: Path) -> None:
    path = place / "out.txt"
    path.write_text("a longer text than before")
    path.chmod(0o640)
    write_file(path, "new — ünïcode\n")
    assert path.read_bytes() == "new — ünïcode\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_has_the_usual_permissions(place: Path) -> None:
    (place / "usual").write_text("")
    write_file(place / "made", "x")
    assert (place / "made").stat().st_mode == (place / "usual").stat().st_mode


def test_a_link_goes_on_leading_to_its_file(place: Path) -> None:
    (place / "real").write_text("old")
    (place / "link").symlink_to("real")
    write_file(place / "link", "new")
    assert (place / "link").is_symlink()
    assert (place / "real").read_text() == "new"


def test_a_device_is_written_to() -> None:
    write_file(Path(os.devnull), "text")
    assert not Path(os.devnull).is_file()


def test_what_fails_leaves_the_old_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place / "out.txt"
    path.write_text("old")

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_file(path, "new")
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert [p.name for p in place.iterdir()] == ["out.txt"]


@pytest.mark.parametrize(("name", "error"), [("nowhere/x", FileNotFoundError), ("", IsADirectoryError)])
def test_places_where_no_file_can_be(place: Path, name: str, error: type[OSError]) -> None:
    with pytest.raises(error) as caught:
        check_place(place / name)
    assert caught.value.filename == str(place / name)
    with pytest.raises(error):
        write_file(place / name, "x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(place: Path) -> None:
    place.chmod(0o500)
    with pytest.raises(PermissionError) as caught:
        write_file(place / "x", "x")
    assert caught.value.filename == str(place / "x")
