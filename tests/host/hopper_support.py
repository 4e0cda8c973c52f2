"""The Hopper kernels traced for given forms, and their references in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright
import tilewright.language as tl
from tilewright.ir.core import Function
from tilewright.library.attention.hopper.config import AttentionForm
from tilewright.library.attention.hopper.decoding_config import DecodingForm
from tilewright.library.attention.hopper.decoding_kernel import decoding
from tilewright.library.attention.hopper.kernel import attention
from tilewright.library.grouped.hopper_kernel import grouped_matmul
from tilewright.library.matmul.hopper.config import MatmulForm
from tilewright.library.matmul.hopper.kernel import matmul

# In how many orders the roles of a kernel that must be clean are run: four times as many as find every synchronising
# operation that is left out (test_asynchrony_mutants.py).
ORDERS = 16


@tilewright.jit
def unit_rows(squares):  # type: ignore[no-untyped-def]
    """Rows are divided by their lengths."""
    return tl.rsqrt(squares + 1e-6)


def normed(rows: np.ndarray) -> np.ndarray:
    """The same in float64."""
    return np.asarray(rows / np.sqrt((rows * rows).sum(-1, keepdims=True) + 1e-6))


def tensor_map(block: tuple[int, ...], dtype: Any) -> str:
    """The type of a tensor map as text."""
    return f"tensormap<{'x'.join(map(str, block))}x{dtype.element.text}>"


def traced_matmul(form: MatmulForm, extra: tuple[str, ...] = ()) -> Function:
    """The kernel's Tile IR for a form; `extra` are the types of the epilogue's operands."""
    form.check()
    types: dict[str, Any] = {
        "a": tensor_map(form.left_block, form.INPUT), "b": tensor_map(form.right_block, form.INPUT),
        "c": tensor_map(form.out_block, form.OUTPUT), "c_tail": tensor_map(form.tail_block, form.OUTPUT),
        "M": "i32", "N": "i32", "K": "i32", "batches": "i32",
    }  # fmt: skip
    if extra:
        types["extra"] = extra
    return matmul.trace(types, {"FORM": form})


def traced_grouped(form: MatmulForm, extra: tuple[str, ...] = ()) -> Function:
    """The kernel of grouped products."""
    form.check()
    types: dict[str, Any] = {
        "a": tensor_map(form.left_block, form.INPUT), "b": tensor_map(form.right_block, form.INPUT),
        "c": tensor_map(form.out_block, form.OUTPUT),
        "out": f"*{form.OUTPUT.element.text}", "tiles": "*k i32", **dict.fromkeys(("rows", "N", "K", "groups"), "i32"),
    }  # fmt: skip
    if extra:
        types["extra"] = extra
    return grouped_matmul.trace(types, {"FORM": form})


def traced_attention(form: AttentionForm) -> Function:
    """The kernel's Tile IR for a form."""
    form.check()
    queries, keys = tensor_map(form.query_block, form.TYPE), tensor_map(form.key_block, form.TYPE)
    numbers = dict.fromkeys(("tiles_per_cta", "queries", "keys", "heads", "group", "window"), "i32")
    types: dict[str, Any] = {"q": queries, "k": keys, "v": keys, "out": queries, "lse": "*f32", "lengths": "*k i32",
             "schedule": "*k i32", "scale": "f32", **numbers}  # fmt: skip
    if form.BIAS:
        types["extra"] = (f"*k {form.TYPE.element.text}", "i64", "i64", "i64", "f32")
    return attention.trace(types, {"FORM": form})


def traced_decoding(form: DecodingForm) -> Function:
    """The Tile IR of attention of few queries for a form."""
    form.check()
    blocks = {"q": form.query_block, "k": form.key_block, "v": form.key_block, "k_rows": form.fresh_block,
              "v_rows": form.fresh_block}  # fmt: skip
    types: dict[str, Any] = {name: tensor_map(block, form.TYPE) for name, block in blocks.items()}
    types |= {"fresh": "*k i64", "out": f"*{form.TYPE.element.text}", "scale": "f32"}
    types |= {**dict.fromkeys(("out_batch", "out_head", "out_row"), "i64"),
              **dict.fromkeys(("queries", "keys", "heads"), "i32")}  # fmt: skip
    if form.BIAS:
        types["extra"] = (f"*k {form.TYPE.element.text}", "i64", "i64", "f32")
    return decoding.trace(types, {"FORM": form})


def attention_reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray, causal: bool, window: int, bias: Any = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Results and logarithms of the sums, [b, h, s, d] and [b, h, s]; scale 1 / sqrt(d), lengths [b, 2]; `bias` is
    added to the scores [b, h, s, keys]."""
    queries, group = q.shape[2], q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), group, axis=1) for x in (k, v))
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + bias
    row, column = np.arange(queries)[:, None], np.arange(k.shape[2])[None, :]
    for batch, (rows, length) in enumerate(lengths):
        seen = column < length
        if causal:
            seen = seen & (column <= row + length - rows)
        if window:
            seen = seen & (column > row + length - rows - window)
        scores[batch][:, ~np.broadcast_to(seen, scores.shape[2:])] = -np.inf
    greatest = scores.max(-1, keepdims=True)
    greatest = np.where(np.isfinite(greatest), greatest, 0.0)
    powers = np.exp(scores - greatest)
    total = powers.sum(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, powers @ v / total, 0.0), (np.log(total) + greatest)[..., 0]
