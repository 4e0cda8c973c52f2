"""Kills a replica of the Ray Serve application under load, and counts what clients saw.

    python tools/kill_replica.py demo/model --seconds 20      # needs pip install 'tilewright[ray]'

Starts Ray and two replicas on this machine.  Clients send whole completions and streams whose prompts begin alike in
groups; after a third of the time one replica's process is killed.  Every request must end; one that had no part of its
answer must be answered by the other replica, a stream that had begun ends with an error event.  Then there must be two
replicas again, and groups must have kept to replicas: the share of prompts' tokens that were found in a cache is shown.
With `--autoscale` the application begins with one replica, and load must bring a second one.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ["PYTHONPATH"] = os.pathsep.join((sys.path[0], os.environ.get("PYTHONPATH", "")))  # of Ray's workers

GROUPS = 6
PREFIX = "The functions of this module take a list of names, and return what each of them stands for. "
TOKENS = 150
KEY = secrets.token_hex(16)


class Load:
    """Clients that send one request after the other until they are told to stop, and what they saw."""

    def __init__(self, address: str, clients: int) -> None:
        self.address, self.seen = address, Counter[str]()
        self.prompt_tokens = self.cached_tokens = 0
        self._lock, self._over = threading.Lock(), threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(clients)]
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Stop; raises where a client hangs."""
        self._over.set()
        for thread in self._threads:
            thread.join(90)
            if thread.is_alive():
                raise TimeoutError("a request never ended")

    def _work(self, client: int) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            is_stream = (client + number) % 2 == 1
            outcome, usage = self._ask((client + number) % GROUPS, number, is_stream)
            with self._lock:
                self.seen[f"{'stream' if is_stream else 'whole'}: {outcome}"] += 1
                self.prompt_tokens += usage.get("prompt_tokens", 0)
                self.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    def _ask(self, group: int, number: int, is_stream: bool) -> tuple[str, dict[str, Any]]:
        body: dict[str, Any] = {
            "prompt": f"{group}: " + PREFIX * 4 + str(number), "max_tokens": TOKENS, "ignore_eos": True,
        }  # fmt: skip
        if is_stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        try:
            with urllib.request.urlopen(_request(f"{self.address}/v1/completions", body), timeout=60) as answer:
                if not is_stream:
                    return "answered", json.load(answer)["usage"]
                events = [line.removeprefix(b"data: ") for line in answer.read().splitlines() if line]
        except urllib.error.HTTPError as error:
            return f"status {error.code}", {}
        except OSError as error:
            return f"no answer ({type(error).__name__})", {}
        if events[-1:] != [b"[DONE]"]:
            last = json.loads(events[-1]) if events else {}
            return ("ended by an error event" if "error" in last else "cut off"), {}
        return "answered", json.loads(events[-2]).get("usage") or {}


def _request(url: str, body: dict[str, Any]) -> urllib.request.Request:
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    return urllib.request.Request(url, json.dumps(body).encode(), headers)


def replica_processes(root: int) -> Iterator[int]:
    """The processes of replicas beneath a process."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or not _is_beneath(int(folder.name), root):
            continue
        if (folder / "cmdline").read_bytes().startswith(b"ray::ServeReplica:default:replica"):
            yield int(folder.name)


def _is_beneath(process: int, root: int) -> bool:
    while process not in (0, 1, root):
        try:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return process == root


def wait_for_replicas(count: int, seconds: float) -> float:
    """The seconds until so many replicas are ready; raises where they are not in time."""
    from ray import serve

    began = time.monotonic()
    while time.monotonic() - began < seconds:
        states = serve.status().applications["default"].deployments["replica"].replica_states
        if states.get("RUNNING", 0) >= count and sum(states.values()) == states["RUNNING"]:
            return time.monotonic() - began
        time.sleep(0.2)
    raise TimeoutError(f"there are no {count} replicas after {seconds:g} s")


def run(path: Path, seconds: float, clients: int, autoscale: bool, port: int = 8437) -> dict[str, Any]:
    """Serve, load, kill; gives what was seen."""
    import ray
    from ray import serve

    from tilewright.llm.serve.replicas import ReplicaSettings, application

    options = {"replicas": 1, "most_replicas": 2, "requests_each": 2} if autoscale else {"replicas": 2}
    report: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        ray.init(
            num_cpus=2, include_dashboard=False, _temp_dir=folder, object_store_memory=100 << 20, log_to_driver=False
        )
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
            key_file = Path(folder) / "keys"
            key_file.write_text(KEY)
            serve.run(application(ReplicaSettings(
                path=path.resolve(), key_file=key_file, threads=1, memory=256, health_seconds=1, **options
            )))  # fmt: skip
            load = Load(f"http://127.0.0.1:{port}", clients)
            try:
                if autoscale:
                    report["seconds until load brought a second replica"] = round(wait_for_replicas(2, 120), 1)
                time.sleep(seconds / 3)
                os.kill(next(replica_processes(os.getpid())), signal.SIGKILL)
                time.sleep(1)
                report["seconds until there were two again"] = round(1 + wait_for_replicas(2, 120), 1)
                time.sleep(seconds * 2 / 3)
            finally:
                load.finish()
            report |= dict(sorted(load.seen.items()))
            report["share of prompt tokens from caches"] = round(load.cached_tokens / max(1, load.prompt_tokens), 3)
        finally:
            serve.shutdown()
            ray.shutdown()
    return report


def is_good(report: dict[str, Any], clients: int) -> bool:
    """Whether all requests were answered but at most the streams that a killed replica had begun."""
    bad = {
        name: count for name, count in report.items() if name.startswith(("whole", "stream")) and "answered" not in name
    }
    cut = bad.pop("stream: ended by an error event", 0)
    return not bad and cut <= clients and report.get("whole: answered", 0) > 0


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--autoscale", action="store_true")
    arguments = parser.parse_args()
    report = run(arguments.path, arguments.seconds, arguments.clients, arguments.autoscale)
    for name, value in report.items():
        print(f"{name}: {value}")
    return 0 if is_good(report, arguments.clients) else 1


if __name__ == "__main__":
    sys.exit(main())
