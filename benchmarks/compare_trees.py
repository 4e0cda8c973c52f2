"""Compare two versions of tilewright, case by case: what became faster, and what became slower.

    git worktree add ../before HEAD~20
    python benchmarks/compare_trees.py ../before [--parts models kernels cpu cpu-kernels] [--only BERT softmax]

`kernels` and `models` are the cases of kernels_cuda.py and models_cuda.py as each tree's own benchmarks define them; a
family of kernels ends where the trees' cases have different names.  `cpu` are the models of models_cpu.py, and
`cpu-kernels` the cases of each tree's kernels_cpu.py, on one thread.  `--limit` is in seconds.  Each tree runs in a
process of its own; the two alternate, and each round begins with the other one.  Times are medians: device events on a
GPU, CPU time of the process on a CPU.  Engines for a GPU are built first, several at a time; only one process times
candidates.  The other version must have the package `measure`, whose timers are locked for that.  Results:
benchmarks/results/compare_trees.json; cases that are not run keep theirs.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
PATH = HERE / "benchmarks" / "results" / "compare_trees.json"
SIDES = ("before", "after")
LIMIT = 0.98  # of the time before, under which a case is printed again at the end
ROUNDS, MILLISECONDS = 6, 40.0
BUILDERS = 10  # processes that build engines
_COMMANDS = {"models": "model", "cpu": "cpu", "cpu-kernels": "cpu_kernel"}  # by part, what makes a case ready


# -- In the process of a tree -----------------------------------------------------------------------------------------


class Side:
    """One tree: builds, prepares and times cases, by commands that come as lines and are answered as JSON."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.tree, self.folder = tree, folder
        self.timed: dict[str, Callable[[], float]] = {}
        self.remaining: Any = None

    def engine_path(self, name: str) -> Path:
        """Where a built model lies."""
        return self.folder / f"{zlib.crc32(f'{self.tree} {name}'.encode()):08x}.engine"

    def gpu_models(self) -> dict[str, Callable[[], Any]]:
        """The models of the tree's own benchmarks that need no settings of their own."""
        from benchmarks.models import timed, unseen

        return {**timed.CASES, **unseen.CASES, **getattr(timed, "FLOAT32", {})}

    def build(self, name: str) -> dict[str, Any]:
        """Build a model for the GPU and save its engine."""
        import torch

        import tilewright

        _time_alone(self.folder / "timing.lock")
        with torch.inference_mode():
            torch.manual_seed(0)
            model = self.gpu_models()[name]()
            tilewright.compile(model.module, model.inputs, target="cuda").save(self.engine_path(name))
        return {}

    def model(self, name: str) -> dict[str, Any]:
        """Load a model's engine and make it ready to be timed."""
        import torch

        import tilewright
        from benchmarks.models_cuda import milliseconds

        self.timed, self.remaining = {}, None
        torch.cuda.empty_cache()
        with torch.inference_mode():
            torch.manual_seed(0)
            inputs = self.gpu_models()[name]().inputs
            engine = tilewright.load(self.engine_path(name), target="cuda")

        def timed(calls: int) -> float:
            with torch.inference_mode():
                return milliseconds(lambda: engine(*inputs), calls)

        timed(3)
        calls = max(3, min(400, int(MILLISECONDS / max(timed(3), 1e-3))))
        self.timed = {"model": lambda: timed(calls)}
        return {"name": name}

    def cpu(self, name: str) -> dict[str, Any]:
        """Build a model for one thread of the CPU."""
        import torch

        import tilewright
        from benchmarks.models import cpu
        from tilewright.settings import settings

        self.timed, settings.threads = {}, 1
        torch.manual_seed(0)
        model = cpu.CASES[name]()
        engine = tilewright.compile(
            model.module.eval(), tuple(model.inputs.values()), target="cpu", dynamic_shapes=model.dynamic_shapes or None
        )
        inputs = [value.numpy() for value in model.inputs.values()]
        engine(*inputs)
        self.timed = {"model": lambda: _processor_milliseconds(lambda: engine(*inputs))}
        return {"name": name}

    def cpu_kernel(self, name: str) -> dict[str, Any]:
        """Make a case of kernels_cpu.py ready for one thread; peers are left out."""
        from benchmarks import kernels_cpu
        from tilewright.settings import settings

        self.timed, settings.threads = {}, 1

        def add(case: Any, contestant: str, run: Any, result: Any) -> None:
            if contestant.startswith(kernels_cpu.OURS):
                case.runs[contestant] = run
                run()

        kernels_cpu.Case.add = add  # type: ignore[method-assign]
        kernels_cpu.OnnxModel.compete = lambda *_: None  # type: ignore[method-assign]
        kernels_cpu.add_torch = lambda *_: None
        case = dict(kernels_cpu.makers(1))[name]()
        self.timed = {
            contestant: lambda run=run: 1e3 * _processor_milliseconds(run) for contestant, run in case.runs.items()
        }
        return {"name": name}

    def family(self, name: str) -> dict[str, Any]:
        """Begin with a family of kernels_cuda.py; peers are left out."""
        from benchmarks import kernels_cuda
        from benchmarks.gpu import harness

        def add(case: Any, contestant: str, run: Any, result: Any = None) -> None:
            if contestant.startswith(harness.OURS):
                case.runs[contestant] = run

        harness.Case.add = add  # type: ignore[method-assign]
        harness.Case.check = lambda *_, **__: None  # type: ignore[method-assign]
        kernels_cuda.register()
        found = harness.FAMILIES.get(name)
        self.remaining = found.cases(False) if found is not None else iter(())
        return {}

    def following(self, _: str) -> dict[str, Any]:
        """The next case of the family, ready to be timed; without a name where there is none."""
        import torch

        from benchmarks.gpu import harness

        self.timed = {}
        torch.cuda.empty_cache()
        torch.manual_seed(0)
        case = next(self.remaining, None)
        if case is None:
            return {}
        clocks = {"flush": harness._flushed, "graph": harness._replayed, "host": harness._on_host}
        for protocol in case.protocols:
            clock = clocks[protocol](case, MILLISECONDS)
            for contestant in case.runs:
                self.timed[f"{protocol}, {contestant}"] = lambda clock=clock, name=contestant: clock(name)
        for each in self.timed.values():
            each()
        return {"name": case.name}

    def time(self, _: str) -> dict[str, Any]:
        """One round of what is ready."""
        return {name: each() for name, each in self.timed.items()}


def _processor_milliseconds(call: Callable[[], Any]) -> float:
    """The CPU time of a call, the mean of some."""
    began, count = time.process_time(), 0
    while count < 2 or time.process_time() - began < 0.15:
        call()
        count += 1
    return (time.process_time() - began) / count * 1e3


def _time_alone(path: Path) -> None:
    """Let one process at a time measure candidates."""
    from tilewright.measure import timers

    lock = path.open("w")

    def alone(measure: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return measure(*arguments, **options)
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)

        return call

    for name in ("in_graphs", "alone"):
        plain = getattr(timers, name)
        for module in list(sys.modules.values()):
            if getattr(module, name, None) is plain:
                setattr(module, name, alone(plain))


def serve(tree: Path, folder: Path, part: str) -> None:
    """Answer commands until the input ends; only answers go to the standard output."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.path.insert(0, str(tree))
    import tilewright

    assert Path(tilewright.__file__).resolve().is_relative_to(tree), tilewright.__file__
    if part == "cpu":  # the cases of this tree for both
        sys.path.insert(0, str(HERE))
    side = Side(tree, folder)
    for line in sys.stdin:
        command, _, rest = line.strip().partition(" ")
        try:
            found = getattr(side, command)(rest)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {str(error)[:200]}"}
        print(json.dumps(found), file=answers, flush=True)


# -- In the process that compares -------------------------------------------------------------------------------------


class Pair:
    """The processes of both trees."""

    def __init__(self, trees: dict[str, Path], folder: Path, part: str) -> None:
        self.processes = {side: start(tree, folder, part) for side, tree in trees.items()}

    def ask(self, text: str, side: str) -> dict[str, Any]:
        """One side's answer."""
        self._send(text, side)
        return self._answer(side)

    def ask_both(self, text: str) -> dict[str, dict[str, Any]]:
        """The answers of both, which work at the same time."""
        for side in SIDES:
            self._send(text, side)
        return {side: self._answer(side) for side in SIDES}

    def _send(self, text: str, side: str) -> None:
        process = self.processes[side]
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a process that ended has no answer either
            process.stdin.write(text + "\n")
            process.stdin.flush()

    def _answer(self, side: str) -> dict[str, Any]:
        process = self.processes[side]
        assert process.stdout is not None
        line = process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {"error": "the process ended"}
        return found

    def close(self) -> None:
        """End both processes."""
        for process in self.processes.values():
            process.kill()


def start(tree: Path, folder: Path, part: str) -> subprocess.Popen[str]:
    """The process of a tree, with a kernel cache of its own."""
    cache = folder / f"cache-{zlib.crc32(str(tree).encode()):08x}"
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIRECTORY": str(cache)}
    environment["PYTHONPATH"] = os.pathsep.join(
        path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and Path(path).resolve() != HERE
    )
    command = [sys.executable, __file__, "--serve", str(tree), str(folder), part]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1,
        env=environment, cwd=tree,
    )  # fmt: skip


def build_engines(trees: dict[str, Path], folder: Path, names: list[str]) -> None:
    """Build every model in both trees, several at a time."""
    waiting = [(tree, name) for name in names for tree in trees.values()]
    running: list[subprocess.Popen[str]] = []
    while waiting or running:
        running = [process for process in running if process.poll() is None]
        while waiting and len(running) < BUILDERS:
            tree, name = waiting.pop(0)
            process = start(tree, folder, "models")
            assert process.stdin is not None
            process.stdin.write(f"build {name}\n")
            process.stdin.close()
            running.append(process)
        time.sleep(0.2)


def compare(pair: Pair, part: str, name: str) -> Iterator[dict[str, Any]]:
    """The records of a case that is ready on both sides."""
    times: dict[str, dict[str, list[float]]] = {side: {} for side in SIDES}
    for number in range(ROUNDS):
        for side in SIDES if number % 2 else reversed(SIDES):
            found = pair.ask("time", side)
            if "error" in found:
                yield {"part": part, "name": name, "failed": {side: found["error"]}}
                return
            for key, value in found.items():
                times[side].setdefault(key, []).append(value)
    for key in times["before"].keys() & times["after"].keys():
        before, after = (statistics.median(times[side][key]) for side in SIDES)
        ratio = statistics.median(b / a for b, a in zip(times["before"][key], times["after"][key], strict=True))
        yield {"part": part, "name": name, "way": key, "before": before, "after": after, "ratio": ratio}


def cases(pair: Pair, part: str, names: list[str]) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """The names of what a part compares, with what both sides answer when they make it ready."""
    for name in names:
        if part != "kernels":
            yield name, pair.ask_both(f"{_COMMANDS[part]} {name}")
            continue
        pair.ask_both(f"family {name}")
        found = pair.ask_both("following")
        while all(found.values()):
            called = {side: answer.get("name", "?") for side, answer in found.items()}
            if len(set(called.values())) > 1:
                found = {
                    side: {"error": f"the case is called {other} here"} | found[side] for side, other in called.items()
                }
            yield f"{name}: {called['after']}", found
            if any("error" in answer for answer in found.values()):
                break  # what comes later can no longer be paired
            found = pair.ask_both("following")


def names_of(part: str) -> list[str]:
    """The models of a part, or the families of kernels, of this tree."""
    sys.path.insert(0, str(HERE))
    if part == "cpu":
        from benchmarks.models import cpu

        return list(cpu.CASES)
    if part == "models":
        return list(Side(HERE, HERE).gpu_models())
    if part == "cpu-kernels":
        from benchmarks import kernels_cpu

        return [name for name, _ in kernels_cpu.makers(1)]
    from benchmarks import kernels_cuda
    from benchmarks.gpu.harness import FAMILIES

    kernels_cuda.register()
    return list(FAMILIES)


def save(trees: dict[str, Path], records: list[dict[str, Any]]) -> None:
    """Write the records; those that were not made again stay."""
    sys.path.insert(0, str(HERE))
    from benchmarks import common

    def version(tree: Path) -> str:
        found = subprocess.run(["git", "-C", str(tree), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
        return found.stdout.strip() or "unknown"

    made = {"environment": common.environment(1), **{side: version(tree) for side, tree in trees.items()}}
    old = json.loads(PATH.read_text())["cases"] if PATH.exists() else []
    new = {(each["part"], each["name"]) for each in records}
    earlier = [each for each in old if (each["part"], each["name"]) not in new]
    PATH.write_text(json.dumps({"cases": [*earlier, *({**each, **made} for each in records)]}, indent=1) + "\n")


def main() -> int:
    if sys.argv[1:2] == ["--serve"]:
        serve(Path(sys.argv[2]).resolve(), Path(sys.argv[3]), sys.argv[4])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("before", type=Path, help="a working tree of the other version")
    parser.add_argument("--parts", nargs="+", choices=("kernels", *_COMMANDS), default=("cpu",))
    parser.add_argument("--only", nargs="*", help="words: models or families whose names contain one of them")
    parser.add_argument("--limit", type=float, default=3600, help="seconds, after which no case is begun")
    options = parser.parse_args()
    trees, began = dict(zip(SIDES, (options.before.resolve(), HERE), strict=True)), time.monotonic()
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts:
            if time.monotonic() - began > options.limit:
                break
            names = [each for each in names_of(part) if not options.only or any(word in each for word in options.only)]
            if part == "models":
                build_engines(trees, Path(folder), names)
            pair = Pair(trees, Path(folder), part)
            for name, found in cases(pair, part, names):
                errors = {side: answer["error"] for side, answer in found.items() if "error" in answer}
                made = [{"part": part, "name": name, "failed": errors}] if errors else list(compare(pair, part, name))
                records += made
                for each in made:
                    print(line(each), flush=True)
                if time.monotonic() - began > options.limit:
                    break
            pair.close()
            save(trees, records)
    slower = sorted((each for each in records if each.get("ratio", 1) < LIMIT), key=lambda each: each["ratio"])
    print(f"{len(records)} cases, {len(slower)} under {LIMIT}")
    for each in slower:
        print(line(each))
    return 0


def line(record: dict[str, Any]) -> str:
    """A record in one line; milliseconds for models, microseconds for kernels."""
    head = f"{record['part']:8} {record['name']:46}"
    if "failed" in record:
        return f"{head} FAILED: {record['failed']}"
    return f"{head} {record['way']:28} {record['before']:10.3f} {record['after']:10.3f} {record['ratio']:.3f}"


if __name__ == "__main__":
    sys.exit(main())
