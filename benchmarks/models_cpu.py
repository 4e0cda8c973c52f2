"""25 whole models on the CPU: tilewright against torch.compile (with freezing), ONNX Runtime, OpenVINO and PyTorch.

    pip install openvino
    python benchmarks/models_cpu.py [--threads 1 2] [--only resnet] [--without torch.compile] [--cpu-time]

Random inputs, float32, sizes fixed but where a case says otherwise; the runtimes take turns; times are medians.  Every
runtime's outputs are first compared with PyTorch's in float64: one whose error is larger than float32 explains is not a
peer, and ends the run if it is ours.  PyTorch allocates its outputs as usual.  Results:
benchmarks/results/models_cpu.json, with the ratio of the best peer's time to ours and the geometric means.
On a busy machine `--cpu-time` compares the CPU time of the process in place of the time that passes (one thread).
"""

from __future__ import annotations

import argparse
import gc
import logging
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
# After `common`, which cleans the environment that NumPy's BLAS reads when it is loaded.
import numpy as np
import torch

import tilewright
from benchmarks.models import cpu
from tests.models.specification import export_onnx
from tilewright.settings import settings

OURS, EAGER, COMPILED, ONNXRUNTIME, OPENVINO = "tilewright", "PyTorch", "torch.compile", "ONNX Runtime", "OpenVINO"
RUNTIMES = (OURS, EAGER, COMPILED, ONNXRUNTIME, OPENVINO)
Outputs = list[np.ndarray]
Run = Callable[[], Any]


@dataclass
class Contestant:
    """A model in one runtime: `run` is what is timed, `outputs` its results as arrays, in the model's order."""

    run: Run
    outputs: Callable[[], Outputs]


@dataclass
class Subject:
    """A model with what its contestants share."""

    model: cpu.Model
    onnx: Path | None  # where its export lies; None if it does not export
    compiled: Any = None
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in self.model.inputs.items()}


def as_arrays(found: Any) -> Outputs:
    """The tensors that a module returns, as arrays."""
    return [tensor.numpy() for tensor in (found if isinstance(found, (tuple, list)) else [found])]


def ours(subject: Subject, threads: int) -> Contestant:
    model, arrays = subject.model, subject.arrays
    engine = tilewright.compile(
        model.module, tuple(model.inputs.values()), dynamic_shapes=model.dynamic_shapes or None, threads=threads
    )
    return Contestant(lambda: engine.run(arrays), lambda: [np.array(value) for value in engine.run(arrays).values()])


def eager(subject: Subject, threads: int) -> Contestant:
    module, tensors = subject.model.module, tuple(subject.model.inputs.values())
    return Contestant(lambda: module(*tensors), lambda: as_arrays(module(*tensors)))


def compiled(subject: Subject, threads: int) -> Contestant:
    """One compilation for all numbers of threads: its loops ask OpenMP how many there are."""
    tensors = tuple(subject.model.inputs.values())
    if subject.compiled is None:
        torch.compiler.reset()
        subject.compiled = torch.compile(subject.model.module, dynamic=bool(subject.model.dynamic_shapes))
    function = subject.compiled
    return Contestant(lambda: function(*tensors), lambda: as_arrays(function(*tensors)))


def onnxruntime_session(subject: Subject, threads: int) -> Contestant:
    import onnxruntime

    arrays = subject.arrays
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(subject.onnx), options, providers=["CPUExecutionProvider"])
    return Contestant(lambda: session.run(None, arrays), lambda: session.run(None, arrays))


def openvino_request(subject: Subject, threads: int) -> Contestant:
    import openvino

    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().compile_model(str(subject.onnx), "CPU", options)
    arrays = subject.arrays
    request = model.create_infer_request()

    def run() -> Any:
        return request.infer(arrays, share_inputs=True, share_outputs=True)

    return Contestant(run, lambda: [np.array(run()[output]) for output in model.outputs])


MAKERS: dict[str, Callable[[Subject, int], Contestant]] = {
    OURS: ours, EAGER: eager, COMPILED: compiled, ONNXRUNTIME: onnxruntime_session, OPENVINO: openvino_request,
}  # fmt: skip


def largest_error(outputs: Outputs, expected: list[torch.Tensor]) -> float:
    """Largest difference, relative to the largest value of each output."""
    pairs = zip(outputs, expected, strict=True)
    return max(float(np.abs(a - b.numpy()).max() / max(float(b.abs().max()), 1e-30)) for a, b in pairs)


def prepared(name: str, folder: Path) -> Subject:
    """The model of a case, and its export, which ONNX Runtime and OpenVINO read."""
    model = cpu.model(name)
    try:
        return Subject(model, export_onnx(model.specification(), folder / "model.onnx"))
    except Exception as error:  # what an exporter cannot do is a note in the results
        return Subject(model, None, notes={"export": f"{type(error).__name__}: {str(error)[:200]}"})


def contestants(subject: Subject, threads: int, without: list[str]) -> tuple[dict[str, Run], dict[str, Any]]:
    """What is timed, and by runtime: error against float64 and seconds to build; notes on what is left out."""
    expected = subject.model.specification().run(subject.model.inputs, torch.float64)
    runs: dict[str, Run] = {}
    facts: dict[str, Any] = {"errors": {}, "build_seconds": {}, "notes": dict(subject.notes)}
    limit = math.inf
    for name in (EAGER, *(name for name in RUNTIMES if name != EAGER)):
        if name in without or (subject.onnx is None and name in (ONNXRUNTIME, OPENVINO)):
            continue
        began = time.perf_counter()
        try:
            contestant = MAKERS[name](subject, threads)
            error = largest_error(contestant.outputs(), expected)
        except Exception as failure:
            if name == OURS:
                raise
            facts["notes"][name] = f"{type(failure).__name__}: {str(failure)[:200]}"
            continue
        facts["build_seconds"][name] = time.perf_counter() - began
        facts["errors"][name] = error
        if name == EAGER:  # another order of sums and other approximations stay within a few times its rounding
            limit = max(16 * error, 1e-5)
        if not error <= limit:
            if name == OURS:
                sys.exit(f"our outputs differ from float64 by {error:.2e}, PyTorch's by {facts['errors'][EAGER]:.2e}")
            facts["notes"][name] = f"wrong by {error:.2e}: not a peer"
            continue
        runs[name] = contestant.run
    return runs, facts


def measure(subject: Subject, name: str, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """Build, check and time one case with a number of threads."""
    torch.set_num_threads(threads)
    settings.threads = threads
    runs, facts = contestants(subject, threads, options.without)
    clock = time.process_time if options.cpu_time else time.perf_counter
    milliseconds = common.alternate(runs, options.rounds, options.seconds, clock)
    medians = {runtime: value["median"] for runtime, value in milliseconds.items()}
    case = {"name": name, "threads": threads, "milliseconds": milliseconds, **facts}
    peers = [runtime for runtime in medians if runtime != OURS]
    if peers:
        case["best_peer"] = best = min(peers, key=medians.__getitem__)
        case["ratio"] = medians[best] / medians[OURS]
    return case


def line(case: dict[str, Any]) -> str:
    """One case in one line."""
    times = {runtime: value["median"] for runtime, value in case["milliseconds"].items()}
    figures = ", ".join(
        f"{runtime} {value:.2f}" + ("" if runtime == OURS else f" ({value / times[OURS]:.2f})")
        for runtime, value in sorted(times.items(), key=lambda item: RUNTIMES.index(item[0]))
    )
    errors = case["errors"]
    text = f"{case['name']}, {case['threads']} threads: {figures} ms; error {errors[OURS]:.1e}"
    text += f" (PyTorch {errors[EAGER]:.1e})" if EAGER in errors else ""
    text += f", build {case['build_seconds'][OURS]:.1f} s; best peer / ours {case.get('ratio', math.nan):.2f}"
    return text + "".join(f"\n    {runtime}: {note}" for runtime, note in case["notes"].items())


def geometric_means(cases: list[dict[str, Any]]) -> dict[str, float]:
    """By number of threads: the geometric mean of best peer / ours."""
    ratios: dict[str, list[float]] = {}
    for case in cases:
        if "ratio" in case:
            ratios.setdefault(str(case["threads"]), []).append(case["ratio"])
    return {threads: math.exp(sum(map(math.log, found)) / len(found)) for threads, found in ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--without", nargs="*", default=[], choices=RUNTIMES[1:], help="runtimes to leave out")
    parser.add_argument("--cpu-time", action="store_true", help="compare the CPU time of the process")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.25, help="per runtime and round")
    options = parser.parse_args()
    if options.cpu_time and options.threads != [1]:
        parser.error("--cpu-time compares one thread with one thread: give --threads 1")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    torch._inductor.config.freezing = True
    torch._inductor.config.cpp.dynamic_threads = True
    results: list[dict[str, Any]] = []
    for name in cpu.CASES:
        if options.only.lower() not in name.lower():
            continue
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            subject = prepared(name, Path(folder))
            for threads in options.threads:
                results.append(measure(subject, name, threads, options))
                print(line(results[-1]), flush=True)
        del subject
        gc.collect()
    means = geometric_means(results)
    print(
        "best peer / ours, geometric mean: " + ", ".join(f"{key} threads {value:.3f}" for key, value in means.items())
    )
    if not options.only and not options.without and not options.cpu_time:
        path = common.save("models_cpu", max(options.threads), results, geometric_means=means)
        print("wrote", path.name)


if __name__ == "__main__":
    main()
