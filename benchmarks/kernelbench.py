"""KernelBench's problems under torch.compile, compared with eager PyTorch and TorchInductor.

    git clone https://github.com/ScalingIntelligence/KernelBench
    python benchmarks/kernelbench.py KernelBench/KernelBench [--levels 1 2 3] [--only 1/47 3/9] [--dtype float16]

Every problem is a module with sizes, taken as its file has it (training mode, unless the file says otherwise) and
compiled by ``torch.compile(backend="tilewright")``, by TorchInductor, and run eagerly, each in a CUDA graph where it
can be captured, in float32 without tf32 or in a 16-bit type. Results are compared with eager PyTorch in float64.
Times are medians of rounds in turns, by device events. A problem runs in a process of its own; `--jobs` processes
compile problems first, as many at a time as the GPU's memory holds, so that the timed part finds caches.

Prints every problem, then those under 0.9 with what our time went to. Results: benchmarks/results/kernelbench.json for
float32, kernelbench_float16.json and kernelbench_bfloat16.json; problems that are not run keep what the file has, with
the date of their own run.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib.util
import json
import logging
import math
import multiprocessing as mp
import os
import re
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.breadth.draw import Drawn
from benchmarks.breadth.measure import OURS, SLOW, contestant, is_right, line, measure, report
from benchmarks.kernels_cuda import environment
from benchmarks.models_cuda import summary

DTYPES = ("float32", "float16", "bfloat16")
PATHS = {name: common.RESULTS / f"kernelbench{'' if name == 'float32' else '_' + name}.json" for name in DTYPES}
GIB = 1 << 30
# What every process of a problem needs, imported once before the forks: about 5 s each.
SHARED = ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.codegen.triton", "torch.export",
          "triton", "tilewright.importers.torch_compile", "tilewright.targets.nvidia.compile",
          "tilewright.targets.nvidia.explicit.lowering", "tilewright.engine.cuda_program")  # fmt: skip
_OPERATIONS = 2000  # of a model whose memory is estimated: an LSTM has tens of thousands
# Processes are forked: the parent never uses the GPU, and NVML tells it that there is one.
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


def share_imports() -> None:
    """Import what the forked processes need; what is there then is theirs without a search by the collector."""
    for name in SHARED:
        importlib.import_module(name)
    gc.freeze()


def problems(options: argparse.Namespace) -> dict[str, Path]:
    """The files by "level/number", in order."""
    found = {}
    for level in options.levels:
        for path in (options.folder / f"level{level}").glob("*.py"):
            if match := re.match(r"\d+", path.name):
                found[f"{level}/{match[0]}"] = path
    if not found:
        sys.exit(f"{options.folder} has no level1, level2, level3: give the folder KernelBench/KernelBench of a clone")
    keys = sorted(found, key=lambda key: tuple(map(int, key.split("/"))))
    return {key: found[key] for key in keys if not options.only or key in options.only}


def load(path: Path, device: str, dtype: torch.dtype) -> tuple[torch.nn.Module, list[Any]]:
    """A problem's module and inputs, made on the device."""
    spec = importlib.util.spec_from_file_location(f"kernelbench_{path.parent.name}_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    torch.manual_seed(42)
    with torch.device(device):
        model = module.Model(*module.get_init_inputs())
        inputs = module.get_inputs()
    fits = [x.to(device) if isinstance(x, torch.Tensor) else x for x in inputs]
    return model.to(device, dtype), [
        x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in fits
    ]


def drawn_from(path: Path, options: argparse.Namespace) -> Drawn:
    model, inputs = load(path, "cuda", getattr(torch, options.dtype))

    def reference(*wide: Any) -> Any:
        return copy.deepcopy(model).double()(*wide)

    return Drawn(path.stem, model, tuple(inputs), reference=reference)


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that a run makes in its first operations."""

    bytes, operations = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.operations += 1
        if self.operations > _OPERATIONS:
            raise RuntimeError("enough is known")
        for tensor in found if isinstance(found, (tuple, list)) else [found]:
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.numel() * tensor.element_size())
        return found


def memory_of(path: Path, dtype: torch.dtype) -> int:
    """About the bytes that one contestant needs: what goes in, and some of the largest tensors between."""
    try:
        with torch.no_grad(), Largest() as largest:
            model, inputs = load(path, "meta", dtype)
            model(*inputs)
    except Exception:  # what does not run without data is small, or tells the size of what it began with
        pass
    return 3 * largest.bytes + 2 * GIB


def compile_one(path: Path, options: argparse.Namespace, pipe: Connection) -> None:
    """Compile a problem for every contestant."""
    with torch.inference_mode():
        drawn = drawn_from(path, options)
        for peer in ("torch.compile", OURS):
            try:
                contestant(drawn, peer)()
                torch.cuda.synchronize()
            except Exception as error:
                pipe.send({"failed": f"{peer}: {summary(error)}"})
    pipe.send({})


def measure_one(path: Path, options: argparse.Namespace, pipe: Connection) -> None:
    pipe.send(measure(drawn_from(path, options), options.rounds, options.milliseconds))


def describe(path: Path, options: argparse.Namespace, pipe: Connection) -> None:
    pipe.send(environment())


class Child:
    """A forked process that does one thing for one problem."""

    def __init__(self, work: Any, key: str, path: Path, options: argparse.Namespace) -> None:
        self.key, self.began, self.limit = key, time.monotonic(), options.limit
        self.pipe, theirs = mp.Pipe(duplex=False)
        self.process = mp.get_context("fork").Process(target=self.run, args=(work, path, options, theirs))
        self.process.start()
        theirs.close()
        self.found: dict[str, Any] = {}

    @staticmethod
    def run(work: Any, path: Path, options: argparse.Namespace, pipe: Connection) -> None:
        try:
            work(path, options, pipe)
        except Exception as error:
            pipe.send({"failed": summary(error)})
        # What the process's threads and CUDA would do at its end takes long, and nobody waits for it.
        pipe.close()
        os._exit(0)

    def ended(self) -> bool:
        """Whether the process is done; one that took too long is killed."""
        try:
            while self.pipe.poll():
                self.found |= self.pipe.recv()
        except EOFError:
            self.process.join()
            if self.process.exitcode:
                self.found.setdefault("failed", f"the process ended with code {self.process.exitcode}")
            return True
        if time.monotonic() - self.began > self.limit:
            self.process.kill()
            self.process.join()
            self.found["failed"] = f"not done in {self.limit} s"
            return True
        return False

    def result(self) -> dict[str, Any]:
        while not self.ended():
            time.sleep(0.02)
        return self.found


def prepare(files: dict[str, Path], options: argparse.Namespace) -> None:
    """Compile all problems in processes, within the GPU's memory."""
    dtype = getattr(torch, options.dtype)
    sizes = {key: min(memory_of(path, dtype), options.memory * GIB) for key, path in files.items()}
    waiting, running = sorted(files, key=lambda key: key.split("/")[0], reverse=True), list[Child]()
    while waiting or running:
        used = sum(sizes[child.key] for child in running)
        fitting = [key for key in waiting if used + sizes[key] <= options.memory * GIB]
        if fitting and len(running) < options.jobs:
            waiting.remove(fitting[0])
            running.append(Child(compile_one, fitting[0], files[fitting[0]], options))
            continue
        for child in [child for child in running if child.ended()]:
            running.remove(child)
            took = time.monotonic() - child.began
            if took > 60 or "failed" in child.found:
                print(f"compiling {child.key}: {took:.0f} s {child.found.get('failed', '')}", flush=True)
        time.sleep(0.05)


def tables(records: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By level: how many problems are whole graphs, right, not slower than the best peer; the geometric mean."""
    found: dict[str, dict[str, float]] = {}
    for level in dict.fromkeys(record["family"] for record in records):
        of = [record for record in records if record["family"] == level]
        whole = [record for record in of if OURS in record.get("milliseconds", {}) and not record["left to PyTorch"]]
        ratios = [record["ratio"] for record in of if "ratio" in record]
        compiled = [record["ratio"] * record["milliseconds"]["torch.compile"]
                    / record["milliseconds"][record["best_peer"]]
                    for record in of if "ratio" in record and "torch.compile" in record["milliseconds"]]  # fmt: skip
        if ratios:
            found[level] = {
                "problems": len(of), "whole": len(whole), "right": sum(map(is_right, of)),
                "torch.compile": statistics.geometric_mean(compiled or [math.nan]),
                "best peer": statistics.geometric_mean(ratios),
                "not slower": sum(ratio >= 1 for ratio in ratios), "under 0.9": sum(r < SLOW for r in ratios),
                "worst": min(ratios)}  # fmt: skip
    return found


def earlier(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The results of problems that the output has, by key."""
    if not options.out.exists():
        return {}
    document = json.loads(options.out.read_text())
    if document["dtype"] != options.dtype:
        sys.exit(f"{options.out} has results in {document['dtype']}; name another file with --out")
    return {case["key"]: case for case in document["cases"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="the folder with level1, level2, level3")
    parser.add_argument("--levels", nargs="+", default=["1", "2", "3"])
    parser.add_argument("--only", nargs="+", help="problems, as 1/47")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--jobs", type=int, default=12, help="processes that compile beforehand; 0: none")
    parser.add_argument("--memory", type=int, default=70, help="GiB of the GPU that they share")
    parser.add_argument("--limit", type=float, default=240, help="seconds for a problem's compilation or measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--milliseconds", type=float, default=20, help="of one contestant in one round")
    parser.add_argument("--out", type=Path, help="default: the results of the type")
    options = parser.parse_args()
    options.out = options.out or PATHS[options.dtype]
    if not torch.cuda.is_available():
        sys.exit("kernelbench.py needs an NVIDIA GPU and a PyTorch that uses it")
    torch.backends.cudnn.allow_tf32 = False
    logging.getLogger("tilewright").setLevel(logging.INFO)
    files = problems(options)
    records, before = list[dict[str, Any]](), earlier(options)
    share_imports()
    if options.jobs:
        prepare(files, options)
    place = Child(describe, "", options.folder, options).result()
    for key, path in files.items():
        blank = {"name": path.stem, "errors": {}, "notes": {}, "left to PyTorch": []}
        found = Child(measure_one, key, path, options).result()
        own = {"family": f"level {key.split('/')[0]}", "key": key, "date": place["date"], "device": place["device"]}
        records.append(blank | found | own)
        print(line(records[-1]), flush=True)
        before[key] = records[-1]
        cases = sorted(before.values(), key=lambda case: [int(part) for part in case["key"].split("/")])
        document = {"environment": place, "dtype": options.dtype, "kernelbench": tables(cases), "cases": cases}
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    report(records, tables(records))
    return 0


if __name__ == "__main__":
    sys.exit(main())
