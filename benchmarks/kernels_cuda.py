"""Kernels on an NVIDIA GPU beside their peers, in one run: ours / best peer for each case, a mean for each family.

    python benchmarks/kernels_cuda.py [--only softmax add] [--rounds 5] [--milliseconds 60] [--quick]

Random data; contestants take turns; times are medians by device events (benchmarks/gpu/harness.py tells how).
Every module of benchmarks/gpu registers families of cases.  Results: benchmarks/results/kernels_cuda.json; families
that are not run keep the results that the file has, with the date of their own run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common

# isort: split
import torch

import benchmarks.gpu
import tilewright
from benchmarks.gpu.harness import FAMILIES, Monitor, geometric_mean, run_family
from tilewright.runtime.cuda.device import device
from tilewright.runtime.cuda.driver import version
from tilewright.targets.nvidia.assemble import find_assembler

_NO_FAMILIES = ("harness", "compilers", "triton_kernels", "ahead")
PATH = common.RESULTS / "kernels_cuda.json"


def environment() -> dict[str, Any]:
    """GPU, driver, versions and date."""
    gpu = device(torch.cuda.current_device())
    found = common.environment(1)
    for name in ("processor", "threads"):
        found.pop(name)
    extra = {name: common.installed(name) for name in ("triton", "cuda-bindings")}
    return {
        **found,
        "device": gpu.name,
        "driver": f"CUDA {version() // 1000}.{version() % 1000 // 10}",
        "assembler": find_assembler().description,
        "versions": {**found["versions"], "tilewright": tilewright.__version__, **extra, "cudnn": _cudnn()},
    }


def _cudnn() -> str:
    number = torch.backends.cudnn.version() or 0
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def register() -> None:
    """Import every module that registers families."""
    for module in pkgutil.iter_modules(benchmarks.gpu.__path__):
        if module.name not in _NO_FAMILIES:
            importlib.import_module(f"benchmarks.gpu.{module.name}")


def summary(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The geometric mean of peer / ours of each family, its smallest case, and the floor that it has to reach."""
    result = {}
    for name in dict.fromkeys(record["family"] for record in records):
        ratios = [record["ratio"] for record in records if record["family"] == name and "ratio" in record]
        if ratios:
            floor = FAMILIES[name].floor if name in FAMILIES else None
            result[name] = {"geometric_mean": geometric_mean(ratios), "smallest": min(ratios), "floor": floor}
    return result


def save(path: Path, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Write the results; families that did not run stay as they are in the file."""
    here = environment()
    ran = {record["family"] for record in records}
    earlier: list[dict[str, Any]] = []
    environments = {name: here for name in ran}
    if path.exists():
        before = json.loads(path.read_text())
        earlier = [record for record in before["cases"] if record["family"] not in ran]
        environments = {**{n: e for n, e in before["environments"].items() if n not in ran}, **environments}
    cases = [*earlier, *records]
    data = {"environments": environments, "families": summary(cases), "cases": cases}
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
    return data


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", help="families to run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--milliseconds", type=float, default=60, help="of one contestant in one round")
    parser.add_argument("--quick", action="store_true", help="few and small cases")
    parser.add_argument("--out", type=Path, default=PATH)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("kernels_cuda.py needs an NVIDIA GPU and a PyTorch that uses it")
    register()
    unknown = set(options.only or ()) - set(FAMILIES)
    if unknown:
        sys.exit(f"no family {', '.join(sorted(unknown))}: there are {', '.join(FAMILIES)}")
    monitor, records, began = Monitor(), [], time.time()
    for name in options.only or FAMILIES:
        records += run_family(FAMILIES[name], monitor, options)
        data = save(options.out, records)
    for name, means in data["families"].items():
        below = " BELOW ITS FLOOR" if means["floor"] and means["geometric_mean"] < means["floor"] else ""
        print(f"{name:12} peer / ours {means['geometric_mean']:.3f}, smallest {means['smallest']:.3f}{below}")
    print(f"{len(records)} measurements in {time.time() - began:.0f} s; {options.out}")
    return 1 if any("failed" in record for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
