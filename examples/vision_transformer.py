"""Train a vision transformer, written here with nothing but torch, with parts or all of its layers recomputed.

    python examples/vision_transformer.py
    python examples/vision_transformer.py --layers 12 --backend aot_eager

The images are random; the class of an image is its brightest quadrant, so there is something to learn.
"""

# ruff: noqa: D101, D102
import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import memopt

ROW = "{:<40}{:>24}{:>10}{:>11}{:>21}"


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, patches, width = x.shape
        q, k, v = self.qkv(x).view(batch, patches, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, layers: int, width: int = 128, heads: int = 4, image: int = 64, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 4)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x).mean(1)), classes)


def configurations(layers: int) -> dict[str, memopt.MemoptConfig]:
    last = layers - 1
    sections = {
        "nothing configured": {},
        f"select: .*mlp in layers 0-{last}": {"mode": "select", "select_module": {".*mlp": [f"0-{last}"]}},
        f"full: layers 0-{last}": {"mode": "full", "full_recompute_layer": [f"0-{last}"]},
    }
    return {name: memopt.load_config({"recompute": section}) for name, section in sections.items()}


def train(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> tuple[dict[str, Tensor], float, float]:
    """Return the gradients of the first step, the median step time in seconds, and the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gradients: dict[str, Tensor] = {}
    seconds = []
    for images, classes in batches:
        start = time.perf_counter()
        loss = model(images, classes)
        loss.backward()
        gradients = gradients or {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    return gradients, statistics.median(seconds[1:] or seconds), loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--backend", default="inductor")
    options = parser.parse_args()
    torch.manual_seed(0)
    images = torch.rand(options.steps, options.batch, 3, 64, 64)
    classes = F.avg_pool2d(images.mean(2), 32).flatten(2).argmax(-1)
    batches = list(zip(images, classes, strict=True))

    expected: dict[str, Tensor] = {}
    print(ROW.format("configuration", "saved for backward", "step", "last loss", "gradient difference"))
    for name, config in configurations(options.layers).items():
        torch.manual_seed(1)
        model = VisionTransformer(options.layers)
        memopt.compile_with_memopt(model, config, backend=options.backend)
        gradients, seconds, loss = train(model, batches)
        expected = expected or gradients
        largest = max(g.abs().max().item() for g in expected.values())
        difference = max((gradients[key] - g).abs().max().item() for key, g in expected.items()) / largest
        decided = memopt.explain(model)
        saved = f"{decided.saved_before / 1e6:.1f} -> {decided.saved_after / 1e6:.1f} MB"
        print(ROW.format(name, saved, f"{seconds:.3f} s", f"{loss:.5f}", f"{difference:.0e}"), flush=True)


if __name__ == "__main__":
    main()
