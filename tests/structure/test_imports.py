"""What holds for the repository as a whole: imports run one way, torch's private modules are met in one place."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("runtime", "passes", "compiler", "memopt")
"""Each part may import those before it, and itself."""

FILES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))
PRIVATE = ("torch._functorch", "torch._inductor", "torch._dynamo", "torch._subclasses", "torch._guards", "functorch")
MAX_LINES = 400
MAX_LINES_OF_BRIDGE = 600
"""A torch upgrade is one file: what it holds is many small functions, read one at a time."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def absolute_imports(tree: ast.Module) -> list[str]:
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def parts_imported(path: Path, tree: ast.Module) -> set[str]:
    """The parts that a file's relative imports lead to. Installed, a part ``compiler`` is ``memopt.compiler``."""
    part, *inner = path.relative_to(ROOT).parts
    package = ["memopt", *([] if part == "memopt" else [part]), *inner[:-1]]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert node.level <= len(package), f"{name_of(path)}:{node.lineno} leads out of the package"
            base = package[: len(package) - node.level + 1] + (node.module.split(".") if node.module else [])
            for alias in node.names:
                target = [*base, alias.name]
                found.add(target[1] if target[1] in PARTS else "memopt")
    return found


def private(names: list[str]) -> list[str]:
    return [n for n in names if any(n == p or n.startswith(p + ".") for p in PRIVATE)]


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_run_one_way(path: Path) -> None:
    part = path.relative_to(ROOT).parts[0]
    allowed = set(PARTS[: PARTS.index(part) + 1])
    assert parts_imported(path, tree_of(path)) <= allowed


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_parts_import_each_other_relatively(path: Path) -> None:
    own = [n for n in absolute_imports(tree_of(path)) if n.split(".")[0] in PARTS]
    if name_of(path) == "memopt/__main__.py":  # runs as a script too
        own = [n for n in own if n.split(".")[0] != "memopt"]
    assert own == []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_torchs_private_modules_are_imported_in_one_place(path: Path) -> None:
    if name_of(path) != "compiler/torch_bridge.py":
        assert private(absolute_imports(tree_of(path))) == []


def test_the_one_place_exists() -> None:
    assert private(absolute_imports(tree_of(ROOT / "compiler" / "torch_bridge.py"))) != []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_are_short_enough_to_read(path: Path) -> None:
    most = MAX_LINES_OF_BRIDGE if name_of(path) == "compiler/torch_bridge.py" else MAX_LINES
    assert len(path.read_text(encoding="utf-8").splitlines()) <= most


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_file_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(tree_of(path))


@pytest.mark.parametrize(
    ("path", "text", "parts"),
    [
        ("passes/keep.py", "from ..compiler.cost import nbytes", {"compiler"}),
        ("passes/legalize/tails.py", "from ...runtime import ops", {"runtime"}),
        ("passes/legalize/tails.py", "from ..joint import decide", {"passes"}),
        ("compiler/plan.py", "from .. import passes", {"passes"}),
        ("memopt/demo/gpt.py", "from ..compiler.plan import resolve", {"compiler"}),
        ("compiler/plan.py", "from .. import __version__", {"memopt"}),
        ("memopt/__init__.py", "from .compiler import plan", {"compiler"}),
    ],
)
def test_the_direction_is_read_off_relative_imports(path: str, text: str, parts: set[str]) -> None:
    assert parts_imported(ROOT / path, ast.parse(text)) == parts


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch._dynamo", 1),
        ("from torch import _inductor", 1),
        ("from torch._functorch.config import x", 1),
        ("import functorch.compile as f", 1),
        ("def f():\n    from torch._guards import y", 1),
        ("import torch.fx\nfrom torch import nn", 0),
    ],
)
def test_private_imports_are_found_however_they_are_written(text: str, found: int) -> None:
    assert len(private(absolute_imports(ast.parse(text)))) == found


def tracked_texts() -> dict[str, str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    texts = {}
    for name in filter(None, listed.stdout.split("\0")):
        file = ROOT / name
        if file.is_file() and b"\0" not in (content := file.read_bytes()):
            texts[name] = content.decode("utf-8", errors="replace")
    return texts


def test_no_tracked_file_names_a_package_registry() -> None:
    # Put together here, so that this file does not hold them either.
    hosts = [f"{name}.org" for name in ("pypi", "pythonhosted", "download.pytorch", "conda.anaconda")]
    found = [(name, host) for name, text in tracked_texts().items() for host in hosts if host in text.lower()]
    assert found == []
