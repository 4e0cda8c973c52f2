"""Qwen2 and 2.5 (biases of queries, keys and values), Qwen3 (norms of queries and keys), and the mixtures of experts of
both, in Qwen2 with an expert that all tokens take."""

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


class _Sparse(Decoder):
    """Mixtures of experts in place of the MLPs of most layers."""

    default_experts = (128, 8, 768)  # how many there are, how many a token takes, and their width

    def read(self) -> None:
        super().read()
        config, (count, chosen, width) = self.config, self.default_experts
        self.every = config.number("decoder_sparse_step", 1)
        self.dense = config.values.get("mlp_only_layers", [])
        if not isinstance(self.dense, list):
            config.refuse("mlp_only_layers", "expected a list of layers")
        key = "num_experts" if "num_experts" in config.values else "num_local_experts"
        self.experts = Experts(
            config.number(key, count), config.number("num_experts_per_tok", chosen), self.hidden,
            config.number("moe_intermediate_size", width), self.activation, config.flag("norm_topk_prob"),
        )  # fmt: skip
        if self.experts.chosen > self.experts.count:
            config.refuse("num_experts_per_tok", f"more than {key} {self.experts.count}")

    def mlp(self, index: int, x: Value) -> Value:
        if index in self.dense or (index + 1) % self.every:
            return super().mlp(index, x)
        return self.sparse(f"layers.{index}.mlp", x)

    def sparse(self, path: str, x: Value) -> Value:
        """The mixture under a path."""
        weights = expert_weights(self.step, path, self.experts, ("gate_proj", "up_proj", "down_proj"))
        return mixture(self.step, f"{path}.gate", x, self.experts, *weights)


class Qwen2Experts(_Sparse, Qwen2):
    """model_type "qwen2_moe": besides the chosen experts, one that all tokens take, as much as a gate says."""

    key_heads = 16
    default_experts = (60, 4, 1408)

    def read(self) -> None:
        super().read()
        self.bias = self.config.flag("qkv_bias", True)
        self.output_bias = False
        self.shared = self.config.number("shared_expert_intermediate_size", 5632)
        if self.config.flag("use_sliding_window") and "layer_types" not in self.config.values:
            self.config.refuse("use_sliding_window", "layer_types must say which layers have a window")

    def sparse(self, path: str, x: Value) -> Value:
        emit = self.emit
        all_take = self.gated(f"{path}.shared_expert", x, self.shared)
        part = emit.op("sigmoid", self.step.linear(f"{path}.shared_expert_gate", x, 1, self.hidden))
        return emit.op("add", super().sparse(path, x), emit.op("multiply", part, all_take))


class Qwen3Experts(_Sparse, Qwen3):
    """model_type "qwen3_moe"."""

    head_width = None
    key_heads = 4

    def read(self) -> None:
        super().read()
        config = self.config
        window = config.number("sliding_window", 4096) if config.flag("use_sliding_window") else None
        self.windows = [window] * self.layers
