"""The model of the benchmarks of language models on a GPU: the shape of Llama 3.1 8B in bfloat16, random weights."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch

HIDDEN, INNER, HEADS, KEY_HEADS, WIDTH, VOCABULARY = 4096, 14336, 32, 8, 128, 128256
QUERIES, KEYS = HEADS * WIDTH, KEY_HEADS * WIDTH
EPSILON, THETA = 1e-5, 500000.0


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """The weights of the checkpoint."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }  # fmt: skip
    for layer in range(layers):
        path = f"model.layers.{layer}"
        for name, rows in (("q", QUERIES), ("k", KEYS), ("v", KEYS), ("o", HIDDEN)):
            found[f"{path}.self_attn.{name}_proj.weight"] = (rows, QUERIES if name == "o" else HIDDEN)
        found[f"{path}.mlp.gate_proj.weight"] = found[f"{path}.mlp.up_proj.weight"] = (INNER, HIDDEN)
        found[f"{path}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        found[f"{path}.input_layernorm.weight"] = found[f"{path}.post_attention_layernorm.weight"] = (HIDDEN,)
    return found


def configuration(layers: int) -> dict[str, Any]:
    """The settings of the checkpoint's config.json, but its `model_type`."""
    return {
        "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS, "max_position_embeddings": 131072,
        "rms_norm_eps": EPSILON, "rope_theta": THETA, "dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip


def write(folder: Path, layers: int) -> int:
    """A checkpoint whose weights repeat one random block; gives the bytes of them that a decoding step reads."""
    block = (np.random.default_rng(0).standard_normal(1 << 25, np.float32) * 0.02).astype(ml_dtypes.bfloat16).tobytes()
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes(layers).items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, end, len(block)):
            file.write(block[: end - begin])
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **configuration(layers)}))
    return end - 2 * VOCABULARY * HIDDEN


def rates() -> tuple[float, float]:
    """Bytes a second that a sum reads, or a copy moves; operations a second of a product by cuBLAS."""
    x, y = torch.ones(1 << 31, device="cuda"), torch.empty(1 << 31, device="cuda")
    read = max(x.nbytes / seconds(x.sum, 10), 2 * x.nbytes / seconds(lambda: y.copy_(x), 10))
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return read, 2 * 8192**3 / seconds(lambda: a @ b, 20)


def seconds(run: Callable[[], Any], rounds: int) -> float:
    """The median time of a call, the GPU's work included."""
    times = []
    for number in range(rounds + 3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if number >= 3:
            times.append(time.perf_counter() - began)
    return statistics.median(times)
