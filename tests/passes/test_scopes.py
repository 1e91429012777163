from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from memopt.passes.scopes import Scope, find_scope, module_path
from printer import Builder
from small_graphs import aten, chain
from torch import nn

LAYERS = {"layers.0": 0, "model.layers.7": 7}


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("L['self']", ""),
        ("L['self'].layers.0.mlp", "layers.0.mlp"),
        ("L['self'].layers[3].mlp", "layers.3.mlp"),
        ("L['self'].layers.1.__dict__['_modules']['_checkpoint_wrapped_module']", "layers.1"),
        ("L['self'].layers.2._orig_mod.mlp", "layers.2.mlp"),
        ("L['self']._modules['layers']._modules['0'].mlp", "layers.0.mlp"),
        ("L['self'].layers.0._fsdp_wrapped_module.mlp", "layers.0.mlp"),
    ],
)
def test_sources_become_paths_as_the_user_writes_them(source: str, path: str) -> None:
    assert module_path(source) == path


def scope_of(stack: dict[str, str], functions: list[tuple[str, object]] | None = None) -> Scope | None:
    node = Builder().op("node", aten.arange.default, 3)
    if stack:
        node.meta["nn_module_stack"] = {k: (v, nn.Module) for k, v in stack.items()}
    if functions:
        node.meta["source_fn_stack"] = functions
    return find_scope(node, LAYERS)


def test_a_scope_has_layer_path_chain_and_function() -> None:
    stack = {"0": "L['self']", "1": "L['self'].model.layers.7", "2@1": "L['self'].model.layers.7.mlp"}
    assert scope_of(stack, [("gelu_3", F.gelu)]) == Scope(7, "mlp", (("", "1"), ("mlp", "2@1")), "gelu", "gelu_3")


def test_outside_layers_the_path_is_the_models() -> None:
    assert scope_of({"0": "L['self']", "1": "L['self'].head"}) == Scope(None, "head", (), "", "")


def test_a_built_in_module_stands_for_its_function() -> None:
    stack = {"1": "L['self'].layers.0", "2": "L['self'].layers.0.fc"}
    scope = scope_of(stack, [("linear_3", nn.Linear)])
    assert scope is not None
    assert (scope.function, scope.call) == ("linear", "linear_3")


def test_the_innermost_function_counts() -> None:
    scope = scope_of({"1": "L['self'].layers.0"}, [("outer", F.softmax), ("inner", torch.exp)])
    assert scope is not None
    assert scope.function == "exp"


def test_under_distributed_data_parallel_the_model_is_found_below_module() -> None:
    assert scope_of({"1": "L['self'].module.layers.0", "2": "L['self'].module.layers.0.mlp"}) == Scope(
        0, "mlp", (("", "1"), ("mlp", "2")), "", ""
    )


def test_nothing_recorded_is_no_scope() -> None:
    assert scope_of({}) is None
    assert scope_of({}, [("add", torch.add)]) == Scope(None, "", (), "add", "add")


def test_a_nameless_node_between_nodes_of_one_module_is_adopted() -> None:
    b = Builder()
    x = b.input("x", 4)
    nameless = b.op("nameless", aten.exp.default, x)
    other = b.op("other", aten.exp.default, nameless)
    b.op("first", aten.sin.default, other, at="layers.0.mlp", fn=torch.sin)
    b.op("second", aten.cos.default, other, at="layers.0.mlp", fn=torch.cos)
    shared = b.op("shared", aten.exp.default, x)
    b.op("third", aten.add.Tensor, shared, 1, at="layers.0.mlp")
    b.op("fourth", aten.add.Tensor, shared, 1, at="layers.1.mlp")
    joint = b.joint([])
    assert joint.scopes.get(shared) is None
    assert joint.scopes.get(other) is None or joint.scopes[other].path == "mlp"


def test_the_backward_is_what_depends_on_a_gradient_or_is_tagged() -> None:
    joint = chain("layers.0.mlp", "layers.0.mlp")
    assert {n.name for n in joint.backward} == {"tangents_a1", "g0", "g1"}
    assert [n.name for n in joint.forward_operators()] == ["a0", "a1"]
    assert {n.name for n in joint.returned} == {"a1"}
