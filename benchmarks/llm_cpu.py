"""Tokens a second of a language model on this CPU: tilewright, llama.cpp, OpenVINO and transformers.

    python benchmarks/llm_cpu.py [--layers 24] [--formats float32 int4] [--threads 2] [--rounds 5] [--cpu-time] [--save]

The model has the shape of Qwen2.5-0.5B (with --layers fewer layers and a proportional vocabulary) and random
weights, written as a checkpoint to a temporary folder.  Cases: one new token for 1, 8 and 32 sequences with 512
tokens before it, and a prompt of 512 tokens (here in chunks of 256).  The peers are those that are installed
(`llm_peers.py`): llama.cpp (llama-cpp-python, built from source for this processor), OpenVINO, as optimum-intel
exports the model, and transformers with its cache in PyTorch eager mode.  They read the same weights, and
alternate.  Weights of 8 and 4 bits are what each rounds float32 to: llama.cpp Q8_0 and Q4_0, OpenVINO what NNCF
makes of 8 bits, and of 4 bits for groups of 64.  `bandwidth` is that of threads that add up a gigabyte.  Results:
benchmarks/results/llm_cpu.json (with --save), with the load of the machine before the first case: above about .5,
other work slowed everything down.  With --cpu-time seconds are those of the process's CPUs: what to use on such a
machine, with --threads 1.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common, llm_peers
from benchmarks.models_cpu import geometric_means

# isort: split
import argparse
import gc
import json
import math
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from tilewright.llm.model import Chunk, Model
from tilewright.llm.step_graph import Limits
from tilewright.settings import settings

HIDDEN, INNER, HEADS, KEY_HEADS, WIDTH, LAYERS, VOCABULARY = 896, 4864, 14, 2, 64, 24, 151936
BEFORE, PROMPT, CHUNK = 512, 512, 256
COUNTS = (1, 8, 32)
OURS = "tilewright"
PACKAGES = ("transformers", "llama-cpp-python", "optimum-intel", "nncf")
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Form:
    """Types of a checkpoint's numbers, and how its linear layers are stored when it is read."""

    dtype: str
    weights: str = "auto"


FORMS = {
    "float32": Form("float32"),
    "bfloat16": Form("bfloat16"),
    "int8": Form("bfloat16", "int8"),
    "int4": Form("bfloat16", "int4"),
}


def shapes(layers: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """The weights of the checkpoint."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(layers):
        path = f"model.layers.{layer}"
        for name, rows in (("q", HEADS * WIDTH), ("k", KEY_HEADS * WIDTH), ("v", KEY_HEADS * WIDTH)):
            found[f"{path}.self_attn.{name}_proj.weight"] = (rows, HIDDEN)
            found[f"{path}.self_attn.{name}_proj.bias"] = (rows,)
        found[f"{path}.self_attn.o_proj.weight"] = (HIDDEN, HEADS * WIDTH)
        found[f"{path}.mlp.gate_proj.weight"] = found[f"{path}.mlp.up_proj.weight"] = (INNER, HIDDEN)
        found[f"{path}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        found[f"{path}.input_layernorm.weight"] = found[f"{path}.post_attention_layernorm.weight"] = (HIDDEN,)
    return found


def write(folder: Path, layers: int, dtype: str) -> None:
    """A checkpoint of random weights."""
    vocabulary = VOCABULARY * layers // LAYERS
    rng = np.random.default_rng(0)
    weights = {
        name: (rng.standard_normal(shape, np.float32) * 0.02 + (1.0 if "norm" in name else 0.0)).astype(DTYPES[dtype])
        for name, shape in shapes(layers, vocabulary).items()
    }
    save_file(weights, folder / "model.safetensors")
    config = {
        "model_type": "qwen2", "vocab_size": vocabulary, "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS,
        "max_position_embeddings": 2048, "tie_word_embeddings": True, "rms_norm_eps": 1e-6, "dtype": dtype,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def bandwidth(threads: int) -> float:
    """Bytes a second that threads read, the best of five times."""
    parts = np.array_split(np.ones(1 << 28, np.float32), threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            began = time.perf_counter()
            list(pool.map(np.sum, parts))
            best = max(best, (1 << 30) / (time.perf_counter() - began))
    return best


def ours(folder: Path, weights: str = "auto") -> dict[str, Callable[[], Any]]:
    """The cases of tilewright."""
    page, most = 16, 32
    each = (BEFORE + page) // page
    model = Model.open(folder, most * each + PROMPT // page, Limits(page, CHUNK, most, 2048), weights=weights)

    def decode(count: int) -> Callable[[], Any]:
        chunks = [Chunk([5], BEFORE, range(number * each, (number + 1) * each), (0,)) for number in range(count)]
        return lambda: model.run(chunks)

    def prefill() -> None:
        for begin in range(0, PROMPT, CHUNK):
            pages = range((begin + CHUNK) // page)
            model.run([Chunk(range(CHUNK), begin, pages, (CHUNK - 1,) if begin + CHUNK == PROMPT else ())])

    return {**{f"decode {count}": decode(count) for count in COUNTS}, f"prompt {PROMPT}": prefill}


def theirs(folder: Path, form: Form, threads: int) -> dict[str, dict[str, Callable[[], Any]]]:
    """The cases of the peers that are installed and have this format, by runtime."""
    runtimes: dict[str, tuple[str, Callable[..., Any]]] = {
        "llama.cpp": ("llama-cpp-python", llm_peers.LlamaCpp),
        "OpenVINO": ("optimum-intel", llm_peers.OpenVino),
    }
    if form.weights == "auto":
        runtimes["transformers"] = "transformers", llm_peers.Transformers
    found: dict[str, dict[str, Callable[[], Any]]] = {}
    for name, (package, make) in runtimes.items():
        if common.installed(package):
            peer = make(folder, form.dtype, form.weights, threads)
            found[name] = {**{f"decode {count}": peer.decode(count, BEFORE) for count in COUNTS}}
            found[name][f"prompt {PROMPT}"] = peer.prompt(PROMPT)
    return found


def measure(form_name: str, given: argparse.Namespace) -> list[dict[str, Any]]:
    """The cases of a format."""
    form, clock = FORMS[form_name], time.process_time if given.cpu_time else time.perf_counter
    cases = []
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), given.layers, form.dtype)
        runtimes = {OURS: ours(Path(name), form.weights), **theirs(Path(name), form, given.threads)}
        for case in runtimes[OURS]:
            times = common.alternate({key: runs[case] for key, runs in runtimes.items()}, given.rounds, clock=clock)
            medians = {runtime: found["median"] for runtime, found in times.items()}
            tokens = int(case.split()[1])
            row: dict[str, Any] = {
                "name": f"{case}, {form_name}", "layers": given.layers, "threads": given.threads,
                "milliseconds": times, "tokens_per_second": round(tokens / medians[OURS] * 1e3, 1),
            }  # fmt: skip
            if len(medians) > 1:
                row["best_peer"] = best = min(medians.keys() - {OURS}, key=medians.__getitem__)
                row["ratio"] = medians[best] / medians[OURS]
            cases.append(row)
            rates = ", ".join(f"{runtime} {tokens / median * 1e3:.1f}" for runtime, median in medians.items())
            print(f"{row['name']}: {rates} tokens/s; best peer / ours {row.get('ratio', math.nan):.2f}", flush=True)
    return cases


def main() -> None:
    """Measure, print a line for each case, and write the results with --save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--formats", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--threads", type=int, default=settings.threads)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    settings.threads = given.threads
    load, read = round(os.getloadavg()[0], 1), bandwidth(given.threads)
    cases: list[dict[str, Any]] = []
    for form_name in given.formats:
        cases += measure(form_name, given)
        gc.collect()
    means = geometric_means(cases)
    print(f"best peer / ours, geometric mean: {means}; bandwidth {read / 1e9:.1f} GB/s, load {load}")
    if given.save:
        versions = {peer: common.installed(peer) for peer in PACKAGES}
        facts = {"load": load, "cpu_time": given.cpu_time, "bandwidth": round(read), "versions_of_peers": versions}
        print(common.save("llm_cpu", given.threads, cases, geometric_means=means, **facts))


if __name__ == "__main__":
    main()
