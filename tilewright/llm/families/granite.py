"""Granite: factors on the embedding, the scores, what each half of a layer adds, and the logits."""

from __future__ import annotations

from tilewright.graph.core import Value
from tilewright.llm.families.decoder import Decoder


class Granite(Decoder):
    """model_type "granite"."""

    def read(self) -> None:
        super().read()
        self.scale = self.config.real("attention_multiplier", 1.0, 1e-6)
        self.embedded = self.config.real("embedding_multiplier", 1.0, 1e-6)
        self.added = self.config.real("residual_multiplier", 1.0, 1e-6)
        self.divided = self.config.real("logits_scaling", 1.0, 1e-6)

    def embed(self, table: Value) -> Value:
        return self.emit.op("multiply", super().embed(table), self.embedded)

    def attention(self, index: int, x: Value) -> Value:
        return self.emit.op("multiply", super().attention(index, x), self.added)

    def mlp(self, index: int, x: Value) -> Value:
        return self.emit.op("multiply", super().mlp(index, x), self.added)

    def head(self, hidden: Value, table: Value) -> Value:
        return self.emit.op("divide", super().head(hidden, table), self.divided)
