"""Language models in NumPy, in float64, one whole sequence at a time: what the families of `tilewright.llm` must give.

Written from the published architectures, without the package; `tools/llm_references.py` compares it with transformers.
Weights follow from their names (`llm_support.numbers`); `shapes` are those that a model has asked for.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.host.llm_support import numbers


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Reference:
    """The model of one config.json."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings, self.family = settings, settings["model_type"]
        self.shapes: dict[str, tuple[int, ...]] = {}

    def logits(self, tokens: list[int]) -> np.ndarray:
        """float64 [tokens, vocabulary]"""
        return self._gpt2(tokens) if self.family == "gpt2" else self._decoder(tokens)

    def weight(self, name: str, *shape: int) -> np.ndarray:
        self.shapes[name] = shape
        return numbers(name, shape).astype(np.float64)

    def linear(self, path: str, x: np.ndarray, rows: int, bias: bool = False) -> np.ndarray:
        result = x @ self.weight(f"{path}.weight", rows, x.shape[-1]).T
        return result + self.weight(f"{path}.bias", rows) if bias else result

    def norm(self, path: str, x: np.ndarray) -> np.ndarray:
        if self.family == "starcoder2":
            return self._layer_norm(path, x)
        scale = self.weight(f"{path}.weight", x.shape[-1]) + (1 if self.family.startswith("gemma") else 0)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.settings["rms_norm_eps"]) * scale

    # -- Positions ----------------------------------------------------------------------------------

    def turned(self, x: np.ndarray, sliding: bool) -> np.ndarray:
        """Heads [tokens, heads, width] turned by their positions."""
        given = self.settings.get("rope_parameters", {})
        width = int(x.shape[-1] * given.get("partial_rotary_factor", 1.0))
        theta = given.get("rope_theta", 10000.0)
        if self.family == "gemma3_text":
            theta = 10000.0 if sliding else 1e6
        theta = {"mixtral": 1e6, "smollm3": 2e6}.get(self.family, theta)
        frequencies, factor = self.frequencies(given, width, theta)
        angles = np.arange(len(x))[:, None, None] * frequencies
        cosine, sine = np.cos(angles) * factor, np.sin(angles) * factor
        low, high, rest = x[..., : width // 2], x[..., width // 2 : width], x[..., width:]
        return np.concatenate([low * cosine - high * sine, high * cosine + low * sine, rest], -1)

    def frequencies(self, given: dict[str, Any], width: int, theta: float) -> tuple[np.ndarray, float]:
        kind, plain = given.get("rope_type", "default"), theta ** -(np.arange(0, width, 2) / width)
        if kind == "linear":
            return plain / given["factor"], 1.0
        if kind == "llama3":
            length = 2 * math.pi / plain
            original, low, high = (
                given[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
            )
            part = np.clip((original / length - low) / (high - low), 0, 1)
            return plain * (part + (1 - part) / given["factor"]), 1.0
        if kind == "yarn":
            original = given["original_max_position_embeddings"]
            ends = [width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (32, 1)]
            low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), width - 1)
            ramp = np.clip((np.arange(width // 2) - low) / (high - low), 0, 1)
            return plain * (1 - ramp) + plain / given["factor"] * ramp, 0.1 * math.log(given["factor"]) + 1
        if kind == "longrope":  # sequences that fit into the original positions
            stretched = self.settings["max_position_embeddings"] / given["original_max_position_embeddings"]
            factor = math.sqrt(1 + math.log(stretched) / math.log(given["original_max_position_embeddings"]))
            return plain / np.array(given["short_factor"]), factor
        return plain, 1.0  # dynamic as well, for sequences within the model's positions

    # -- Decoders -----------------------------------------------------------------------------------

    def window(self, layer: int) -> int | None:
        """How many tokens a layer sees; None for all."""
        settings, family = self.settings, self.family
        if family in ("mistral", "phi3", "starcoder2"):
            return settings.get("sliding_window")
        if family == "qwen2" and settings.get("use_sliding_window"):
            return settings["sliding_window"] if layer >= settings["max_window_layers"] else None
        if family == "gemma2":
            return None if layer % 2 else settings["sliding_window"]
        if family == "gemma3_text":
            return settings["sliding_window"] if (layer + 1) % 6 else None
        if family == "smollm3" and settings.get("use_sliding_window"):
            return None if settings["no_rope_layers"][layer] else settings["sliding_window"]
        return None

    def _decoder(self, tokens: list[int]) -> np.ndarray:
        settings = self.settings
        hidden, vocabulary, gemma = settings["hidden_size"], settings["vocab_size"], self.family.startswith("gemma")
        before, after = self.family != "olmo2", self.family in ("gemma2", "gemma3_text", "olmo2")  # norms
        added = settings.get("residual_multiplier", 1.0)
        table = self.weight("model.embed_tokens.weight", vocabulary, hidden)
        x = table[tokens] * (math.sqrt(hidden) if gemma else settings.get("embedding_multiplier", 1.0))
        for layer in range(settings["num_hidden_layers"]):
            path = f"model.layers.{layer}"
            mixed = self._attention(layer, self.norm(f"{path}.input_layernorm", x) if before else x)
            x = x + (self.norm(f"{path}.post_attention_layernorm", mixed) if after else mixed * added)
            name = f"{path}.{'pre_feedforward' if after else 'post_attention'}_layernorm"
            inner = self._mlp(layer, self.norm(name, x) if before else x)
            x = x + (self.norm(f"{path}.post_feedforward_layernorm", inner) if after else inner * added)
        x = self.norm("model.norm", x)
        if gemma or settings.get("tie_word_embeddings"):
            logits = x @ table.T
            return 30 * np.tanh(logits / 30) if self.family == "gemma2" else logits
        return self.linear("lm_head", x, vocabulary) / settings.get("logits_scaling", 1.0)

    def _attention(self, layer: int, x: np.ndarray) -> np.ndarray:
        settings, path = self.settings, f"model.layers.{layer}.self_attn"
        heads, keys = settings["num_attention_heads"], settings["num_key_value_heads"]
        width = settings.get("head_dim", settings["hidden_size"] // heads)
        sizes = (heads * width, keys * width, keys * width)
        if self.family == "phi3":
            parts = np.split(self.linear(f"{path}.qkv_proj", x, sum(sizes)), np.cumsum(sizes)[:2], -1)
        else:
            bias = self.family in ("qwen2", "qwen2_moe") or settings.get("attention_bias", False)
            bias = settings.get("use_bias", bias)
            parts = [self.linear(f"{path}.{name}_proj", x, size, bias) for name, size in zip("qkv", sizes, strict=True)]
        if self.family == "olmo2":
            parts = [self.norm(f"{path}.q_norm", parts[0]), self.norm(f"{path}.k_norm", parts[1]), parts[2]]
        query, key, value = (part.reshape(len(x), -1, width) for part in parts)
        if self.family in ("qwen3", "qwen3_moe", "gemma3_text"):
            query, key = self.norm(f"{path}.q_norm", query), self.norm(f"{path}.k_norm", key)
        window = self.window(layer)
        if settings.get("no_rope_layers", [1] * 99)[layer]:
            query, key = self.turned(query, window is not None), self.turned(key, window is not None)
        scale = settings.get("attention_multiplier", settings.get("query_pre_attn_scalar", width) ** -0.5)
        mixed = attend(query, key, value, scale, window, 50.0 if self.family == "gemma2" else None)
        bias = settings.get("use_bias", settings.get("attention_bias", False))
        return self.linear(f"{path}.o_proj", mixed, settings["hidden_size"], bias)

    def _mlp(self, layer: int, x: np.ndarray) -> np.ndarray:
        settings = self.settings
        path = f"model.layers.{layer}.mlp"
        if self.family == "mixtral":
            return self._experts(f"model.layers.{layer}.block_sparse_moe", x, settings["num_local_experts"],
                                 settings["intermediate_size"], ("w1", "w3", "w2"))  # fmt: skip
        if self.family == "qwen3_moe" and layer not in settings["mlp_only_layers"]:
            return self._experts(path, x, settings["num_experts"], settings["moe_intermediate_size"],
                                 ("gate_proj", "up_proj", "down_proj"))  # fmt: skip
        if self.family == "qwen2_moe":
            names = ("gate_proj", "up_proj", "down_proj")
            chosen = self._experts(path, x, settings["num_experts"], settings["moe_intermediate_size"], names)
            shared = self._gated(f"{path}.shared_expert", x, settings["shared_expert_intermediate_size"], names)
            return chosen + shared / (1 + np.exp(-self.linear(f"{path}.shared_expert_gate", x, 1)))
        if self.family == "starcoder2":
            inner = gelu_tanh(self.linear(f"{path}.c_fc", x, settings["intermediate_size"], True))
            return self.linear(f"{path}.c_proj", inner, settings["hidden_size"], True)
        return self._gated(path, x, settings["intermediate_size"], ("gate_proj", "up_proj", "down_proj"))

    def _gated(self, path: str, x: np.ndarray, size: int, names: tuple[str, str, str]) -> np.ndarray:
        bias = self.settings.get("mlp_bias", False)
        if self.family == "phi3":
            gate, up = np.split(self.linear(f"{path}.gate_up_proj", x, 2 * size), 2, -1)
        else:
            gate, up = (self.linear(f"{path}.{name}", x, size, bias) for name in names[:2])
        active = gelu_tanh(gate) if self.family.startswith("gemma") else silu(gate)
        return self.linear(f"{path}.{names[2]}", active * up, self.settings["hidden_size"], bias)

    def _experts(self, path: str, x: np.ndarray, count: int, size: int, names: tuple[str, str, str]) -> np.ndarray:
        scores = softmax(self.linear(f"{path}.gate", x, count))
        each = [self._gated(f"{path}.experts.{number}", x, size, names) for number in range(count)]
        chosen = np.argsort(-scores, -1)[:, : self.settings["num_experts_per_tok"]]
        weights = np.take_along_axis(scores, chosen, -1)
        if self.settings.get("norm_topk_prob", self.family == "mixtral"):
            weights /= weights.sum(-1, keepdims=True)
        return np.stack([
            sum(weight * each[expert][row] for weight, expert in zip(weights[row], chosen[row], strict=True))
            for row in range(len(x))
        ])  # fmt: skip

    # -- GPT-2 --------------------------------------------------------------------------------------

    def _gpt2(self, tokens: list[int]) -> np.ndarray:
        settings, hidden = self.settings, self.settings["n_embd"]
        table = self.weight("transformer.wte.weight", settings["vocab_size"], hidden)
        x = table[tokens] + self.weight("transformer.wpe.weight", settings["n_positions"], hidden)[: len(tokens)]
        for layer in range(settings["n_layer"]):
            path = f"transformer.h.{layer}"
            parts = np.split(self._turned_linear(f"{path}.attn.c_attn", self._layer_norm(f"{path}.ln_1", x),
                                                 3 * hidden), 3, -1)  # fmt: skip
            query, key, value = (part.reshape(len(x), settings["n_head"], -1) for part in parts)
            mixed = attend(query, key, value, query.shape[-1] ** -0.5, None, None)
            x = x + self._turned_linear(f"{path}.attn.c_proj", mixed, hidden)
            inner = self._turned_linear(f"{path}.mlp.c_fc", self._layer_norm(f"{path}.ln_2", x), 4 * hidden)
            x = x + self._turned_linear(f"{path}.mlp.c_proj", gelu_tanh(inner), hidden)
        return self._layer_norm("transformer.ln_f", x) @ table.T

    def _turned_linear(self, path: str, x: np.ndarray, columns: int) -> np.ndarray:
        return x @ self.weight(f"{path}.weight", x.shape[-1], columns) + self.weight(f"{path}.bias", columns)

    def _layer_norm(self, path: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        return scaled * self.weight(f"{path}.weight", x.shape[-1]) + self.weight(f"{path}.bias", x.shape[-1])


def attend(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, scale: float, window: int | None, cap: float | None
) -> np.ndarray:
    """Heads [tokens, heads, width] -> [tokens, heads * width], causal."""
    group = query.shape[1] // key.shape[1]
    key, value = np.repeat(key, group, 1), np.repeat(value, group, 1)
    scores = np.einsum("qhw,khw->hqk", query, key) * scale
    if cap is not None:
        scores = cap * np.tanh(scores / cap)
    place = np.arange(len(query))
    seen = place[None, :] <= place[:, None]
    if window is not None:
        seen &= place[None, :] > place[:, None] - window
    return np.einsum("hqk,khw->qhw", softmax(np.where(seen, scores, -np.inf)), value).reshape(len(query), -1)
