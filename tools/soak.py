"""Many threads on many engines for minutes: calls, loads, unloads, failing calls, forks and signals.

python -m tools.soak --minutes 10 --threads 16 --engines 10

The engines are whole programs, engines in parts (`NonZero`, a loop whose values grow) and ONNX sessions.  Beside the
threads, the main thread runs engines while a signal's handler raises, as Ctrl-C does.  Prints resident memory,
descriptors and threads while it runs.  Exits with 1 when an answer is wrong, when a child process fails, or when one of
the three has grown between the first quarter of the time and the end.  Linux only.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import random
import signal
import sys
import tempfile
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import tilewright
import tilewright.onnx
from tilewright.build.builder import build
from tilewright.dtypes import float32
from tilewright.errors import TilewrightError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph

_GROWTH = {
    "megabytes": 64,
    "descriptors": 8,
    "threads": 40,
}  # that is allowed beyond a tenth: what is in use at a moment
_FORK = 0.002  # of the calls
_TICK = 0.05  # seconds between signals
_LONGEST = 8  # rounds of a loop
_LOOP = """<ir_version: 10, opset_import: ["" : 20]>
rounds (float[n] x, int64 count) => (float[m] y) {
    begin = Constant <value = bool {1}> ()
    y = Loop (count, begin, x) <body = once (int64 number, bool going, float[k] value)
        => (bool going_on, float[l] longer) {
        going_on = Identity(going)
        twice = Add(value, value)
        longer = Concat <axis = 0> (twice, value)
    }>
}"""


class Interrupted(Exception):
    """What the signal's handler raises in the main thread while it runs an engine."""


class Subject(ABC):
    """An engine or session, calls of it, and what they must answer."""

    def __init__(self, path: Path, number: int) -> None:
        self.path, self.number = path, number
        self.make()
        self.load()

    @abstractmethod
    def make(self) -> None:
        """Write the file."""

    def load(self) -> None:
        """Load it again; what was loaded before goes with its last call."""
        self.engine = tilewright.load(self.path)

    def run(self, inputs: dict[str, Any], threads: int) -> dict[str, Any]:
        return self.engine.run(inputs, threads=threads)

    @abstractmethod
    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        """Inputs for a call."""

    @abstractmethod
    def right(self, inputs: dict[str, Any], found: dict[str, Any]) -> bool:
        """Whether these are the results for the inputs."""


class Product(Subject):
    """A program in one part: the positive elements of a product."""

    rows = 200

    def graph(self) -> Graph:
        self.weight = np.random.default_rng(self.number).standard_normal((32 + self.number, 48)).astype(np.float32)
        builder = GraphBuilder(f"soak{self.number}")
        x = builder.input("x", float32, (builder.symbol("batch", 1, 512), self.weight.shape[0]))
        y = builder.op("relu", [builder.op("matmul", [x, builder.constant(self.weight, "w")])])
        builder.output(y, "y")
        self.more(builder, y)
        return builder.finish()

    def more(self, builder: GraphBuilder, y: Any) -> None:
        """Further outputs."""

    def make(self) -> None:
        build(self.graph(), "cpu").save(self.path)

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"x": rng.standard_normal((rng.integers(1, self.rows + 1), self.weight.shape[0])).astype(np.float32)}

    def right(self, inputs: dict[str, Any], found: dict[str, Any]) -> bool:
        x = inputs["x"]
        bound = 2 * self.weight.shape[0] * np.finfo(np.float32).eps * (np.abs(x) @ np.abs(self.weight)) + 1e-30
        return bool((np.abs(found["y"] - np.maximum(x @ self.weight, 0)) <= bound).all())


class Places(Product):
    """A program in parts: also where the product is positive, and the double of that."""

    rows = 30

    def more(self, builder: GraphBuilder, y: Any) -> None:
        places = builder.op("nonzero", [y], shape=(2, builder.run_time_symbol("count")))
        builder.output(builder.op("add", [places, places]), "places")

    def right(self, inputs: dict[str, Any], found: dict[str, Any]) -> bool:
        places = 2 * np.stack(np.nonzero(found["y"]))
        return super().right(inputs, found) and np.array_equal(found["places"], places)


class Rounds(Subject):
    """An ONNX session of a loop: in each round the value, doubled, is followed by itself."""

    def make(self) -> None:
        import onnx

        self.path = self.path.with_suffix(".onnx")
        onnx.save(onnx.parser.parse_model(_LOOP), self.path)

    def load(self) -> None:
        self.session = tilewright.onnx.InferenceSession(str(self.path))

    def run(self, inputs: dict[str, Any], threads: int) -> dict[str, Any]:
        return dict(zip(("y",), self.session.run(None, inputs), strict=True))

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        x = rng.integers(-9, 9, rng.integers(1, 20)).astype(np.float32)
        return {"x": x, "count": np.array(rng.integers(0, _LONGEST))}

    def right(self, inputs: dict[str, Any], found: dict[str, Any]) -> bool:
        value = inputs["x"]
        for _ in range(inputs["count"]):
            value = np.concatenate([2 * value, value])
        return np.array_equal(found["y"], value)


KINDS: tuple[Callable[[Path, int], Subject], ...] = (Product, Places, Product, Rounds)


class Soak:
    """The engines, and counts of what was done."""

    def __init__(self, folder: Path, engines: int) -> None:
        self.stop = threading.Event()
        self.lock = threading.Lock()
        self.armed = False  # the next signal raises
        self.counts: Counter[str] = Counter(wrong=0)
        self.subjects = [KINDS[number % len(KINDS)](folder / f"{number}.engine", number) for number in range(engines)]

    def count(self, name: str) -> None:
        with self.lock:
            self.counts[name] += 1

    def work(self, seed: int) -> None:
        """One thread's life."""
        draw, rng = random.Random(seed), np.random.default_rng(seed)
        while not self.stop.is_set():
            subject, kind = draw.choice(self.subjects), draw.random()
            if kind < 0.05 and not (isinstance(subject, Rounds) and kind > 0.002):  # a session is built each time
                subject.load()
                self.count("loads")
            elif kind < 0.1:
                self._refused(subject)
            elif kind < 0.1 + _FORK:
                self._fork(subject, rng)
            else:
                self._call(subject, rng, draw.choice((1, 2, 3, 8)))

    def _call(self, subject: Subject, rng: np.random.Generator, threads: int) -> None:
        inputs = subject.draw(rng)
        right = subject.right(inputs, subject.run(inputs, threads))
        self.count(f"calls of {type(subject).__name__}" if right else "wrong")

    def _refused(self, subject: Subject) -> None:
        try:
            subject.run({"x": np.zeros((3, 1), np.float32)}, 2)
            self.count("wrong")
        except TilewrightError:
            self.count("refused")

    def _fork(self, subject: Subject, rng: np.random.Generator) -> None:
        inputs = subject.draw(rng)
        child = os.fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_REAL, 0)
            os._exit(0 if subject.right(inputs, subject.run(inputs, 2)) else 1)
        status = os.waitpid(child, 0)[1]
        self.count("forks" if status == 0 else "wrong")

    def interrupt(self, seed: int, seconds: float) -> None:
        """Run engines in this thread while a handler raises."""
        draw, rng = random.Random(seed), np.random.default_rng(seed)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            subject = draw.choice(self.subjects)
            inputs, found = subject.draw(rng), None
            try:
                self.armed = True
                while self.armed:
                    found = subject.run(inputs, 2)
                self.count("swallowed")  # raised where Python ignores errors, in a finalizer
            except Interrupted:
                right = found is None or subject.right(inputs, found)
                self.count("interrupted" if right else "wrong")

    def signalled(self, number: int, frame: FrameType | None) -> None:
        """The handler: interrupts whatever the main thread waits for, and raises once if it runs an engine."""
        if self.armed:
            self.armed = False
            raise Interrupted


def _state() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    descriptors, threads = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))
    return {"megabytes": pages * os.sysconf("SC_PAGE_SIZE") >> 20, "descriptors": descriptors, "threads": threads}


def soak(seconds: float, threads: int, engines: int) -> bool:
    """Run for some seconds; says whether all was right and flat."""
    warnings.filterwarnings("ignore", message="This process .* is multi-threaded", category=DeprecationWarning)
    with tempfile.TemporaryDirectory() as folder:
        work = Soak(Path(folder), engines)
        signal.signal(signal.SIGALRM, work.signalled)
        signal.setitimer(signal.ITIMER_REAL, _TICK, _TICK)
        workers = [threading.Thread(target=work.work, args=(seed,), daemon=True) for seed in range(threads)]
        for worker in workers:
            worker.start()
        began, states = time.monotonic(), []
        while (passed := time.monotonic() - began) < seconds:
            pause = max(0.1, min(10.0, seconds / 8))
            time.sleep(pause / 2)
            work.interrupt(threads + len(states), pause / 2)
            states.append((passed, _state()))
            print(
                f"{passed:6.0f} s",
                *(f"{name} {value}" for name, value in states[-1][1].items()),
                dict(work.counts),
                flush=True,
            )
        dead = sum(not worker.is_alive() for worker in workers)
        work.stop.set()
        for worker in workers:
            worker.join(60)
        alive = sum(worker.is_alive() for worker in workers)
        if alive:
            faulthandler.dump_traceback()  # where they wait
    signal.setitimer(signal.ITIMER_REAL, 0)
    first = [state for passed, state in states if passed >= seconds / 4] or [states[0][1]]
    grown = [
        f"{name} grew from {first[0][name]} to {states[-1][1][name]}"
        for name, allowed in _GROWTH.items()
        if states[-1][1][name] > 1.1 * first[0][name] + allowed
    ]
    print(
        f"{dict(work.counts)}, {alive} threads stuck, {dead} ended by errors;",
        *(grown or ["memory, descriptors and threads are flat"]),
    )
    return not (grown or alive or dead or work.counts["wrong"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--engines", type=int, default=10)
    given = parser.parse_args()
    sys.exit(0 if soak(60 * given.minutes, given.threads, given.engines) else 1)
