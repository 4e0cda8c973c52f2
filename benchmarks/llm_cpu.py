"""Tokens a second of a language model on this CPU, beside the memory's bandwidth and transformers.

    python benchmarks/llm_cpu.py [--layers 24] [--dtype float32] [--threads 2] [--rounds 5] [--weights int8 int4]
                                 [--cpu-time] [--save]

The model has the shape of Qwen2.5-0.5B (with --layers fewer layers and a proportional vocabulary) and random weights,
written as a checkpoint to a temporary folder.  Cases: one new token for 1, 8 and 32 sequences with 512 tokens before
it, and a prompt of 512 tokens in chunks of 256.  The peer, where it is installed, is transformers with its cache in
PyTorch eager mode, from the same folder; the two take turns.  Bandwidth is that of threads that add up a gigabyte, in
the same run; `bandwidth share` is the weights' bytes of a decoding step over what could be read meanwhile.  Results:
benchmarks/results/llm_cpu.json (with --save), with the load of the machine before the first case: above about .5, other
work slowed everything down.  With --cpu-time seconds are those of the process's CPUs: what to use on such a machine,
with --threads 1.  --weights adds tilewright with weights in these formats.
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
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from tilewright.llm.model import Chunk, Model
from tilewright.llm.step import Limits
from tilewright.settings import settings

HIDDEN, INNER, HEADS, KEY_HEADS, WIDTH, LAYERS, VOCABULARY = 896, 4864, 14, 2, 64, 24, 151936
BEFORE, PROMPT, CHUNK = 512, 512, 256
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


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


def write(folder: Path, layers: int, dtype: str) -> int:
    """A checkpoint of random weights; gives the bytes that a decoding step reads of them."""
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
    return sum(weight.nbytes for weight in weights.values())


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

    return {**{f"decode {count}": decode(count) for count in (1, 8, 32)}, f"prompt {PROMPT}": prefill}


def theirs(folder: Path, dtype: str, threads: int) -> dict[str, Callable[[], Any]]:
    """The cases of transformers."""
    import torch
    import transformers

    torch.set_num_threads(threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def prefill() -> Any:
        with torch.inference_mode():
            return model(torch.arange(PROMPT)[None], use_cache=True, logits_to_keep=1)

    def decode(count: int) -> Callable[[], Any]:
        with torch.inference_mode():
            cache = model(
                torch.arange(BEFORE)[None].expand(count, -1), use_cache=True, logits_to_keep=1
            ).past_key_values

        def run() -> None:
            with torch.inference_mode():
                model(torch.full((count, 1), 5), past_key_values=cache, use_cache=True)
                cache.crop(-1)

        return run

    return {**{f"decode {count}": decode(count) for count in (1, 8, 32)}, f"prompt {PROMPT}": prefill}


def main() -> None:
    """Measure, print a line for each case, and write the results with --save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--threads", type=int, default=settings.threads)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--weights", nargs="*", choices=("int8", "int4"), default=[])
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    settings.threads = given.threads
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory() as name:
        size = write(Path(name), given.layers, given.dtype)
        runtimes = {"tilewright": ours(Path(name))}
        runtimes |= {f"tilewright_{weights}": ours(Path(name), weights) for weights in given.weights}
        if common.installed("transformers"):
            runtimes["transformers"] = theirs(Path(name), given.dtype, given.threads)
        read = bandwidth(given.threads)
        cases = []
        for case in runtimes["tilewright"]:
            clock = time.process_time if given.cpu_time else time.perf_counter
            runs_of_case = {runtime: runs[case] for runtime, runs in runtimes.items()}
            times = common.alternate(runs_of_case, given.rounds, clock=clock)
            tokens = int(case.split()[1])
            row: dict[str, Any] = {
                "name": case,
                "dtype": given.dtype,
                "layers": given.layers,
                "cpu_time": given.cpu_time,
            }
            for runtime, found in times.items():
                row[f"{runtime}_tokens_per_second"] = round(tokens / found["median"] * 1e3, 2)
            if case.startswith("decode"):
                row["bandwidth_share"] = round(size / read / times["tilewright"]["median"] * 1e3, 3)
            cases.append(row)
            print(json.dumps(row), flush=True)
    print(f"weights {size / 1e6:.0f} MB, bandwidth {read / 1e9:.1f} GB/s, load {load}")
    if given.save:
        versions = {"transformers": common.installed("transformers")}
        print(
            common.save("llm_cpu", given.threads, cases, load=load, bandwidth=round(read), versions_of_peers=versions)
        )


if __name__ == "__main__":
    main()
