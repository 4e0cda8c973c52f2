"""Whole models on an NVIDIA GPU: tilewright beside PyTorch eager and torch.compile, each in a CUDA graph, in one run.

    python benchmarks/models_cuda.py [--only resnet bert] [--set timed unseen] [--autotune [bert …]] [--rounds 5]

Random weights and inputs, the same for all; contestants take turns, round by round, each round beginning with another;
times are medians by device events over calls in a row, ratios those of the medians.  What PyTorch cannot capture is
timed without a graph, under a name that says so.  Outputs are compared with the same module in float32, those in
float32 with float64; nothing is computed in tf32.
torch.compile is timed in its default mode; `--autotune` adds ``max-autotune``, for all cases or those whose names
contain one of its words.  `--prepare` only fills the peers' compile caches (TORCHINDUCTOR_CACHE_DIR), several models
at a time.  Results: benchmarks/results/models_cuda.json; cases that are not run keep the results that the file has.
Words are parts of names, or whole names.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
import torch

import tilewright
from benchmarks.gpu.harness import Monitor
from benchmarks.kernels_cuda import environment
from benchmarks.models import batched, quantized, timed, unseen
from benchmarks.models.timed import Model
from tilewright.insight.report import least_arena_bytes
from tilewright.settings import settings

PATH = common.RESULTS / "models_cuda.json"
SETS = {
    "timed": timed.CASES, "unseen": unseen.CASES, "float32": timed.FLOAT32, "quantized": quantized.CASES,
    "batched": batched.CASES,
}  # fmt: skip
OURS = "tilewright"
IN_FLOATS = "tilewright in floats"
CEILING = 4.48e12  # bytes a second that reads reached on an H200


def in_graph(run: Callable[[], Any]) -> tuple[Callable[[], Any], Any]:
    """A call that replays a CUDA graph of `run`, and the outputs that it leaves. Raises what PyTorch does."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            outputs = run()
    except Exception:
        # A capture that fails leaves the generator in the state of one, in which it draws nothing.
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())
        raise
    return graph.replay, outputs


def first(outputs: Any) -> torch.Tensor:
    """The output that is compared."""
    return outputs[0] if isinstance(outputs, (tuple, list)) else outputs


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Frobenius norm of the difference, relative to the exact output's."""
    return float(torch.linalg.vector_norm(found.double() - exact) / torch.linalg.vector_norm(exact))


def in_wider(model: Model) -> torch.Tensor:
    """The first output of the module in float32, of one in float32 in float64; as float64. The model keeps its
    precision."""
    wider = torch.float64 if model.dtype == torch.float32 else torch.float32
    inputs = [t.to(wider) if t.is_floating_point() else t.clone() for t in model.inputs]
    model.module.to(wider)
    try:
        return first(model.module(*inputs)).double()
    finally:
        model.module.to(model.dtype)


def peers(model: Model, autotune: bool, names: Sequence[str] | None = None) -> dict[str, Callable[[], Any]]:
    """PyTorch's ways to run the module, of these names: name -> a call on the inputs."""
    channels_last = any(isinstance(child, torch.nn.Conv2d) for child in model.module.modules())
    module, inputs = model.module, model.inputs
    if channels_last:  # the order that PyTorch's convolutions are fast in
        module = module.to(memory_format=torch.channels_last)
        inputs = tuple(t.to(memory_format=torch.channels_last) if t.dim() == 4 else t for t in inputs)
    modes: dict[str, Any] = {"eager": module}
    modes["torch.compile"] = torch.compile(module, dynamic=False)
    modes |= {f"{name}, compiled": torch.compile(child, dynamic=False) for name, child in model.others.items()}
    modes = {name: run for name, run in modes.items() if names is None or name in names}
    if autotune:  # without graphs of its own: every contestant is captured by `in_graph`
        modes["max-autotune"] = torch.compile(module, dynamic=False, mode="max-autotune-no-cudagraphs")
    return {name: lambda run=run: run(*inputs) for name, run in modes.items()}


def plainly_built(model: Model) -> Any:
    """The engine of the module as it is."""
    return tilewright.compile(model.module, model.inputs, target="cuda")


def built(model: Model) -> Any:
    """Our engine, with what this user's cache has."""
    return model.build() if model.build is not None else plainly_built(model)


def build(model: Model, record: dict[str, Any]) -> Any:
    """Our engine, built cold, built again with kernels and choices cached, saved and loaded; seconds go to `record`."""
    with tempfile.TemporaryDirectory() as folder:
        before = settings.cache_directory
        settings.cache_directory = Path(folder) / "cache"
        try:
            for kind in ("cold", "warm"):
                began = time.perf_counter()
                engine = built(model)
                record[f"build_{kind}_seconds"] = time.perf_counter() - began
        finally:
            settings.cache_directory = before
        path = Path(folder) / "model.engine"
        engine.save(path)
        began = time.perf_counter()
        engine = tilewright.load(path, target="cuda")
        engine(*model.inputs)
        torch.cuda.synchronize()
        record["load_and_first_call_seconds"] = time.perf_counter() - began
    return engine


def milliseconds(run: Callable[[], Any], calls: int) -> float:
    """Of one call, of several in a row."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / calls


def alternate(runs: dict[str, Callable[[], Any]], rounds: int, budget: float) -> dict[str, list[float]]:
    """Times of every contestant in every round; each round begins with the next one, as the GPU grows warm."""
    names, counts = list(runs), {}
    for name in names:
        milliseconds(runs[name], 2)
        counts[name] = max(3, min(400, int(budget / max(milliseconds(runs[name], 3), 1e-3))))
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            times[name].append(milliseconds(runs[name], counts[name]))
    return times


def host_microseconds(run: Callable[[], Any]) -> float:
    """What a call of the engine costs the calling thread, the GPU never being waited for."""
    values = []
    for _ in range(30):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(5):
            run()
        values.append((time.perf_counter() - began) / 5 * 1e6)
    torch.cuda.synchronize()
    return statistics.median(values)


@torch.inference_mode()
def measure(name: str, make: Callable[[], Model], options: Any, monitor: Monitor) -> dict[str, Any]:
    """Build, check and time one model. What fails for one contestant is told in the record."""
    record: dict[str, Any] = {"name": name, "notes": {}, "errors": {}, "gpu": {}}
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False  # float32 is float32: for products PyTorch's default, not for convolutions
    model = make()
    exact = in_wider(model)
    runs: dict[str, Callable[[], Any]] = {}
    outputs: dict[str, Any] = {}
    try:
        engine = built(model) if options.once else build(model, record)
        record["steps"] = len(engine.plan.steps)
        record["arena_bytes"] = engine.plan.arena_bytes
        record["arena_least_bytes"] = least_arena_bytes(engine, {})
        outputs[OURS] = engine(*model.inputs)
        runs[OURS] = lambda: engine(*model.inputs)
        if model.in_floats:
            plain = plainly_built(model)
            outputs[IN_FLOATS] = plain(*model.inputs)
            runs[IN_FLOATS] = lambda: plain(*model.inputs)
        if options.profile:
            record["profile"] = engine.profile(dict(zip((i.name for i in engine.inputs), model.inputs, strict=True)))
    except Exception as error:
        record["failed"] = f"{type(error).__name__}: {error}"
    for peer, run in peers(model, autotunes(name, options), options.peers).items():
        try:
            began = time.perf_counter()
            run()
            torch.cuda.synchronize()
            record[f"{peer}_first_call_seconds"] = time.perf_counter() - began
        except Exception as error:
            record["notes"][peer] = summary(error)
            continue
        try:
            runs[peer], outputs[peer] = in_graph(run)
        except Exception as error:
            record["notes"][peer] = f"not captured: {summary(error)}"
            bare = f"{peer} without a graph"
            runs[bare], outputs[bare] = run, run()
        else:
            runs[peer]()
    record["errors"] = {key: distance(first(value), exact) for key, value in outputs.items()}
    with monitor.watch(record["gpu"]):
        times = alternate(runs, options.rounds, options.milliseconds)
    record["milliseconds"] = {
        key: {"median": statistics.median(values), "best": min(values)} for key, values in times.items()
    }
    if OURS in runs:
        record["host_microseconds"] = host_microseconds(runs[OURS])
    judge(record, times, model)
    return record


def judge(record: dict[str, Any], times: dict[str, list[float]], model: Model) -> None:
    """Add the best peer, the ratio to it, its floor, and how near memory's time a step is that memory bounds."""
    found = [name for name in times if name != OURS]
    if OURS not in times or not found:
        return
    best = min(found, key=lambda name: statistics.median(times[name]))
    ratio = statistics.median(times[best]) / statistics.median(times[OURS])
    record |= {"best_peer": best, "ratio": ratio, "floor": model.floor}
    if model.bytes:
        record["of_bytes_time"] = model.bytes / CEILING * 1e3 / statistics.median(times[OURS])
    record["error_ratio"] = record["errors"][OURS] / max(record["errors"][best], 1e-30)


def summary(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def line(record: dict[str, Any]) -> str:
    """A record in one line."""
    parts = [f"{key} {value['median']:.3f} ms" for key, value in record.get("milliseconds", {}).items()]
    if "ratio" in record:
        parts.append(f"{record['best_peer']} / ours {record['ratio']:.3f}")
        parts.append(f"error {record['errors'][OURS]:.1e} ({record['error_ratio']:.2f} of the peer's)")
    if "build_cold_seconds" in record:
        parts.append(f"build {record['build_cold_seconds']:.1f} s, warm {record['build_warm_seconds']:.1f} s")
        parts.append(f"load {record['load_and_first_call_seconds']:.2f} s")
    if "steps" in record:
        parts.append(f"{record['steps']} steps")
        parts.append(f"arena {record['arena_bytes'] / max(record['arena_least_bytes'], 1):.2f} of the least")
    if "host_microseconds" in record:
        parts.append(f"host {record['host_microseconds']:.0f} us")
    if "of_bytes_time" in record:
        parts.append(f"{record['of_bytes_time']:.2f} of the bytes' time")
    parts += [f"{key}: {value}" for key, value in record["notes"].items()]
    if "failed" in record:
        parts.append(f"FAILED: {record['failed']}")
    return f"{record['name']}: {', '.join(parts)}"


def named(name: str, words: Sequence[str] | None) -> bool:
    """Whether a case is meant by these words: parts of names, or whole names; all are meant by none."""
    every = [case for cases in SETS.values() for case in cases]
    return not words or any(word == name or (word not in every and word.lower() in name.lower()) for word in words)


def chosen(options: Any) -> dict[str, Callable[[], Model]]:
    """The cases that the command line asks for."""
    cases = {name: make for kind in options.set for name, make in SETS[kind].items()}
    return {name: make for name, make in cases.items() if named(name, options.only)}


def autotunes(name: str, options: Any) -> bool:
    """Whether max-autotune is timed for a case."""
    return options.autotune is not None and named(name, options.autotune)


def prepare(options: Any) -> None:
    """Compile the peers of all cases in processes of their own, four at a time, so that their caches are warm."""
    command = [sys.executable, __file__, "--warm"]
    if options.autotune is not None:
        command += ["--autotune", *options.autotune]
    waiting, running = list(chosen(options)), []
    while waiting or running:
        running = [process for process in running if process.poll() is None]
        while waiting and len(running) < 4:
            environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"}
            running.append(subprocess.Popen([*command, "--only", waiting.pop(0)], env=environment))
        time.sleep(0.2)


@torch.inference_mode()
def warm(options: Any) -> None:
    """Call every peer of the chosen cases once."""
    for name, make in chosen(options).items():
        model = make()
        for peer, run in peers(model, autotunes(name, options)).items():
            try:
                run()
            except Exception as error:
                print(f"{name}, {peer}: {summary(error)}", flush=True)


def save(path: Path, records: list[dict[str, Any]]) -> None:
    """Write the results; cases that did not run stay as they are in the file, with the place and date of their run."""
    here = environment()
    here["versions"] |= {name: common.installed(name) for name in ("transformers", "torchvision")}
    found = {record["name"]: {**record, "environment": here} for record in records}
    if path.exists():
        found = {case["name"]: case for case in json.loads(path.read_text())["cases"]} | found
    order = [name for cases in SETS.values() for name in cases]
    ordered = [found[name] for name in order if name in found]
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"models": True, "cases": ordered}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", help="words: cases whose names contain one of them")
    parser.add_argument("--set", nargs="*", choices=list(SETS), default=list(SETS))
    parser.add_argument("--once", action="store_true", help="build once, with this user's cache, and time no build")
    parser.add_argument("--peers", nargs="*", help="only these: eager, torch.compile")
    parser.add_argument("--autotune", nargs="*", help="time max-autotune too (minutes a model), or for cases so named")
    parser.add_argument("--profile", action="store_true", help="keep the times of our steps in the results")
    parser.add_argument("--prepare", action="store_true", help="only fill the peers' compile caches")
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--milliseconds", type=float, default=150, help="of one contestant in one round")
    parser.add_argument("--out", type=Path, default=PATH)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("models_cuda.py needs an NVIDIA GPU and a PyTorch that uses it")
    if options.warm:
        warm(options)
        return 0
    if options.prepare:
        prepare(options)
        return 0
    monitor, records = Monitor(), []
    for name, make in chosen(options).items():
        try:
            record = measure(name, make, options, monitor)
        except Exception as error:
            record = {"name": name, "notes": {}, "failed": f"{type(error).__name__}: {error}"}
        records.append(record)
        print(line(record), flush=True)
        save(options.out, records)
        torch.cuda.empty_cache()
        torch._dynamo.reset()
    return 1 if any("failed" in record for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
