"""Whole requests of a language model on a GPU: steps that overlap, sampling, continuous batching, transformers.

    python benchmarks/llm_throughput_cuda.py [--layers 32] [--seconds 190] [--save]

The model is that of `llm_cuda.py`: the shape of Llama 3.1 8B in bfloat16, random weights.  Cases:

    offline      512 prompts of 1,000 tokens with 1,000 tokens each, 256 together; `share` is the time in which prompts
                 could be multiplied at cuBLAS's rate and the bytes of all other steps read, over the time it took
    one by one   the same with each step planned after the one before is done, to show what overlapping brings
    sampling     256 prompts of 64 tokens with 200 tokens each, greedily and with the usual parameters
    mixed        requests of random lengths (prompts of 16 to 1,000 tokens, outputs exponential with a mean of 200, at
                 most 1,500), 64 together: new ones begin as others end (continuous), or once all 64 have ended (static)
    transformers `generate_batch` of transformers on the first of these requests, and ours on the same
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
import argparse
import json
import tempfile
import time
from typing import Any

import numpy as np
import torch

from benchmarks import llm_cuda
from tilewright.llm import LLM, SamplingParameters
from tilewright.settings import settings

TOGETHER, PROMPT, OUTPUT, REQUESTS = 256, 1000, 1000, 512
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-k, top-p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "top-p, min-p": {"temperature": 0.8, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"temperature": 0.8, "presence_penalty": 0.5, "frequency_penalty": 0.1},
}


def prompts_of(lengths: list[int], seed: int) -> list[list[int]]:
    """Random tokens."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, llm_cuda.VOCABULARY, length).tolist() for length in lengths]


def generated(llm: LLM, prompts: list[list[int]], wanted: list[SamplingParameters]) -> tuple[float, int]:
    """Seconds, and tokens."""
    llm.engine.scheduler.pool.clear()
    torch.cuda.synchronize()
    began = time.perf_counter()
    outputs = llm.generate_all(prompts, wanted)
    took = time.perf_counter() - began
    assert all(output.error is None for output in outputs), outputs[0].error
    return took, sum(len(output.completions[0].tokens) for output in outputs)


def mixed(count: int, seed: int) -> tuple[list[list[int]], list[int]]:
    """Prompts, and how many tokens each wants."""
    rng = np.random.default_rng(seed)
    prompts = prompts_of(rng.integers(16, 1001, count).tolist(), seed + 1)
    return prompts, np.clip(rng.exponential(200.0, count), 1, 1500).astype(int).tolist()


def exactly(tokens: int, **parameters: Any) -> SamplingParameters:
    """So many tokens, greedily if nothing else is said."""
    return SamplingParameters(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": tokens, "seed": 0, **parameters})


def bound_of(layers: int, weights: int, requests: int, read: float, rate: float) -> float:
    """Seconds that `offline` takes at least."""
    products = weights - 2 * llm_cuda.VOCABULARY * llm_cuda.HIDDEN
    of_prompts = requests * (products * PROMPT + 2 * llm_cuda.QUERIES * layers * PROMPT**2) / rate
    kept = 4 * llm_cuda.KEYS * layers
    mean = PROMPT + OUTPUT / 2
    return float(of_prompts + requests / TOGETHER * OUTPUT * (weights + kept * TOGETHER * mean) / read)


class Runs:
    """The cases, printed as they are measured."""

    def __init__(self, llm: LLM, layers: int, weights: int) -> None:
        self.llm, self.layers, self.weights = llm, layers, weights
        self.rows: list[dict[str, Any]] = []

    def show(self, name: str, took: float, tokens: int, **facts: Any) -> None:
        """Keep and print a case."""
        row = {"name": name, "seconds": round(took, 2), "tokens_per_second": round(tokens / took, 1), **facts}
        self.rows.append(row)
        print(json.dumps(row), flush=True)

    def offline(self, requests: int) -> None:
        """1000/1000, with steps that overlap and without."""
        read, rate = llm_cuda.rates()
        torch.cuda.empty_cache()
        bound = bound_of(self.layers, self.weights, requests, read, rate)
        prompts, wanted = prompts_of([PROMPT] * requests, 0), [exactly(OUTPUT)] * requests
        warm = [exactly(20)] * TOGETHER
        generated(self.llm, prompts[:TOGETHER], warm)
        steps = self.llm.engine.statistics.steps
        took, tokens = generated(self.llm, prompts, wanted)
        steps = self.llm.engine.statistics.steps - steps
        facts = {
            "share": round(bound / took, 3),
            "steps": steps,
            "read": round(read / 1e9),
            "cublas": round(rate / 1e12),
        }
        self.show("offline", took, tokens, **facts)
        runner, self.llm.engine._runner = self.llm.engine._runner, None
        took, tokens = generated(self.llm, prompts[:TOGETHER], wanted[:TOGETHER])
        self.show("one by one", took, tokens, share=round(bound * TOGETHER / requests / took, 3))
        self.llm.engine._runner = runner

    def sampling(self) -> None:
        """What the choice of tokens costs."""
        prompts = prompts_of([64] * TOGETHER, 1)
        for name, parameters in SAMPLING.items():
            wanted = [exactly(200, **parameters)] * TOGETHER
            generated(self.llm, prompts, [exactly(10, **parameters)] * TOGETHER)
            self.show(f"sampling: {name}", *generated(self.llm, prompts, wanted))

    def mixed(self, count: int) -> None:
        """Continuous and static batches; `sequences` of the scheduler is 64 for both."""
        prompts, lengths = mixed(count, 2)
        wanted = [exactly(length) for length in lengths]
        scheduler = self.llm.engine.scheduler
        limits, scheduler.limits = scheduler.limits, scheduler.limits.__class__(
            scheduler.limits.page, scheduler.limits.tokens, 64, scheduler.limits.length)  # fmt: skip
        generated(self.llm, prompts[:128], wanted[:128])
        took, tokens = generated(self.llm, prompts, wanted)
        self.show("mixed: continuous", took, tokens)
        static = [generated(self.llm, prompts[at : at + 64], wanted[at : at + 64]) for at in range(0, count, 64)]
        whole = sum(seconds for seconds, _ in static)
        self.show("mixed: static, ended sequences leave", whole, tokens, ratio=round(whole / took, 2))
        padded = 0.0  # every sequence is computed until the longest has ended, as in a batch of one size
        for at in range(0, count, 64):
            longest = max(lengths[at : at + 64])
            padded += generated(self.llm, prompts[at : at + 64], [exactly(longest)] * 64)[0]
        self.show("mixed: static, of one size", padded, tokens, ratio=round(padded / took, 2))
        scheduler.limits = limits

    def transformers(self, count: int) -> None:
        """generate_batch of transformers, and ours."""
        import transformers

        prompts, lengths = mixed(count, 2)
        longest = 256
        lengths = [min(length, longest) for length in lengths]
        took, tokens = generated(self.llm, prompts, [exactly(length) for length in lengths])
        self.show("requests for transformers, ours", took, tokens)
        configuration = transformers.LlamaConfig(
            vocab_size=llm_cuda.VOCABULARY, hidden_size=llm_cuda.HIDDEN, intermediate_size=llm_cuda.INNER,
            num_hidden_layers=self.layers, num_attention_heads=llm_cuda.HEADS, num_key_value_heads=llm_cuda.KEY_HEADS,
            max_position_embeddings=8192, rope_theta=500000.0, tie_word_embeddings=False, dtype=torch.bfloat16,
        )  # fmt: skip
        with torch.device("cuda"):
            model = transformers.LlamaForCausalLM(configuration).to(torch.bfloat16).eval()
        # Its requests have one length here: the mean of ours, for as many tokens.
        mean = round(sum(lengths) / len(lengths))
        wanted = transformers.GenerationConfig(max_new_tokens=mean, do_sample=False, eos_token_id=-1, pad_token_id=0)
        model.generate_batch(inputs=prompts[:4], generation_config=wanted)
        began = time.perf_counter()
        found = model.generate_batch(inputs=prompts, generation_config=wanted)
        theirs = time.perf_counter() - began
        count_of_tokens = sum(len(output.generated_tokens) for output in found.values())
        ratio = (theirs / max(count_of_tokens, 1)) / (took / tokens)
        self.show(f"transformers {transformers.__version__}", theirs, count_of_tokens, ratio=round(ratio, 2))


def main() -> None:
    """Measure, print a line for each case, and write the results with --save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=190.0, help="after which no further case begins")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.exists() else None) as name:
        weights = llm_cuda.write(Path(name), given.layers)
        llm = LLM(name, target="cuda", memory=given.layers * (5 << 29), sequences=TOGETHER, tokens=2048, length=4096)
        runs = Runs(llm, given.layers, weights)
        for case in (
            lambda: runs.mixed(256), lambda: runs.offline(given.requests), runs.sampling, lambda: runs.transformers(64),
        ):  # fmt: skip
            if time.monotonic() > end:
                print("no time for the other cases")
                break
            case()
    if given.save:
        print(common.save("llm_throughput_cuda", settings.threads, runs.rows, gpu=torch.cuda.get_device_name()))


if __name__ == "__main__":
    main()
