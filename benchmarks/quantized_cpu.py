"""Models that ONNX Runtime's quantiser wrote, on the CPU: tilewright against ONNX Runtime, and itself in float32.

    python benchmarks/quantized_cpu.py [--threads 1 2] [--only resnet]

Matrix products as static (QDQ) and dynamic quantization writes them, MiniLM quantized in both ways, ResNet-50
statically, with 8-bit weights for each channel (7 bits of them are used: without VNNI ONNX Runtime's sums saturate
otherwise).  The runtimes take turns; times are medians.  Outputs are compared with ONNX Runtime's without its
optimisations.  Results: benchmarks/results/quantized_cpu.json.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
# After `common`, which cleans the environment that NumPy's BLAS reads when it is loaded.
import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime import quantization

from benchmarks.models import cpu
from benchmarks.models_cpu import ONNXRUNTIME, OURS, geometric_means
from tests.models.specification import export_onnx
from tilewright.build.builder import build
from tilewright.importers import import_model
from tilewright.settings import settings

FLOAT = "tilewright, float32"
DEPTH, COLUMNS = 768, 3072
STATIC, DYNAMIC = "static", "dynamic"


@dataclass(frozen=True)
class Case:
    """A float model and how it is quantized."""

    model: Callable[[], cpu.Model]
    method: str


def product(rows: int) -> cpu.Model:
    """One linear layer."""
    return cpu.Model(torch.nn.Linear(DEPTH, COLUMNS).eval(), {"input": torch.randn(rows, DEPTH)}, {})


def _case(name: str, method: str) -> Case:
    return Case(cpu.CASES[name], method)


CASES = {
    **{
        f"{rows} x {DEPTH} x {COLUMNS}, {method}": Case(lambda rows=rows: product(rows), method)
        for rows in (1, 16, 128)
        for method in (STATIC, DYNAMIC)
    },
    "MiniLM b1 s128, static": _case("MiniLM b1 s128", STATIC),
    "MiniLM b1 s128, dynamic": _case("MiniLM b1 s128", DYNAMIC),
    "ResNet-50 b1, static": _case("ResNet-50 b1", STATIC),
}


class Samples(quantization.CalibrationDataReader):
    """The model's example input, once."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.rest: Iterator[dict[str, np.ndarray]] = iter([arrays])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.rest, None)


def quantized(case: Case, folder: Path) -> tuple[Path, Path, dict[str, np.ndarray]]:
    """The float model, the quantized one, and an input."""
    model = case.model()
    plain, result = export_onnx(model.specification(), folder / "model.onnx"), folder / "quantized.onnx"
    arrays = {name: tensor.numpy() for name, tensor in model.inputs.items()}
    ready = folder / "ready.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(plain)), ready)  # weights inside, as the quantiser wants
    if case.method == DYNAMIC:
        quantization.quantize_dynamic(
            str(ready), str(result), per_channel=True, reduce_range=True, op_types_to_quantize=["MatMul", "Gemm"]
        )
    else:
        quantization.quantize_static(
            str(ready), str(result), Samples(arrays), per_channel=True, reduce_range=True,
            activation_type=quantization.QuantType.QUInt8, op_types_to_quantize=["MatMul", "Gemm", "Conv", "Add"],
        )  # fmt: skip
    return plain, result, arrays


def session(path: Path, threads: int, optimized: bool = True) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def measure(name: str, files: tuple[Path, Path, dict[str, np.ndarray]], threads: int, options: Any) -> dict[str, Any]:
    """Build, compare and time one case with a number of threads."""
    plain, path, arrays = files
    settings.threads = threads
    engine, widest, peer = build(import_model(path)), build(import_model(plain)), session(path, threads)
    (output, *_) = (item.name for item in peer.get_outputs())
    expected = session(path, threads, optimized=False).run([output], arrays)[0].astype(np.float64)
    scale = max(float(np.abs(expected).max()), 1e-30)
    found = {OURS: np.array(engine.run(arrays)[output]), ONNXRUNTIME: peer.run([output], arrays)[0]}
    errors = {key: float(np.abs(value - expected).max()) / scale for key, value in found.items()}
    runs: dict[str, Callable[[], Any]] = {
        OURS: lambda: engine.run(arrays),
        ONNXRUNTIME: lambda: peer.run(None, arrays),
        FLOAT: lambda: widest.run(arrays),
    }
    milliseconds = common.alternate(runs, options.rounds, options.seconds)
    medians = {runtime: value["median"] for runtime, value in milliseconds.items()}
    return {
        "name": name, "threads": threads, "milliseconds": milliseconds, "errors": errors, "best_peer": ONNXRUNTIME,
        "ratio": medians[ONNXRUNTIME] / medians[OURS], "over_float32": medians[FLOAT] / medians[OURS],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.25, help="per runtime and round")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    results: list[dict[str, Any]] = []
    for name, case in CASES.items():
        if options.only.lower() not in name.lower():
            continue
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            files = quantized(case, Path(folder))
            onnx.checker.check_model(str(files[1]))
            for threads in options.threads:
                results.append(found := measure(name, files, threads, options))
                times = ", ".join(f"{key} {value['median']:.3f}" for key, value in found["milliseconds"].items())
                print(
                    f"{name}, {threads} threads: {times} ms; ONNX Runtime / ours {found['ratio']:.2f}, float32 / ours "
                    f"{found['over_float32']:.2f}; differs by {found['errors'][OURS]:.1e} "
                    f"(ONNX Runtime {found['errors'][ONNXRUNTIME]:.1e})",
                    flush=True,
                )
    means = geometric_means(results)
    print("ONNX Runtime / ours, geometric mean:", {key: round(value, 3) for key, value in means.items()})
    if not options.only and not any(math.isnan(value) for value in means.values()):
        print("wrote", common.save("quantized_cpu", max(options.threads), results, geometric_means=means).name)


if __name__ == "__main__":
    main()
