"""What every benchmark shares: a clean environment, peers in turns, and results as committed JSON.

Import this module before NumPy: it drops environment variables that slow NumPy's BLAS down.
"""

from __future__ import annotations

import os

DROPPED = [name for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE") if os.environ.pop(name, None)]

import datetime  # noqa: E402
import importlib.metadata  # noqa: E402
import json  # noqa: E402
import platform  # noqa: E402
import statistics  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable, Mapping  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("tilewright", "torch", "onnxruntime", "openvino", "numpy", "llvmlite", "onnx")


def alternate(
    runs: dict[str, Callable[[], Any]],
    rounds: int = 5,
    seconds: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
    before: Mapping[str, Callable[[], Any]] | None = None,
) -> dict[str, dict[str, float]]:
    """Time functions alternately with `clock`: in each round, each of them runs for about `seconds`.

    `before` has functions to call, outside the clock, before each call of those of the same names.
    Returns milliseconds by name: the median over rounds of each round's median, and the best round's.
    """
    medians: dict[str, list[float]] = {name: [] for name in runs}
    prepare = {name: (before or {}).get(name) for name in runs}
    for name, run in runs.items():
        for _ in range(2):
            if prepare[name] is not None:
                prepare[name]()
            run()
    for _ in range(rounds):
        for name, run in runs.items():
            times: list[float] = []
            end = time.perf_counter() + seconds
            while time.perf_counter() < end or len(times) < 3:
                if prepare[name] is not None:
                    prepare[name]()
                began = clock()
                run()
                times.append(clock() - began)
            medians[name].append(statistics.median(times) * 1e3)
    return {name: {"median": statistics.median(values), "best": min(values)} for name, values in medians.items()}


def processor() -> str:
    """The CPU's name and the model that tilewright compiles for."""
    from tilewright.targets.registry import get_target

    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return f"{name} ({get_target('cpu').description})"


def installed(name: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment(threads: int) -> dict[str, Any]:
    """Device, versions and date of a run."""
    return {
        "date": datetime.date.today().isoformat(),
        "processor": processor(),
        "threads": threads,
        "python": platform.python_version(),
        "versions": {name: installed(name) for name in PACKAGES},
        "dropped_environment": DROPPED,
    }


def save(name: str, threads: int, cases: list[dict[str, Any]], **summary: Any) -> Path:
    """Write `benchmarks/results/NAME.json`: the environment, the cases, and what is said of all of them."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(threads), "cases": cases, **summary}, indent=1) + "\n")
    return path
