"""Qwen2 and 2.5 (biases of queries, keys and values), Qwen3 (norms of queries and keys) and its mixture of experts."""

from __future__ import annotations

from tilewright.graph.core import Value
from tilewright.llm.experts import Experts, expert_weights, mixture
from tilewright.llm.families.decoder import Decoder


class Qwen2(Decoder):
    """model_type "qwen2"."""

    def read(self) -> None:
        super().read()
        self.bias = True
        window = self.config.number("sliding_window", 4096) if self.config.flag("use_sliding_window") else None
        first = self.config.number("max_window_layers", 28, low=0)
        default = ["full_attention" if window is None or index < first else "sliding_attention"
                   for index in range(self.layers)]  # fmt: skip
        types = self.config.layer_types(self.layers, default)
        self.windows = [window if kind == "sliding_attention" else None for kind in types]


class Qwen3(Qwen2):
    """model_type "qwen3"."""

    head_width: int | None = 128

    def read(self) -> None:
        super().read()
        self.bias = self.config.flag("attention_bias")

    def project(self, path: str, x: Value) -> tuple[Value, Value, Value]:
        query, key, value = super().project(path, x)
        return self.norm(f"{path}.q_norm", query), self.norm(f"{path}.k_norm", key), value


class Qwen3Experts(Qwen3):
    """model_type "qwen3_moe"."""

    head_width = None
    key_heads = 4

    def read(self) -> None:
        super().read()
        config = self.config
        window = config.number("sliding_window", 4096) if config.flag("use_sliding_window") else None
        self.windows = [window] * self.layers
        self.every = config.number("decoder_sparse_step", 1)
        self.dense = config.values.get("mlp_only_layers", [])
        count = "num_experts" if "num_experts" in config.values else "num_local_experts"
        self.experts = Experts(
            config.number(count, 128), config.number("num_experts_per_tok", 8), self.hidden,
            config.number("moe_intermediate_size", 768), self.activation, config.flag("norm_topk_prob"),
        )  # fmt: skip
        if self.experts.chosen > self.experts.count:
            config.refuse("num_experts_per_tok", f"more than {count} {self.experts.count}")

    def mlp(self, index: int, x: Value) -> Value:
        if index in self.dense or (index + 1) % self.every:
            return super().mlp(index, x)
        path = f"layers.{index}.mlp"
        weights = expert_weights(self.step, path, self.experts, ("gate_proj", "up_proj", "down_proj"))
        return mixture(self.step, f"{path}.gate", x, self.experts, *weights)
