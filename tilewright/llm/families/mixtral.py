"""Mixtral: Mistral with a mixture of experts."""

from __future__ import annotations

from tilewright.graph.core import Value
from tilewright.llm.experts import Experts, expert_weights, mixture
from tilewright.llm.families.llama import Mistral


class Mixtral(Mistral):
    """model_type "mixtral"."""

    epsilon = 1e-5
    theta = 1e6
    window = None

    def read(self) -> None:
        super().read()
        config = self.config
        self.experts = Experts(
            config.number("num_local_experts", 8), config.number("num_experts_per_tok", 2), self.hidden,
            config.number("intermediate_size"), self.activation, True,
        )  # fmt: skip
        if self.experts.chosen > self.experts.count:
            config.refuse("num_experts_per_tok", f"more than num_local_experts {self.experts.count}")

    def mlp(self, index: int, x: Value) -> Value:
        old, new = f"layers.{index}.block_sparse_moe", f"layers.{index}.mlp"
        path = old if self.step.checkpoint.has(f"{old}.gate.weight") else new
        weights = expert_weights(self.step, path, self.experts, ("w1", "w3", "w2"))
        return mixture(self.step, f"{path}.gate", x, self.experts, *weights)
