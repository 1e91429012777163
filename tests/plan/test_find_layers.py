from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from memopt.compiler.errors import LayersError
from memopt.compiler.plan.layers import find_layers
from plan_models import Block, EncoderDecoder, Gpt, Mlp, MoeBlock, Nested, OtherBlock, Stack
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

PASS = 'Pass layers="path", or layers=["path", "path"] to number several stacks through, in that order.'


def paths(model: nn.Module, layers: str | list[str] | None = None) -> list[str]:
    found = find_layers(model, layers)
    assert [layer.index for layer in found] == list(range(len(found)))
    return [layer.path for layer in found]


def refused(model: nn.Module, layers: object = None) -> str:
    with pytest.raises(LayersError) as caught:
        find_layers(model, layers)  # type: ignore[arg-type]
    return str(caught.value)


def test_gpt() -> None:
    model = Gpt(3)
    found = find_layers(model)
    assert [layer.path for layer in found] == ["layers.0", "layers.1", "layers.2"]
    assert all(layer.module is model.layers[layer.index] for layer in found)


def test_nested_paths_beside_a_larger_head_of_bare_linears() -> None:
    assert paths(Nested(2)) == ["transformer.h.0", "transformer.h.1"]


def test_list_of_one() -> None:
    assert paths(Gpt(1)) == ["layers.0"]


def test_sequential_is_a_stack() -> None:
    assert paths(nn.Sequential(*(Block() for _ in range(2)))) == ["0", "1"]
    assert paths(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))) == ["0", "1"]


def test_sequential_around_a_model_is_not_a_stack_of_one() -> None:
    assert paths(nn.Sequential(Gpt(2))) == ["0.layers.0", "0.layers.1"]
    assert paths(nn.Sequential(Block())) == ["0"]


def test_pipeline_of_different_parts_is_not_a_stack() -> None:
    model = nn.Sequential(nn.Embedding(9, 2), Stack(3), nn.Linear(2, 9))
    assert paths(model) == ["1.block.0", "1.block.1", "1.block.2"]


def test_numbered_module_dict() -> None:
    model = nn.Module()
    model.layers = nn.ModuleDict({str(index): Block() for index in range(3)})
    model.other = nn.ModuleDict({"a": Stack(1), "b": Stack(1)})
    assert paths(model, "layers") == ["layers.0", "layers.1", "layers.2"]
    del model.other
    assert paths(model) == ["layers.0", "layers.1", "layers.2"]


def test_much_smaller_stack_does_not_matter() -> None:
    assert paths(EncoderDecoder(1, 4)) == [f"decoder.block.{index}" for index in range(4)]


@pytest.mark.parametrize("decoder", [2, 3])
def test_encoder_and_decoder_are_ambiguous(decoder: int) -> None:
    message = refused(EncoderDecoder(2, decoder))
    first, second = ("encoder", "decoder") if decoder == 2 else ("decoder", "encoder")
    count = {"encoder": 2, "decoder": decoder}
    assert message == (
        "several stacks may be meant:\n"
        + "".join(
            f'  "{name}.block": {count[name]} layers of Block, {34 * count[name]} parameters\n' for name in (first, second)
        )
        + PASS
    )


def test_several_stacks_are_numbered_through() -> None:
    model = EncoderDecoder(2, 2)
    expected = ["encoder.block.0", "encoder.block.1", "decoder.block.0", "decoder.block.1"]
    assert paths(model, ["encoder.block", "decoder.block"]) == expected
    assert paths(model, ["decoder.block", "encoder.block"]) == expected[2:] + expected[:2]
    assert paths(model, "encoder.block") == expected[:2]


def test_none() -> None:
    assert refused(nn.Linear(2, 2)) == (
        "no stack of layers in Linear: no ModuleList, Sequential or numbered ModuleDict holds children of one class "
        "with parameters. " + PASS
    )
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    assert refused(model) == (
        "no stack of layers in Sequential: no ModuleList, Sequential or numbered ModuleDict holds children of one class with "
        f'parameters. Containers in it:\n  "" (the model itself): 2 layers of Linear and ReLU, 6 parameters\n {PASS}'
    )
    assert paths(model, "") == ["0", "1"]


def test_two_classes_in_turn_have_to_be_named() -> None:
    model = nn.Module()
    model.layers = nn.ModuleList([Block(), OtherBlock(), Block(), OtherBlock()])
    model.head = nn.Linear(2, 9)
    assert refused(model) == (
        "the largest stack mixes classes, so its children may not be the layers:\n"
        f'  "layers": 4 layers of Block and OtherBlock, {2 * 34 + 2 * 62} parameters\n{PASS}'
    )
    assert paths(model, "layers") == ["layers.0", "layers.1", "layers.2", "layers.3"]


def test_experts_do_not_win_over_the_layers_that_hold_them() -> None:
    assert paths(Gpt(2, lambda: MoeBlock(16))) == ["layers.0", "layers.1"]
    assert paths(Gpt(1, lambda: MoeBlock(16))) == ["layers.0"]


def test_experts_do_not_win_over_layers_of_two_classes() -> None:
    model = nn.Module()
    model.layers = nn.ModuleList([Block(), MoeBlock(8), Block(), MoeBlock(8)])
    assert refused(model).startswith("the largest stack mixes classes, so its children may not be the layers:\n")


def test_shared_module_counts_its_positions() -> None:
    block = Block()
    model = nn.Module()
    model.layers = nn.ModuleList([block] * 6)
    found = find_layers(model)
    assert [layer.path for layer in found] == [f"layers.{index}" for index in range(6)]
    assert all(layer.module is block for layer in found)


def test_one_stack_at_two_paths_is_no_tie() -> None:
    model = nn.Module()
    model.layers = nn.ModuleList([Block(), Block()])
    model.alias = model.layers
    assert paths(model) == ["layers.0", "layers.1"]


def test_tied_weights_do_not_disturb() -> None:
    model = Gpt(2)
    model.head.weight = model.embedding.weight
    model.layers[1].mlp.fc1.weight = model.layers[0].mlp.fc1.weight  # type: ignore[union-attr]
    assert paths(model) == ["layers.0", "layers.1"]


def test_meta_device_and_lazy_parameters() -> None:
    with torch.device("meta"):
        assert paths(Gpt(40)) == [f"layers.{index}" for index in range(40)]
    assert paths(Gpt(2, lambda: nn.Sequential(nn.LazyLinear(3)))) == ["layers.0", "layers.1"]


def test_wrappers() -> None:
    model = Gpt(3)
    model.layers[1] = checkpoint_wrapper(model.layers[1])
    model.layers[2] = torch.compile(model.layers[2])  # type: ignore[assignment]
    compiled = torch.compile(model)
    assert isinstance(compiled, nn.Module)
    found = find_layers(compiled)
    assert [layer.path for layer in found] == ["layers.0", "layers.1", "layers.2"]
    assert [layer.module for layer in found] == list(model.layers)
    assert paths(compiled, "layers") == paths(compiled, "_orig_mod.layers") == ["layers.0", "layers.1", "layers.2"]


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_data_parallelism() -> None:
    model = nn.parallel.DistributedDataParallel(Gpt(2))
    assert paths(model) == ["layers.0", "layers.1"]
    assert paths(model, "module.layers") == ["layers.0", "layers.1"]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ("layer", "layers='layer': the model has no module of that path. Did you mean 'layers'?"),
        ("layers.7", "layers='layers.7': the model has no module of that path. Did you mean 'layers'?"),
        ("", "layers='' is a Gpt, not a ModuleList, Sequential or ModuleDict whose children are the layers."),
        (
            "layers.0.mlp",
            "layers='layers.0.mlp' is a Mlp, not a ModuleList, Sequential or ModuleDict whose children are the layers.",
        ),
        ("empty", "layers='empty' is an empty ModuleList."),
        (["layers", "layers"], "layers='layers' and layers='layers' hold the same modules; name each layer once."),
        ([], f"layers is [], which is neither a path nor a list of paths. {PASS}"),
        (3, f"layers is 3, which is neither a path nor a list of paths. {PASS}"),
        (["layers", 3], f"layers is ['layers', 3], which is neither a path nor a list of paths. {PASS}"),
    ],
)
def test_named_layers_that_are_none(layers: object, expected: str) -> None:
    model = Gpt(2)
    model.empty = nn.ModuleList()
    listed = ' Containers in it:\n  "layers": 2 layers of Block, 68 parameters\n'
    message = refused(model, layers)
    assert message.removesuffix(listed) == expected


def test_layers_within_layers_are_refused() -> None:
    model = Gpt(2, lambda: MoeBlock(2))
    message = refused(model, ["layers.0.experts", "layers"])
    assert message == "layers='layers' and layers='layers.0.experts' hold the same modules; name each layer once."


def test_experts_may_be_named() -> None:
    assert paths(Gpt(2, lambda: MoeBlock(2)), "layers.1.experts") == ["layers.1.experts.0", "layers.1.experts.1"]
    assert type(find_layers(Gpt(1, lambda: MoeBlock(1)), "layers.0.experts")[0].module) is Mlp


def test_long_lists_of_candidates_are_cut() -> None:
    model = nn.Module()
    for index in range(13):
        model.add_module(f"tower{index}", Stack(1))
    lines = refused(model).splitlines()
    assert lines[1] == '  "tower0.block": 1 layer of Block, 34 parameters'
    assert lines[11:] == ["  and 3 more", PASS]
