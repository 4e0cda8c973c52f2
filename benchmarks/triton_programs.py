"""Kernels that public packages wrote for Triton, through tilewright, compared with what a user would take instead.

    python benchmarks/triton_programs.py --device cpu --site FOLDER [--threads 2] [--only softmax [--merge]]
    python benchmarks/triton_programs.py --device cuda --site FOLDER [--rounds 5] [--workers 6]

FOLDER holds the packages liger_kernel, fla (fla-core), conch and einops, unpacked (``pip install --no-deps --target
FOLDER …``), if they are not installed, and Triton's ``python/tutorials`` as ``tutorials`` (or ``--tutorials``).
Nothing of them is changed.  `--draw` takes shapes by a seed in place of those of the cases.

On a CPU the peers are PyTorch's eager mode and torch.compile, doing the same operation; all take turns.  On a GPU the
peer is Triton: the same launches with the same configs, in a process of its own; both processes take turns, a call is a
CUDA graph, the L2 is overwritten before each, and the times are those of events.  Results are compared with float64.

Results: benchmarks/results/triton_programs_DEVICE.json; a run with `--only` or `--draw` leaves it alone, or puts
its cases in (`--merge`).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
# After `common`, which cleans the environment that NumPy's BLAS reads when it is loaded.
import argparse
import json
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Record = dict[str, Any]
FLOOR = {"cpu": 0.8, "cuda": 0.9}
PACKAGES = ("liger_kernel", "fla-core", "conch-triton-kernels")
OURS = "tilewright"


def load_cases() -> dict[str, Any]:
    """All cases, by name; packages are not imported yet."""
    import benchmarks.programs.liger
    import benchmarks.programs.linear_attention
    import benchmarks.programs.serving
    import benchmarks.programs.tutorials  # noqa: F401
    from benchmarks.programs.case import CASES

    return CASES


def chosen(options: argparse.Namespace) -> list[tuple[str, tuple[int, ...]]]:
    """The cases of a run, with their shapes."""
    return [
        (name, shape)
        for name, case in load_cases().items()
        if any(text.lower() in name.lower() for text in options.only or [""])
        for shape in case.shapes(options.device, options.draw)
    ]


def title(name: str, shape: tuple[int, ...]) -> str:
    return f"{name}, {' x '.join(map(str, shape))}"


# On a CPU


def cpu_child(options: argparse.Namespace) -> list[Record]:
    """Measure the cases one after the other, in a process that began with the number of threads."""
    import torch

    from benchmarks.programs.peers import start
    from tilewright.settings import settings

    start(OURS, options.site, options.tutorials)
    torch.set_num_threads(options.threads)
    settings.threads = options.threads
    records = []
    for name, shape in chosen(options):
        record: Record = {"name": title(name, shape), "threads": options.threads}
        try:
            record |= cpu_case(name, shape, options)
        except Exception as error:
            record["failed"] = f"{type(error).__name__}: {error}"[:500]
        records.append(record)
        print(line(record), flush=True)
        torch._dynamo.reset()
    return records


def cpu_case(name: str, shape: tuple[int, ...], options: argparse.Namespace) -> Record:
    """Milliseconds of ours and of PyTorch's two ways."""
    import torch

    from benchmarks.programs.case import CASES, Place
    from benchmarks.programs.peers import compare

    program = CASES[name].make(Place("cpu", options.seed), *shape)
    errors = compare(program)
    runs = {OURS: program.call, "PyTorch eager": program.peer(program.function)}
    if not options.quick:
        runs["torch.compile"] = program.peer(torch.compile(program.function, dynamic=False))
    clock = time.process_time if options.cpu_time else time.perf_counter
    times = common.alternate(
        runs, options.rounds, options.seconds, clock, before={OURS: program.restore} if program.restored else {}
    )
    peers = {key: value for key, value in times.items() if key != OURS}
    best = min(peers, key=lambda key: peers[key]["median"])
    ratio = peers[best]["median"] / times[OURS]["median"]
    return {"milliseconds": times, "best_peer": best, "ratio": ratio, "floor": FLOOR["cpu"], "errors": errors}


# On a GPU


class Peer:
    """A process of one compiler (benchmarks/programs/peers.py)."""

    def __init__(self, compiler: str, options: argparse.Namespace) -> None:
        script = Path(__file__).parent / "programs" / "peers.py"
        command = [sys.executable, str(script), compiler, options.site, options.tutorials]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request: Any) -> Record:
        """Send a request and wait for the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        return json.loads(answer) if answer else {"failed": f"the process ended ({self.process.wait()})"}

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compile_ahead(cases: list[tuple[str, tuple[int, ...]]], options: argparse.Namespace) -> None:
    """Fill the compilers' caches on disk, with several processes for each of them."""

    def work(job: tuple[str, int]) -> None:
        compiler, first = job
        peer = Peer(compiler, options)
        for name, shape in cases[first :: options.workers]:
            peer.ask(prepare=name, shape=shape, seed=options.seed, check=False)
        peer.close()

    jobs = [(compiler, first) for first in range(options.workers) for compiler in ("triton", OURS)]
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(work, jobs))


def on_cuda(options: argparse.Namespace) -> list[Record]:
    """Measure the cases in the two processes by turns."""
    cases = chosen(options)
    began = time.time()
    if options.workers:
        compile_ahead(cases, options)
        print(f"compiled ahead in {time.time() - began:.0f} s", flush=True)
    peers = {name: Peer(name, options) for name in ("triton", OURS)}
    records = []
    for name, shape in cases:
        if time.time() - began > options.limit:
            print(f"{title(name, shape)} and what follows: left out after {options.limit} s", flush=True)
            break
        records.append({"name": title(name, shape), **cuda_case(peers, name, shape, options)})
        print(line(records[-1]), flush=True)
    for peer in peers.values():
        peer.close()
    return records


def cuda_case(peers: dict[str, Peer], name: str, shape: tuple[int, ...], options: argparse.Namespace) -> Record:
    request = {"prepare": name, "shape": shape, "seed": options.seed, "check": True}
    with ThreadPoolExecutor(len(peers)) as pool:
        answers = dict(zip(peers, pool.map(lambda peer: peer.ask(**request), peers.values()), strict=True))
    failed = {key: answer["failed"] for key, answer in answers.items() if "failed" in answer}
    if failed:
        return {"failed": "; ".join(f"{key}: {text}" for key, text in failed.items())}
    rounds: dict[str, list[float]] = {key: [] for key in peers}
    for _ in range(options.rounds):
        for key, peer in peers.items():
            answer = peer.ask(time=options.milliseconds)
            if "failed" in answer:
                return {"failed": f"{key}: {answer['failed']}"}
            rounds[key].append(answer["microseconds"])
    ratio = statistics.median(theirs / ours for theirs, ours in zip(rounds["triton"], rounds[OURS], strict=True))
    times = {key: {"median": statistics.median(values), "best": min(values)} for key, values in rounds.items()}
    return {
        "microseconds": times, "best_peer": "triton", "ratio": ratio, "floor": FLOOR["cuda"],
        "errors": {key: answer["errors"] for key, answer in answers.items()}, "configs": answers[OURS]["configs"],
    }  # fmt: skip


# Both


def line(record: Record) -> str:
    """A record in one line."""
    if "failed" in record:
        return f"{record['name']}: FAILED: {record['failed']}"
    unit, times = ("ms", record["milliseconds"]) if "milliseconds" in record else ("us", record["microseconds"])
    parts = ", ".join(f"{key} {value['median']:.3f} {unit}" for key, value in times.items())
    below = "" if record["ratio"] >= record["floor"] else f"  BELOW {record['floor']}"
    return f"{record['name']}: {parts}: {record['ratio']:.2f}{below}"


def run_cpu(options: argparse.Namespace) -> list[Record]:
    """Start the measuring process: with its number of threads, and a malloc that keeps what is freed."""
    limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(options.threads))
    keep = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_"), str(1 << 30))
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, __file__, *sys.argv[1:], "--child", file.name]
        subprocess.run(command, env={**os.environ, **limits, **keep}, check=True)
        return list(json.loads(Path(file.name).read_text()))


def environment(options: argparse.Namespace) -> dict[str, Any]:
    """Device, versions and date of a run."""
    sys.path.append(options.site)
    extra = {name: common.installed(name) for name in PACKAGES}
    found = common.environment(options.threads)
    if options.device == "cuda":
        from benchmarks.kernels_cuda import environment as of_gpu

        found = of_gpu()
    return {**found, "versions": {**found["versions"], **extra}}


def save(records: list[Record], options: argparse.Namespace) -> Path:
    """Write the results file; with `--merge`, the other cases of the file stay."""
    path = common.RESULTS / f"triton_programs_{options.device}.json"
    before = json.loads(path.read_text())["cases"] if options.merge and path.exists() else []
    cases = list({record["name"]: record for record in [*before, *records]}.values())
    clock = {"cpu_time": options.cpu_time, "load": round(os.getloadavg()[0], 1)} if options.device == "cpu" else {}
    data = {"programs": options.device, "environment": environment(options), **clock, "cases": cases}
    path.write_text(json.dumps(data, indent=1) + "\n")
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--site", default="", metavar="FOLDER", help="where the packages are, if not installed")
    parser.add_argument("--tutorials", default="", metavar="FOLDER", help="Triton's tutorials; else SITE/tutorials")
    parser.add_argument("--only", nargs="*", help="run the cases whose name contains one of these")
    parser.add_argument("--draw", type=int, default=None, metavar="SEED", help="shapes by a seed")
    parser.add_argument("--seed", type=int, default=0, help="of the numbers")
    parser.add_argument("--merge", action="store_true", help="put the cases into the results file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.2, help="on a CPU, per contestant and round")
    parser.add_argument(
        "--cpu-time", action="store_true", help="on a CPU that others use: time of the process, not of a clock"
    )
    parser.add_argument("--quick", action="store_true", help="on a CPU: without torch.compile")
    parser.add_argument("--milliseconds", type=float, default=25, help="on a GPU, per contestant and round")
    parser.add_argument("--workers", type=int, default=6, help="on a GPU: processes that compile ahead")
    parser.add_argument("--limit", type=float, default=1e9, help="on a GPU: seconds after which no case begins")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.tutorials = options.tutorials or str(Path(options.site) / "tutorials")
    if options.child:
        Path(options.child).write_text(json.dumps(cpu_child(options)))
        return 0
    if not chosen(options):
        parser.error(f"no case's name contains {options.only}; there are: {', '.join(load_cases())}")
    records = run_cpu(options) if options.device == "cpu" else on_cuda(options)
    ratios = [record["ratio"] for record in records if "ratio" in record]
    if ratios:
        below = sum(ratio < FLOOR[options.device] for ratio in ratios)
        mean, worst = statistics.geometric_mean(ratios), min(ratios)
        print(
            f"{len(ratios)} cases: geometric mean {mean:.3f}, least {worst:.2f}, {below} below {FLOOR[options.device]}"
        )
    if options.merge or not (options.only or options.draw is not None or options.quick):
        print("wrote", save(records, options).name)
    return 1 if len(ratios) < len(records) else 0


if __name__ == "__main__":
    sys.exit(main())
