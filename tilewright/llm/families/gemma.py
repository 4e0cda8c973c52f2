"""Gemma: norms with scales stored less one, a scaled embedding.  Gemma 2 and 3 have norms around attention and MLP, and
windows in most layers; bounded scores and logits in Gemma 2, norms of queries and keys in Gemma 3."""

from __future__ import annotations

from tilewright.graph.core import Value
from tilewright.llm.families.decoder import Decoder
from tilewright.llm.rotary import Rotary, read_rotary


class Gemma(Decoder):
    """model_type "gemma"."""

    head_width = 256
    activation_default = "gelu_pytorch_tanh"
    tied = True

    def read(self) -> None:
        super().read()
        if self.config.flag("use_bidirectional_attention"):
            self.config.refuse("use_bidirectional_attention", "only causal attention is supported")

    def norm(self, path: str, x: Value) -> Value:
        return self.step.rms_norm(path, x, self.norm_epsilon, added=1.0)

    def embed(self, table: Value) -> Value:
        return self.emit.op("multiply", super().embed(table), self.hidden**0.5)


class Gemma2(Gemma):
    """model_type "gemma2"."""

    key_heads = 4
    activation_key = "hidden_activation"
    score_cap: float = 50.0
    logit_cap: float = 30.0

    def read(self) -> None:
        super().read()
        config = self.config
        self.scale = config.real("query_pre_attn_scalar", 256.0, 1e-6) ** -0.5
        self.softcap = self.cap("attn_logit_softcapping", self.score_cap)
        self.final_cap = self.cap("final_logit_softcapping", self.logit_cap)
        window = config.number("sliding_window", 4096)
        self.types = config.layer_types(self.layers, [self.default_type(index) for index in range(self.layers)])
        self.windows = [window if kind == "sliding_attention" else None for kind in self.types]

    def cap(self, key: str, default: float) -> float:
        """A bound of scores; 0: none."""
        return 0.0 if key in self.config.nulls else self.config.real(key, default)

    def default_type(self, index: int) -> str:
        """Layers take turns."""
        return "full_attention" if index % 2 else "sliding_attention"

    def layer(self, index: int, hidden: Value) -> Value:
        path, emit = f"layers.{index}", self.emit
        mixed = self.attention(index, self.norm(f"{path}.input_layernorm", hidden))
        hidden = emit.op("add", hidden, self.norm(f"{path}.post_attention_layernorm", mixed))
        outer = self.mlp(index, self.norm(f"{path}.pre_feedforward_layernorm", hidden))
        return emit.op("add", hidden, self.norm(f"{path}.post_feedforward_layernorm", outer))

    def head(self, hidden: Value, table: Value) -> Value:
        logits = super().head(hidden, table)
        return self.step.capped(logits, self.final_cap) if self.final_cap else logits


class Gemma3(Gemma2):
    """model_type "gemma3_text": every sixth layer sees all tokens, with positions of its own."""

    score_cap = 0.0
    logit_cap = 0.0

    def read(self) -> None:
        super().read()
        length, width = self.step.limits.length, self.heads.width
        local = self.config.real("rope_local_base_freq", 10_000.0, 1.0)
        self.rotary = read_rotary(self.config, width, length, "full_attention", 1_000_000.0)
        self.local = read_rotary(self.config, width, length, "sliding_attention", local)

    def default_type(self, index: int) -> str:
        pattern = self.config.number("sliding_window_pattern", 6)
        return "sliding_attention" if (index + 1) % pattern else "full_attention"

    def rotary_of(self, index: int) -> Rotary | None:
        return self.local if self.types[index] == "sliding_attention" else self.rotary

    def project(self, path: str, x: Value) -> tuple[Value, Value, Value]:
        query, key, value = super().project(path, x)
        return self.norm(f"{path}.q_norm", query), self.norm(f"{path}.k_norm", key), value
