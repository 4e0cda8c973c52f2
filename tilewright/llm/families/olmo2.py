"""OLMo 2: norms after attention and MLP, none before, and of all heads of queries and of keys together."""

from __future__ import annotations

from tilewright.graph.core import Value
from tilewright.llm.families.decoder import Decoder


class Olmo2(Decoder):
    """model_type "olmo2"."""

    epsilon = 1e-5

    def layer(self, index: int, hidden: Value) -> Value:
        path, emit = f"layers.{index}", self.emit
        mixed = self.attention(index, hidden)
        hidden = emit.op("add", hidden, self.norm(f"{path}.post_attention_layernorm", mixed))
        return emit.op("add", hidden, self.norm(f"{path}.post_feedforward_layernorm", self.mlp(index, hidden)))

    def project(self, path: str, x: Value) -> tuple[Value, Value, Value]:
        step, heads = self.step, self.heads

        def one(name: str, count: int) -> Value:
            return step.linear(f"{path}.{name}_proj", x, count * heads.width, self.hidden, self.bias)

        query = self.norm(f"{path}.q_norm", one("q", heads.count))
        key = self.norm(f"{path}.k_norm", one("k", heads.keys))
        return (
            step.heads(query, heads.count, heads.width), step.heads(key, heads.keys, heads.width),
            step.heads(one("v", heads.keys), heads.keys, heads.width),
        )  # fmt: skip
