"""Run the reference's own tests and tutorials through the shim, on the CPU target, and tabulate what becomes of them.

python tools/conformance.py tests CHECKOUT --record FOLDER [--files test_core …] [--sample 0.05 --seed 0]
python tools/conformance.py tutorials CHECKOUT --record FOLDER [--files 05-layer-norm …]
python tools/conformance.py table CHECKOUT --record FOLDER --reference "what CHECKOUT is"

CHECKOUT is a source tree of the reference outside this repository.  FOLDER keeps one line for each case that has
been run; a run goes on where the last one ended, `--again failed` runs those outcomes once more.  ``table`` writes
benchmarks/results/conformance.json, from which tools/readme_tables.py makes the tables of docs/results/conformance.md.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import conformance_plugin
import conformance_table
from conformance_tutorials import TUTORIALS

ROOT = Path(__file__).resolve().parent.parent
UNIT = Path("python/test/unit")
# Files whose cases carry the interpreter mark where they need no GPU; of the others every case is tried.
MARKED = tuple(f"language/{name}.py" for name in (
    "test_core", "test_standard", "test_random", "test_tuple", "test_tensor_descriptor", "test_matmul",
    "test_block_pointer",
))  # fmt: skip
UNMARKED = (
    *(f"language/{name}.py" for name in ("test_conversions", "test_annotations", "test_compile_errors")),
    *(f"runtime/{name}.py" for name in ("test_autotuner", "test_cache", "test_specialize")),
)
CASES_PER_WORKER = 1500  # a worker's compiled kernels are all kept in its memory
POLL = 0.2  # seconds between looks at a worker


class Record:
    """The outcomes of the cases of one test file, one JSON line each, appended by the workers."""

    def __init__(self, folder: Path, file: str) -> None:
        self.path = folder / f"{Path(file).stem}.jsonl"

    def outcomes(self) -> dict[str, dict[str, Any]]:
        """The last finished outcome of each case."""
        return {entry["case"]: entry for entry in self.entries() if entry["outcome"] != "started"}

    def entries(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        entries = [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]
        return [entry for entry in entries if "case" in entry]

    def add(self, entry: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def worker(checkout: Path, folder: Path, file: str, cases: list[str] | None, record: Path) -> subprocess.Popen[bytes]:
    """Start a pytest process on one test file; it appends to `record`."""
    orders = folder / "orders.json"
    orders.write_text(json.dumps({"checkout": str(checkout), "cases": cases, "record": str(record)}))
    environment = dict(os.environ)
    environment[conformance_plugin.ORDERS] = str(orders)
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "tools"), str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    )
    log = (folder / "worker.log").open("wb")
    root = checkout / "python"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "conformance_plugin", "-p", "no:cacheprovider"),
        *("--rootdir", str(root), "-c", os.devnull, "--device", "cpu", "-W", "ignore", "--tb=line"),
        str(root.parent / UNIT / file),
    ]
    with log:
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def collect(checkout: Path, folder: Path, file: str) -> list[dict[str, Any]]:
    """All cases of a file: ``{"case": its id, "marked": whether it needs no GPU}``; kept for later runs."""
    listing = folder / f"{Path(file).stem}.cases.jsonl"
    if not listing.exists():
        fresh = listing.with_suffix(".part")
        fresh.unlink(missing_ok=True)
        worker(checkout, folder, file, None, fresh).wait()
        entries = [json.loads(line) for line in fresh.read_text().splitlines()] if fresh.exists() else []
        problems = [entry["message"] for entry in entries if "file" in entry]
        if problems or not entries:
            log = (folder / "worker.log").read_text(encoding="utf-8", errors="replace")
            print(f"{file}: cannot be collected\n{problems[0] if problems else log[-2000:]}", file=sys.stderr)
            return []
        fresh.rename(listing)
    return [json.loads(line) for line in listing.read_text(encoding="utf-8").splitlines()]


def run_cases(checkout: Path, folder: Path, file: str, cases: list[str], limit: float) -> None:
    """Run cases in one worker after another until each has an outcome; `limit` is seconds for one case."""
    record = Record(folder, file)
    left = list(cases)
    while left:
        batch = left[:CASES_PER_WORKER]
        before = len(record.entries())
        process = worker(checkout, folder, file, batch, record.path)
        stopped = _watch(process, record, before, limit)
        entries = record.entries()[before:]
        done = {entry["case"] for entry in entries if entry["outcome"] != "started"}
        begun = [entry["case"] for entry in entries if entry["case"] not in done]
        if begun:
            outcome = "timeout" if stopped else "crashed"
            record.add({"case": begun[-1], "outcome": outcome, "message": f"{outcome} (exit {process.returncode})"})
            done.add(begun[-1])
        if not done:
            log = (folder / "worker.log").read_text(encoding="utf-8", errors="replace")
            raise SystemExit(f"{file}: a worker ran nothing\n{log[-3000:]}")
        left = [case for case in left if case not in done]


def _watch(process: subprocess.Popen[bytes], record: Record, before: int, limit: float) -> bool:
    """Wait for a worker; ends it when one case takes longer than `limit` seconds, and tells so."""
    size, since, running = -1, time.monotonic(), False
    while process.poll() is None:
        time.sleep(POLL)
        now = record.path.stat().st_size if record.path.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
            entries = record.entries()[before:]
            running = bool(entries) and entries[-1]["outcome"] == "started"
        if running and time.monotonic() - since > limit:
            os.killpg(process.pid, signal.SIGKILL)  # the worker began a session of its own
            process.wait()
            return True
    return False


def _chosen(file: str, listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cases that need no GPU: those with the mark; every case of the files that do not use it."""
    return [entry for entry in listed if entry["marked"] or file in UNMARKED]


def run_tests(arguments: argparse.Namespace) -> int:
    """The command ``tests``."""
    for file in (*MARKED, *UNMARKED):
        if arguments.files and Path(file).stem not in arguments.files:
            continue
        listed = collect(arguments.checkout, arguments.record, file)
        if not listed:
            continue
        cases = [entry["case"] for entry in _chosen(file, listed)]
        chosen = random.Random(f"{arguments.seed}:{file}").sample(cases, max(1, round(len(cases) * arguments.sample)))
        if arguments.match:
            chosen = [case for case in chosen if arguments.match in case]
        outcomes = Record(arguments.record, file).outcomes()
        wanted = set(chosen) - {case for case, entry in outcomes.items() if entry["outcome"] not in arguments.again}
        run_cases(
            arguments.checkout, arguments.record, file, [case for case in cases if case in wanted], arguments.limit
        )
        outcomes = Record(arguments.record, file).outcomes()
        counts = collections.Counter(outcomes[case]["outcome"] for case in chosen if case in outcomes)
        print(f"{file}: {len(chosen)} of {len(cases)} cases, {dict(counts)}", flush=True)
    return 0


def run_tutorials(arguments: argparse.Namespace) -> int:
    """The command ``tutorials``: each in a process of its own."""
    script = ROOT / "tools" / "conformance_tutorials.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    for name in TUTORIALS:
        if arguments.files and name not in arguments.files:
            continue
        begin = time.monotonic()
        command = [sys.executable, str(script), str(arguments.checkout), name]
        with (arguments.record / f"{name}.log").open("wb") as log:
            code = subprocess.run(
                command, cwd=arguments.record, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False
            ).returncode
        outcome = "passed" if code == 0 else "failed"
        entry = {"case": name, "outcome": outcome, "seconds": round(time.monotonic() - begin, 1)}
        Record(arguments.record, "tutorials").add(entry)
        print(f"{name}: {outcome} in {entry['seconds']} s", flush=True)
    return 0


def write_table(arguments: argparse.Namespace) -> int:
    """The command ``table``."""
    files = []
    for file in (*MARKED, *UNMARKED):
        listed = _chosen(file, collect(arguments.checkout, arguments.record, file))
        found = conformance_table.file_results(file, listed, Record(arguments.record, file).outcomes())
        files.append({"marked": file in MARKED, **found})
    tutorials = Record(arguments.record, "tutorials").outcomes()
    data = {
        "reference": arguments.reference,
        "environment": _environment(),
        "files": files,
        "tutorials": [{"name": name, **_without(tutorials[name], "case")} for name in TUTORIALS if name in tutorials],
    }
    place = ROOT / "benchmarks" / "results" / "conformance.json"
    place.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(conformance_table.markdown(data))
    return 0


def _without(entry: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != name}


def _environment() -> dict[str, Any]:
    sys.path.insert(0, str(ROOT))
    from benchmarks.common import processor
    from tilewright.settings import settings

    return {"processor": processor(), "threads": settings.threads, "date": datetime.date.today().isoformat()}


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = result.add_subparsers(required=True)
    tests = commands.add_parser("tests", help="run the reference's unit tests")
    tests.set_defaults(run=run_tests)
    tests.add_argument("--files", nargs="*", default=[], help="test files to run, without .py; all by default")
    tests.add_argument("--match", default="", help="only cases whose id has this text")
    tests.add_argument("--sample", type=float, default=1.0, help="the share of the cases to run, 0 to 1")
    tests.add_argument("--seed", type=int, default=0, help="which cases a sample holds")
    tests.add_argument(
        "--again", nargs="*", default=[], help="outcomes to run again: failed, crashed, timeout, skipped"
    )
    tests.add_argument("--limit", type=float, default=60.0, help="seconds for one case")
    tutorials = commands.add_parser("tutorials", help="run the reference's tutorials")
    tutorials.set_defaults(run=run_tutorials)
    tutorials.add_argument("--files", nargs="*", default=[], help="tutorials to run, without .py; all by default")
    table = commands.add_parser("table", help="write benchmarks/results/conformance.json")
    table.set_defaults(run=write_table)
    table.add_argument("--reference", required=True, help="what the checkout is: release or commit, and its date")
    for command in (tests, tutorials, table):
        command.add_argument("checkout", type=Path, help="a source tree of the reference")
        command.add_argument("--record", type=Path, required=True, help="a folder for outcomes, outside the repository")
    return result


def main() -> int:
    arguments = parser().parse_args()
    arguments.record.mkdir(parents=True, exist_ok=True)
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
