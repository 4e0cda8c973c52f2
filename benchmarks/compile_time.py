"""How long a kernel takes from its first launch to its result, compiled afresh and found on disk, on one core.

    python benchmarks/compile_time.py [--rounds 7] [--save]

Every measurement is a process of its own, with an empty cache or with the one that the process before filled; what is
timed is the first launch, from `kernel[grid](...)` to its return, after all imports.  The processes also tell what the
stages took: reading the source, tracing, the passes and the lowering, and LLVM.  Kernels: vector addition, a row
softmax, the forward pass of flash attention.
Results: benchmarks/results/compile_time_cpu.json (with --save).
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
import statistics
import subprocess
import tempfile
import time
from typing import Any

import numpy as np

import tilewright
import tilewright.language as tl

LIMITS = {"vector add": 60.0, "softmax": 150.0, "flash attention": 500.0}  # milliseconds, compiled afresh
CACHED_LIMIT = 5.0


@tilewright.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=inside) + tl.load(y + offsets, mask=inside), mask=inside)


@tilewright.jit
def softmax(x, out, rows, columns, BLOCK: tl.constexpr):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        column = tl.arange(0, BLOCK)
        inside = column < columns
        value = tl.load(x + row * columns + column, mask=inside, other=-float("inf"))
        numerator = tl.exp(value - tl.max(value, axis=0))
        tl.store(out + row * columns + column, numerator / tl.sum(numerator, axis=0), mask=inside)


@tilewright.jit
def attention(q, k, v, out, scale, length, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    base = tl.program_id(1) * length * D
    row = tl.program_id(0) * M + tl.arange(0, M)
    depth = tl.arange(0, D)
    here = base + row[:, None] * D + depth[None, :]
    query = tl.load(q + here, mask=row[:, None] < length, other=0.0)
    largest = tl.full([M], float("-inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    sums = tl.zeros([M, D], tl.float32)
    end = tl.minimum(length, (tl.program_id(0) + 1) * M) if CAUSAL else length
    for start in range(0, end, N):
        column = start + tl.arange(0, N)
        keys = tl.load(k + base + column[None, :] * D + depth[:, None], mask=column[None, :] < length, other=0.0)
        seen = column[None, :] < length
        if CAUSAL:
            seen = seen & (row[:, None] >= column[None, :])
        scores = tl.where(seen, tl.dot(query, keys) * scale, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - larger[:, None])
        shrink = tl.exp(largest - larger)
        total = total * shrink + tl.sum(weights, 1)
        values = tl.load(v + base + column[:, None] * D + depth[None, :], mask=column[:, None] < length, other=0.0)
        sums = tl.dot(weights, values, sums * shrink[:, None])
        largest = larger
    tl.store(out + here, sums / total[:, None], mask=row[:, None] < length)


def first_launch(name: str) -> dict[str, Any]:
    """Milliseconds of the first launch in this process, which must be a fresh one, and of the compiler's stages."""
    random = np.random.default_rng(0)

    def array(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    x, y, z = array(2, 512, 64), array(2, 512, 64), array(2, 512, 64)
    out = np.empty_like(x)
    launches = {
        "vector add": (add, (64,), (x, y, out, x.size), {"BLOCK": 1024}),
        "softmax": (softmax, (8,), (x, out, 64, 1000), {"BLOCK": 1024}),
        "flash attention": (
            attention,
            (4, 2),
            (x, y, z, out, 0.125, 512),
            {"M": 128, "N": 64, "D": 64, "CAUSAL": True},
        ),
    }
    kernel, grid, arguments, constants = launches[name]
    _import_everything()
    started = time.perf_counter()
    compiled = kernel[grid](*arguments, **constants)
    finished = time.perf_counter()
    kernel[grid](*arguments, **constants)
    before = time.perf_counter()
    kernel[grid](*arguments, **constants)
    again = time.perf_counter()
    stages = {stage: seconds * 1e3 for stage, seconds in compiled.binary.seconds.items()}
    return {"first": (finished - started) * 1e3, "again": (again - before) * 1e3, "stages": stages}


def _import_everything() -> None:
    """Import what a first launch imports late, so that only its work is timed."""
    import tilewright.language.standard
    import tilewright.targets.cpu.compile
    import tilewright.targets.cpu.pipeline  # noqa: F401


def in_fresh_process(name: str, cache: str) -> dict[str, Any]:
    """`first_launch` in a process of its own on one core."""
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIRECTORY": cache, "TILEWRIGHT_THREADS": "1"}
    for variable in ("TILEWRIGHT_ALWAYS_COMPILE", "TILEWRIGHT_VERIFY", "TILEWRIGHT_INTERPRET"):
        environment.pop(variable, None)
    done = subprocess.run(
        [sys.executable, __file__, "--one", name], env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Median milliseconds over fresh processes: compiled afresh, found on disk, and launched again."""
    fresh, cached = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            in_fresh_process(name, cache)  # fills the hashes of the sources, as any earlier kernel would have
            for path in Path(cache).rglob("*.kernel"):
                if not path.name.startswith("sources-"):
                    path.unlink()
            fresh.append(in_fresh_process(name, cache))
            cached.append(in_fresh_process(name, cache))
    stages = {stage: statistics.median(run["stages"].get(stage, 0.0) for run in fresh) for stage in fresh[0]["stages"]}
    return {
        "name": name,
        "compiled_ms": statistics.median(run["first"] for run in fresh),
        "cached_ms": statistics.median(run["first"] for run in cached),
        "kernel_ms": statistics.median(run["again"] for run in cached),
        "stages_ms": stages,
        "limit_ms": LIMITS[name],
        "cached_limit_ms": CACHED_LIMIT,
    }


def main() -> None:
    """Measure, print a table, and write the results with --save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--one", choices=LIMITS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(json.dumps(first_launch(given.one)))
        return
    cases = [measure(name, given.rounds) for name in LIMITS]
    for case in cases:
        stages = ", ".join(f"{stage} {value:.1f}" for stage, value in case["stages_ms"].items())
        print(
            f"{case['name']:16} compiled {case['compiled_ms']:7.1f} ms (limit {case['limit_ms']:.0f}), cached "
            f"{case['cached_ms']:5.2f} ms, of which the kernel runs {case['kernel_ms']:.2f}; {stages}"
        )
    if given.save:
        print(common.save("compile_time_cpu", 1, cases))


if __name__ == "__main__":
    main()
