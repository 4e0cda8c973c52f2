"""A process of one compiler on a GPU: it prepares cases and times them when it is asked, so that two can alternate.

    python benchmarks/programs/peers.py triton|tilewright SITE TUTORIALS < requests > answers

A line of JSON asks for one thing: ``{"prepare": name, "shape": […], "seed": 0, "check": true}`` or
``{"time": milliseconds}``.  The shim hides Triton, so each compiler has a process of its own.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import statistics
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

FLUSH_BYTES = 256 << 20


def start(compiler: str, site: str, tutorials: str) -> None:
    """Find the packages, and decide what ``import triton`` is."""
    sys.path.append(os.path.abspath(site))
    os.environ["TRITON_TUTORIALS"] = os.path.abspath(tutorials)
    os.environ["FLA_DISABLE_BACKEND_DISPATCH"] = "1"  # other packages, and Gluon, which only Triton has
    if compiler == "tilewright":
        from tilewright import shim

        shim.install()
        import triton

        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # some packages launch otherwise on others
            triton.__version__ = importlib.metadata.version("triton")


class Choices:
    """The config of each autotuned kernel: the one wanted, or the first with about 4 warps; nothing is measured."""

    def __init__(self) -> None:
        self.wanted: dict[str, dict[str, int]] = {}
        self.chosen: dict[str, str] = {}
        self.configs: dict[int, list[Any]] = {}  # all of a kernel's, by the wrapper's identity

    def install(self) -> None:
        from triton.runtime.autotuner import Autotuner

        whole, choices = Autotuner.run, self

        def run(tuner: Any, *arguments: Any, **keywords: Any) -> Any:
            tuner.configs = [choices.choose(tuner)]
            return whole(tuner, *arguments, **keywords)

        Autotuner.run = run

    def choose(self, tuner: Any) -> Any:
        name = tuner.base_fn.__name__
        wanted = self.wanted.get(name, {})
        every = self.configs.setdefault(id(tuner), list(tuner.configs))
        fitting = [config for config in every if wanted.items() <= config.all_kwargs().items()]
        if not fitting:
            raise ValueError(f"{name} has no config {wanted}")
        config = min(fitting, key=lambda config: (abs(config.num_warps - 4), abs(config.num_stages - 3)))
        self.chosen[name] = str(config)
        return config


class Runner:
    """The case that was prepared last."""

    def __init__(self) -> None:
        import torch

        import benchmarks.programs.liger
        import benchmarks.programs.linear_attention
        import benchmarks.programs.serving
        import benchmarks.programs.tutorials  # noqa: F401

        self.torch = torch
        self.choices = Choices()
        self.choices.install()
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self.program: Any = None
        self.graph: Any = None

    def prepare(self, name: str, shape: list[int], seed: int, check: bool) -> dict[str, Any]:
        """Build a case, compare its results with float64, and capture a call in a CUDA graph."""
        from benchmarks.programs.case import CASES, Place

        torch = self.torch
        self.program = self.graph = None
        torch.cuda.empty_cache()
        place = Place("cuda", seed)
        self.choices.chosen, self.choices.wanted = {}, place.configs
        program = CASES[name].make(place, *shape)
        errors = compare(program) if check else []
        self.program = program
        self.graph = self._captured()
        return {"errors": errors, "configs": self.choices.chosen}

    def _captured(self) -> Any:
        torch, program = self.torch, self.program
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                program.call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.results = program.call()
        return graph

    def time(self, milliseconds: float) -> float:
        """Median microseconds of a call: the L2 is overwritten before each, events are around it."""
        count = max(5, min(200, int(milliseconds * 1e3 / (statistics.median(self._times(5)) + 80))))
        return statistics.median(self._times(count))

    def _times(self, count: int) -> list[float]:
        torch = self.torch
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for begin, end in events:
            self.program.restore()
            self.flush.zero_()
            begin.record()
            self.graph.replay()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e3 for begin, end in events]


def compare(program: Any) -> list[float]:
    """The relative errors (Frobenius norms) of a program's results; raises `AssertionError` beyond the tolerance."""
    import torch

    found = [x.detach().double().clone() for x in program.results()]
    expected = [x.detach().double() for x in program.expected()]
    if len(found) != len(expected):
        raise AssertionError(f"{len(found)} results, {len(expected)} expected")
    errors = []
    for ours, exact in zip(found, expected, strict=True):
        norm = torch.linalg.vector_norm(exact)
        errors.append(float(torch.linalg.vector_norm(ours.view_as(exact) - exact) / norm.clamp(min=1e-30)))
    narrow = program.inputs[0].dtype != torch.float32
    allowed = program.tolerance or (1e-2 if narrow else 1e-4)
    if not max(errors) <= allowed:
        raise AssertionError(f"relative errors {errors}, allowed {allowed}")
    return errors


def main() -> None:
    compiler, site, tutorials = sys.argv[1:4]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print is no answer
    start(compiler, site, tutorials)
    runner = Runner()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "time" in request:
                answer: Any = {"microseconds": runner.time(request["time"])}
            else:
                answer = runner.prepare(request["prepare"], request["shape"], request["seed"], request["check"])
        except Exception as error:
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
