"""A language model on a GPU: its steps and whole requests, with memory bandwidth, cuBLAS and other runtimes in one run.

    python benchmarks/llm_cuda.py [--layers 8] [--only steps loop] [--seconds 190] [--profile] [--save]

The model has the shape of Llama 3.1 8B (which has 32 layers) in bfloat16 and random weights.  The runtimes have the
GPU's memory one after the other, so that all layers fit.  Steps: one new token, chosen greedily, for 1, 64 and 256
sequences of 1,024 tokens, and prompts of 2,048 and 8,192 tokens in one step.  Steps of new tokens follow each other as
they do in the engine: each is prepared and started while the one before runs, whose tokens it takes, and read then.

The peers are a loop in PyTorch, as gpt-fast has it (layers by torch.compile, a static cache, decoding as one CUDA
graph, which is launched again and again without waiting; its sequences fill their caches, so that attention needs no
mask), and transformers with a static cache and torch.compile.  `share` is, of decoding, the time in which its bytes
(weights, keys and values) could be read over the time of the step; of prompts the part of cuBLAS's rate.  `host` is the
part of a step's time in which the GPU waits.  Requests are those of `llm_cuda_requests.py`.

With --only the given parts run alone: `steps` and `requests` are tilewright's, `loop` and `transformers` the peers'.
After --seconds, counted from when the model is open, no further case begins.  With --profile the kernels of a step
follow each case: all of a kind together, timed by events between them, which hides no start of a kernel.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
import argparse
import gc
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.llm_cuda_model import HIDDEN, KEYS, QUERIES, VOCABULARY, rates, seconds, write
from benchmarks.llm_cuda_peers import STEPS, Loop, Transformers
from benchmarks.llm_cuda_requests import Requests
from tilewright.llm import LLM
from tilewright.llm.gpu_model import GPUModel
from tilewright.llm.model import Chunk
from tilewright.llm.sampling import GREEDY
from tilewright.settings import settings

DECODING, PROMPTS, CONTEXT, PAGE = (1, 64, 256), (2048, 8192), 1024, 16
PARTS = ("steps", "requests", "loop", "transformers")
CASES = [*(("decode", count) for count in DECODING), *(("prompt", length) for length in PROMPTS)]


def ours(model: GPUModel) -> dict[str, Callable[[], Any]]:
    """The steps."""
    each = CONTEXT // PAGE

    def decode(count: int) -> Callable[[], Any]:
        pages = [list(range(number * each, (number + 1) * each)) for number in range(count)]
        chunks = [Chunk([-1 - number], CONTEXT - 1, of, (0,), 0, (GREEDY,)) for number, of in enumerate(pages)]

        def run() -> None:
            step = model.start(chunks)
            for _ in range(STEPS - 1):
                step, before = model.start(chunks), step
                before()
            step()

        return run

    def prefill(length: int) -> Callable[[], Any]:
        chunk = Chunk(list(range(length)), 0, list(range(length // PAGE)), (length - 1,), 0, (GREEDY,))
        return lambda: model.run([chunk])

    return {f"{kind} {count}": (decode if kind == "decode" else prefill)(count) for kind, count in CASES}


def seconds_of_step(case: str, run: Callable[[], Any]) -> float:
    """Of a case, whose runs are several steps where they decode."""
    return seconds(run, 10) / (STEPS if case.startswith("decode") else 1)


def measured(name: str, time_of_step: float, weights: int, layers: int, read: float, rate: float) -> dict[str, Any]:
    """Tokens a second, and the share of what the GPU can do."""
    kind, count = name.split()
    tokens = int(count)
    token_bytes = 4 * KEYS * layers  # bytes of a token
    if kind == "decode":
        bound = (weights + token_bytes * tokens * CONTEXT) / read
    else:
        products = weights - 2 * VOCABULARY * HIDDEN  # bytes, and the operations of a token
        bound = (products * tokens + 2 * QUERIES * layers * tokens**2) / rate
    return {"milliseconds": round(time_of_step * 1e3, 3), "tokens_per_second": round(tokens / time_of_step, 1),
            "share": round(bound / time_of_step, 3)}  # fmt: skip


def replayed(model: GPUModel, rounds: int = 20) -> float:
    """The GPU's time for the last step, run again without the host in between."""
    step = next(reversed(model._steps.values()))

    def run() -> None:
        for _ in range(rounds):
            step.run()

    return seconds(run, 3) / rounds


def profiled(model: GPUModel) -> None:
    """Print the kernels of the last step: microseconds together, how many, and the rates of bytes and operations."""
    step = next(reversed(model._steps.values()))
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in model.engine.profile(step.arguments, runs=5):
        kinds.setdefault(f"{row['name'].partition('-')[2]} {row['kernel']}", []).append(row)
    for kind, rows in sorted(kinds.items(), key=lambda entry: -sum(row["milliseconds"] for row in entry[1])):
        took, moved, done = (sum(row[name] for row in rows) for name in ("milliseconds", "bytes", "flops"))
        rates = f"{moved / took / 1e9:6.2f} TB/s {done / took / 1e9:6.1f} TFLOP/s"
        print(f"  {took * 1e3:8.1f} us {len(rows):3d} x {rates} {kind}")


class Run:
    """The cases of one run, printed as they are measured, until the time is over."""

    def __init__(self, layers: int, weights: int, end: float, read: float, rate: float) -> None:
        self.layers, self.weights, self.end, self.read, self.rate = layers, weights, end, read, rate
        self.steps: list[dict[str, Any]] = []

    def show(self, name: str, runtime: str, step: float, **facts: Any) -> None:
        """Keep and print a step."""
        numbers = measured(name, step, self.weights, self.layers, self.read, self.rate)
        self.steps.append({"name": name, "runtime": runtime, **facts, **numbers})
        print(json.dumps(self.steps[-1]), flush=True)

    def has_time(self, case_name: str) -> bool:
        """Whether a further case may begin; says which does not."""
        if time.monotonic() < self.end:
            return True
        print(f"no time for {case_name}", flush=True)
        return False

    def own_steps(self, model: GPUModel, profile: bool) -> None:
        """tilewright's."""
        for case, run in ours(model).items():
            step = seconds_of_step(case, run)
            self.show(case, "tilewright", step, host=round(max(0.0, 1 - replayed(model) / step), 3))
            if profile:
                profiled(model)

    def peer_steps(self, peer: Loop | Transformers) -> None:
        """Another runtime's; a case that fails is printed, and has no row."""
        for kind, count in CASES:
            case = f"{kind} {count}"
            if not self.has_time(f"{case} of {peer.name}"):
                continue
            try:
                run = peer.case(*((count, 1, CONTEXT) if kind == "decode" else (1, count, count)))
                self.show(case, peer.name, seconds_of_step(case, run))
            except Exception as error:
                print(f"{case} of {peer.name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            torch.cuda.empty_cache()


def own_cases(folder: str, run: Run, requests: Requests, given: argparse.Namespace) -> float:
    """tilewright's steps and requests; the seconds that opening the model takes."""
    began = time.monotonic()
    llm = LLM(folder, target="cuda", memory=given.layers * (5 << 29), sequences=max(DECODING), tokens=max(PROMPTS),
              length=max(PROMPTS), page=PAGE)  # fmt: skip
    opened = round(time.monotonic() - began, 1)
    print(f"model opened in {opened} s", flush=True)
    run.end += opened
    if "steps" in given.only:
        assert isinstance(llm.model, GPUModel)
        run.own_steps(llm.model, given.profile)
    if "requests" in given.only:
        requests.mixed(llm, given.requests)
        requests.offline(llm, given.requests, given.all)
        if given.all:
            requests.sampling(llm)
    return opened


def make_room() -> None:
    """Give the memory of what has run back to the GPU."""
    gc.collect()
    torch.cuda.empty_cache()
    print(f"{torch.cuda.mem_get_info()[0] >> 30} GiB free", flush=True)


def main() -> None:
    """Measure, print a line for each case, and write the results with --save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--requests", type=int, default=512, help="mixed ones, and offline")
    parser.add_argument("--seconds", type=float, default=190.0)
    parser.add_argument("--untuned", action="store_true", help="choose kernels by their estimates alone")
    parser.add_argument("--all", action="store_true", help="also sampling, and requests whose steps do not overlap")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    settings.tune = not given.untuned
    shared = Path("/dev/shm")
    place = shared if shared.exists() and shutil.disk_usage(shared).free > 20 << 30 else None
    opened, version = None, ""
    with tempfile.TemporaryDirectory(dir=place) as name:
        began = time.monotonic()
        weights = write(Path(name), given.layers)
        print(f"checkpoint written in {time.monotonic() - began:.1f} s, {os.cpu_count()} cores", flush=True)
        read, rate = rates()
        torch.cuda.empty_cache()
        print(f"rates: {read / 1e12:.2f} TB/s, {rate / 1e12:.0f} TFLOP/s", flush=True)
        run = Run(given.layers, weights, time.monotonic() + given.seconds, read, rate)
        requests = Requests(given.layers, weights, read, rate)
        if {"steps", "requests"} & set(given.only):
            opened = own_cases(name, run, requests, given)
            make_room()
    if "loop" in given.only:
        run.peer_steps(Loop(given.layers))
        make_room()
    if "transformers" in given.only:
        peer = Transformers(given.layers)
        version = peer.library.__version__
        if not requests.mixed_rate:
            print("transformers' continuous batching is compared with that of `requests`, which did not run")
        elif run.has_time("continuous batching of transformers"):
            requests.transformers(peer, given.requests, min(25.0, run.end - time.monotonic()))
        run.peer_steps(peer)
    if given.save:
        facts = {"layers": given.layers, "read": round(read / 1e12, 2), "cublas": round(rate / 1e12), "opened": opened,
                 "gpu": torch.cuda.get_device_name(), "transformers": version}  # fmt: skip
        print(common.save("llm_cuda", settings.threads, run.steps + requests.rows, language_model=facts))


if __name__ == "__main__":
    main()
