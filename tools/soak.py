"""Many threads on many engines for minutes: calls, loads, unloads, failing calls, forks and signals.

python -m tools.soak --minutes 10 --threads 16 --engines 10

Prints resident memory, descriptors and threads while it runs.  Exits with 1 when an answer is wrong, when a child
process fails, or when one of the three has grown between the first quarter of the time and the end.  Linux only.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np

import tilewright
from tilewright.dtypes import float32
from tilewright.engine.builder import build
from tilewright.errors import TilewrightError
from tilewright.graph.build import GraphBuilder

_GROWTH = {
    "megabytes": 64,
    "descriptors": 8,
    "threads": 40,
}  # that is allowed beyond a tenth: what is in use at a moment
_FORK = 0.002  # of the calls


class Soak:
    """The engines, what they must answer, and counts of what was done."""

    def __init__(self, folder: Path, engines: int) -> None:
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.counts = dict.fromkeys(("calls", "loads", "refused", "forks", "wrong"), 0)
        self.paths: list[Path] = []
        self.weights: list[np.ndarray] = []
        for number in range(engines):
            weight = np.random.default_rng(number).standard_normal((32 + number, 48)).astype(np.float32)
            builder = GraphBuilder(f"soak{number}")
            x = builder.input("x", float32, (builder.symbol("batch", 1, 512), weight.shape[0]))
            builder.output(builder.op("relu", [builder.op("matmul", [x, builder.constant(weight, "w")])]), "y")
            self.paths.append(folder / f"{number}.engine")
            self.weights.append(weight)
            build(builder.finish(), "cpu").save(self.paths[-1])
        self.engines = [tilewright.load(path) for path in self.paths]

    def count(self, name: str) -> None:
        with self.lock:
            self.counts[name] += 1

    def work(self, seed: int) -> None:
        """One thread's life."""
        draw = random.Random(seed)
        generator = np.random.default_rng(seed)
        while not self.stop.is_set():
            number = draw.randrange(len(self.paths))
            kind = draw.random()
            if kind < 0.05:
                self.engines[number] = tilewright.load(self.paths[number])  # the one before goes with its last call
                self.count("loads")
            elif kind < 0.1:
                self._refused(number)
            elif kind < 0.1 + _FORK:
                self._fork(number)
            else:
                x = generator.standard_normal((draw.randint(1, 200), self.weights[number].shape[0])).astype(np.float32)
                self._call(number, x, draw.choice((1, 2, 3, 8)))

    def _call(self, number: int, x: np.ndarray, threads: int) -> bool:
        found = self.engines[number].run({"x": x}, threads=threads)["y"]
        weight = self.weights[number]
        bound = 2 * weight.shape[0] * np.finfo(np.float32).eps * (np.abs(x) @ np.abs(weight)) + 1e-30
        right = bool((np.abs(found - np.maximum(x @ weight, 0)) <= bound).all())
        self.count("calls" if right else "wrong")
        return right

    def _refused(self, number: int) -> None:
        try:
            self.engines[number].run({"x": np.zeros((3, 1), np.float32)})
            self.count("wrong")
        except TilewrightError:
            self.count("refused")

    def _fork(self, number: int) -> None:
        child = os.fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_REAL, 0)
            engine, weight = self.engines[number], self.weights[number]
            ones = np.ones((100, weight.shape[0]), np.float32)
            found = engine.run({"x": ones}, threads=2)["y"]
            os._exit(0 if np.allclose(found, np.maximum(weight.sum(0), 0), rtol=1e-3, atol=1e-4) else 1)
        status = os.waitpid(child, 0)[1]
        self.count("forks" if status == 0 else "wrong")


def _state() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    descriptors, threads = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))
    return {"megabytes": pages * os.sysconf("SC_PAGE_SIZE") >> 20, "descriptors": descriptors, "threads": threads}


def soak(seconds: float, threads: int, engines: int) -> bool:
    """Run for some seconds; says whether all was right and flat."""
    warnings.filterwarnings("ignore", message="This process .* is multi-threaded", category=DeprecationWarning)
    signal.signal(signal.SIGALRM, lambda number, frame: None)  # interrupts whatever the main thread waits for
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    with tempfile.TemporaryDirectory() as folder:
        work = Soak(Path(folder), engines)
        workers = [threading.Thread(target=work.work, args=(seed,), daemon=True) for seed in range(threads)]
        for worker in workers:
            worker.start()
        began, states = time.monotonic(), []
        while (passed := time.monotonic() - began) < seconds:
            time.sleep(max(0.1, min(10.0, seconds / 8)))
            states.append((passed, _state()))
            print(
                f"{passed:6.0f} s",
                *(f"{name} {value}" for name, value in states[-1][1].items()),
                work.counts,
                flush=True,
            )
        work.stop.set()
        for worker in workers:
            worker.join(60)
        alive = sum(worker.is_alive() for worker in workers)
    signal.setitimer(signal.ITIMER_REAL, 0)
    first = [state for passed, state in states if passed >= seconds / 4] or [states[0][1]]
    grown = [
        f"{name} grew from {first[0][name]} to {states[-1][1][name]}"
        for name, allowed in _GROWTH.items()
        if states[-1][1][name] > 1.1 * first[0][name] + allowed
    ]
    print(f"{work.counts}, {alive} threads stuck;", *(grown or ["memory, descriptors and threads are flat"]))
    return not (grown or alive or work.counts["wrong"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--engines", type=int, default=10)
    given = parser.parse_args()
    sys.exit(0 if soak(60 * given.minutes, given.threads, given.engines) else 1)
