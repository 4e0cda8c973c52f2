"""What structured output, speculation, shared prefixes and the server cost and bring on this CPU.

    python benchmarks/llm_features.py [--layers 4] [--threads 2] [--tokens 64] [--rounds 3] [--cpu-time] [--save]

The model has the shape of Qwen2.5-0.5B with fewer layers (`llm_cpu.py`), random weights, and a tokenizer of random
words.  Cases, each a ratio of seconds for each token, with and without, in turns:

    structured  texts of a JSON schema against free texts, at batch 1 and 8
    repeats     lookups where the text repeats itself (the prompt is a cycle that the biases make go on)
    random      lookups where no text repeats
    misleading  lookups where each pair of tokens was there before, and another token followed it
    prefixes    16 prompts of 512 tokens, of which 460 are the same, with 8 tokens each
    server      16 prompts of 64 tokens with as many tokens each, as streams of a server, against the engine alone; the
                client is a process of its own, whose time is not counted

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
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import llm_cpu
from tests.host.llm_support import served
from tilewright.llm import LLM, SamplingParameters, StructuredOutput
from tilewright.llm.asynchronous import AsyncLLM
from tilewright.llm.serve.application import Application
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


def case(name: str, runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, Any]:
    """Medians of the rounds, in milliseconds, and the first over the second; printed."""
    found: dict[str, list[float]] = {kind: [] for kind in runs}
    for number in range(rounds + 1):
        for kind, run in runs.items():
            value = run()
            if number:  # the first warms
                found[kind].append(value)
    medians = {kind: statistics.median(values) * 1e3 for kind, values in found.items()}
    one, other = medians.values()
    times = {f"{kind}_ms": round(value, 3) for kind, value in medians.items()}
    measured = {"name": name, **times, "ratio": round(one / other, 3)}
    print(json.dumps(measured), flush=True)
    return measured


def seconds_of_all(llm: LLM, prompts: list[list[int]], tokens: int, clock: Callable[[], float]) -> float:
    """Of prompts that are there at once, for each token that is made; prefixes are forgotten first."""
    llm.engine.scheduler.pool.clear()
    began = clock()
    llm.generate_all(prompts, SamplingParameters(temperature=0.0, max_tokens=tokens, ignore_eos=True))
    return (clock() - began) / (tokens * len(prompts))


def seconds_of_server(llm: AsyncLLM, address: str, prompts: int, tokens: int, is_cpu_time: bool) -> float:
    """The same of a server, which a client in another process asks."""
    llm.llm.engine.scheduler.pool.clear()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "out.json"
        command = [sys.executable, "-m", "tilewright", "bench", "llm", "serve", "--base-url", address, "--num-prompts",
                   str(prompts), "--input-len", "64", "--output-len", str(tokens), "--output-json",
                   str(file)]  # fmt: skip
        began = time.process_time()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.process_time() - began if is_cpu_time else json.loads(file.read_text())["duration"]
    return seconds / (tokens * prompts)


def served_cases(
    folder: Path, plain: LLM, vocabulary: int, given: argparse.Namespace, clock: Callable[[], float]
) -> list[dict[str, Any]]:
    """Shared prefixes and the server."""
    rng = np.random.default_rng(2)
    shared = rng.integers(0, vocabulary - 1, 460).tolist()
    prompts = [[*shared, *rng.integers(0, vocabulary - 1, 52).tolist()] for _ in range(16)]
    alone = LLM(folder, length=1024, share_prefixes=False)
    found = [case("prefixes", {
        "with": lambda: seconds_of_all(plain, prompts, 8, clock),
        "without": lambda: seconds_of_all(alone, prompts, 8, clock),
    }, given.rounds)]  # fmt: skip
    small = [rng.integers(0, 250, 64).tolist() for _ in range(16)]
    llm = AsyncLLM(folder, length=1024)
    with served(Application(llm, "model")) as address:
        found.append(case("server", {
            "with": lambda: seconds_of_server(llm, address, 16, given.tokens, given.cpu_time),
            "without": lambda: seconds_of_all(plain, small, given.tokens, clock),
        }, given.rounds))  # fmt: skip
    llm.close()
    return found


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
            cases.append(case(f"structured {batch}", {
                "with": lambda p=prompts, w=bound: seconds_a_token(plain, p, w, clock),
                "without": lambda p=prompts, w=free: seconds_a_token(plain, p, w, clock),
            }, given.rounds))  # fmt: skip
        # One token that the bias makes the most probable comes again and again.
        again = [parameters(temperature=0.0, logit_bias={7: 100.0})]
        never = [parameters(temperature=1.0, seed=3)]
        few = {int(token): 100.0 for token in rng.integers(300, vocabulary - 1, 12)}
        wrong = [parameters(temperature=1.0, seed=3, logit_bias=few)]
        for name, prompt, wanted in (("repeats", [7] * 32, again), ("random", list(range(300, 332)), never),
                                     ("misleading", [*few] * 3, wrong)):  # fmt: skip
            cases.append(case(name, {
                "with": lambda p=prompt, w=wanted: seconds_a_token(drafting, [p], w, clock),
                "without": lambda p=prompt, w=wanted: seconds_a_token(plain, [p], w, clock),
            }, given.rounds))  # fmt: skip
        cases += served_cases(folder, plain, vocabulary, given, clock)
    print(f"load {load}")
    if given.save:
        print(common.save("llm_features", given.threads, cases, load=load, cpu_time=given.cpu_time))


if __name__ == "__main__":
    main()
