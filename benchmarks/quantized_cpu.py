"""Models that ONNX Runtime's quantiser wrote, on the CPU: tilewright against ONNX Runtime, OpenVINO and float32.

    python benchmarks/quantized_cpu.py [--threads 1 2] [--only resnet] [--cpu-time]

Matrix products as static (QDQ) and dynamic quantization writes them, and whole models, with 8-bit weights for each
channel (7 bits of them are used: without VNNI ONNX Runtime's sums saturate otherwise).  OpenVINO, where it is
installed, reads the same file and, with NNCF, quantizes the float model itself; the faster of the two counts.  A row
has a peer's note in place of its time where the peer refuses the model.  The runtimes alternate; times are medians.
Outputs are compared with ONNX Runtime's without its optimisations.  Results: benchmarks/results/quantized_cpu.json.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import tempfile
import time
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
from benchmarks.models_cpu import ONNXRUNTIME, OPENVINO, OURS, geometric_means
from tests.models.specification import export_onnx
from tilewright.build.builder import build
from tilewright.importers import import_model
from tilewright.settings import settings

FLOAT, NNCF = "tilewright, float32", "OpenVINO, NNCF"
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
    "MiniLM b16 s128, static": _case("MiniLM b16 s128", STATIC),
    "MiniLM b16 s128, dynamic": _case("MiniLM b16 s128", DYNAMIC),
    "BERT-base b1 s128, static": _case("BERT-base b1 s128", STATIC),
    "BERT-base b1 s128, dynamic": _case("BERT-base b1 s128", DYNAMIC),
    "ResNet-50 b1, static": _case("ResNet-50 b1", STATIC),
    "ResNet-50 b8, static": _case("ResNet-50 b8", STATIC),
    "MobileNetV3-large b1, static": _case("MobileNetV3-large b1", STATIC),
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


def openvino_run(model: Any, arrays: dict[str, np.ndarray], threads: int) -> Callable[[], Any]:
    import openvino

    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
    return lambda: request.infer(arrays, share_inputs=True, share_outputs=True)


def nncf_model(plain: Path, arrays: dict[str, np.ndarray]) -> Any:
    """The float model, quantized by NNCF with the example input."""
    import nncf
    import openvino

    kind = nncf.ModelType.TRANSFORMER if any(array.dtype.kind == "i" for array in arrays.values()) else None
    return nncf.quantize(
        openvino.Core().read_model(plain), nncf.Dataset([arrays]), preset=nncf.QuantizationPreset.MIXED,
        model_type=kind, subset_size=1,
    )  # fmt: skip


def openvino_runs(
    plain: Path, path: Path, arrays: dict[str, np.ndarray], threads: int
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """What OpenVINO runs in place of the quantized model, and why a form of it is left out."""
    makers: dict[str, Callable[[], Any]] = {}
    if common.installed("openvino"):
        makers[OPENVINO] = lambda: str(path)
        if common.installed("nncf"):
            makers[NNCF] = lambda: nncf_model(plain, arrays)
    runs: dict[str, Callable[[], Any]] = {}
    notes: dict[str, str] = {}
    for name, make in makers.items():
        try:
            runs[name] = openvino_run(make(), arrays, threads)
            runs[name]()
        except Exception as failure:  # what a peer cannot do is a note in the results
            runs.pop(name, None)
            notes[name] = f"{type(failure).__name__}: {str(failure)[-200:]}"
    return runs, notes


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
    others, notes = openvino_runs(plain, path, arrays, threads)
    peers = {ONNXRUNTIME: lambda: peer.run(None, arrays), **others}
    runs: dict[str, Callable[[], Any]] = {
        OURS: lambda: engine.run(arrays),
        **peers,
        FLOAT: lambda: widest.run(arrays),
    }
    clock = time.process_time if options.cpu_time else time.perf_counter
    milliseconds = common.alternate(runs, options.rounds, options.seconds, clock)
    medians = {runtime: value["median"] for runtime, value in milliseconds.items()}
    best = min(peers, key=medians.__getitem__)
    return {
        "name": name, "threads": threads, "milliseconds": milliseconds, "errors": errors, "notes": notes,
        "best_peer": best, "ratio": medians[best] / medians[OURS], "over_float32": medians[FLOAT] / medians[OURS],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.25, help="per runtime and round")
    parser.add_argument("--cpu-time", action="store_true", help="of the process, for busy machines; with one thread")
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
                    f"{name}, {threads} threads: {times} ms; best peer / ours {found['ratio']:.2f}, float32 / ours "
                    f"{found['over_float32']:.2f}; differs by {found['errors'][OURS]:.1e} "
                    f"(ONNX Runtime {found['errors'][ONNXRUNTIME]:.1e}) {found['notes'] or ''}",
                    flush=True,
                )
    means = geometric_means(results)
    print("best peer / ours, geometric mean:", {key: round(value, 3) for key, value in means.items()})
    if not options.only and not any(math.isnan(value) for value in means.values()):
        print("wrote", common.save("quantized_cpu", max(options.threads), results, geometric_means=means).name)


if __name__ == "__main__":
    main()
