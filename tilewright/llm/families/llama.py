"""Llama 2 and 3.x, and Mistral: the plain decoder, Mistral's with a window."""

from __future__ import annotations

from tilewright.llm.families.decoder import Decoder


class Llama(Decoder):
    """model_type "llama"."""


class Mistral(Decoder):
    """model_type "mistral": all layers see the nearest `sliding_window` tokens, where there is one."""

    key_heads = 8
    window: int | None = 4096

    def read(self) -> None:
        super().read()
        self.windows = [self.config.optional("sliding_window", self.window)] * self.layers
