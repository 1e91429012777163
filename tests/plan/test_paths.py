from __future__ import annotations

import pytest
import torch
from memopt.compiler.plan.paths import children, normalise_path, relative_module_paths, unwrap, walk
from plan_models import BLOCK_PATHS, Block, Gpt, MoeBlock
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper


class UsesModule(nn.Module):
    """A user's own attribute is called as data parallelism calls the wrapped module."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.ModuleDict({"mlp": nn.Linear(1, 1)})


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("", ""),
        ("layers.0.mlp", "layers.0.mlp"),
        ("_orig_mod.layers.0", "layers.0"),
        ("layers.0._orig_mod.mlp._checkpoint_wrapped_module.fc1", "layers.0.mlp.fc1"),
        ("_fsdp_wrapped_module.layers.1._fsdp_wrapped_module", "layers.1"),
        ("_orig_mod", ""),
        ("module.layers.0", "module.layers.0"),
    ],
)
def test_normalise_without_a_model(path: str, normal: str) -> None:
    assert normalise_path(path) == normal


def test_module_of_data_parallelism_is_told_from_a_users() -> None:
    parallel = nn.DataParallel(UsesModule())
    assert normalise_path("module.module.mlp", parallel) == "module.mlp"
    assert normalise_path("module.mlp", UsesModule()) == "module.mlp"
    assert [path for path, _ in walk(parallel)] == ["", "module", "module.mlp"]


def test_paths_within_a_layer() -> None:
    assert relative_module_paths(Block()) == BLOCK_PATHS


def test_paths_within_a_wrapped_layer_of_wrapped_modules() -> None:
    block = Block()
    block.mlp = checkpoint_wrapper(block.mlp)  # type: ignore[assignment]
    block.attention.core = torch.compile(block.attention.core)  # type: ignore[assignment]
    wrapped = torch.compile(checkpoint_wrapper(block))
    assert isinstance(wrapped, nn.Module)
    assert relative_module_paths(wrapped) == BLOCK_PATHS
    assert unwrap(wrapped) is block


def test_paths_of_experts() -> None:
    names = ("fc1", "act", "fc2")
    experts = [path for index in range(2) for path in (f"experts.{index}", *(f"experts.{index}.{name}" for name in names))]
    assert relative_module_paths(MoeBlock(2)) == (*BLOCK_PATHS[:3], "experts", *experts)


def test_a_shared_module_has_each_of_its_paths() -> None:
    block = Block()
    block.attention.out = block.attention.core
    assert relative_module_paths(block) == BLOCK_PATHS


def test_a_module_that_holds_itself_is_walked_once() -> None:
    loop = nn.Module()
    loop.self = loop
    assert [path for path, _ in walk(loop)] == [""]


def test_absent_children_are_left_out() -> None:
    block = Block()
    block.register_module("bias", None)
    assert [name for name, _ in children(block)] == ["attention", "mlp"]


def test_paths_agree_with_named_modules() -> None:
    model = Gpt(3)
    assert [path for path, _ in walk(model)] == [path for path, _ in model.named_modules()]
