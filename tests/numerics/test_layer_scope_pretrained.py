"""``scope="layer"`` on models of a library of pretrained ones, with random weights: a decoder, two stacks, experts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from harness import FULL, check, select
from torch import Tensor, nn

from memopt import explain

transformers = pytest.importorskip("transformers")
IDS = torch.arange(24).reshape(2, 12) % 31 + 1
SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "head_dim": 8}
CAUSAL = {**SIZES, "num_key_value_heads": 1, "num_hidden_layers": 3}
STACKS = ["inner.encoder.block", "inner.decoder.block"]


class Loss(nn.Module):
    """The model with its loss, as a trainer calls it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(input_ids=ids, labels=ids).loss


def llama(**more: Any) -> nn.Module:
    torch.manual_seed(0)
    return Loss(transformers.LlamaForCausalLM(transformers.LlamaConfig(**CAUSAL, **more)).double())


def mixture(**more: Any) -> nn.Module:
    torch.manual_seed(0)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    return Loss(transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**CAUSAL, **experts, **more)))


def t5() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_heads": 2, "num_layers": 2}
    config = transformers.T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0)
    return Loss(transformers.T5ForConditionalGeneration(config).double())


def swap(depth: int) -> dict[str, Any]:
    return {"swap": {"enable": True, "layer_swap": [{"layers": [f"0-{depth - 2}"]}], "min_bytes": 64}}


def under_policy(model: nn.Module) -> set[int | None]:
    return {row.layer for row in explain(model).values if row.rule.startswith(("recompute", "swap"))}


@pytest.mark.parametrize("cache", [True, False])
def test_decoder(cache: bool) -> None:
    trained = check(llama(use_cache=cache), [IDS], FULL, "aot_eager", scope="layer")
    assert under_policy(trained.model) == {0, 1, 2}
    # Each layer writes to the cache under its own number, and torch compiles it for that; else one compilation serves all.
    assert len(trained.explanation.graphs) == (3 if cache else 1)


@pytest.mark.parametrize("config", [select({r"layer\.\d\.DenseReluDense": ["0-3"]}), swap(4)])
def test_encoder_and_decoder(config: Any) -> None:
    # Eager adds what the decoder's layers give back to the encoder one by one; a compiled layer first adds up its own.
    trained = check(t5(), [IDS], config, "aot_eager", scope="layer", layers=STACKS, exact=False, tolerance=1e-12)
    assert under_policy(trained.model) >= {0, 1, 2}


def test_experts_in_one_product() -> None:
    trained = check(mixture(), [IDS], FULL, "aot_eager", scope="layer")
    assert under_policy(trained.model) == {0, 1, 2}


def test_a_loop_over_experts_is_told() -> None:
    warns = ["the graph breaks inside each of them"]
    trained = check(mixture(experts_implementation="eager"), [IDS], FULL, "aot_eager", scope="layer", warns=warns)
    assert trained.warnings[0].startswith("layers 0-2 (inner.model.layers.0")
    assert "modeling_qwen3_moe.py" in trained.warnings[0]
    assert under_policy(trained.model) == {0, 1, 2}
