"""Whole models on the CPU: tilewright beside PyTorch eager and ONNX Runtime, in one run.

    python benchmarks/models_cpu.py [--threads 2] [--only minilm] [--compile]

Random inputs; the runtimes take turns; times are medians.  PyTorch allocates its outputs as usual.
Every case first checks our outputs against PyTorch.  Results: benchmarks/results/models_cpu.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
# After `common`, which cleans the environment that NumPy's BLAS reads when it is loaded.
import numpy as np
import torch

import tilewright
from tests.models import bert, llama, resnet
from tests.models.specification import ModelSpecification, export_onnx
from tilewright.settings import settings

LLAMA = llama.LlamaSize()  # hidden 1024, 8 layers


def cases() -> dict[str, Callable[[], tuple[ModelSpecification, dict[str, int]]]]:
    """Case name -> (model, the sizes to time)."""

    def minilm(batch: int) -> tuple[ModelSpecification, dict[str, int]]:
        folder = bert.checkpoint_folder()
        if folder is None:
            sys.exit("the MiniLM checkpoint is missing: make test installs it")
        return bert.specification(bert.load(folder)), {"batch": batch, "sequence": 128}

    return {
        "MiniLM b1 s128": lambda: minilm(1),
        "MiniLM b16 s128": lambda: minilm(16),
        "ResNet-50 b1": lambda: (resnet.specification(resnet.random_model()), {"batch": 1}),
        "Llama-style prefill 256": lambda: (
            llama.prefill_specification(llama.random_model(LLAMA)),
            {"batch": 1, "sequence": 256},
        ),
        "Llama-style decode, past 256": lambda: (
            llama.decode_specification(llama.random_model(LLAMA)),
            {"batch": 1, "past": 256},
        ),
    }


def onnxruntime_run(specification: ModelSpecification, arrays: dict[str, np.ndarray], threads: int) -> Any:
    """The model in ONNX Runtime, or the reason why not."""
    try:
        import onnxruntime
    except ImportError:
        return "not installed"
    with tempfile.TemporaryDirectory() as folder:
        path = export_onnx(specification, Path(folder) / "model.onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, arrays)


def largest_error(ours: dict[str, np.ndarray], expected: list[torch.Tensor]) -> float:
    """Largest difference, relative to the largest value of each output."""
    pairs = zip(ours.values(), expected, strict=False)
    return max(float(np.abs(a - b.numpy()).max() / np.abs(b.numpy()).max()) for a, b in pairs)


def measure(name: str, specification: ModelSpecification, sizes: dict[str, int], options: Any) -> dict[str, Any]:
    """Build, check and time one case."""
    inputs = specification.make_inputs(**sizes)
    arrays = {key: tensor.numpy() for key, tensor in inputs.items()}
    began = time.perf_counter()
    engine = tilewright.compile(
        specification.module, specification.example, dynamic_shapes=specification.dynamic_shapes
    )
    build = time.perf_counter() - began
    ours = {key: np.array(value) for key, value in engine.run({k: v.copy() for k, v in arrays.items()}).items()}
    error = largest_error(ours, specification.run(inputs))
    if not error < 1e-3:
        sys.exit(f"{name}: the outputs differ from PyTorch's by {error:.2e}")
    tensors = tuple(inputs.values())
    runs: dict[str, Callable[[], Any]] = {
        "tilewright": lambda: engine.run(arrays),
        "PyTorch eager": lambda: specification.module(*tensors),
    }
    notes = {}
    if options.compile:
        compiled = torch.compile(specification.module, dynamic=False)
        runs["torch.compile"] = lambda: compiled(*tensors)
    peer = onnxruntime_run(specification, arrays, options.threads)
    if callable(peer):
        runs["ONNX Runtime"] = peer
    else:
        notes["ONNX Runtime"] = peer
    with torch.inference_mode():
        milliseconds = common.alternate(runs, options.rounds, options.seconds)
    return {"name": name, "milliseconds": milliseconds, "build_seconds": build, "error": error, "notes": notes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--compile", action="store_true", help="time torch.compile too")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="per runtime and round")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settings.threads = options.threads
    results = []
    for name, make in cases().items():
        if options.only.lower() not in name.lower():
            continue
        result = measure(name, *make(), options)
        results.append(result)
        ours = result["milliseconds"]["tilewright"]["median"]
        figures = ", ".join(
            f"{key} {value['median']:.2f} ms ({value['median'] / ours:.2f}x)"
            for key, value in result["milliseconds"].items()
        )
        print(f"{name}: {figures}; error {result['error']:.1e}, build {result['build_seconds']:.1f} s", flush=True)
    if not options.only:
        print("wrote", common.save("models_cpu", options.threads, results).name)


if __name__ == "__main__":
    main()
