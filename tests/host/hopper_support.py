"""The Hopper kernels traced for given configs, and their references in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright
import tilewright.language as tl
from tilewright.ir.core import Function
from tilewright.library.attention.hopper.config import AttentionConfig
from tilewright.library.attention.hopper.decoding_config import DecodingConfig
from tilewright.library.attention.hopper.decoding_kernel import decoding
from tilewright.library.attention.hopper.kernel import attention
from tilewright.library.attention.hopper.paged_chunks_kernel import paged_chunks
from tilewright.library.attention.hopper.paged_config import PagedConfig
from tilewright.library.attention.hopper.paged_kernel import paged_tokens
from tilewright.library.convolution.hopper.bf16x6_kernel import bf16x6_convolution
from tilewright.library.grouped.hopper_kernel import grouped_matmul
from tilewright.library.matmul.hopper.bf16x6_kernel import bf16x6_matmul
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.library.matmul.hopper.kernel import matmul
from tilewright.library.matmul.hopper.projection_config import ProjectionHeads
from tilewright.library.matmul.hopper.projection_kernel import project_heads

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


def traced_matmul(config: MatmulConfig, extra: tuple[str, ...] = ()) -> Function:
    """The kernel's Tile IR for a config; `extra` are the types of the epilogue's operands."""
    config.check()
    types: dict[str, Any] = {
        "a": tensor_map(config.left_block, config.INPUT), "b": tensor_map(config.right_block, config.INPUT),
        "c": tensor_map(config.out_block, config.OUTPUT), "c_tail": tensor_map(config.tail_block, config.OUTPUT),
        "M": "i32", "N": "i32", "K": "i32", "batches": "i32",
    }  # fmt: skip
    if extra:
        types["extra"] = extra
    return matmul.trace(types, {"CONFIG": config})


def traced_bf16x6(config: MatmulConfig) -> Function:
    """The kernel of float32 products in parts."""
    config.check()
    types: dict[str, Any] = {
        "a": tensor_map(config.left_block, config.INPUT), "b": tensor_map(config.right_block, config.INPUT),
        "a_planes": "*bf16", "b_planes": "*bf16", "c": f"*{config.OUTPUT.element.text}",
        **dict.fromkeys(("M", "N", "K", "a_line", "b_line", "batches"), "i32"),
    }  # fmt: skip
    return bf16x6_matmul.trace(types, {"CONFIG": config})


def traced_convolution(config: MatmulConfig) -> Function:
    """The kernel of float32 convolutions in parts."""
    config.check()
    sizes = ("M", "N", "channels", "batches", "images", "phase_rows", "image_rows", "slice_rows", "line_rows", "plane",
             "depth", "height", "width", "b_line")  # fmt: skip
    types: dict[str, Any] = {
        "a": tensor_map(config.left_block, config.INPUT), "b": tensor_map(config.right_block, config.INPUT),
        "a_planes": "*bf16", "b_planes": "*bf16", "c": f"*{config.OUTPUT.element.text}", **dict.fromkeys(sizes, "i32"),
    }  # fmt: skip
    return bf16x6_convolution.trace(types, {"CONFIG": config})


def traced_grouped(config: MatmulConfig, extra: tuple[str, ...] = ()) -> Function:
    """The kernel of grouped products."""
    config.check()
    types: dict[str, Any] = {
        "a": tensor_map(config.left_block, config.INPUT), "b": tensor_map(config.right_block, config.INPUT),
        "c": tensor_map(config.out_block, config.OUTPUT),
        "out": f"*{config.OUTPUT.element.text}", "tiles": "*k i32",
        **dict.fromkeys(("rows", "N", "K", "groups"), "i32"),
    }  # fmt: skip
    if extra:
        types["extra"] = extra
    return grouped_matmul.trace(types, {"CONFIG": config})


def traced_projection(config: MatmulConfig, heads: ProjectionHeads, extra: tuple[str, ...] = ()) -> Function:
    """The kernel of products whose columns are heads."""
    config.check()
    element = config.INPUT.element.text
    types: dict[str, Any] = {
        "a": tensor_map(config.left_block, config.INPUT), "pairs": tensor_map(heads.pairs_block, config.INPUT),
        "columns": tensor_map(heads.columns_block, config.INPUT), "slots": "*k i32", "entries": "i64",
        **dict.fromkeys(("cosine", "sine"), f"*k {element}"), **dict.fromkeys(("M", "N", "K"), "i32"),
        **dict.fromkeys(("queries", "keys", "values"), f"*{element}"),
    }  # fmt: skip
    if extra:
        types["extra"] = extra
    return project_heads.trace(types, {"CONFIG": config, "HEADS": heads.check()})


def traced_attention(config: AttentionConfig) -> Function:
    """The kernel's Tile IR for a config."""
    config.check()
    queries, keys = tensor_map(config.query_block, config.TYPE), tensor_map(config.key_block, config.TYPE)
    numbers = dict.fromkeys(("tiles_per_cta", "queries", "keys", "heads", "group", "window"), "i32")
    types: dict[str, Any] = {"q": queries, "k": keys, "v": keys, "out": queries, "lse": "*f32", "lengths": "*k i32",
             "schedule": "*k i32", "scale": "f32", **numbers}  # fmt: skip
    if config.BIAS:
        types["extra"] = (f"*k {config.TYPE.element.text}", "i64", "i64", "i64", "f32")
    return attention.trace(types, {"CONFIG": config})


def traced_decoding(config: DecodingConfig) -> Function:
    """The Tile IR of attention of few queries for a config."""
    config.check()
    blocks = {"q": config.query_block, "k": config.key_block, "v": config.key_block, "k_rows": config.fresh_block,
              "v_rows": config.fresh_block}  # fmt: skip
    types: dict[str, Any] = {name: tensor_map(block, config.TYPE) for name, block in blocks.items()}
    types |= {"fresh": "*k i64", "out": f"*{config.TYPE.element.text}", "scale": "f32"}
    types |= {**dict.fromkeys(("out_batch", "out_head", "out_row"), "i64"),
              **dict.fromkeys(("queries", "keys", "heads"), "i32")}  # fmt: skip
    if config.BIAS:
        types["extra"] = (f"*k {config.TYPE.element.text}", "i64", "i64", "f32")
    return decoding.trace(types, {"CONFIG": config})


def traced_pages(config: PagedConfig) -> Function:
    """The Tile IR of attention of few new tokens over pages for a config."""
    config.check()
    element, keys = config.TYPE.element.text, tensor_map(config.key_block, config.TYPE)
    types: dict[str, Any] = {"q": f"*k {element}", "k": keys, "v": keys, "out": f"*{element}", "scale": "f32"}
    types |= {**dict.fromkeys(("tables", "starts", "lengths"), "*k i32"),
              **dict.fromkeys(("tokens", "slots", "columns"), "i64"), "heads": "i32", "key_heads": "i32"}  # fmt: skip
    return paged_tokens.trace(types, {"CONFIG": config})


def traced_chunks(config: AttentionConfig, few: int) -> Function:
    """The Tile IR of attention of chunks of prompts over pages: sequences with more than `few` new tokens."""
    config.check()
    element = config.TYPE.element.text
    queries, keys = tensor_map(config.query_block, config.TYPE), tensor_map(config.key_block, config.TYPE)
    types: dict[str, Any] = {"q": queries, "k": keys, "v": keys, "out": queries, "results": f"*{element}"}
    types |= {**dict.fromkeys(("tables", "starts", "lengths"), "*k i32"), "scale": "f32",
              **dict.fromkeys(("tokens", "slots", "columns"), "i64"),
              **dict.fromkeys(("sequences", "numbers", "heads", "group"), "i32")}  # fmt: skip
    return paged_chunks.trace(types, {"CONFIG": config, "FEW": few, "SEQUENCES": 4, "EARLY": True})


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
