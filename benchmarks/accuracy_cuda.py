"""Errors of the GPU kernels against float64 beside the vendor libraries', and whether results repeat bit by bit.

    python benchmarks/accuracy_cuda.py [--only bf16 attention] [--repeats 10] [--quick]

The cases are those of kernels_cuda.py, at their sizes, on random data.  An error is the relative Frobenius norm of the
difference from the float64 result, rounding of the result's type included; it has to be within twice the most accurate
peer's (cuBLAS, cuDNN, FlashAttention, PyTorch's compiler).  Every case runs `repeats` times into memory that was filled
with something else, with other work in between: results must not differ in a bit.
Results: benchmarks/results/accuracy_cuda.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import common, kernels_cuda

# isort: split
import torch

from benchmarks.gpu.harness import FAMILIES, OURS, Case, Family

PATH = common.RESULTS / "accuracy_cuda.json"
ALLOWED = 2.0  # times the error of the most accurate peer
NONE_BELOW = 1e-9  # errors that are none: of exact sums in float32
UNCHECKED = ("launch",)  # times of the host
OWN = ("plain",)  # contestants that are ours as well


def repeats_exactly(case: Case, repeats: int, disturbance: Any) -> bool:
    """Whether our result is the same, bit by bit, run after run."""
    result = case.results[OURS]
    first: Any = None
    for number in range(repeats):
        found = result()
        found.view(torch.uint8).fill_(number)
        if number % 2:
            disturbance.zero_()  # other contents of the L2 cache, other times
        case.runs[OURS](0)
        torch.cuda.synchronize()
        bits = result().view(torch.uint8)
        if first is None:
            first = bits.clone()
        elif not torch.equal(first, bits):
            return False
    return True


def examine(family: Family, options: Any) -> list[dict[str, Any]]:
    """A record for each case of a family; one that fails ends the family, and says why."""
    disturbance = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    records = []
    try:
        for case in family.cases(options.quick):
            record: dict[str, Any] = {"family": family.name, "name": case.name, "error": case.errors.get(OURS)}
            peers = {name: error for name, error in case.errors.items() if not name.startswith((OURS, *OWN))}
            if peers:
                best = min(peers, key=peers.__getitem__)
                record |= {"peer": best, "peer_error": peers[best]}
                record["ratio"] = max(case.errors[OURS], NONE_BELOW) / max(peers[best], NONE_BELOW)
            record["identical"] = repeats_exactly(case, options.repeats, disturbance)
            records.append(record)
            print(line(record), flush=True)
            for table in (case.runs, case.results, case.vendors):
                table.clear()
            torch.cuda.empty_cache()
    except Exception as error:
        records.append({"family": family.name, "name": "-", "failed": f"{type(error).__name__}: {error}"})
        print(f"{family.name}: FAILED: {error}", flush=True)
    return records


def line(record: dict[str, Any]) -> str:
    """A record in one line."""
    compared = f", {record['peer']} {record['peer_error']:.2e}: {record['ratio']:.2f}" if "ratio" in record else ""
    same = "the same" if record["identical"] else "NOT THE SAME"
    return f"{record['family']:12} {record['name']:40} {record['error']:.2e}{compared}; runs {same}"


def failures(records: list[dict[str, Any]]) -> list[str]:
    """What is beyond what is allowed."""
    found = [f"{record['family']}: {record['failed']}" for record in records if "failed" in record]
    checked = [record for record in records if "failed" not in record]
    found += [line(record) for record in checked if record.get("ratio", 0.0) > ALLOWED or not record["identical"]]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", help="families to run")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="few and small cases")
    parser.add_argument("--out", type=Path, default=PATH)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("accuracy_cuda.py needs an NVIDIA GPU and a PyTorch that uses it")
    kernels_cuda.register()
    unknown = set(options.only or ()) - set(FAMILIES)
    if unknown:
        sys.exit(f"no family {', '.join(sorted(unknown))}: there are {', '.join(FAMILIES)}")
    records, began = [], time.time()
    for name in options.only or [name for name in FAMILIES if name not in UNCHECKED]:
        records += examine(FAMILIES[name], options)
    ran = {record["family"] for record in records}
    if options.out.exists():
        earlier = json.loads(options.out.read_text())["cases"]
        records = [*(record for record in earlier if record["family"] not in ran), *records]
    data = {"environment": kernels_cuda.environment(), "repeats": options.repeats, "cases": records}
    options.out.parent.mkdir(exist_ok=True)
    options.out.write_text(json.dumps(data, indent=1) + "\n")
    bad = failures(records)
    print("\n".join([f"{len(records)} cases in {time.time() - began:.0f} s; {options.out}", *bad]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
