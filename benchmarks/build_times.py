"""How long an engine for the CPU takes to build with nothing on disk: from an ONNX file to machine code.

    python benchmarks/build_times.py [--rounds 2] [--only CNN] [--save]

Every build is a process of its own with an empty cache, full ones (effort 1) and quick ones (effort 0) in turns.
`wall` seconds count from the file to the engine, imports excluded; `CPU` seconds are those of this process and of the
processes that it compiles in, and depend little on what else the machine does.  Beside them stand what importing
tilewright takes, the fastest of five runs of each engine, and what ONNX Runtime takes to make a session from the same
file.  Models: benchmarks/models/small.py, of fixed sizes, and with dynamic ones.  Two rounds of all take about four
minutes on two idle cores.  Results: benchmarks/results/build_times.json (with --save), with the load of the machine
before the first build: above about .5, other work slowed the wall times down.
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
import resource
import statistics
import subprocess
import tempfile
import time
from typing import Any

# Variables that make builds slower: without bytecode, most of an import is reading sources.
_CHANGING = (
    "TILEWRIGHT_ALWAYS_COMPILE", "TILEWRIGHT_VERIFY", "TILEWRIGHT_DUMP_DIRECTORY", "PYTHONDONTWRITEBYTECODE",
)  # fmt: skip


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)


def clocks() -> tuple[float, float]:
    """Wall and CPU seconds."""
    return time.perf_counter(), cpu_seconds()


def passed(since: tuple[float, float]) -> list[float]:
    """Wall and CPU seconds since then."""
    wall, cpu = clocks()
    return [wall - since[0], cpu - since[1]]


def one_build(path: str, effort: int) -> dict[str, Any]:
    """Build an engine in this process, which must be a fresh one, and run it on the inputs in its .npz file."""
    started = clocks()
    import numpy as np

    import tilewright
    import tilewright.api
    from tilewright.importers import onnx  # noqa: F401

    imported = passed(started)
    stages: dict[str, float] = {}

    def progress(stage: str, item: str, seconds: float) -> None:
        stages[stage] = stages.get(stage, 0.0) + seconds

    started = clocks()
    engine = tilewright.compile(path, progress=progress, effort=effort)
    built = passed(started)
    kernels = {choice.kernel for step in engine.plan.steps for choice in step.choices}
    inputs = dict(np.load(Path(path).with_suffix(".npz")))
    seconds = []
    for _ in range(5):
        begun = time.perf_counter()
        engine.run(inputs)
        seconds.append(time.perf_counter() - begun)
    return {"import": imported, "build": built, "run": [min(seconds)], "kernels": len(kernels), "stages": stages}


def one_session(path: str) -> dict[str, Any]:
    """Make a session of ONNX Runtime in this process."""
    import onnxruntime

    started = clocks()
    onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return {"build": passed(started)}


def fresh_process(*arguments: str) -> dict[str, Any]:
    """What a process of its own with an empty cache prints."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TILEWRIGHT_CACHE_DIRECTORY": cache}
        for variable in _CHANGING:
            environment.pop(variable, None)
        done = subprocess.run(
            [sys.executable, __file__, *arguments], env=environment, capture_output=True, text=True, check=True
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def export(name: str, is_dynamic: bool, path: Path) -> None:
    """Write a model as ONNX, and its example inputs as an .npz file of the same name."""
    import numpy as np
    import torch

    from benchmarks.models import small

    module, inputs, shapes = small.case(name)
    names = {entry[0]: torch.export.Dim(*entry[:1], min=entry[1], max=entry[2])
             for axes in shapes.values() for entry in axes.values()}  # fmt: skip
    dimensions = [{axis: names[entry[0]] for axis, entry in shapes.get(key, {}).items()} for key in inputs]
    with torch.no_grad():
        torch.onnx.export(
            module, tuple(inputs.values()), str(path), input_names=list(inputs), dynamo=True, verbose=False,
            external_data=False, dynamic_shapes=tuple(dimensions) if is_dynamic else None,
        )  # fmt: skip
    np.savez(path.with_suffix(".npz"), **{key: value.numpy() for key, value in inputs.items()})


def measure(name: str, is_dynamic: bool, rounds: int) -> dict[str, Any]:
    """Median seconds over fresh processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export(name, is_dynamic, path)
        full: list[dict[str, Any]] = []
        quick: list[dict[str, Any]] = []
        peers: list[dict[str, Any]] = []
        for _ in range(rounds):
            full.append(fresh_process("--one", str(path), "--effort", "1"))
            quick.append(fresh_process("--one", str(path), "--effort", "0"))
            if common.installed("onnxruntime"):
                peers.append(fresh_process("--session", str(path)))

    def median(runs: list[dict[str, Any]], quantity: str, clock: int = 0) -> float | None:
        return round(statistics.median(run[quantity][clock] for run in runs), 4) if runs else None

    stages = {stage: round(statistics.median(run["stages"][stage] for run in full), 3) for stage in full[0]["stages"]}
    return {
        "name": name,
        "sizes": "dynamic" if is_dynamic else "fixed",
        "kernels": full[0]["kernels"],
        "wall_seconds": median(full, "build"),
        "cpu_seconds": median(full, "build", 1),
        "run_seconds": median(full, "run"),
        "quick_kernels": quick[0]["kernels"],
        "quick_wall_seconds": median(quick, "build"),
        "quick_cpu_seconds": median(quick, "build", 1),
        "quick_run_seconds": median(quick, "run"),
        "import_cpu_seconds": median(full, "import", 1),
        "onnxruntime_wall_seconds": median(peers, "build"),
        "onnxruntime_cpu_seconds": median(peers, "build", 1),
        "stages": stages,
    }


def main() -> None:
    """Measure, print a line for each model, and write the results with --save."""
    from benchmarks.models import small

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="the models whose name contains this")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    load = round(os.getloadavg()[0], 1)  # processes that wanted a core in the last minute
    cases = []
    for name in [name for name in small.CASES if given.only in name]:
        for is_dynamic in (False, True):
            case = measure(name, is_dynamic, given.rounds)
            cases.append(case)
            print(
                f"{name:18} {case['sizes']:8} {case['kernels']:3} kernels: {case['wall_seconds']:6.2f} s wall, "
                f"{case['cpu_seconds']:6.2f} s CPU; quick {case['quick_kernels']:3} kernels: "
                f"{case['quick_wall_seconds']:6.2f} s wall, {case['quick_cpu_seconds']:6.2f} s CPU; "
                f"ONNX Runtime {case['onnxruntime_wall_seconds']} s",
                flush=True,
            )
    if given.save:
        from tilewright.settings import settings

        print(common.save("build_times", settings.threads, cases, load=load))


if __name__ == "__main__":
    if "--one" in sys.argv:
        print(json.dumps(one_build(sys.argv[2], int(sys.argv[4]))))
    elif "--session" in sys.argv:
        print(json.dumps(one_session(sys.argv[2])))
    else:
        main()
