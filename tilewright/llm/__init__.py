"""Language models: checkpoint families, steps over a paged KV cache, and an engine that batches requests."""

from tilewright.llm.llm import LLM
from tilewright.llm.requests import Completion, Output, SamplingParameters, TokenLogprobs
from tilewright.llm.structure import StructuredOutput

__all__ = ["LLM", "Completion", "Output", "SamplingParameters", "StructuredOutput", "TokenLogprobs"]
