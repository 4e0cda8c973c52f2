"""The BERT family (BERT, MiniLM and other encoders with model_type "bert").

Inputs: int64 input_ids, attention_mask (1 keeps a key), token_type_ids, each [batch, sequence].
Outputs: last_hidden_state [batch, sequence, hidden], and pooler_output [batch, hidden] where the
checkpoint has a pooler.
"""

from __future__ import annotations

import math

import ml_dtypes

from tilewright.dtypes import DType, int64
from tilewright.errors import ImportModelError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.importers.emitter import Emitter
from tilewright.importers.huggingface import HUGGING_FACE_ACTIVATIONS, Checkpoint, symbols
from tilewright.importers.shapes import Axes, Dimension
from tilewright.symbolic import Size

BERT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def build(checkpoint: Checkpoint, dimensions: dict[str, Axes], name: str) -> Graph:
    """The graph of a BERT checkpoint; raises `ImportModelError` for settings it does not know."""
    return _Bert(checkpoint, name).build(dimensions)


class _Bert:
    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        self.checkpoint = checkpoint
        self.hidden: int = checkpoint.number("hidden_size")
        self.layers: int = checkpoint.number("num_hidden_layers", low=0, high=10_000)
        self.heads: int = checkpoint.number("num_attention_heads")
        self.intermediate: int = checkpoint.number("intermediate_size")
        self.positions: int = checkpoint.number("max_position_embeddings")
        self.epsilon: float = checkpoint.setting("layer_norm_eps", float, 1e-12)
        self.activation: str = checkpoint.setting("hidden_act", str, "gelu")
        if not 0 <= self.epsilon <= 1:
            raise ImportModelError(f"{checkpoint.folder}: layer_norm_eps is {self.epsilon}, expected 0 to 1")
        kind = checkpoint.setting("position_embedding_type", str, "absolute")
        if kind != "absolute" or self.activation not in HUGGING_FACE_ACTIVATIONS or self.hidden % self.heads:
            raise ImportModelError(
                f"{checkpoint.folder}: position_embedding_type {kind!r} with hidden_act {self.activation!r} and "
                f"{self.heads} heads on {self.hidden}: this BERT importer knows absolute positions, the activations "
                f"{', '.join(HUGGING_FACE_ACTIVATIONS)}, and heads that divide the hidden size. Import it through "
                "torch.export."
            )
        checkpoint.strip_prefix("bert.")
        checkpoint.check_layers("encoder.layer.", self.layers, "num_hidden_layers")
        self.builder = GraphBuilder(name)
        self.emit = Emitter(self.builder)

    def build(self, dimensions: dict[str, Axes]) -> Graph:
        batch, sequence = self._sizes(dimensions)
        ids, mask, types = (self.builder.input(name, int64, (batch, sequence)) for name in BERT_INPUTS)
        hidden = self._embeddings(ids, types, sequence)
        bias = self._mask(mask, hidden.dtype)
        for index in range(self.layers):
            hidden = self._layer(f"encoder.layer.{index}", hidden, bias, batch, sequence)
        self.builder.output(hidden, "last_hidden_state")
        if self.checkpoint.has("pooler.dense.weight"):
            self.emit.source = "pooler"
            first = self.emit.select(hidden, 1, 0)
            pooled = self.emit.op("tanh", self._linear("pooler.dense", first, self.hidden, self.hidden))
            self.builder.output(pooled, "pooler_output")
        self.checkpoint.finish(ignored=("embeddings.position_ids", "cls.", "classifier.", "qa_outputs.", "dropout"))
        return self.builder.finish()

    def _sizes(self, dimensions: dict[str, Axes]) -> tuple[Size, Size]:
        defaults = (Dimension("batch"), Dimension("sequence", 1, self.positions))
        sizes: list[Size] = []
        for axis, default in enumerate(defaults):
            entry = symbols(dimensions, BERT_INPUTS, axis, default)
            sizes.append(entry if isinstance(entry, int) else self.builder.symbol(entry.name, entry.low, entry.high))
        return sizes[0], sizes[1]

    def _constant(self, name: str, *shape: int) -> Value:
        return self.builder.constant(self.checkpoint.take(name, shape), name)

    def _embeddings(self, ids: Value, types: Value, sequence: Size) -> Value:
        emit, path = self.emit, "embeddings"
        emit.source = path
        vocabulary: int = self.checkpoint.number("vocab_size")
        kinds: int = self.checkpoint.number("type_vocab_size", 2)
        words = self._constant(f"{path}.word_embeddings.weight", vocabulary, self.hidden)
        kind_table = self._constant(f"{path}.token_type_embeddings.weight", kinds, self.hidden)
        places = self._constant(f"{path}.position_embeddings.weight", self.positions, self.hidden)
        total = emit.op("add", emit.op("gather", words, ids, axis=0), emit.op("gather", kind_table, types, axis=0))
        total = emit.op("add", total, emit.slice(places, 0, 0, sequence))
        return self._norm(f"{path}.LayerNorm", total)

    def _mask(self, mask: Value, dtype: DType) -> Value:
        """int64 [batch, sequence], 1 keeps -> additive [batch, 1, 1, sequence]."""
        emit = self.emit
        emit.source = "attention_mask"
        lowest = float(ml_dtypes.finfo(dtype.numpy).min)
        visible = emit.cast(emit.unsqueeze(mask, 1, 2), dtype)
        return emit.op("multiply", emit.op("subtract", 1.0, visible), lowest)

    def _layer(self, path: str, hidden: Value, bias: Value, batch: Size, sequence: Size) -> Value:
        emit = self.emit
        width = self.hidden // self.heads
        emit.source = f"{path}.attention"

        def project(which: str) -> Value:
            x = self._linear(f"{path}.attention.self.{which}", hidden, self.hidden, self.hidden)
            return emit.permute(emit.reshape(x, (batch, sequence, self.heads, width)), (0, 2, 1, 3))

        context = emit.attention(
            project("query"), project("key"), project("value"), bias, causal=False, scale=1 / math.sqrt(width)
        )
        context = emit.reshape(emit.permute(context, (0, 2, 1, 3)), (batch, sequence, self.hidden))
        mixed = self._linear(f"{path}.attention.output.dense", context, self.hidden, self.hidden)
        hidden = self._norm(f"{path}.attention.output.LayerNorm", emit.op("add", mixed, hidden))
        emit.source = f"{path}.intermediate"
        inner = self._linear(f"{path}.intermediate.dense", hidden, self.intermediate, self.hidden)
        op, options = HUGGING_FACE_ACTIVATIONS[self.activation]
        inner = emit.op(op, inner, **options)
        emit.source = f"{path}.output"
        outer = self._linear(f"{path}.output.dense", inner, self.hidden, self.intermediate)
        return self._norm(f"{path}.output.LayerNorm", emit.op("add", outer, hidden))

    def _linear(self, path: str, x: Value, rows: int, columns: int) -> Value:
        weight = self._constant(f"{path}.weight", rows, columns)
        bias = self._constant(f"{path}.bias", rows)
        return self.emit.op("add", self.emit.op("matmul", x, weight, transpose_b=True), bias)

    def _norm(self, path: str, x: Value) -> Value:
        weight, bias = self._constant(f"{path}.weight", self.hidden), self._constant(f"{path}.bias", self.hidden)
        return self.emit.op("layer_norm", x, weight, bias, axis=x.rank - 1, epsilon=self.epsilon)
