"""Quantized models on the CPU: tilewright against ONNX Runtime, OpenVINO and float32.

    python benchmarks/quantized_cpu.py [--threads 1 2] [--only resnet] [--cpu-time]

Matrix products and whole models, in two kinds of rows.  In `static` and `dynamic` ones all runtimes read the file that
ONNX Runtime's quantizer wrote, with 8-bit weights for each channel (7 bits of them are used: without VNNI ONNX
Runtime's sums saturate otherwise).  In `own quantizers` each runtime has the float model as its own quantizer made it:
`tilewright.quantize`, ONNX Runtime's static file, NNCF's for OpenVINO, where these are installed; all see the same
example input.  A row has a peer's note in place of its time where the peer refuses the model.  The runtimes alternate;
times are medians.

Outputs of files are compared with ONNX Runtime's without its optimisations.  Outputs of own quantizers are compared
with the float model on another input, which no quantizer saw: `errors` are root mean squares of the difference, in that
of the output.  Weights are random but for MiniLM.  Results: benchmarks/results/quantized_cpu.json.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
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
from tilewright.graph.core import Graph
from tilewright.importers import import_model
from tilewright.quant.quantize import quantize
from tilewright.settings import settings

FLOAT, NNCF = "tilewright, float32", "OpenVINO, NNCF"
DEPTH, COLUMNS = 768, 3072
STATIC, DYNAMIC, OWN = "static", "dynamic", "own quantizers"


def product(rows: int) -> cpu.Model:
    """One linear layer."""
    return cpu.Model(torch.nn.Linear(DEPTH, COLUMNS).eval(), {"input": torch.randn(rows, DEPTH)}, {})


IMAGES = ("ResNet-50 b1", "ResNet-50 b8", "MobileNetV3-large b1")
TEXTS = ("MiniLM b1 s128", "MiniLM b16 s128", "BERT-base b1 s128")
MODELS: dict[str, Callable[[], cpu.Model]] = {
    **{f"{rows} x {DEPTH} x {COLUMNS}": lambda rows=rows: product(rows) for rows in (1, 16, 128)},
    **{name: cpu.CASES[name] for name in (*TEXTS, *IMAGES)},
}


def methods(name: str) -> tuple[str, ...]:
    """How a model is quantized: convolutions have ranges from data."""
    return (STATIC, OWN) if name in IMAGES else (STATIC, DYNAMIC, OWN)


@dataclass
class Subject:
    """A model: its file in floats, an input, and one that no quantizer sees; the files that ONNX Runtime made of it."""

    plain: Path
    arrays: dict[str, np.ndarray]
    unseen: dict[str, np.ndarray]
    files: dict[str, Path]

    @cached_property
    def quantized(self) -> Graph:
        """What `tilewright.quantize` makes of it."""
        return quantize(str(self.plain), [self.arrays]).engine.source_graph()


class Samples(quantization.CalibrationDataReader):
    """The model's example input, once."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.rest: Iterator[dict[str, np.ndarray]] = iter([arrays])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.rest, None)


def another(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An input like the given one: normal numbers of its mean and deviation, or integers of its range."""
    if array.dtype.kind == "f":
        return rng.normal(array.mean(), array.std(), array.shape).astype(array.dtype)
    return rng.integers(array.min(), array.max(), array.shape, endpoint=True).astype(array.dtype)


def subject(make: Callable[[], cpu.Model], kinds: tuple[str, ...], folder: Path) -> Subject:
    """The float model and what ONNX Runtime's quantizer makes of it."""
    model = make()
    plain = export_onnx(model.specification(), folder / "model.onnx")
    arrays = {name: tensor.numpy() for name, tensor in model.inputs.items()}
    rng = np.random.default_rng(0)
    ready = folder / "ready.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(plain)), ready)  # weights inside, as the quantizer wants
    files = {kind: folder / f"{kind}.onnx" for kind in kinds if kind != OWN}
    if DYNAMIC in files:
        quantization.quantize_dynamic(
            str(ready), str(files[DYNAMIC]), per_channel=True, reduce_range=True,
            op_types_to_quantize=["MatMul", "Gemm"],
        )  # fmt: skip
    quantization.quantize_static(
        str(ready), str(files[STATIC]), Samples(arrays), per_channel=True, reduce_range=True,
        activation_type=quantization.QuantType.QUInt8, op_types_to_quantize=["MatMul", "Gemm", "Conv", "Add"],
    )  # fmt: skip
    for path in files.values():
        onnx.checker.check_model(str(path))
    return Subject(plain, arrays, {name: another(array, rng) for name, array in arrays.items()}, files)


def session(path: Path, threads: int, optimized: bool = True) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def openvino_run(model: Any, threads: int) -> Callable[[dict[str, np.ndarray]], Any]:
    import openvino

    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
    return lambda arrays: request.infer(arrays, share_inputs=True, share_outputs=True)


def nncf_model(plain: Path, arrays: dict[str, np.ndarray]) -> Any:
    """The float model, quantized by NNCF with the example input."""
    import nncf
    import openvino

    kind = nncf.ModelType.TRANSFORMER if any(array.dtype.kind == "i" for array in arrays.values()) else None
    return nncf.quantize(
        openvino.Core().read_model(plain), nncf.Dataset([arrays]), preset=nncf.QuantizationPreset.MIXED,
        model_type=kind, subset_size=1,
    )  # fmt: skip


Runs = dict[str, Callable[[dict[str, np.ndarray]], np.ndarray]]  # by runtime: the first output for an input


def openvino_runs(make: Callable[[], Any], name: str, item: Subject, threads: int) -> tuple[Runs, dict[str, str]]:
    """What OpenVINO runs, or why it does not."""
    if not common.installed("openvino") or (name == NNCF and not common.installed("nncf")):
        return {}, {}
    try:
        run = openvino_run(make(), threads)
        run(item.arrays)
    except Exception as failure:  # what a peer cannot do is a note in the results
        return {}, {name: f"{type(failure).__name__}: {str(failure)[-200:]}"}
    return {name: lambda arrays: run(arrays)[0]}, {}


def contestants(kind: str, item: Subject, threads: int) -> tuple[Runs, dict[str, str]]:
    """The runtimes with the model of a kind of row, ours first; and notes on those that refuse it."""
    path = item.files[STATIC if kind == OWN else kind]
    engine = build(item.quantized if kind == OWN else import_model(path))
    peer = session(path, threads)
    (output, *_) = (value.name for value in peer.get_outputs())
    runs: Runs = {
        OURS: lambda arrays: engine.run(arrays)[output],
        ONNXRUNTIME: lambda arrays: peer.run(None, arrays)[0],
    }
    if kind == OWN:
        others, notes = openvino_runs(lambda: nncf_model(item.plain, item.arrays), NNCF, item, threads)
    else:
        others, notes = openvino_runs(lambda: str(path), OPENVINO, item, threads)
    return {**runs, **others}, notes


def measure(name: str, kind: str, item: Subject, threads: int, options: Any) -> dict[str, Any]:
    """Build, compare and time one row with a number of threads."""
    settings.threads = threads
    runs, notes = contestants(kind, item, threads)
    reference, arrays = (item.plain, item.unseen) if kind == OWN else (item.files[kind], item.arrays)
    expected = session(reference, threads, optimized=False).run(None, arrays)[0].astype(np.float64)
    errors = {runtime: difference(np.array(run(arrays)), expected, kind) for runtime, run in runs.items()}
    plain = build(import_model(item.plain))
    peers = [runtime for runtime in runs if runtime != OURS]
    timed: dict[str, Callable[[], Any]] = {
        **{runtime: (lambda run=run: run(item.arrays)) for runtime, run in runs.items()},
        FLOAT: lambda: plain.run(item.arrays),
    }
    clock = time.process_time if options.cpu_time else time.perf_counter
    milliseconds = common.alternate(timed, options.rounds, options.seconds, clock)
    medians = {runtime: value["median"] for runtime, value in milliseconds.items()}
    best = min(peers, key=medians.__getitem__)
    return {
        "name": f"{name}, {kind}", "threads": threads, "milliseconds": milliseconds, "errors": errors, "notes": notes,
        "best_peer": best, "ratio": medians[best] / medians[OURS], "over_float32": medians[FLOAT] / medians[OURS],
    }  # fmt: skip


def difference(found: np.ndarray, expected: np.ndarray, kind: str) -> float:
    """From floats, by root mean squares; from the same file, the largest by the largest number."""
    if kind == OWN:
        return float(np.sqrt(np.square(found - expected).sum() / max(np.square(expected).sum(), 1e-30)))
    return float(np.abs(found - expected).max()) / max(float(np.abs(expected).max()), 1e-30)


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
    for name, make in MODELS.items():
        wanted = tuple(kind for kind in methods(name) if options.only.lower() in f"{name}, {kind}".lower())
        if not wanted:
            continue
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            item = subject(make, methods(name), Path(folder))
            for kind, threads in itertools.product(wanted, options.threads):
                results.append(found := measure(name, kind, item, threads, options))
                times = ", ".join(f"{key} {value['median']:.3f}" for key, value in found["milliseconds"].items())
                errors = ", ".join(f"{key} {value:.1e}" for key, value in found["errors"].items())
                print(
                    f"{found['name']}, {threads} threads: {times} ms; best peer / ours {found['ratio']:.2f}, "
                    f"float32 / ours {found['over_float32']:.2f}; errors: {errors} {found['notes'] or ''}",
                    flush=True,
                )
    means = geometric_means(results)
    print("best peer / ours, geometric mean:", {key: round(value, 3) for key, value in means.items()})
    if not options.only and not any(math.isnan(value) for value in means.values()):
        print("wrote", common.save("quantized_cpu", max(options.threads), results, geometric_means=means).name)


if __name__ == "__main__":
    main()
