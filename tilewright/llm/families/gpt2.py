"""GPT-2: layer norms, learned positions, weights stored as [input, output]."""

from __future__ import annotations

from tilewright.graph.core import Graph, Value
from tilewright.importers.huggingface import HUGGING_FACE_ACTIVATIONS
from tilewright.llm.step_graph import GenerationStep


class GPT2:
    """model_type "gpt2"."""

    def __init__(self, step: GenerationStep) -> None:
        config = step.configuration
        self.step, self.emit, self.config = step, step.emit, config
        self.hidden = config.number("n_embd", 768)
        self.layers = config.number("n_layer", 12, high=10_000)
        self.heads = config.number("n_head", 12)
        if self.hidden % self.heads:
            config.refuse("n_head", f"does not divide n_embd {self.hidden}")
        self.width = self.hidden // self.heads
        self.intermediate = config.number("n_inner", 4 * self.hidden)
        self.positions = config.number("n_positions", 1024)
        self.epsilon = config.real("layer_norm_epsilon", 1e-5, 0.0, 1.0)
        self.activation = config.word("activation_function", "gelu_new", tuple(HUGGING_FACE_ACTIVATIONS))
        config.expect("add_cross_attention", False)
        step.checkpoint.strip_prefix("transformer.")
        step.checkpoint.check_layers("h.", self.layers, "n_layer")

    @property
    def bytes_per_token(self) -> int:
        """Bytes that all pools keep of a token."""
        return 2 * self.layers * self.heads * self.step.bytes_per_head(self.width)

    def build(self) -> Graph:
        """The whole step."""
        step, emit = self.step, self.emit
        vocabulary = self.config.number("vocab_size", 50257)
        table = step.weight("wte.weight", vocabulary, self.hidden)
        places = step.weight("wpe.weight", self.positions, self.hidden)
        hidden = emit.op("add", step.embedding(table, step.tokens), step.embedding(places, step.positions))
        for index in range(self.layers):
            hidden = self._layer(index, hidden)
        hidden = step.layer_norm("ln_f", step.last(hidden), self.epsilon)
        tied = self.config.flag("tie_word_embeddings", True)
        if tied:
            logits = step.tied_product("wte", hidden, table)
        else:
            logits = step.product("lm_head", hidden, vocabulary, self.hidden)
        masks = [f"h.{index}.attn.{name}" for index in range(self.layers) for name in ("bias", "masked_bias")]
        left = ("lm_head.weight",) if tied else ()
        return step.finish(logits, (*masks, *left))

    def _layer(self, index: int, hidden: Value) -> Value:
        step, emit, path = self.step, self.emit, f"h.{index}"
        x = step.layer_norm(f"{path}.ln_1", hidden, self.epsilon)
        together = self._linear(f"{path}.attn.c_attn", x, 3 * self.hidden, self.hidden)
        parts = [emit.slice(together, 1, n * self.hidden, (n + 1) * self.hidden) for n in range(3)]
        query, key, value = (step.heads(part, self.heads, self.width) for part in parts)
        scale = self.width**-0.5 if self.config.flag("scale_attn_weights", True) else 1.0
        if self.config.flag("scale_attn_by_inverse_layer_idx"):
            scale /= index + 1
        mixed = step.attention(index, query, key, value, scale)
        hidden = emit.op("add", hidden, self._linear(f"{path}.attn.c_proj", mixed, self.hidden, self.hidden))
        x = step.layer_norm(f"{path}.ln_2", hidden, self.epsilon)
        inner = self._linear(f"{path}.mlp.c_fc", x, self.intermediate, self.hidden)
        inner = step.activation(self.activation, inner)
        outer = self._linear(f"{path}.mlp.c_proj", inner, self.hidden, self.intermediate)
        return emit.op("add", hidden, outer)

    def _linear(self, path: str, x: Value, rows: int, columns: int) -> Value:
        step, emit = self.step, self.emit
        emit.source = path
        product = emit.op("matmul", x, step.weight(f"{path}.weight", columns, rows))
        return emit.op("add", product, step.weight(f"{path}.bias", rows))
