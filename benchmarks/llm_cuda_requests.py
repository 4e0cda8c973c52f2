"""Whole requests of a language model on a GPU for `llm_cuda.py`: continuous batching, steps that overlap, sampling.

    mixed      requests with the lengths of chats, 64 at a time: new ones begin as others end (continuous), or once all
               have ended (static): those that end leave, or prompts and outputs are all computed to the longest of the
               batch (padded), as in a batch of one size.  Static batches have the first half of the requests (padded
               ones a quarter); transformers (the batches of its `generate_batch`) as many as the time allows.
    offline    as many prompts of 1,000 tokens with 1,000 tokens each, 256 together; `share` is the time in which they
               could be multiplied at cuBLAS's rate and the bytes of all other steps read, over the time it took
    one by one the same with each step planned after the one before is done, to show what overlapping brings
    sampling   256 prompts of 64 tokens with 200 tokens each, greedily and with the usual parameters

Lengths of chats are log-normal with the means and deviations of the logarithms of the 19,366 requests in
`AzureLLMInferenceTrace_conv.csv` of github.com/Azure/AzurePublicDataset (Patel et al., "Splitwise: Efficient Generative
LLM Inference Using Phase Splitting", ISCA 2024): 6.633 and 0.985 of prompts, 5.019 and 0.859 of outputs, which do not
depend on each other there (the correlation is 0.09).  Outputs end at 1,000 tokens, as they do in that trace; prompts
here at 4,096, between its 98th and 99th percentile.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import numpy as np
import torch

from benchmarks import llm_cuda_model as model
from tilewright.llm import LLM, SamplingParameters

TOGETHER, TOKENS = 64, 2048  # of mixed requests: sequences, and tokens of a step
BATCH, PROMPT, OUTPUT = 256, 1000, 1000  # offline
PROMPT_LENGTHS, OUTPUT_LENGTHS = (6.633, 0.985, 4096), (5.019, 0.859, 1000)  # mean, deviation, most
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
    return [rng.integers(0, model.VOCABULARY, length).tolist() for length in lengths]


def generated(llm: LLM, prompts: list[list[int]], wanted: list[SamplingParameters]) -> tuple[float, int]:
    """Seconds, and tokens."""
    llm.engine.scheduler.pool.clear()
    torch.cuda.synchronize()
    began = time.perf_counter()
    outputs = llm.generate_all(prompts, wanted)
    took = time.perf_counter() - began
    assert all(output.error is None for output in outputs), outputs[0].error
    return took, sum(len(output.completions[0].tokens) for output in outputs)


def chats(count: int, seed: int) -> tuple[list[list[int]], list[int]]:
    """Prompts, and how many tokens each wants."""
    rng = np.random.default_rng(seed)

    def drawn(mean: float, deviation: float, most: int) -> list[int]:
        return np.clip(rng.lognormal(mean, deviation, count), 1, most).astype(int).tolist()  # type: ignore[no-any-return]

    return prompts_of(drawn(*PROMPT_LENGTHS), seed + 1), drawn(*OUTPUT_LENGTHS)


def exactly(tokens: int, **parameters: Any) -> SamplingParameters:
    """So many tokens, greedily if nothing else is said."""
    return SamplingParameters(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": tokens, "seed": 0, **parameters})


def bound_of(layers: int, weights: int, requests: int, read: float, rate: float) -> float:
    """Seconds that `offline` takes at least."""
    products = weights - 2 * model.VOCABULARY * model.HIDDEN
    of_prompts = requests * (products * PROMPT + 2 * model.QUERIES * layers * PROMPT**2) / rate
    token_bytes = 4 * model.KEYS * layers
    mean = PROMPT + OUTPUT / 2
    return float(of_prompts + requests / BATCH * OUTPUT * (weights + token_bytes * BATCH * mean) / read)


class Requests:
    """The cases, printed as they are measured."""

    def __init__(self, layers: int, weights: int, read: float, rate: float) -> None:
        self.layers, self.weights, self.read, self.rate = layers, weights, read, rate
        self.rows: list[dict[str, Any]] = []
        self.mixed_rate = 0.0  # tokens a second of continuous batches

    def show(self, name: str, took: float, tokens: int, **facts: Any) -> None:
        """Keep and print a case."""
        row = {"name": name, "seconds": round(took, 2), "tokens_per_second": round(tokens / took, 1), **facts}
        self.rows.append(row)
        print(json.dumps(row), flush=True)

    def mixed(self, llm: LLM, count: int) -> None:
        """Continuous and static batches."""
        prompts, lengths = chats(count, 2)
        wanted = [exactly(length) for length in lengths]
        scheduler = llm.engine.scheduler
        limits = scheduler.limits
        scheduler.limits = dataclasses.replace(limits, tokens=TOKENS, sequences=TOGETHER)
        generated(llm, prompts[: count // 2], wanted[: count // 2])  # prepares steps of the sizes that occur
        took, tokens = generated(llm, prompts, wanted)
        self.show("mixed: continuous", took, tokens, requests=count, prompt_tokens=sum(map(len, prompts)))
        self.mixed_rate = tokens / took

        def static(batches: int, padded: bool) -> tuple[float, int]:
            whole = 0.0
            for at in range(0, batches * TOGETHER, TOGETHER):
                given, each = prompts[at : at + TOGETHER], wanted[at : at + TOGETHER]
                if padded:
                    longest = max(map(len, given))
                    given = [prompt + [0] * (longest - len(prompt)) for prompt in given]
                    each = [exactly(max(lengths[at : at + TOGETHER]))] * TOGETHER
                whole += generated(llm, given, each)[0]
            return whole, sum(lengths[: batches * TOGETHER])

        batches = max(1, count // TOGETHER // 2)
        self._show_slower("mixed: static, ended requests leave", *static(batches, padded=False))
        self._show_slower("mixed: static, padded", *static(max(1, batches // 2), padded=True))
        scheduler.limits = limits

    def _show_slower(self, name: str, took: float, tokens: int) -> None:
        """With the ratio of continuous batching's rate to this one."""
        self.show(name, took, tokens, ratio=round(self.mixed_rate * took / max(tokens, 1), 2))

    def transformers(self, peer: Any, count: int, seconds: float) -> None:
        """transformers on the mixed requests; if it fails that is printed, and there is no row."""
        try:
            took, tokens = peer.continuous(*chats(count, 2), TOGETHER, TOKENS, seconds)
        except Exception as error:
            print(f"mixed requests by transformers: {type(error).__name__}: {str(error)[:300]}", flush=True)
        else:
            self._show_slower("mixed: transformers", took, tokens)

    def offline(self, llm: LLM, requests: int, one_by_one: bool) -> None:
        """1000/1000, with steps that overlap and without."""
        bound = bound_of(self.layers, self.weights, requests, self.read, self.rate)
        prompts, wanted = prompts_of([PROMPT] * requests, 0), [exactly(OUTPUT)] * requests
        generated(llm, prompts[:BATCH], [exactly(20)] * BATCH)
        took, tokens = generated(llm, prompts, wanted)
        self.show("offline", took, tokens, share=round(bound / took, 3))
        if one_by_one:
            runner, llm.engine._runner = llm.engine._runner, None
            took, tokens = generated(llm, prompts[:BATCH], wanted[:BATCH])
            self.show("one by one", took, tokens, share=round(bound * BATCH / requests / took, 3))
            llm.engine._runner = runner

    def sampling(self, llm: LLM) -> None:
        """What the choice of tokens costs."""
        prompts = prompts_of([64] * BATCH, 1)
        for name, parameters in SAMPLING.items():
            wanted = [exactly(200, **parameters)] * BATCH
            generated(llm, prompts, [exactly(10, **parameters)] * BATCH)
            self.show(f"sampling: {name}", *generated(llm, prompts, wanted))
