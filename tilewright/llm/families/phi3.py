"""Phi-3: one weight for queries, keys and values, and one for gate and up."""

from __future__ import annotations

from tilewright.graph.core import Value
from tilewright.llm.families.decoder import Decoder


class Phi3(Decoder):
    """model_type "phi3"."""

    epsilon = 1e-5

    def read(self) -> None:
        super().read()
        self.windows = [self.config.optional("sliding_window")] * self.layers

    def project(self, path: str, x: Value) -> tuple[Value, Value, Value]:
        step, heads = self.step, self.heads
        counts = (heads.count, heads.keys, heads.keys)
        together = step.linear(f"{path}.qkv_proj", x, sum(counts) * heads.width, self.hidden)
        parts, begin = [], 0
        for count in counts:
            end = begin + count * heads.width
            parts.append(step.heads(self.emit.slice(together, 1, begin, end), count, heads.width))
            begin = end
        return parts[0], parts[1], parts[2]

    def gated(self, path: str, x: Value, intermediate: int) -> Value:
        step, emit = self.step, self.emit
        gate_and_up = step.linear(f"{path}.gate_up_proj", x, 2 * intermediate, self.hidden)
        gate = step.activation(self.activation, emit.slice(gate_and_up, 1, 0, intermediate))
        up = emit.slice(gate_and_up, 1, intermediate, 2 * intermediate)
        return step.linear(f"{path}.down_proj", emit.op("multiply", gate, up), self.hidden, intermediate)
