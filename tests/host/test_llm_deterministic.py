"""The deterministic mode: a request's logprobs are the same bits, whatever else runs and however it is cut."""

from __future__ import annotations

import numpy as np
import pytest

from tests.host.llm_support import checkpoint_of
from tilewright.errors import InputError
from tilewright.llm import LLM, SamplingParameters


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_bits(tmp_path, dtype, rng):
    folder = checkpoint_of("qwen3", tmp_path)
    beginning = rng.integers(0, 96, 20).tolist()
    prompts = [[*(beginning if number % 2 else []), *rng.integers(0, 96, rng.integers(1, 30)).tolist()]
               for number in range(8)]  # fmt: skip
    wanted = SamplingParameters(temperature=0.7, seed=5, max_tokens=12, ignore_eos=True, logprobs=2)
    options = {"dtype": dtype, "tokens": 16, "page": 8, "length": 64, "deterministic": True}
    alone = LLM(folder, memory=1 << 20, share_prefixes=False, **options)
    one_by_one = [alone.generate(prompt, wanted).completions[0] for prompt in prompts]
    together = LLM(folder, memory=110_000 if dtype == "float32" else 55_000, **options)
    for _ in range(2):  # again with prefixes that are known
        found = [output.completions[0] for output in together.generate_all(prompts, wanted)]
        assert [one.tokens for one in found] == [one.tokens for one in one_by_one]
        assert [one.logprobs for one in found] == [one.logprobs for one in one_by_one]
    counts = together.engine.statistics
    assert counts.preemptions > 0 and counts.cached_tokens > 0 and np.isfinite(found[0].logprobs[0].logprob)


def test_what_does_not_go_together(tmp_path):
    folder = checkpoint_of("llama", tmp_path)
    with pytest.raises(InputError, match="speculate"):
        LLM(folder, deterministic=True, speculate=2)
    with pytest.raises(InputError, match="multiple"):
        LLM(folder, deterministic=True, tokens=20)
