"""Families of language models, by the `model_type` of config.json: one small file each."""

from __future__ import annotations

from typing import Protocol

from tilewright.graph.core import Graph
from tilewright.llm.families.gemma import Gemma, Gemma2, Gemma3
from tilewright.llm.families.gpt2 import GPT2
from tilewright.llm.families.granite import Granite
from tilewright.llm.families.llama import Llama, Mistral
from tilewright.llm.families.mixtral import Mixtral
from tilewright.llm.families.olmo2 import Olmo2
from tilewright.llm.families.phi3 import Phi3
from tilewright.llm.families.qwen import Qwen2, Qwen2Experts, Qwen3, Qwen3Experts
from tilewright.llm.families.smollm3 import SmolLM3
from tilewright.llm.families.starcoder2 import Starcoder2
from tilewright.llm.step_graph import GenerationStep


class Family(Protocol):
    """A family writes a whole step."""

    step: GenerationStep

    def __init__(self, step: GenerationStep) -> None: ...

    @property
    def bytes_per_token(self) -> int:
        """Bytes that all pools keep of a token."""
        ...

    def build(self) -> Graph:
        """The graph of the step; raises `ImportModelError` for settings and weights that it does not know."""
        ...


LLM_FAMILIES: dict[str, type[Family]] = {
    "llama": Llama,
    "mistral": Mistral,
    "mixtral": Mixtral,
    "qwen2": Qwen2,
    "qwen2_moe": Qwen2Experts,
    "qwen3": Qwen3,
    "qwen3_moe": Qwen3Experts,
    "gemma": Gemma,
    "gemma2": Gemma2,
    "gemma3_text": Gemma3,
    "phi3": Phi3,
    "granite": Granite,
    "olmo2": Olmo2,
    "smollm3": SmolLM3,
    "starcoder2": Starcoder2,
    "gpt2": GPT2,
}
