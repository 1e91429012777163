"""Data for a report page, made up but shaped like that of a transformer in training; the same at every call."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

MIB = 2**20
PARAMETERS = 386 * MIB
GRADIENT = 96
"""MiB of gradients that a layer leaves behind on each of several ranks."""
CATEGORIES = ["gradients", "saved", "leaving", "reloaded", "recomputed", "outputs", "temporary"]
COLUMNS = (
    "layer path op shape dtype bytes kind action rule reason store leaves issued returns".split()  # noqa: SIM905
)

FULL = "recompute.full_recompute_layer"
SELECT = "recompute.select_module['.*mlp']"
EXCLUDE = "recompute.exclude_op[0]"
LAYER_SWAP = "swap.layer_swap[0]"
OP_SWAP = "swap.op_swap[0]"

FORWARD = [
    *("input_norm.rms_norm", "attention.qkv.linear", "attention.rotary.mul", "attention.rotary.add", "attention.transpose"),
    *("attention.scaled_dot_product_attention", "attention.out.linear", "residual.add", "post_norm.rms_norm"),
    *("mlp.router.softmax", "mlp.gate.linear", "mlp.up.linear", "mlp.act.silu", "mlp.mul", "mlp.down.linear", "residual_2.add"),
]
ACTIVATIONS: list[tuple[str, str, str, float]] = [
    ("", "input", "1 x 2048 x 4096", 16),
    ("input_norm", "rms_norm", "1 x 2048 x 4096", 16),
    ("attention.qkv", "linear", "1 x 2048 x 12288", 48),
    ("attention.rotary", "mul", "1 x 32 x 2048 x 128", 16),
    ("attention", "scaled_dot_product_attention", "1 x 32 x 2048 x 128", 16),
    ("attention.out", "linear", "1 x 2048 x 4096", 16),
    ("post_norm", "rms_norm", "1 x 2048 x 4096", 16),
]
EXPERT: list[tuple[str, str, str, float]] = [
    ("gate", "linear", "1 x 256 x 11008", 5.375),
    ("act", "silu", "1 x 256 x 11008", 5.375),
    ("down", "linear", "s0 x 4096", 2),
]


def report(layers: int = 32, values_per_layer: int = 125, moments_per_layer: int = 375) -> dict[str, Any]:
    """A whole report; ``values_per_layer`` is at least 10, ``moments_per_layer`` at least 30."""
    rows = [row for layer in range(layers) for row in _values(layer, layers, values_per_layer)] + _outside()
    totals = [_layer_total(layer, layers, rows) for layer in range(layers)]
    totals.append(_total(None, "", "keep", rows))
    timeline, where = _timeline(layers, moments_per_layer, totals)
    moments = len(timeline["phase"])
    sums = [sum(column) for column in zip(*timeline["bytes"].values(), strict=True)]
    peak = max(range(moments), key=sums.__getitem__)
    forward = 2_400_000_000_000 * layers
    layer = timeline["layer"][peak]
    return {
        "title": f"What recompute.yaml does to a transformer of {layers} layers",
        "facts": {"model": f"GPT-{layers}", "backend": "inductor", "memopt": "0.1.0", "torch": "2.13.0", "device": "meta"},
        "warnings": [
            f"swap.op_swap[1] ('.*rotary', layers 3-4) matches nothing in {layers} layers. Did you mean 'attention.rotary'?",
            "Layer 0: a graph break at model.py:113 (print) takes 4 operators out of reach of its rules.",
        ],
        "summary": {
            "peak_bytes": sums[peak],
            "peak_at": {
                "operator": timeline["names"][timeline["operator"][peak]],
                "layer": layer if layer >= 0 else None,
                "phase": "backward" if timeline["phase"][peak] else "forward",
            },
            "resident_bytes": 3 * PARAMETERS * layers + 3 * MIB,
            "resident": {"parameters": PARAMETERS * layers, "buffers": 3 * MIB, "optimizer": 2 * PARAMETERS * layers},
            "saved_before": sum(t["before"] for t in totals),
            "saved_after": sum(t["after"] for t in totals),
            "swapped_bytes": sum(t["swapped"] for t in totals),
            "forward_flops": forward,
            "backward_flops": 2 * forward,
            "recompute_flops": sum(t["recomputed_flops"] for t in totals),
            "measured_peak_bytes": int(sums[peak] * 1.037),
        },
        "categories": list(CATEGORIES),
        "timeline": timeline,
        "measured": _measured(sums, timeline["phase"].index(1)),
        "layers": totals,
        "swaps": _swaps(rows, where),
        "config": _config(layers, rows),
        "values": {"columns": list(COLUMNS), "rows": rows},
    }


def action_of(layer: int, layers: int) -> str:
    """The first half is recomputed, then come layers of which a part is swapped and another recomputed, then swapped ones."""
    half, mixed = layers // 2, layers // 2 + max(layers // 8, 1)
    return "recompute" if layer < half else "mixed" if layer < mixed else "swap" if layer < layers - 1 else "keep"


def _values(layer: int, layers: int, count: int) -> list[list[Any]]:
    kind_of_layer = action_of(layer, layers)
    rows: list[list[Any]] = []
    for number in range(count):
        if number < len(ACTIVATIONS):
            path, op, shape, mib = ACTIVATIONS[number]
        else:
            expert, part = divmod(number - len(ACTIVATIONS), len(EXPERT))
            name, op, shape, mib = EXPERT[part]
            path = f"mlp.experts.{expert}.{name}"
        size = None if "s0" in shape else int(mib * MIB)
        row = [layer, path, op, shape, "bfloat16", size, "activation"]
        rows.append(row + _decision(kind_of_layer, layer, path, op))
    rows[-1][6:10] = ["parameter", "save", "", "a parameter or buffer, or a view of one: it is in memory anyway"]
    return rows


def _decision(kind: str, layer: int, path: str, op: str) -> list[Any]:
    swap = ["disk" if path.startswith("mlp") else "host", layer, layer + 1, layer]
    stay: list[Any] = ["", None, None, None]
    if op == "input":
        if kind == "swap":
            return ["offload", LAYER_SWAP, "only the backward of layers that are swapped reads it", *swap]
        return ["save", "", "no rule: torch's partitioner saves it", *stay]
    if kind == "recompute":
        if op == "scaled_dot_product_attention":
            return ["save", EXCLUDE, "'FlashAttention' names scaled_dot_product_attention, so it is kept", *stay]
        if op == "rms_norm" and path == "post_norm":
            return ["save", "legalize.boundaries", "it enters another region, which begins with it", *stay]
        return ["recompute", FULL, f"layer {layer} is recomputed whole", *stay]
    if kind == "mixed" and path.startswith("mlp"):
        return ["recompute", SELECT, "module mlp is recomputed", *stay]
    if kind == "mixed" and path.startswith("attention"):
        return ["offload", OP_SWAP, "'.*attention' names the operator, and only its backward reads it", *swap]
    if kind == "swap":
        return ["offload", LAYER_SWAP, "only the backward of layers that are swapped reads it", *swap]
    return ["save", "", "no rule: torch's partitioner saves it", *stay]


def _outside() -> list[list[Any]]:
    stay: list[Any] = ["", None, None, None]
    saved = ["save", "", "no rule: torch's partitioner saves it", *stay]
    seed = ["save", "legalize.random", "a recomputed random operator starts from it", *stay]
    return [
        [None, "embedding", "embedding", "1 x 2048 x 4096", "bfloat16", 16 * MIB, "activation", *saved],
        [None, "head", "log_softmax", "2048 x 32000", "float32", 250 * MIB, "activation", *saved],
        [None, "", "run_and_save_rng_state", "16", "uint8", 16, "random state", *seed],
    ]


def _layer_total(layer: int, layers: int, rows: list[list[Any]]) -> dict[str, Any]:
    return _total(layer, f"model.layers.{layer}", action_of(layer, layers), rows)


def _total(layer: int | None, path: str, action: str, rows: list[list[Any]]) -> dict[str, Any]:
    own = [row for row in rows if row[0] == layer and row[6] != "parameter"]
    again = [row for row in own if row[7] == "recompute"]
    return {
        "layer": layer,
        "path": path,
        "action": action,
        "rules": sorted({row[8] for row in own if row[8]}),
        "before": sum(row[5] or 0 for row in own),
        "after": sum(row[5] or 0 for row in own if row[7] == "save"),
        "swapped": sum(row[5] or 0 for row in own if row[7] == "offload"),
        "recomputed": len(again),
        "recomputed_flops": 19_000_000_000 * len(again),
    }


def _timeline(layers: int, count: int, totals: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[tuple[str, int], int]]:
    """The moments, and where each layer's forward and backward begin."""
    forward, backward = count // 3, count - count // 3
    names = ["embedding", *FORWARD, "log_softmax", "nll_loss", *(f"{name}.backward" for name in FORWARD), "embedding.backward"]
    heads = len(FORWARD) + 1
    now = dict.fromkeys(CATEGORIES, 0)
    columns: dict[str, list[int]] = {name: [] for name in CATEGORIES}
    phase: list[int] = []
    operator: list[int] = []
    layer_of: list[int] = []
    where: dict[tuple[str, int], int] = {}

    def moment(part: int, name: int, layer: int, **changed: int) -> None:
        now.update(changed)
        phase.append(part)
        operator.append(name)
        layer_of.append(layer)
        for category in CATEGORIES:
            columns[category].append(now[category])

    moment(0, 0, -1, temporary=16 * MIB, saved=16 * MIB)
    kept = 16 * MIB
    for layer in range(layers):
        total = totals[layer]
        where["forward", layer] = len(phase)
        previous = totals[layer - 1]["swapped"] if layer else 0
        for j in range(forward):
            done = (j + 1) / forward
            changes = {
                "saved": kept + int(done * total["after"]),
                "leaving": int(max(0.0, 1 - 1.6 * done) * previous + done * total["swapped"]),
                "temporary": (5 + (j * 7919 + layer * 31) % 23 + (160 if j % 41 in (30, 31) else 0)) * 2 * MIB,
            }
            moment(0, 1 + j * len(FORWARD) // forward, layer, **changes)
        kept += total["after"]
    for j in range(6):
        moment(0, heads + j // 3, -1, leaving=0, temporary=250 * (1 + j) * MIB // 4, outputs=250 * MIB, saved=kept + 250 * MIB)
    grads = 0
    for j in range(4):
        moment(1, heads + 2, -1, temporary=(500 - 80 * j) * MIB, outputs=0 if j > 2 else 250 * MIB, saved=kept)
        grads += 4 * MIB
        now["gradients"] = grads
    for layer in reversed(range(layers)):
        total = totals[layer]
        where["backward", layer] = len(phase)
        below = totals[layer - 1]["swapped"] if layer else 0
        again = total["before"] - total["after"] - total["swapped"] if total["action"] != "swap" else 0
        for j in range(backward):
            done = (j + 1) / backward
            changes = {
                "saved": kept - int(done * total["after"]),
                "gradients": grads + int(done * GRADIENT * MIB),
                "recomputed": int(again * (2.5 * done if done < 0.4 else (1 - done) / 0.6)),
                "reloaded": int(done * below + (1 - done) * total["swapped"]),
                "temporary": (9 + (j * 6007 + layer * 17) % 37 + (90 if j % 53 in (20, 21) else 0)) * 2 * MIB,
            }
            moment(1, heads + 2 + j * len(FORWARD) // backward, layer, **changes)
        kept -= total["after"]
        grads += GRADIENT * MIB
    moment(1, len(names) - 1, -1, temporary=0, gradients=grads + 16 * MIB, saved=0, recomputed=0, reloaded=0)
    where["end", 0] = len(phase)
    return {"phase": phase, "operator": operator, "layer": layer_of, "bytes": columns, "names": names}, where


def _measured(sums: list[int], boundary: int) -> dict[str, Any]:
    """A step whose forward took 38 % of the time, seen 240 times."""
    at = [i / 239 for i in range(240)]
    ends = [0.0, 0.38, 1.0]
    total = []
    for i, x in enumerate(at):
        part = x / ends[1] * boundary if x <= ends[1] else boundary + (x - ends[1]) / (1 - ends[1]) * (len(sums) - boundary)
        here = min(int(part), len(sums) - 1)
        total.append(int(max(sums[max(here - 9, 0) : here + 9]) * (1.01 + i % 7 / 250)))
    return {"at": at, "total": total, "backward_at": ends[1]}


def _swaps(rows: list[list[Any]], where: dict[tuple[str, int], int]) -> list[dict[str, Any]]:
    found = []
    numbers = list(accumulate(row[7] == "offload" for row in rows))
    for row, number in zip(rows, numbers, strict=True):
        if row[7] != "offload":
            continue
        layer, order = row[0], number % 97
        end = where.get(("forward", layer + 1), where["backward", layer + 1])
        issue, begin = where["backward", layer + 1], where["backward", layer]
        length = begin - issue
        swap = {"name": f"{row[2]}_{number}", "layer": layer, "bytes": row[5] or 0, "store": row[10]}
        swap |= {"leaves": end - length // 3 + order * length // 400, "issued": issue + order * length // 120}
        swap |= {"returns": begin + order * length // 130, "leaves_in": layer, "issued_in": layer + 1, "returns_in": layer}
        found.append(swap)
    return found


def _config(layers: int, rows: list[list[Any]]) -> dict[str, Any]:
    half, mixed = layers // 2, layers // 2 + max(layers // 8, 1)
    lines = [
        "# Half of the layers are recomputed, others are swapped.",
        "recompute:",
        "  mode: select",
        f"  full_recompute_layer: [0-{half - 1}]   # these keep nothing but their inputs",
        "  select_module:",
        f"    '.*mlp': [{half}-{mixed - 1}]",
        "  exclude_op: [FlashAttention]      # inside recomputed regions",
        "",
        "swap:",
        "  enable: True",
        "  default_prefetch: 1",
        "  layer_swap:",
        f"    - layers: [{mixed}-{layers - 2}]",
        "  op_swap:",
        f"    - {{op_name: '.*attention', layers: [{half}-{mixed - 1}]}}",
        "    - {op_name: '.*rotary', layers: [3-4]}",
        "  min_bytes: 64KiB",
    ]
    places = [(4, FULL), (6, SELECT), (7, EXCLUDE), (13, LAYER_SWAP), (15, OP_SWAP), (16, "swap.op_swap[1]")]
    rules = []
    for line, field in places:
        own = [row for row in rows if row[8] == field]
        numbers = sorted({row[0] for row in own})
        actions: dict[str, int] = {}
        for row in own:
            actions[row[7]] = actions.get(row[7], 0) + 1
        shown = f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0]) if numbers else ""
        total = sum(row[5] or 0 for row in own)
        rules.append({"line": line, "field": field, "layers": shown, "values": len(own), "bytes": total, "actions": actions})
    return {"path": "configs/recompute_and_swap.yaml", "lines": lines, "rules": rules}
