"""The parent process: hands ranges of seeds to workers, watches their time and memory, and starts them again."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.fuzz import sanitized
from tools.fuzz.record import Record
from tools.fuzz.target import Target, load

ROOT = Path(__file__).resolve().parents[2]
PREPARE_SECONDS = 300.0
PATIENCE = 20  # seconds of the clock for each second that a case may compute: other processes may have the CPUs
CHUNK = 40  # seeds handed out at once
LOG = 4000  # characters of a dead worker's standard error that a failure keeps


class Worker:
    """A child process and what it is doing."""

    def __init__(self, name: str, target: Target, more: Mapping[str, str]) -> None:
        self.name, self.target = name, target
        self.log = tempfile.TemporaryFile()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        environment |= more
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tools.fuzz.worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.buffer = b""
        self.ready, self.base = False, 0.0
        self.seed: int | None = None
        self.began, self.used = time.monotonic(), 0.0  # by the clock, and the seconds computed by then
        self.range: list[int] | None = None

    def give(self, seeds: list[int]) -> None:
        """Let the worker run range(*seeds)."""
        assert self.process.stdin is not None
        self.range = seeds
        with contextlib.suppress(BrokenPipeError):  # it died; `overdue` finds out
            self.process.stdin.write(f"{seeds[0]} {seeds[1]} {seeds[2]}\n".encode())
            self.process.stdin.flush()

    def lines(self) -> Iterator[str]:
        """The whole lines that have arrived."""
        assert self.process.stdout is not None
        with contextlib.suppress(BlockingIOError):
            self.buffer += self.process.stdout.read() or b""
        *whole, self.buffer = self.buffer.split(b"\n")
        yield from (line.decode() for line in whole)

    def megabytes(self) -> float:
        """Resident memory; 0 once the process has ended."""
        try:
            return (
                int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20
            )
        except (OSError, IndexError, ValueError):
            return 0.0

    def begin(self, seed: int) -> None:
        """The worker says that it begins a case."""
        self.seed, self.began, self.used = seed, time.monotonic(), self.computed()

    def computed(self) -> float:
        """Seconds of CPU time, of ended children too; 0 once the process has ended."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def overdue(self) -> str | None:
        """Why the worker must be ended or has ended: "crash", "hang", "memory"; None while all is well."""
        if self.process.poll() is not None:
            return "crash"
        limit = self.target.seconds if self.ready else PREPARE_SECONDS
        passed = max(self.computed() - self.used, (time.monotonic() - self.began) / PATIENCE)
        if passed > limit and (self.seed is not None or not self.ready):
            return "hang"
        if self.ready and self.megabytes() > self.base + self.target.megabytes:
            return "memory"
        return None

    def end(self) -> str:
        """Kill the worker with all it started; returns the end of its standard error."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - LOG))
        text = self.log.read().decode(errors="replace")
        self.log.close()
        return text


class Campaign:
    """Runs one target's cases and keeps its record."""

    def __init__(self, name: str, jobs: int, folder: Path, first: int = 0, sanitize: bool = False) -> None:
        self.name, self.jobs, self.folder = name, jobs, folder
        self.environment = sanitized.environment() if sanitize else {}
        self.target = load(name)
        self.record = Record.open(folder, f"{name}.sanitized" if sanitize else name, first)
        self.selector = selectors.DefaultSelector()
        self.workers: list[Worker] = []
        self.failed_starts = 0

    def run(self, cases: int, seconds: float) -> Record:
        """Run until `cases` more have ended or the time is over, whichever comes first; Ctrl-C ends it tidily."""
        began = time.monotonic()
        self.goal, self.until = self.record.next + cases, began + seconds
        before = self.record.seconds
        try:
            for _ in range(self.jobs):
                self.start()
            while self.workers:
                self.step()
                self.record.seconds = before + time.monotonic() - began
        except KeyboardInterrupt:
            pass
        finally:
            for worker in list(self.workers):
                self.stop(worker, keep_range=True)
            self.record.save(self.folder)
        return self.record

    def start(self) -> None:
        worker = Worker(self.name, self.target, self.environment)
        self.workers.append(worker)
        assert worker.process.stdout is not None
        self.selector.register(worker.process.stdout, selectors.EVENT_READ, worker)

    def stop(self, worker: Worker, keep_range: bool = False) -> str:
        """End a worker; what it had not begun of its range is kept for the next one."""
        self.workers.remove(worker)
        assert worker.process.stdout is not None
        self.selector.unregister(worker.process.stdout)
        if worker.range is not None:
            first, last, step = worker.range
            if worker.seed is not None:
                first = worker.seed if keep_range else worker.seed + step
            if first < last:
                self.record.left.append([first, last, step])
        return worker.end()

    def step(self) -> None:
        for key, _ in self.selector.select(timeout=0.1):
            worker = key.data
            for line in worker.lines():
                self.read(worker, line)
        for worker in list(self.workers):
            reason = worker.overdue()
            if reason is not None:
                self.fail(worker, reason)

    def read(self, worker: Worker, line: str) -> None:
        if line == "ready":
            worker.ready, worker.base = True, worker.megabytes()
            self.feed(worker)
        elif line == "done":
            worker.range = None
            self.record.save(self.folder)
            self.feed(worker)
        elif line.startswith("?"):
            worker.begin(int(line[1:]))
        elif line.startswith("=") and worker.seed is not None:
            seed, assigned = worker.seed, worker.range
            assert assigned is not None
            worker.range, worker.seed = [seed + assigned[2], *assigned[1:]], None
            self.count(seed, json.loads(line[1:]))

    def feed(self, worker: Worker) -> None:
        """Hand out the next range, or let the worker go."""
        if time.monotonic() > self.until:
            self.stop(worker)
        elif self.record.left:
            worker.give(self.record.left.pop())
        elif self.record.next < self.goal:
            last = min(self.record.next + CHUNK, self.goal)
            worker.give([self.record.next, last, 1])
            self.record.next = last
        else:
            self.stop(worker)

    def fail(self, worker: Worker, reason: str) -> None:
        """Record a worker that died or had to be ended, and start another."""
        for line in worker.lines():  # what it still said
            self.read(worker, line)
        if worker not in self.workers:
            return
        seed, status = worker.seed, worker.process.poll()
        log = self.stop(worker)
        if seed is None:
            self.failed_starts += 1
            if self.failed_starts > 3 * self.jobs:
                raise SystemExit(f"{self.name}: workers do not start or end between cases:\n{log}")
        else:
            signature = f"signal {-status}" if reason == "crash" and status is not None and status < 0 else reason
            self.count(seed, {"failed": reason, "signature": f"{signature}{_frame(log)}", "text": log})
        self.start()

    def count(self, seed: int, result: dict[str, str]) -> None:
        if self.record.add(seed, result):
            print(f"{self.name} {seed}: {result['failed']}: {result['signature']}", flush=True)


def _frame(log: str) -> str:
    """The innermost of our own frames in a dump of faulthandler, which groups crashes and hangs."""
    for line in log.splitlines():
        if line.startswith('  File "') and "/tilewright/" in line:
            return " at " + line.rpartition("/tilewright/")[2].replace('"', "")
    return ""
