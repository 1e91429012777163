"""Models that nobody here wrote, thin and with random weights, each with its layers, its policies and one batch.

Every entry builds a module that returns a loss, as a trainer calls it. Nothing is downloaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, DEPTH, BATCH, LENGTH = 256, 64, 4, 3, 4, 64
TEXT = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS}


@dataclass(frozen=True)
class Entry:
    """One model.

    Attributes:
        build: makes the model with its loss.
        layers: where its layers are, where that is not found by looking.
        depth: how many layers it has, through all stacks.
        mlp: the pattern of the modules that ``select_module`` takes.
    """

    build: Callable[[], nn.Module]
    layers: tuple[str, ...] | None = None
    depth: int = DEPTH
    mlp: str = "mlp"


class WithLoss(nn.Module):
    """A model of the transformers library with its loss; ``batch`` is what it is called with."""

    def __init__(self, inner: nn.Module, batch: dict[str, Tensor], **given: Any) -> None:
        super().__init__()
        self.inner = inner
        self.given = given
        self.batch = batch

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the loss of one batch."""
        found = self.inner(**batch, **self.given)
        return found.loss if "labels" in batch else found.last_hidden_state.square().mean()


class MeanSquare(nn.Module):
    """A model of one tensor, and as its loss the mean square of what it returns."""

    def __init__(self, inner: nn.Module, batch: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.batch = batch

    def forward(self, batch: Tensor) -> Tensor:
        """Return the loss of one batch."""
        return self.inner(batch).square().mean()


def _text(seed: int = 1, length: int = LENGTH) -> Tensor:
    return torch.randint(1, VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(seed))


def _causal(name: str, length: int = LENGTH, **given: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        config = getattr(transformers, f"{name}Config")(**given)
        model = getattr(transformers, f"{name}ForCausalLM", None) or getattr(transformers, f"{name}LMHeadModel")
        symbols = _text(length=length)
        made = model(config)
        # Otherwise the loss is guessed from the class's name, with a message at which the graph breaks.
        made.loss_type = "ForCausalLM"
        return WithLoss(made, {"input_ids": symbols, "labels": symbols})

    return build


def _bert() -> nn.Module:
    import transformers

    config = transformers.BertConfig(**TEXT, intermediate_size=4 * WIDTH, max_position_embeddings=LENGTH)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    mask[0, -LENGTH // 4 :] = 0
    symbols = _text()
    made = transformers.BertForMaskedLM(config)
    return WithLoss(made, {"input_ids": symbols, "attention_mask": mask, "labels": symbols})


def _t5() -> nn.Module:
    import transformers

    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=WIDTH // HEADS, d_ff=4 * WIDTH, num_heads=HEADS, num_layers=DEPTH,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip
    made = transformers.T5ForConditionalGeneration(config)
    return WithLoss(made, {"input_ids": _text(), "labels": _text(2)})


def _images(size: int = 32) -> Tensor:
    return torch.randn(BATCH, 3, size, size, generator=torch.Generator().manual_seed(1))


def _vit() -> nn.Module:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=HEADS, intermediate_size=4 * WIDTH, image_size=32,
        patch_size=4,
    )  # fmt: skip
    return WithLoss(transformers.ViTModel(config, add_pooling_layer=False), {"pixel_values": _images()})


def _transformer_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True)
    inputs = torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    return MeanSquare(nn.TransformerEncoder(layer, DEPTH), inputs)


_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": WIDTH}
_GROUPED = {**TEXT, "num_key_value_heads": 2, "intermediate_size": 4 * WIDTH, "head_dim": WIDTH // HEADS}
_GPT2 = {"n_positions": LENGTH, "n_embd": WIDTH, "n_layer": DEPTH, "n_head": HEADS, "bos_token_id": 0, "eos_token_id": 0}
_MAMBA = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "vocab_size": VOCABULARY}
MODELS: dict[str, Entry] = {
    "Llama": Entry(_causal("Llama", **_GROUPED)),
    "Llama, without a cache": Entry(_causal("Llama", **_GROUPED, use_cache=False)),
    "Qwen3": Entry(_causal("Qwen3", **_GROUPED)),
    "Qwen3-MoE": Entry(_causal("Qwen3Moe", **_GROUPED, **_EXPERTS)),
    "Qwen3-MoE, a loop over experts": Entry(_causal("Qwen3Moe", **_GROUPED, **_EXPERTS, experts_implementation="eager")),
    "GPT-2": Entry(_causal("GPT2", **_GPT2, vocab_size=VOCABULARY)),
    "BERT": Entry(_bert, mlp="intermediate|output"),
    "T5": Entry(_t5, ("inner.encoder.block", "inner.decoder.block"), 2 * DEPTH, mlp=r"layer\.\d+\.DenseReluDense"),
    "ViT": Entry(_vit),
    "Mamba": Entry(_causal("Mamba", length=LENGTH // 4, **_MAMBA), mlp="mixer"),
    "nn.TransformerEncoder": Entry(_transformer_encoder, mlp="self_attn"),
}
