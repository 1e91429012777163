from __future__ import annotations

from memopt.compiler.plan.resolve import resolve
from memopt.compiler.plan.table import plan_table
from plan_models import EncoderDecoder, Gpt
from rich.table import Table

CONFIG = """
recompute:
  mode: select
  full_recompute_layer: [0-3]
  select_module: {'.*mlp': [4-7], '[ab]\\.gelu': [6]}
  exclude_op: [AllGather]
swap:
  enable: True
  default_prefetch: 2
  layer_swap: [layers: [8-9]]
"""


def rows(table: Table) -> list[tuple[str, ...]]:
    columns = [[str(cell) for cell in column.cells] for column in table.columns]
    return list(zip(*columns, strict=True))


def test_equal_layers_share_a_row() -> None:
    table = plan_table(resolve(Gpt(12), CONFIG))
    assert [str(column.header) for column in table.columns] == [
        "layers", "modules", "recompute", "swap", "fetched at", "operators looked for", "rules",
    ]  # fmt: skip
    mlp, gelu = "recompute.select_module['.*mlp']", r"recompute.select_module['[ab]\.gelu']"
    assert rows(table) == [
        ("0-3", "layers.0-3", "everything", "-", "-", "-", "recompute.full_recompute_layer"),
        ("4-5", "layers.4-5", "mlp", "-", "-", "-", mlp),
        ("6", "layers.6", "mlp", "-", "-", r"[ab]\.gelu", f"{mlp}, {gelu}"),
        ("7", "layers.7", "mlp", "-", "-", "-", mlp),
        ("8-9", "layers.8-9", "-", "everything", "layer + 2", "-", "swap.layer_swap[0]"),
        ("10-11", "layers.10-11", "-", "-", "-", "-", "-"),
        ("0-11", "-", "keep AllGather", "-", "-", "-", "recompute.exclude_op['AllGather']"),
    ]
    assert table.title == "memopt plan, num_layers = 12"


def test_stacks_are_named_one_after_the_other() -> None:
    plan = resolve(EncoderDecoder(2, 1), {}, layers=["encoder.block", "decoder.block"])
    assert rows(plan_table(plan)) == [("0-2", "encoder.block.0-1, decoder.block.0", "-", "-", "-", "-", "-")]


def test_no_layers() -> None:
    from torch import nn

    assert rows(plan_table(resolve(nn.Linear(1, 1), {}))) == []
