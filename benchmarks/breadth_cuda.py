"""Speed of randomly drawn operators under torch.compile, compared with eager PyTorch and TorchInductor.

    python benchmarks/breadth_cuda.py [--families scan sort] [--cases 8] [--seed 1] [--jobs 12] [--rounds 3]

Each family (`benchmarks/breadth/`) draws its cases from a seeded generator, so that another `--seed` is another set. A
case is a function of tensors, compiled by ``torch.compile(backend="tilewright")``, by TorchInductor, and run eagerly,
each in a CUDA graph where it can be captured. `--jobs` processes compile all cases first, so that the timed part finds
caches. Results are compared with eager PyTorch in float64; positions by the elements that lie there. Times are medians
of rounds in turns, by device events.

Prints every case, then those under 0.9 with what our time went to. Results: benchmarks/results/breadth_cuda.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
import torch

from benchmarks.breadth import arithmetic, blocks, elements, operators, places, products, rows, windows  # noqa: F401
from benchmarks.breadth.draw import FAMILIES, Draw
from benchmarks.breadth.measure import OURS, SLOW, contestant, is_right, line, measure, report
from benchmarks.gpu.harness import Monitor
from benchmarks.kernels_cuda import environment
from benchmarks.models_cuda import summary

PATH = common.RESULTS / "breadth_cuda.json"


def drawn_cases(options: argparse.Namespace) -> list[tuple[str, int]]:
    return [(name, number) for name in options.families for number in range(options.cases)]


@torch.inference_mode()
def warm(options: argparse.Namespace) -> None:
    """Compile this process's share of the cases, so that caches know them."""
    share, shares = options.warm
    for name, number in drawn_cases(options)[share::shares]:
        for peer in ("torch.compile", OURS):
            try:
                torch._dynamo.reset()
                contestant(FAMILIES[name](Draw(name, number, options.seed)), peer)()
            except Exception as error:
                print(f"{name} {number}, {peer}: {summary(error)}", flush=True)
        torch.cuda.empty_cache()


def prepare(options: argparse.Namespace) -> None:
    """Run `warm` in processes."""
    command = [sys.executable, __file__, "--seed", str(options.seed), "--cases", str(options.cases), "--families",
               *options.families]  # fmt: skip
    environ = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    processes = [
        subprocess.Popen([*command, "--warm", str(share), str(options.jobs)], env=environ)
        for share in range(options.jobs)
    ]
    for process in processes:
        process.wait()


def tables(records: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """By family: the geometric mean of the ratios, the worst, how many are not slower than the best peer."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(record["family"] for record in records):
        ratios = [record["ratio"] for record in records if record["family"] == name and "ratio" in record]
        if ratios:
            found[name] = {"cases": len(ratios), "geometric mean": statistics.geometric_mean(ratios),
                           "worst": min(ratios), "under 0.9": sum(ratio < SLOW for ratio in ratios)}  # fmt: skip
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--cases", type=int, default=8, help="of each family")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=12, help="processes that compile beforehand; 0: none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--milliseconds", type=float, default=20, help="of one contestant in one round")
    parser.add_argument("--warm", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=PATH)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("breadth_cuda.py needs an NVIDIA GPU and a PyTorch that uses it")
    torch.backends.cudnn.allow_tf32 = False
    logging.getLogger("tilewright").setLevel(logging.INFO)
    if options.warm:
        warm(options)
        return 0
    if options.jobs:
        prepare(options)
    monitor, records = Monitor(), list[dict[str, Any]]()
    gpu: dict[str, Any] = {}
    with monitor.watch(gpu):
        for name, number in drawn_cases(options):
            try:
                record = measure(FAMILIES[name](Draw(name, number, options.seed)), options.rounds, options.milliseconds)
            except Exception as error:
                record = {"name": f"case {number}", "errors": {}, "notes": {}, "failed": summary(error)}
            records.append(record | {"family": name})
            print(line(records[-1]), flush=True)
            torch.cuda.empty_cache()
    summaries = tables(records)
    document = {"environment": environment(), "seed": options.seed, "gpu": gpu, "breadth": summaries, "cases": records}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    report(records, summaries)
    return 1 if any("failed" in record or not is_right(record) for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
