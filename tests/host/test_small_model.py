"""The trained language model of the demo: it loads, it has learned, and it writes words."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tokenizers")

from tilewright.llm import LLM, SamplingParameters
from tilewright.llm.model import Chunk

FOLDER = Path(__file__).resolve().parent.parent.parent / "demo" / "model"
pytestmark = [
    pytest.mark.skipif(not FOLDER.exists(), reason="source distributions come without the demo's model"),
    pytest.mark.usefixtures("quick_engines"),
]


def test_the_demo_s_model():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 5_000_000
    llm = LLM(FOLDER, memory=1 << 22, length=128)
    tokens = llm.tokens("Return a new list of the strings that are found in the file.")
    logits = llm.model.run([Chunk(tokens, 0, range(8), range(len(tokens)))]).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert -logprobs[np.arange(len(tokens) - 1), tokens[1:]].mean() < 4.5  # 7.6 where nothing is learned
    text = llm.generate("Return a new list", SamplingParameters(temperature=0.0, max_tokens=24)).completions[0].text
    assert {"the", "string"} & set(text.replace(".", " ").split())
