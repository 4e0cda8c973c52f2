"""Language models on a GPU: logits near those of the CPU, and tokens chosen there that are those of the logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.host.llm_reference import Reference
from tests.host.llm_support import BFLOAT16, checkpoint_of, tokens_of, write_checkpoint
from tests.host.llm_support import CASES as SETTINGS
from tilewright.llm import LLM, SamplingParameters

CASES = [("qwen3", np.float32), ("llama-3.1", BFLOAT16), ("gemma3_text", BFLOAT16), ("mixtral", np.float32)]

HIDDEN_LAYERS = {name: SETTINGS[name]["num_hidden_layers"] for name, _ in CASES}


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_results_are_those_of_the_cpu(name, dtype, tmp_path):
    folder = checkpoint_of(name, tmp_path, dtype=dtype)
    options = {"memory": 1 << 20, "tokens": 40, "sequences": 4, "page": 8, "length": 96, "share_prefixes": False}
    gpu, cpu = LLM(folder, target="cuda", **options), LLM(folder, dtype="float32", **options)
    prompts = [tokens_of(name)[:size] for size in (1, 9, 33, 60, 17, 5)]
    wanted = SamplingParameters(temperature=0.0, max_tokens=1, logprobs=5, prompt_logprobs=0)
    # Roundings of a layer's ten results add up like random steps, to three deviations, of logits up to ten.
    bound = 1e-3 if dtype == np.float32 else 3 * 2.0**-9 * (10 * HIDDEN_LAYERS[name]) ** 0.5 * 10
    for one, other in zip(gpu.generate_all(prompts, wanted), cpu.generate_all(prompts, wanted), strict=True):
        for found, expected in zip(one.prompt_logprobs, other.prompt_logprobs, strict=True):
            assert abs(found.logprob - expected.logprob) < bound
        assert abs(one.completions[0].logprobs[0].logprob - other.completions[0].logprobs[0].logprob) < bound
    for parameters in (
        {"temperature": 0.0}, {"temperature": 0.0, "presence_penalty": 0.5, "repetition_penalty": 1.2},
        {"temperature": 0.9, "top_k": 9, "top_p": 0.9}, {"temperature": 1.0, "frequency_penalty": 0.3, "min_p": 0.02},
    ):  # fmt: skip
        plain = SamplingParameters(max_tokens=20, ignore_eos=True, seed=1, **parameters)
        scored = replace(plain, logprobs=1)  # whose tokens are chosen on the CPU
        chosen, sampled = gpu.generate_all(prompts, plain), gpu.generate_all(prompts, scored)
        assert [one.completions[0].tokens for one in chosen] == [one.completions[0].tokens for one in sampled]
    drawn = SamplingParameters(temperature=0.8, seed=1, min_p=0.05, max_tokens=20, ignore_eos=True)
    assert [one.completions[0].tokens for one in gpu.generate_all(prompts, drawn)] == [
        one.completions[0].tokens for one in gpu.generate_all(prompts, drawn)
    ]
    assert gpu.engine.statistics.used_pages == 0


# Heads of 64 in 16 bits, which the kernels for pages of Hopper take.
WIDE = {
    "model_type": "llama", "vocab_size": 96, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip


def test_chunks_of_512_tokens_and_shared_prefixes(tmp_path, rng):
    """Prompts that take several steps, alone and in a batch; then prompts with the same prefix."""
    reference = Reference(WIDE)
    reference.logits([1, 2, 3])
    folder = write_checkpoint(tmp_path / "wide", WIDE, reference.shapes, dtype=BFLOAT16)
    options = {"memory": 8 << 20, "tokens": 512, "sequences": 8, "length": 1600}
    gpu, cpu = LLM(folder, target="cuda", **options), LLM(folder, dtype="float32", **options)
    whole = rng.integers(0, 96, 1500).tolist()
    prompts = [whole[:1300], whole[200:900], whole[300:812], whole[300:813], whole[:33], whole[700:704]]
    bound = 3 * 2.0**-9 * (10 * WIDE["num_hidden_layers"]) ** 0.5 * 10
    scored = SamplingParameters(temperature=0.0, max_tokens=1, logprobs=5, prompt_logprobs=0)
    exact = cpu.generate_all(prompts, scored)
    for one, other in zip(gpu.generate_all(prompts, scored), exact, strict=True):
        for found, expected in zip(one.prompt_logprobs, other.prompt_logprobs, strict=True):
            assert abs(found.logprob - expected.logprob) < bound
    chosen = replace(scored, prompt_logprobs=None)
    longer = [prompt + whole[1400:1404] for prompt in prompts]
    for given in ([prompts[0]], prompts, longer, [*longer, *prompts[:2]]):
        before = gpu.engine.statistics.cached_tokens
        outputs = gpu.generate_all(given, chosen)
        assert gpu.engine.statistics.cached_tokens - before >= 1280  # whole pages of the first prompt
        cpu.engine.scheduler.pool.clear()
        for one, other in zip(outputs, cpu.generate_all(given, chosen), strict=True):
            token = one.completions[0].logprobs[0]
            assert abs(token.logprob - dict(other.completions[0].logprobs[0].top)[token.token]) < bound
    assert gpu.engine.statistics.used_pages == 0
