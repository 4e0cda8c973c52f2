"""Run the tests as on other CPUs: at each instruction level that this one can stand for, with 1 thread and more.

    python tools/levels.py                                   # every level with 1, 2 and 8 threads
    python tools/levels.py --levels x86-64 znver4 --threads 1 -- tests/host/test_ops.py -n 8

What follows `--` goes to pytest.  A level is a value of TILEWRIGHT_CPU; one that this CPU lacks is told and left out.
The exit status is 1 when a test fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tilewright.host import NAMED_FEATURES, host_features

ROOT = Path(__file__).parents[1]
LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4", "native")
COUNTS = ("passed", "failed", "error", "skipped")


def run(level: str, threads: int, arguments: list[str], cache: Path) -> tuple[dict[str, int], float, list[str]]:
    """Counts of results by kind, seconds, and the lines that name failures."""
    environment = os.environ | {
        "TILEWRIGHT_CPU": level,
        "TILEWRIGHT_THREADS": str(threads),
        "TILEWRIGHT_CACHE_DIRECTORY": str(cache),
    }
    started = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    lines = done.stdout.splitlines()
    counts = {
        kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout[-200:])
    }
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if done.returncode not in (0, 1) or not counts:  # no tests, a crash of the interpreter
        counts["error"] = counts.get("error", 0) + 1
        failures += [f"pytest ended with status {done.returncode}", *lines[-15:], *done.stderr.splitlines()[-15:]]
    return counts, seconds, failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", nargs="+", default=LEVELS, choices=("native", *NAMED_FEATURES))
    parser.add_argument("--threads", nargs="+", type=int, default=(1, 2, 8))
    parser.add_argument("arguments", nargs="*", help="of pytest, after --")
    options = parser.parse_args()
    print(f"| {'level':12} | threads | " + " | ".join(COUNTS) + " | seconds |")
    print("| --- | ---: |" + " ---: |" * (len(COUNTS) + 1), flush=True)
    failed = False
    with tempfile.TemporaryDirectory(prefix="tilewright-levels-") as folder:
        for level in options.levels:
            lacking = NAMED_FEATURES.get(level, frozenset()) - host_features()
            if lacking:
                print(f"| {level:12} | this CPU lacks {', '.join(sorted(lacking))} |", flush=True)
                continue
            for threads in options.threads:
                counts, seconds, failures = run(level, threads, options.arguments, Path(folder) / level)
                numbers = " | ".join(f"{counts.get(kind, 0):{len(kind)}}" for kind in COUNTS)
                print(f"| {level:12} | {threads:7} | {numbers} | {seconds:7.0f} |", flush=True)
                for line in failures:
                    print(f"    {line}", flush=True)
                failed |= bool(failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
