"""SmolLM3: Llama with layers that have no positions."""

from __future__ import annotations

from tilewright.llm.families.decoder import Decoder
from tilewright.llm.rotary import Rotary


class SmolLM3(Decoder):
    """model_type "smollm3": every fourth layer has no positions, and a window where there is one."""

    key_heads = 4
    theta = 2e6
    tied = True

    def read(self) -> None:
        super().read()
        config = self.config
        every = config.number("no_rope_layer_interval", 4)
        turned = config.values.get("no_rope_layers", [(index + 1) % every != 0 for index in range(self.layers)])
        if not isinstance(turned, list) or len(turned) != self.layers or any(one not in (0, 1) for one in turned):
            config.refuse("no_rope_layers", f"expected a list of {self.layers} numbers, 1 for a layer with positions")
        self.turned = [bool(one) for one in turned]
        window = config.optional("sliding_window") if config.flag("use_sliding_window") else None
        default = ["full_attention" if window is None or one else "sliding_attention" for one in self.turned]
        types = config.layer_types(self.layers, default)
        self.windows = [window if kind == "sliding_attention" else None for kind in types]

    def rotary_of(self, index: int) -> Rotary | None:
        return self.rotary if self.turned[index] else None
