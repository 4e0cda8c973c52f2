"""Prove that a change moves code and nothing else: record what the compiler makes, change, compare.

    python tools/replay.py record before.json --texts before     # at the commit to compare with
    python tools/replay.py compare before.json --texts before    # prints each name that differs; exit status 1 if any

Two kinds of names: LLVM text as it leaves our lowering, before LLVM's passes, of each kernel; and plans: which kernels
a graph takes, with grids and arguments, chosen by cost alone.  ``library/…`` has every candidate for small graphs that
reach each kernel, ``models/…`` what models of each kind take, ``operations/…`` the configs behind `tilewright.ops`.  No
device and no assembler is needed; nothing is timed.  Folders, lines and hashes of sources are left out of the texts.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import multiprocessing
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tilewright.build.builder import EngineBuilder, Order
from tilewright.build.kernels import KernelSet
from tilewright.build.tuning import Tuning
from tilewright.engine.plan_json import plan_to_json
from tilewright.errors import UnsupportedOperationError
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import optimize
from tilewright.ir.core import Function
from tilewright.ir.printer import print_function
from tilewright.library.candidate import Operand, PackedConstant
from tilewright.library.matmul.hopper.config import MATMUL_PARAMETERS
from tilewright.library.select import candidates
from tilewright.runtime.gpu_program import Resources
from tilewright.runtime.plan import BufferReference
from tilewright.settings import settings
from tilewright.symbolic import to_json
from tilewright.targets.base import Binary, Target
from tilewright.targets.cpu.backend import CPUBackend
from tilewright.targets.cpu.pipeline import lower as lower_for_cpu
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.gpu.binary import GpuBinary
from tilewright.targets.nvidia.backend import NvidiaBackend
from tilewright.targets.nvidia.pipeline import lower as lower_for_nvidia
from tilewright.targets.nvidia.target import NvidiaTarget
from tilewright.targets.registry import get_target, graph_passes
from tools.replay_cases import LIBRARY, MODELS, GraphMaker
from tools.replay_operations import CALLS, launches

CPUS = ("x86-64-v3", "x86-64-v4", "apple-m1")
HOPPER = "cuda:sm_90a"
_THREADS = 4  # that the cost model of CPUs counts with

Texts = dict[str, str]  # by name
Job = tuple[str, Callable[[], Texts]]


def plain(text: str) -> str:
    """A text without what moving a source changes: hashes in symbols, folders, and lines behind a file's name."""
    text = re.sub(r"tw_\w+?_[0-9a-f]{16}\b", "kernel", text)
    text = re.sub(r"[\w./-]*/([\w-]+\.py)", r"\1", text)
    return re.sub(r"([\w-]+\.py)(:\d+)+", "source", text)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class Recorder:
    """Stands in for the compilers: lowers kernels and keeps their texts, by digest, in place of machine code."""

    def __init__(self) -> None:
        self.texts: Texts = {}
        self._known: dict[str, Binary] = {}  # by what is lowered: most are asked for several times

    @contextmanager
    def installed(self) -> Iterator[None]:
        with (
            tempfile.TemporaryDirectory() as folder,
            settings.scope(cache_directory=Path(folder), always_compile=True, tune=0, threads=_THREADS),
            mock.patch.object(CPUBackend, "compile", self._method(lower_for_cpu)),
            mock.patch.object(NvidiaBackend, "compile", self._method(lower_for_nvidia)),
        ):
            yield

    def _method(self, lower: Callable[..., Any]) -> Callable[..., Binary]:
        def compile_function(backend: Any, function: Function, options: Any) -> Binary:
            return self._binary(lower, backend.target, function, options)

        return compile_function

    def _binary(self, lower: Callable[..., Any], target: Any, function: Function, options: Any) -> Binary:
        known = digest("\n".join((print_function(function), target.key, options.key)))
        if known not in self._known:
            lowered = lower(function, target, options)
            facts = {name: value for name, value in vars(lowered).items() if name in _FACTS and value}
            text = plain(f"; {facts}\n{lowered.text}")
            self.texts[digest(text)] = text
            self._known[known] = _stub(target, digest(text), lowered, function)
        return self._known[known]


# Of a lowered kernel, besides its text.
_FACTS = ("scratch_bytes", "asserts", "waits", "refuses", "warps", "shared_bytes", "cluster", "tensor_maps",
          "dependent_launch", "cooperative")  # fmt: skip


def _stub(target: Any, key: str, lowered: Any, function: Function) -> Binary:
    """A binary without machine code, named by its text."""
    types = tuple(str(argument.type) for argument in function.region.arguments)
    if target.host_code:
        return Binary("cpu", key, f"kernel_{key}", b"", types, lowered.scratch_bytes)
    return GpuBinary(
        "cuda", key, f"kernel_{key}", b"", types, 0, features=(target.architecture,), warps=lowered.warps,
        warp_threads=target.warp_threads, shared_bytes=lowered.shared_bytes, resources=Resources(0, 0, 0, 0, 0, 0),
        cluster=lowered.cluster, tensor_maps=lowered.tensor_maps,
    )  # fmt: skip


def target_named(name: str) -> Target:
    return CPUTarget.named(name) if name in CPUS else NvidiaTarget.named(name.removeprefix("cuda:"))


# What is replayed


def library(make: GraphMaker, target: str) -> Texts:
    """Every candidate of every group of a graph: the kernels' texts by place, and the candidates with their order."""
    recorder, machine, texts = Recorder(), target_named(target), {}
    with recorder.installed():
        graph = optimize(make(), graph_passes([machine]))
        for number, group in enumerate(fuse(graph, machine.kernels).groups):
            if group.kind == "view":
                continue
            found = candidates(group, graph, machine)
            kernels = KernelSet(machine, lambda *_: None)
            lines = []
            for place, candidate in enumerate(found):
                lines.append(f"{candidate.name} {candidate.cost.seconds:.6g} {_words(candidate.reasons)}")
                for call in (call for stage in candidate.stages for call in stage.calls):
                    choice = kernels.choice(call, _apart)
                    lines.append(f"  {call.kernel.__name__} {choice.kernel} {[to_json(n) for n in call.grid]}")
                    label = f"{number:02} {group.kind} {place:02} {call.kernel.__name__}"
                    texts[f"{label} {choice.kernel[:6]}"] = recorder.texts.get(choice.kernel, choice.kernel)
            texts[f"{number:02} {group.kind} candidates"] = plain("\n".join(lines))
    return texts


def _apart(operand: Operand) -> BufferReference:
    """Each tensor in memory of its own."""
    value = operand.value if isinstance(operand, PackedConstant) else operand
    return BufferReference("weight", value.name, 0)


def _words(reasons: Any) -> str:
    return json.dumps(reasons, sort_keys=True, default=str)


def model(make: GraphMaker, target: str) -> Texts:
    """The plan of a model, and the texts of its kernels in the order in which they are first taken."""
    recorder, machine = Recorder(), target_named(target)
    with recorder.installed():
        order = Order([machine], lambda *_: None, "", Tuning(effort=0, quick=False))
        (program,) = EngineBuilder(make(), order).programs()
    names = {key: entry.name for key, entry in program.kernels.entries.items()}
    chosen = dict.fromkeys(choice.kernel for step in program.plan.steps for choice in step.choices)
    texts = {f"{number:02} {names[key]}": recorder.texts[key] for number, key in enumerate(chosen) if key in names}
    return {"plan": plain(json.dumps(plan_to_json(program.plan), indent=1, sort_keys=True, default=str)), **texts}


def operations() -> Texts:
    """The configs that `tilewright.ops` takes for products and attention of every kind on a Hopper GPU."""
    from tilewright import dtypes
    from tilewright.library.attention.problem import AttentionProblem
    from tilewright.library.epilogue_parts import EpilogueParts
    from tilewright.library.matmul.hopper.kernel import matmul
    from tilewright.library.matmul.hopper.ranked import close
    from tilewright.library.matmul.problem import MatmulProblem
    from tilewright.ops import attentions, products

    half, single, narrow = dtypes.bfloat16, dtypes.float32, dtypes.float8e4nv
    scale = "*k f32"
    problems = [
        *(MatmulProblem(rows, 4096, 4096, 1, half, half, weights_ready=rows < 64) for rows in (1, 64, 1000, 8192)),
        MatmulProblem(512, 512, 512, 16, half, half, True, True),
        MatmulProblem(4096, 8192, 4096, 1, half, half, epilogue=EpilogueParts(gate="silu").epilogue),
        MatmulProblem(4096, 4096, 4096, 1, half, half, epilogue=EpilogueParts(bias=half, activation="gelu").epilogue,
                      operands=("*k bf16", "i32")),
        MatmulProblem(4096, 4096, 4096, 1, single, single),
        MatmulProblem(4096, 4096, 4096, 1, dtypes.int8, dtypes.int32),
        *(MatmulProblem(4096, 4096, 4096, 1, narrow, half, epilogue=EpilogueParts(kind, other).epilogue,
                        operands=operands)
          for kind, other, operands in (("tensor", "tensor", (scale,) * 2), ("row", "column", (scale, "i32") * 2),
                                        ("block", "block", (scale, scale, *("i32",) * 3)))),
    ]  # fmt: skip
    recorder, texts = Recorder(), {}
    with recorder.installed():
        for problem in problems:
            chosen = close(problem.shape_class, NvidiaTarget.named(HOPPER.removeprefix("cuda:")).machine())
            texts[f"matmul {problem.key} configs"] = "\n".join(map(str, chosen))
            for candidate in chosen[:2]:
                types = MATMUL_PARAMETERS.types(candidate.config, problem.operands)
                facts = products.kernel_facts(problem)
                binary = matmul.compile(types, {"CONFIG": candidate.config}, facts, target=HOPPER).binary
                texts[f"matmul {problem.key} {candidate.config.BM}x{candidate.config.BN}"] = recorder.texts[binary.key]
        attentions._KERNELS.clear()
        for size in (64, 128, 256):
            for queries, causal, window, ragged in (
                (32, False, 0, False),
                (4096, True, 0, True),
                (4096, True, 9, False),
            ):
                attention = AttentionProblem(1, 8, 2, queries, 4096, size, half, causal, window, ragged, True, "")
                config = attentions.hopper_configs(attention)[0].check()
                key = attentions.compiled(config, get_target(HOPPER)).binary.key
                texts[f"attention {size} {queries} {causal} {window} {ragged}"] = f"; {config}\n{recorder.texts[key]}"
        attentions._KERNELS.clear()
    return texts


def calls(name: str) -> Texts:
    """The launches of calls of `tilewright.ops` on an H200, and the texts of their kernels."""
    recorder, texts = Recorder(), {}
    with recorder.installed(), launches() as found:
        for label, call in CALLS[name]():
            found.clear()
            call()
            texts[label] = "\n".join(f"{kernel} {grid} {key}" for kernel, key, grid in found)
            texts |= {f"{label} {kernel} {key[:6]}": recorder.texts[key] for kernel, key, _ in found}
    return texts


def jobs() -> list[Job]:
    """All there is to replay: names begin with those of the jobs."""
    found: list[Job] = [(f"operations/{HOPPER}", operations)]
    found += [(f"operations/{name}/{HOPPER}", partial(calls, name)) for name in CALLS]
    for name, make in MODELS.items():
        targets = (HOPPER,) if name.endswith(" f16") else (CPUS[1], HOPPER)
        found += [(f"models/{name}/{target}", partial(model, make, target)) for target in targets]
    for name, make in LIBRARY.items():
        cpus = CPUS if name.endswith(" f32") or " " not in name else CPUS[1:2]
        found += [(f"library/{name}/{target}", partial(library, make, target)) for target in (*cpus, HOPPER)]
    return found


# Running


def _run(number: int) -> tuple[str, Texts, float]:
    name, job = _JOBS[number]
    started = time.process_time()
    try:
        texts = job()
    except UnsupportedOperationError as error:
        texts = {"unsupported": plain(str(error))}
    return name, {f"{name}/{label}": text for label, text in texts.items()}, time.process_time() - started


_JOBS: list[Job] = []


def replay(pattern: str = "", processes: int = 2) -> tuple[Texts, float]:
    """All texts by name of the jobs that a pattern is found in, and the CPU seconds that they took."""
    _JOBS[:] = [job for job in jobs() if re.search(pattern, job[0])]
    texts: Texts = {}
    seconds = 0.0
    warnings.simplefilter("ignore")  # of exporters
    with multiprocessing.get_context("fork").Pool(max(1, min(processes, len(_JOBS)))) as pool:
        for name, found, elapsed in pool.imap_unordered(_run, range(len(_JOBS))):
            texts |= found
            seconds += elapsed
            print(f"{elapsed:6.1f} s  {len(found):4} texts  {name}", file=sys.stderr)
    return dict(sorted(texts.items())), seconds


def record(path: Path, texts: Texts, folder: Path | None) -> None:
    """Write digests by name, and the texts by digest into a folder."""
    path.write_text(json.dumps({name: digest(text) for name, text in texts.items()}, indent=1) + "\n")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for text in texts.values():
            (folder / f"{digest(text)}.txt").write_text(text)


def differences(path: Path, texts: Texts, folder: Path | None, pattern: str = "") -> Iterator[str]:
    """What differs from a record, one name each, with the lines that do where its texts are in a folder."""
    named = [job[0] + "/" for job in jobs() if re.search(pattern, job[0])]
    before = {
        name: found for name, found in json.loads(path.read_text()).items()
        if not pattern or any(name.startswith(job) for job in named)
    }  # fmt: skip
    for name in sorted(before.keys() | texts.keys()):
        if name not in texts or name not in before:
            yield f"{name}: {'is no longer there' if name in before else 'is new'}"
        elif digest(texts[name]) != before[name]:
            recorded = folder / f"{before[name]}.txt" if folder is not None else None
            lines = []
            if recorded is not None and recorded.exists():
                old = recorded.read_text().splitlines()
                lines = list(difflib.unified_diff(old, texts[name].splitlines(), "before", "now", lineterm="", n=1))
            yield "\n    ".join([f"{name}: differs", *lines[:_LINES_SHOWN]])


_LINES_SHOWN = 40


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--texts", type=Path, help="folder of the texts: written by record, read by compare")
    parser.add_argument("--only", default="", help="a regular expression in names such as models/encoder/cuda:sm_90a")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    texts, seconds = replay(options.only, options.processes)
    if options.action == "record":
        record(options.file, texts, options.texts)
        print(f"{len(texts)} texts recorded, {seconds:.0f} s of CPU time")
        return 0
    found = list(differences(options.file, texts, options.texts, options.only))
    for difference in found:
        print(difference)
    print(f"{len(found)} of {len(texts)} texts differ, {seconds:.0f} s of CPU time")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
