"""Steps of a language model on a GPU, compared with memory bandwidth, cuBLAS and a loop in PyTorch.

    python benchmarks/llm_cuda.py [--layers 32] [--seconds 190] [--profile] [--save]

The model has the shape of Llama 3.1 8B in bfloat16 (with --layers fewer layers) and random weights.  Cases: one new
token, chosen greedily, for 1, 64 and 256 sequences of 1,024 tokens, and prompts of 2,048 and 8,192 tokens in one step.
Steps of new tokens follow each other as they do in the engine: each is prepared and started while the one before runs,
whose tokens it takes, and read then.  The peer is written as gpt-fast is: layers by torch.compile, a static cache,
decoding as one CUDA graph, which is launched again and again without waiting; its sequences fill their caches, so that
attention needs no mask.  `share` is, of decoding, the time in which its bytes (weights,
keys and values) could be read over the time of the step; of prompts the part of cuBLAS's rate.  `host` is the part of a
step's time in which the GPU waits.  After --seconds no further case of the peer begins.  With --profile the kernels of
a step follow each case: all of a kind together, timed by events between them, which hides no start of a kernel.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
import torch.nn.functional as F

from tilewright.llm.gpu_model import GPUModel
from tilewright.llm.model import Chunk
from tilewright.llm.sampling import GREEDY
from tilewright.llm.step import Limits
from tilewright.settings import settings

HIDDEN, INNER, HEADS, KEY_HEADS, WIDTH, VOCABULARY, PAGE = 4096, 14336, 32, 8, 128, 128256, 16
DECODING, PROMPTS, CONTEXT = (1, 64, 256), (2048, 8192), 1024
STEPS = 20  # of new tokens, that follow each other
QUERIES, KEYS = HEADS * WIDTH, KEY_HEADS * WIDTH
EPSILON = 1e-5


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """The weights of the checkpoint."""
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }  # fmt: skip
    for layer in range(layers):
        path = f"model.layers.{layer}"
        for name, rows in (("q", QUERIES), ("k", KEYS), ("v", KEYS), ("o", HIDDEN)):
            found[f"{path}.self_attn.{name}_proj.weight"] = (rows, QUERIES if name == "o" else HIDDEN)
        found[f"{path}.mlp.gate_proj.weight"] = found[f"{path}.mlp.up_proj.weight"] = (INNER, HIDDEN)
        found[f"{path}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        found[f"{path}.input_layernorm.weight"] = found[f"{path}.post_attention_layernorm.weight"] = (HIDDEN,)
    return found


def write(folder: Path, layers: int) -> int:
    """A checkpoint whose weights repeat one random block; gives the bytes of them that a decoding step reads."""
    block = (np.random.default_rng(0).standard_normal(1 << 25, np.float32) * 0.02).astype(ml_dtypes.bfloat16).tobytes()
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes(layers).items():
        begin, end = end, end + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for begin in range(0, end, len(block)):
            file.write(block[: end - begin])
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS,
        "max_position_embeddings": 131072, "rms_norm_eps": EPSILON, "rope_theta": 500000.0, "dtype": "bfloat16",
        "tie_word_embeddings": False,
    }))  # fmt: skip
    return end - 2 * VOCABULARY * HIDDEN


def ours(folder: Path) -> tuple[GPUModel, dict[str, Callable[[], Any]]]:
    """The model, and its cases."""
    each = CONTEXT // PAGE
    model = GPUModel.open(folder, max(DECODING) * each, Limits(PAGE, max(PROMPTS), max(DECODING), max(PROMPTS)))
    assert isinstance(model, GPUModel)

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

    return model, {**{f"decode {count}": decode(count) for count in DECODING},
                   **{f"prompt {length}": prefill(length) for length in PROMPTS}}  # fmt: skip


def layer_of_peer(
    x: torch.Tensor, weights: list[torch.Tensor], keys: torch.Tensor, values: torch.Tensor, place: torch.Tensor,
    turns: tuple[torch.Tensor, torch.Tensor], causal: bool,
) -> torch.Tensor:  # fmt: skip
    """One layer; x [batch, tokens, hidden], caches [batch, key heads, length, width] written at `place` [tokens]."""
    first, second, qkv, out, gate_up, down = weights
    batch, tokens, _ = x.shape
    normed = F.rms_norm(x, (HIDDEN,), first, EPSILON)
    q, k, v = F.linear(normed, qkv).split((QUERIES, KEYS, KEYS), -1)
    q, k, v = (item.view(batch, tokens, -1, WIDTH).transpose(1, 2) for item in (q, k, v))
    cosine, sine = turns

    def turned(item: torch.Tensor) -> torch.Tensor:
        low, high = item.chunk(2, -1)
        return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)

    q, k = turned(q), turned(k)
    if causal:
        keys[:, :, :tokens], values[:, :, :tokens] = k, v
    else:
        keys.index_copy_(2, place, k)
        values.index_copy_(2, place, v)
        k, v = keys, values
    y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    x = x + F.linear(y.transpose(1, 2).reshape(batch, tokens, QUERIES), out)
    gate, up = F.linear(F.rms_norm(x, (HIDDEN,), second, EPSILON), gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, down)


class Peer:
    """The loop in PyTorch."""

    def __init__(self, layers: int) -> None:
        def random(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02)

        self.table, self.head, self.norm = random(VOCABULARY, HIDDEN), random(VOCABULARY, HIDDEN), random(HIDDEN)
        self.layers = [
            [random(HIDDEN), random(HIDDEN), random(QUERIES + 2 * KEYS, HIDDEN), random(HIDDEN, QUERIES),
             random(2 * INNER, HIDDEN), random(HIDDEN, INNER)] for _ in range(layers)
        ]  # fmt: skip
        self.layer = torch.compile(layer_of_peer, dynamic=False, fullgraph=True)
        self.last = torch.compile(self._last, dynamic=False, fullgraph=True)

    def _last(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.rms_norm(x[:, -1], (HIDDEN,), self.norm, EPSILON), self.head).float().argmax(-1)

    def case(self, batch: int, tokens: int, length: int) -> Callable[[], Any]:
        """A step of so many new tokens in caches of a length; single tokens as a CUDA graph."""
        caches = [torch.zeros((2, batch, KEY_HEADS, length, WIDTH), dtype=torch.bfloat16, device="cuda")
                  for _ in self.layers]  # fmt: skip
        given = torch.randint(0, VOCABULARY, (batch, tokens), device="cuda")
        place = torch.arange(length - tokens, length, device="cuda")
        angles = place[:, None] * 500000.0 ** (-torch.arange(0, WIDTH, 2, device="cuda") / WIDTH)
        turns = (angles.cos().bfloat16(), angles.sin().bfloat16())

        def run() -> torch.Tensor:
            x = F.embedding(given, self.table)
            for weights, (keys, values) in zip(self.layers, caches, strict=True):
                x = self.layer(x, weights, keys, values, place, turns, tokens > 1)
            return self.last(x)

        with torch.inference_mode():
            if tokens > 1:
                return torch.inference_mode()(lambda: run().cpu())
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                run()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = run()

        def replay() -> Any:
            for _ in range(STEPS):
                graph.replay()
            return result.cpu()

        return replay


def rates() -> tuple[float, float]:
    """Bytes a second that a sum reads, or a copy moves; operations a second of a product by cuBLAS."""
    x, y = torch.ones(1 << 31, device="cuda"), torch.empty(1 << 31, device="cuda")
    read = max(x.nbytes / seconds(x.sum, 10), 2 * x.nbytes / seconds(lambda: y.copy_(x), 10))
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return read, 2 * 8192**3 / seconds(lambda: a @ b, 20)


def seconds(run: Callable[[], Any], rounds: int) -> float:
    """The median time of a call, the GPU's work included."""
    times = []
    for number in range(rounds + 3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        if number >= 3:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def seconds_of_step(case: str, run: Callable[[], Any]) -> float:
    """Of a case, whose runs are several steps where they decode."""
    return seconds(run, 10) / (STEPS if case.startswith("decode") else 1)


def measured(name: str, time_of_step: float, weights: int, layers: int, read: float, rate: float) -> dict[str, Any]:
    """Tokens a second, and the share of what the GPU can do."""
    kind, count = name.split()
    tokens = int(count)
    kept = 4 * KEYS * layers  # bytes of a token
    if kind == "decode":
        bound = (weights + kept * tokens * CONTEXT) / read
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


def main() -> None:
    """Measure, print a line for each case, and write the results with --save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=190.0)
    parser.add_argument("--tune", action="store_true", help="time close candidates while the model is compiled")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    settings.tune = given.tune
    end = time.monotonic() + given.seconds
    shared = Path("/dev/shm")
    place = shared if shared.exists() and shutil.disk_usage(shared).free > 20 << 30 else None
    cases: list[dict[str, Any]] = []

    def show(row: dict[str, Any]) -> None:
        cases.append(row)
        print(json.dumps(row), flush=True)

    with tempfile.TemporaryDirectory(dir=place) as name:
        began = time.monotonic()
        weights = write(Path(name), given.layers)
        show({"name": "checkpoint written", "seconds": round(time.monotonic() - began, 1), "cores": os.cpu_count()})
        began = time.monotonic()
        model, runs = ours(Path(name))
        show({"name": "model opened", "seconds": round(time.monotonic() - began, 1)})
        read, rate = rates()
        show({"name": "rates", "read": round(read / 1e9), "cublas": round(rate / 1e12)})
        for case, run in runs.items():
            step = seconds_of_step(case, run)
            host = 1 - replayed(model) / step
            show({"name": case, "runtime": "tilewright", "host": round(host, 3),
                  **measured(case, step, weights, given.layers, read, rate)})  # fmt: skip
            if given.profile:
                profiled(model)
        del model, runs
        peer = Peer(given.layers)
        for kind, count in (("decode", 1), ("decode", 64), ("prompt", 2048), ("decode", 256), ("prompt", 8192)):
            if time.monotonic() > end - 25:
                print(f"no time for {kind} {count} of the peer")
                continue
            case = f"{kind} {count}"
            step = seconds_of_step(case, peer.case(*((count, 1, CONTEXT) if kind == "decode" else (1, count, count))))
            show({"name": case, "runtime": "PyTorch, as gpt-fast",
                  **measured(case, step, weights, given.layers, read, rate)})  # fmt: skip
            torch.cuda.empty_cache()
    if given.save:
        print(common.save("llm_cuda", settings.threads, cases, gpu=torch.cuda.get_device_name()))


if __name__ == "__main__":
    main()
