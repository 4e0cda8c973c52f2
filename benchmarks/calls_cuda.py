"""What calls of engines on a GPU cost the thread that makes them, and what sizes cost that an engine meets first.

    python benchmarks/calls_cuda.py

Two engines with run-time sizes: a step of a decoder of 12 layers (hidden size 512, caches of 256), and an encoder of
BERT-base's shapes; kernels are chosen by estimate, for which of them does not matter here.  Host microseconds are
those of a call once its graph is captured: among calls that follow each other, and by itself, the GPU idle before it.
For each new size the milliseconds until the outputs are there: of the first call (and until it returns), of the second
(which captures the plan) and of a later one; PyTorch's allocator, which gives memory for outputs, has enough.
Results: benchmarks/results/calls_cuda.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
import torch

from benchmarks.kernels_cuda import environment
from tests.models import bert, llama
from tests.models.specification import ModelSpecification
from tilewright.build.builder import build
from tilewright.build.tuning import Tuning
from tilewright.importers import import_model

PATH = common.RESULTS / "calls_cuda.json"
DECODER = llama.LlamaSize(hidden=512, layers=12, heads=8, key_heads=2, intermediate=1024, vocabulary=1024, cache=256)
BERT_BASE = bert.BertSize(hidden=768, layers=12, heads=12, intermediate=3072, vocabulary=1000)
Inputs = dict[str, torch.Tensor]


def decoder() -> tuple[ModelSpecification, torch.dtype, list[dict[str, int]]]:
    """The module, its precision, and sizes to call it with, the first of which it is timed with."""
    module = llama.random_model(DECODER).to(torch.bfloat16)
    return llama.decode_specification(module, batch=1), torch.bfloat16, [{"batch": n} for n in (1, 2, 5, 9, 13, 16)]


def encoder() -> tuple[ModelSpecification, torch.dtype, list[dict[str, int]]]:
    """The same of BERT."""
    sizes = [(1, 128), (1, 77), (4, 200), (2, 384), (64, 128), (1, 9)]
    return (
        bert.specification(bert.random_model(BERT_BASE).half()),
        torch.float16,
        [{"batch": batch, "sequence": sequence} for batch, sequence in sizes],
    )


CASES = {"decoder step, 12 layers, bf16": decoder, "BERT-base, fp16": encoder}


def drawn(spec: ModelSpecification, dtype: torch.dtype, sizes: Mapping[str, int], device: str = "cuda") -> Inputs:
    """Inputs of these sizes."""
    made = spec.make_inputs(**sizes).items()
    return {name: (t.to(dtype) if t.is_floating_point() else t).to(device) for name, t in made}


def host_microseconds(run: Callable[[], Any], rounds: int = 60, together: int = 10) -> dict[str, float]:
    """What a call costs the calling thread: medians and the least over rounds."""
    alone, among = [], []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        alone.append((time.perf_counter() - began) * 1e6)
        began = time.perf_counter()
        for _ in range(together):
            run()
        among.append((time.perf_counter() - began) / together * 1e6)
    torch.cuda.synchronize()
    return {"median": statistics.median(among), "best": min(among), "alone": statistics.median(alone)}


def milliseconds(run: Callable[[], Any]) -> tuple[float, float]:
    """Until a call returns, and until its outputs are there."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return (returned - began) * 1e3, (time.perf_counter() - began) * 1e3


def measure(name: str, make: Callable[[], Any]) -> dict[str, Any]:
    """Build one engine and call it with all sizes."""
    spec, dtype, sizes = make()
    example = tuple(drawn(spec, dtype, sizes[0], "cpu").values())
    engine = build(import_model(spec.module, example, spec.dynamic_shapes, spec.name), "cuda", tuning=Tuning(0))
    given = drawn(spec, dtype, sizes[0])
    outputs = engine.run(given)
    own = {spec.name: outputs[spec.name] for spec in engine.outputs if spec.mutates is None}
    with torch.inference_mode():
        of_inference = {key: tensor.clone() for key, tensor in given.items()}
    record: dict[str, Any] = {"name": name, "inputs": len(given), "steps": len(engine.plan.steps)}
    record["host_microseconds"] = {
        "outputs given": host_microseconds(lambda: engine.run(given, out=own)),
        "outputs allocated": host_microseconds(lambda: engine.run(given)),
        "tensors of the inference mode": host_microseconds(lambda: engine.run(of_inference)),
        "as a function": host_microseconds(lambda: engine(*given.values())),
    }
    torch.empty(256 << 20, dtype=torch.uint8, device="cuda")  # freed at once, and kept by PyTorch for what comes
    record["new_sizes"] = []
    for each in sizes[1:]:
        given = drawn(spec, dtype, each)
        first, second, *later = (milliseconds(lambda given=given: engine.run(given)) for _ in range(8))
        found = {"sizes": each, "first_ms": first[1], "second_ms": second[1]}
        found |= {"first_host_ms": first[0], "later_ms": statistics.median(total for _, total in later)}
        record["new_sizes"].append(found)
    return record


def main() -> int:
    if not torch.cuda.is_available():
        sys.exit("calls_cuda.py needs an NVIDIA GPU and a PyTorch that uses it")
    records = []
    for name, make in CASES.items():
        record = measure(name, make)
        records.append(record)
        host = ", ".join(
            f"{key} {value['median']:.1f} (alone {value['alone']:.1f})"
            for key, value in record["host_microseconds"].items()
        )
        print(f"{name}, {record['steps']} steps, {record['inputs']} inputs: host us a call: {host}", flush=True)
        for each in record["new_sizes"]:
            first = f"first {each['first_ms']:.2f} ms ({each['first_host_ms']:.2f} on the host)"
            times = f"{first}, second {each['second_ms']:.2f}, later {each['later_ms']:.2f}"
            print(f"   {each['sizes']}: {times}", flush=True)
        PATH.write_text(json.dumps({"environment": environment(), "calls": records}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
