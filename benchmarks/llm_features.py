"""What structured output and speculation cost and bring on this CPU, against the same engine without them.

    python benchmarks/llm_features.py [--layers 4] [--threads 2] [--tokens 64] [--rounds 3] [--cpu-time] [--save]

The model has the shape of Qwen2.5-0.5B with fewer layers (`llm_cpu.py`), random weights, and a tokenizer of random
words.  Cases, each a ratio of seconds for each token, with and without, in turns:

    structured  texts of a JSON schema against free texts, at batch 1 and 8
    repeats     lookups where the text repeats itself (the prompt is a cycle that the biases make go on)
    random      lookups where no text repeats

With --cpu-time seconds are those of the process's CPUs: what to use on a machine that others use too, with --threads 1.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import llm_cpu
from tilewright.llm import LLM, SamplingParameters, StructuredOutput
from tilewright.settings import settings

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 200, "maxLength": 400},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 20, "maxItems": 40},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """A byte-level tokenizer whose tokens are random words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    rng = np.random.default_rng(0)
    words = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    while len(words) < vocabulary - 1:
        word = "".join(LETTERS[place] for place in rng.integers(0, 26, rng.integers(2, 8)))
        words.setdefault(f"{'Ġ' if rng.random() < 0.5 else ''}{word}", len(words))
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))


def seconds_a_token(
    llm: LLM, prompts: list[list[int]], wanted: list[SamplingParameters], clock: Callable[[], float]
) -> float:
    """Of decoding: from when each prompt has its first token."""
    names = [llm.engine.add(prompt, one) for prompt, one in zip(prompts, wanted, strict=True)]
    began, started, counts = 0.0, set(), {}
    first = 0
    while llm.engine.has_work:
        for output in llm.engine.step():
            started.add(output.request)
            counts[output.request] = len(output.completions[0].tokens)
        if not began and len(started) == len(names):
            began, first = clock(), sum(counts.values())
    return (clock() - began) / max(1, sum(counts.values()) - first) * len(names)


def ratio(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Medians of the rounds, in milliseconds, and the first over the second."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        for name, run in runs.items():
            value = run()
            if number:  # the first warms
                found[name].append(value)
    medians = {name: statistics.median(values) * 1e3 for name, values in found.items()}
    one, other = medians.values()
    return {**{f"{name}_ms": round(value, 3) for name, value in medians.items()}, "ratio": round(one / other, 3)}


def main() -> None:
    """Measure, print a line for each case, and write the results with --save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=settings.threads)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    settings.threads = given.threads
    clock = time.process_time if given.cpu_time else time.perf_counter
    load, cases = round(os.getloadavg()[0], 1), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        llm_cpu.write(folder, given.layers, "float32")
        vocabulary = llm_cpu.VOCABULARY * given.layers // llm_cpu.LAYERS
        write_tokenizer(folder, vocabulary)
        plain, drafting = LLM(folder, length=1024), LLM(folder, length=1024, speculate=5)
        rng = np.random.default_rng(1)

        def parameters(**more: Any) -> SamplingParameters:
            return SamplingParameters(max_tokens=given.tokens, ignore_eos=True, **more)

        for batch in (1, 8):
            prompts = [rng.integers(0, vocabulary - 1, 32).tolist() for _ in range(batch)]
            form = StructuredOutput(json=SCHEMA)
            bound = [parameters(seed=number, structured_output=form) for number in range(batch)]
            free = [parameters(seed=number) for number in range(batch)]
            found = ratio({
                "with": lambda p=prompts, w=bound: seconds_a_token(plain, p, w, clock),
                "without": lambda p=prompts, w=free: seconds_a_token(plain, p, w, clock),
            }, given.rounds)  # fmt: skip
            cases.append({"name": f"structured {batch}", **found})
        # One token that the bias makes the most probable comes again and again.
        again = [parameters(temperature=0.0, logit_bias={7: 100.0})]
        never = [parameters(temperature=1.0, seed=3)]
        for name, prompt, wanted in (("repeats", [7] * 32, again), ("random", list(range(300, 332)), never)):
            found = ratio({
                "with": lambda p=prompt, w=wanted: seconds_a_token(drafting, [p], w, clock),
                "without": lambda p=prompt, w=wanted: seconds_a_token(plain, [p], w, clock),
            }, given.rounds)  # fmt: skip
            cases.append({"name": name, **found})
        for case in cases:
            print(json.dumps(case), flush=True)
    print(f"load {load}")
    if given.save:
        print(common.save("llm_features", given.threads, cases, load=load, cpu_time=given.cpu_time))


if __name__ == "__main__":
    main()
