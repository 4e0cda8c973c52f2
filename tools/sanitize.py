"""Run the tests on a GPU under NVIDIA's compute-sanitizer, in several processes, and sum up what it reports.

python tools/sanitize.py                                      the library's tests under memcheck, racecheck, synccheck
                                                              (without one that tunes)
python tools/sanitize.py --tool racecheck tests/device/test_rows.py --processes 8
python tools/sanitize.py --limit 90 --logs build/sanitize     what has not run after 90 s is named

The tests run once without a tool, which compiles their kernels into a folder that the other runs read. With several
GPUs every process keeps to one, in turn.
Needs compute-sanitizer (a part of the CUDA toolkit) on the PATH and a GPU. Only kernels of tilewright are watched:
their names begin with tw_. Tests run in small batches, so that a limit cuts few of them; a batch whose process dies
without a word of its tests or of the tool is begun once more, and named. Exits with 0 if every test has run, passed,
and nothing was reported.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("memcheck", "racecheck", "synccheck")
LIBRARY = tuple(f"tests/device/test_{name}.py" for name in (
    "library", "explicit_library", "explicit_cases", "rows", "convolution", "warpgroup_products", "plain_random",
    "engine_attention", "engine_norms",
))  # fmt: skip
# Its trials repeat kernels that other tests run, which takes longer under a tool than all of these together.
LEFT_OUT = "tests/device/test_library.py::test_choices_are_timed_once_and_kept"
NO_TOOL = "compile"
REPORTED = 9  # the exit code that the sanitizer is asked for when it has something to say


@dataclass(frozen=True)
class Batch:
    """Some tests under one tool, or under none, run by one process."""

    tool: str
    number: int
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.tool}-{self.number:03}"


@dataclass(frozen=True)
class Outcome:
    """What became of a batch: `code` is None if it was cut or never begun; `summary` is the sanitizer's last line."""

    batch: Batch
    code: int | None
    summary: str = ""
    tests: str = ""

    @property
    def reported(self) -> bool:
        return self.batch.tool != NO_TOOL and not re.search("SUMMARY: 0 ", self.summary)

    @property
    def died(self) -> bool:
        """Whether neither pytest nor the sanitizer came to its summary of errors."""
        summaries = (
            re.search(r"\d (passed|failed|skipped|error)", self.tests),
            re.search("SUMMARY: [1-9]", self.summary),
        )
        return self.code not in (None, 0) and not any(summaries)

    @property
    def clean(self) -> bool:
        return self.code == 0 and not self.reported


def collected(arguments: Sequence[str]) -> list[str]:
    """The tests that pytest finds for paths and options."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--no-header", *arguments]
    text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return [line for line in text.splitlines() if "::" in line]


def last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1].strip("= ") if lines else ""


def visible_gpus() -> list[str]:
    """The GPUs that processes may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return chosen.split(",")
    if shutil.which("nvidia-smi") is None:
        return ["0"]
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    return [str(number) for number, _ in enumerate(listed.splitlines())] or ["0"]


def run(batch: Batch, logs: Path, end: float, gpus: queue.SimpleQueue[str]) -> Outcome:
    """The batch on the GPU that is next in line, unless the time is over; again if it died without a word."""
    gpu = gpus.get()
    try:
        outcome = run_on(gpu, batch, logs, end)
        if outcome.died:
            print(f"{batch.name}: died with exit code {outcome.code} ({outcome.summary}); begun again", flush=True)
            outcome = run_on(gpu, batch, logs, end)
        return outcome
    finally:
        gpus.put(gpu)


def run_on(gpu: str, batch: Batch, logs: Path, end: float) -> Outcome:
    seconds = end - time.monotonic()
    if seconds <= 0:
        return Outcome(batch, None)
    report, text = logs / f"{batch.name}.san", logs / f"{batch.name}.txt"
    sanitizer = ["compute-sanitizer", "--tool", batch.tool, "--kernel-name", "kns=tw_", "--print-limit", "20",
                 "--error-exitcode", str(REPORTED), "--log-file", str(report)]  # fmt: skip
    # One seed: sizes that are drawn, and with them the kernels, are the same in every run.
    tests = [sys.executable, "-u", "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "--tb=short",
             "--seed", "1", "--kept-cache", str(logs / "cache"), *batch.tests]  # fmt: skip
    command = tests if batch.tool == NO_TOOL else [*sanitizer, *tests]
    with text.open("w", encoding="utf-8") as stream:
        # A session of its own: the sanitizer starts Python as a child, which has to end with it.
        process = subprocess.Popen(command, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu})  # fmt: skip
        try:
            code = process.wait(None if seconds == float("inf") else seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return Outcome(batch, None)
    return Outcome(batch, code, last_line(report), last_line(text))


def print_outcomes(outcomes: Sequence[Outcome], logs: Path) -> bool:
    """Print the sums, and every batch that is not clean; whether all are."""
    for tool in sorted({outcome.batch.tool for outcome in outcomes}):
        mine = [outcome for outcome in outcomes if outcome.batch.tool == tool]
        passed = sum(int(found[1]) for one in mine if (found := re.search(r"(\d+) passed", one.tests)))
        finished = sum(len(one.batch.tests) for one in mine if one.code is not None)
        total = sum(len(one.batch.tests) for one in mine)
        reported = sum(one.reported for one in mine if one.code is not None)
        print(f"{tool}: {finished} of {total} tests ran to their end, {passed} passed; reports in {reported} batches")
    for outcome in outcomes:
        if outcome.code is None:
            print(f"  {outcome.batch.name}: cut by the limit: {', '.join(outcome.batch.tests)}")
        elif not outcome.clean:
            print(f"  {outcome.batch.name}: exit code {outcome.code}; {outcome.tests}; {outcome.summary}; see {logs}")
    return all(outcome.clean for outcome in outcomes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "tests", nargs="*", help="files, tests and options (after --) for pytest; default: the library's"
    )
    parser.add_argument("--tool", action="append", choices=(*TOOLS, "initcheck"), help="default: the first three")
    parser.add_argument(
        "--processes", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="default: half the cores"
    )
    parser.add_argument("--batch", type=int, default=12, help="tests of one process")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds")
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "sanitize", help="folder of reports and texts")
    options = parser.parse_args()
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on the PATH; it is a part of the CUDA toolkit", file=sys.stderr)
        return 2
    end = time.monotonic() + options.limit
    tests = collected(options.tests or [*LIBRARY, "--deselect", LEFT_OUT])
    if not tests:
        print("pytest finds no tests", file=sys.stderr)
        return 2
    options.logs = options.logs.resolve()
    options.logs.mkdir(parents=True, exist_ok=True)
    count = -(-len(tests) // options.batch)
    # Every count-th test: neighbours, which are alike and equally slow, go to different batches.
    parts = [tuple(tests[number::count]) for number in range(count)]
    outcomes = []
    gpus, names = queue.SimpleQueue[str](), visible_gpus()
    for number in range(options.processes):
        gpus.put(names[number % len(names)])
    with ThreadPoolExecutor(options.processes) as pool:
        for tools in ((NO_TOOL,), options.tool or TOOLS):
            batches = [Batch(tool, number, part) for number, part in enumerate(parts) for tool in tools]
            for future in as_completed([pool.submit(run, batch, options.logs, end, gpus) for batch in batches]):
                outcomes.append(outcome := future.result())
                print(f"{outcome.batch.name}: {outcome.tests or 'cut'} | {outcome.summary}", flush=True)
    return 0 if print_outcomes(outcomes, options.logs) else 1


if __name__ == "__main__":
    sys.exit(main())
