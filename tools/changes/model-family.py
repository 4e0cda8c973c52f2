"""The step of a small model with random weights becomes a graph."""

import json
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tilewright.llm.model import step_graph
from tilewright.llm.step_graph import Limits

CONFIG = {
    "model_type": "arcee", "vocab_size": 96, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
}  # fmt: skip
SHAPES = {
    "model.embed_tokens": (96, 48), "model.norm": (48,), "lm_head": (96, 48), "input_layernorm": (48,),
    "post_attention_layernorm": (48,), "self_attn.q_proj": (48, 48), "self_attn.k_proj": (24, 48),
    "self_attn.v_proj": (24, 48), "self_attn.o_proj": (48, 48), "mlp.up_proj": (80, 48), "mlp.down_proj": (48, 80),
}  # fmt: skip

rng = np.random.default_rng(0)
whole = ("model.", "lm_head")
names = {
    f"{name}.weight" if name.startswith(whole) else f"model.layers.0.{name}.weight": SHAPES[name] for name in SHAPES
}
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "config.json").write_text(json.dumps(CONFIG))
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in names.items()}
    save_file(weights, Path(folder, "model.safetensors"))
    graph = step_graph(folder, Limits(page=8, tokens=16, sequences=2, length=64))
assert "relu" in [node.op for node in graph.nodes]
