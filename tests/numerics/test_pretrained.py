"""Models as a library of pretrained ones defines them, built from a small configuration with random weights.

Plain torch.compile sums some of their gradients in another order than eager, so they are compared up to rounding; some of
their layers compute in float32 whatever the model's type is.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from harness import BACKENDS, FULL, State, assert_same, full, memopt_warnings, operators, select, train_step
from torch import nn

from memopt import compile_with_memopt, explain

transformers = pytest.importorskip("transformers")
IDS = torch.arange(24).reshape(2, 12) % 31


def llama(depth: int = 2) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=depth,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaForCausalLM(config).double()


def gpt2(depth: int = 2, dropout: float = 0.1) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=depth, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).double()
    # Otherwise it is guessed, with a message at which the graph breaks.
    model.loss_type = "ForCausalLM"
    return model


class Loss(nn.Module):
    """The model with its loss, as a trainer calls it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=ids, labels=ids, use_cache=False).loss


LEVELS: dict[str, Any] = {
    "select .*mlp": select({".*mlp": ["0-1"]}),
    "full on the first half": full(0),
    "full on all": FULL,
    "full, attention kept": full("0-1", exclude_op=["FlashAttention"]),
}


def compare(model: nn.Module, config: Any, backend: str, steps: int = 1) -> nn.Module:
    plain = copy.deepcopy(model)
    compile_with_memopt(model, config(model) if callable(config) else config, backend=BACKENDS[backend])
    for seed in range(steps):
        found: list[State] = []
        assert memopt_warnings(lambda seed=seed, found=found: found.append(train_step(model, [IDS], seed=seed, lr=0.01))) == []
        wanted = train_step(plain, [IDS], seed=seed, lr=0.01)
        assert_same(found[0], wanted, exact=False, tolerance=1e-12 if backend != "inductor" else 2e-6)
    return model


@pytest.mark.parametrize(("level", "backend"), [*((level, "no-op") for level in LEVELS), ("full on all", "aot_eager")])
@pytest.mark.parametrize("family", [llama, gpt2])
def test_training_is_the_same(family: Any, level: str, backend: str) -> None:
    explanation = explain(compare(Loss(family()), LEVELS[level], backend))
    assert len(explanation.graphs) == 1
    assert 0 < explanation.saved_after < explanation.saved_before


@pytest.mark.inductor
@pytest.mark.parametrize("family", [llama, gpt2])
def test_training_is_the_same_under_inductor(family: Any) -> None:
    explanation = explain(compare(Loss(family(depth=1)), FULL, "inductor"))
    assert explanation.saved_after < explanation.saved_before


def test_the_model_itself_with_keyword_arguments_and_a_rich_output() -> None:
    model = llama()
    plain = copy.deepcopy(model)
    compile_with_memopt(model, FULL(model), backend=BACKENDS["no-op"])
    found = model(input_ids=IDS, labels=IDS, use_cache=False)
    wanted = plain(input_ids=IDS, labels=IDS, use_cache=False)
    assert type(found) is type(wanted)
    assert torch.equal(found.logits, wanted.logits)
    found.loss.backward()
    wanted.loss.backward()
    for (name, mine), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-10, atol=1e-14, msg=name)
    assert operators(explain(model).graphs[0].backward)["aten.silu.default"] == 2


def test_padding_mask_and_gradient_checkpointing_of_its_own() -> None:
    mask = torch.ones_like(IDS)
    mask[0, -4:] = 0
    model = llama()
    model.gradient_checkpointing_enable()
    plain = copy.deepcopy(model)
    compile_with_memopt(model, full(0), backend=BACKENDS["no-op"])
    for module in (model, plain):
        module.train()
        module(input_ids=IDS, attention_mask=mask, labels=IDS, use_cache=False).loss.backward()
    for (name, mine), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-10, atol=1e-14, msg=name)


def test_encoder_for_images() -> None:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4
    )
    model = transformers.ViTModel(config).double()
    plain = copy.deepcopy(model)
    compile_with_memopt(model, FULL(model), backend=BACKENDS["no-op"])
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    assert_same(train_step(model, [images]), train_step(plain, [images]), exact=False)
    assert {row.layer for row in explain(model).values if row.rule == "recompute.full_recompute_layer"} == {0, 1}
