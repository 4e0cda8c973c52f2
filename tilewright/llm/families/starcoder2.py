"""StarCoder2: layer norms, biases, and an MLP without a gate."""

from __future__ import annotations

from tilewright.graph.core import Value
from tilewright.llm.families.decoder import Decoder


class Starcoder2(Decoder):
    """model_type "starcoder2"."""

    key_heads = 2
    activation_default = "gelu_pytorch_tanh"
    tied = True

    def read(self) -> None:
        super().read()
        config = self.config
        config.expect("mlp_type", "default")
        config.expect("norm_type", "layer_norm")
        self.norm_epsilon = config.real("norm_epsilon", 1e-5, 0.0, 1.0)
        self.bias = self.output_bias = self.mlp_bias = config.flag("use_bias", True)
        self.windows = [config.optional("sliding_window")] * self.layers

    def norm(self, path: str, x: Value) -> Value:
        return self.step.layer_norm(path, x, self.norm_epsilon)

    def gated(self, path: str, x: Value, intermediate: int) -> Value:
        step, bias = self.step, self.mlp_bias
        inner = step.linear(f"{path}.c_fc", x, intermediate, self.hidden, bias)
        return step.linear(f"{path}.c_proj", step.activation(self.activation, inner), self.hidden, intermediate, bias)
