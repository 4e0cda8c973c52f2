"""The decoder shared by most families: RMS norms, rotary positions, grouped heads and a gated MLP.

A family is a subclass that says what it does otherwise.  Names of weights are those of the checkpoint without the
prefix ``model.``.
"""

from __future__ import annotations

from tilewright.graph.core import Graph, Value
from tilewright.importers.huggingface import HUGGING_FACE_ACTIVATIONS
from tilewright.llm.rotary import Rotary, read_rotary
from tilewright.llm.step_graph import GenerationStep, Heads


class Decoder:
    """Llama; the attributes are the defaults of config.json."""

    head_width: int | None = None  # None: hidden_size / num_attention_heads
    key_heads: int | None = None  # None: num_attention_heads
    epsilon = 1e-6
    theta = 10000.0
    activation_key, activation_default = "hidden_act", "silu"
    activations: tuple[str, ...] = tuple(HUGGING_FACE_ACTIVATIONS)  # that the MLP may have
    tied = False
    softcap = 0.0  # of attention's scores; 0: none
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)

    def __init__(self, step: GenerationStep) -> None:
        config = step.configuration
        self.step, self.emit, self.config = step, step.emit, config
        self.hidden = config.number("hidden_size")
        self.layers = config.number("num_hidden_layers", high=10_000)
        self.vocabulary = config.number("vocab_size")
        heads = config.number("num_attention_heads")
        keys = config.number("num_key_value_heads", self.key_heads or heads)
        if self.head_width is None and "head_dim" not in config.values and self.hidden % heads:
            config.refuse("num_attention_heads", f"does not divide hidden_size {self.hidden}")
        if heads % keys:
            config.refuse("num_key_value_heads", f"does not divide num_attention_heads {heads}")
        width = config.number("head_dim", self.head_width or self.hidden // heads, low=4)
        self.heads = Heads(heads, keys, width)
        self.norm_epsilon = config.real("rms_norm_eps", self.epsilon, 0.0, 1.0)
        self.activation = config.word(self.activation_key, self.activation_default, self.activations)
        step.checkpoint.strip_prefix("model.")
        step.checkpoint.check_layers("layers.", self.layers, "num_hidden_layers")
        self.read()

    def read(self) -> None:
        """Read further settings."""
        self.bias = self.config.flag("attention_bias")
        self.output_bias = self.bias
        self.mlp_bias = self.config.flag("mlp_bias")
        self.windows: list[int | None] = [None] * self.layers
        self.rotary = read_rotary(self.config, self.heads.width, self.step.limits.length, theta=self.theta)
        self.scale = self.heads.width**-0.5

    @property
    def bytes_per_token(self) -> int:
        """Bytes that all pools keep of a token."""
        return 2 * self.layers * self.heads.keys * self.step.bytes_per_head(self.heads.width)

    def build(self) -> Graph:
        """The whole step."""
        step = self.step
        table = step.weight("embed_tokens.weight", self.vocabulary, self.hidden)
        hidden = self.embed(table)
        for index in range(self.layers):
            hidden = self.layer(index, hidden)
        logits = self.head(self.norm("norm", step.last(hidden)), table)
        prefixes = tuple(f"layers.{index}.self_attn.rotary_emb" for index in range(self.layers))
        tied = ("lm_head.weight",) if self.is_tied else ()
        return step.finish(logits, (*self.ignored, *prefixes, *tied))

    @property
    def is_tied(self) -> bool:
        """Whether the table of tokens is the last product's weight, as it must be where there is no other."""
        return self.config.flag("tie_word_embeddings", self.tied or not self.step.checkpoint.has("lm_head.weight"))

    def embed(self, table: Value) -> Value:
        """Tokens -> [tokens, hidden]."""
        return self.step.embedding(table, self.step.tokens)

    def head(self, hidden: Value, table: Value) -> Value:
        """The logits of rows."""
        if not self.is_tied:
            return self.step.linear("lm_head", hidden, self.vocabulary, self.hidden)
        return self.step.tied_product("embed_tokens", hidden, table)

    def norm(self, path: str, x: Value) -> Value:
        """The family's norm over the last dimension."""
        return self.step.rms_norm(path, x, self.norm_epsilon)

    def layer(self, index: int, hidden: Value) -> Value:
        """Attention and MLP, each after a norm and added to a residual."""
        path, emit = f"layers.{index}", self.emit
        hidden = emit.op("add", hidden, self.attention(index, self.norm(f"{path}.input_layernorm", hidden)))
        return emit.op("add", hidden, self.mlp(index, self.norm(f"{path}.post_attention_layernorm", hidden)))

    def project(self, path: str, x: Value) -> tuple[Value, Value, Value]:
        """Queries, keys and values [tokens, heads, width], not yet turned."""
        step, heads = self.step, self.heads

        def one(name: str, count: int) -> Value:
            product = step.linear(f"{path}.{name}", x, count * heads.width, self.hidden, self.bias)
            return step.heads(product, count, heads.width)

        return one("q_proj", heads.count), one("k_proj", heads.keys), one("v_proj", heads.keys)

    def attention(self, index: int, x: Value) -> Value:
        """Of the layer's normed input."""
        step, path = self.step, f"layers.{index}.self_attn"
        query, key, value = self.project(path, x)
        step.emit.source = path
        rotary = self.rotary_of(index)
        if rotary is not None:
            query, key = step.rotate(query, rotary), step.rotate(key, rotary)
        mixed = step.attention(index, query, key, value, self.scale, self.windows[index], self.softcap)
        width = self.heads.count * self.heads.width
        return step.linear(f"{path}.o_proj", mixed, self.hidden, width, self.output_bias)

    def rotary_of(self, index: int) -> Rotary | None:
        """The rotary positions of a layer; None where it has no positions."""
        return self.rotary

    def mlp(self, index: int, x: Value) -> Value:
        """down(activation(gate x) * up x)"""
        path = f"layers.{index}.mlp"
        return self.gated(path, x, self.config.number("intermediate_size"))

    def gated(self, path: str, x: Value, intermediate: int) -> Value:
        """The gated MLP under a path."""
        step, bias = self.step, self.mlp_bias
        gate = step.activation(self.activation, step.linear(f"{path}.gate_proj", x, intermediate, self.hidden, bias))
        up = step.linear(f"{path}.up_proj", x, intermediate, self.hidden, bias)
        return step.linear(f"{path}.down_proj", self.emit.op("multiply", gate, up), self.hidden, intermediate, bias)
