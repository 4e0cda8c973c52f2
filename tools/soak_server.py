"""A language model server under three times the load that it can bear, and with clients that are killed at any byte.

python tools/soak_server.py [--seconds 300] [--kills 500] [--seed 0]

The server runs in a process of its own, over sockets.  First its capacity is measured, then requests come at three
times that rate, some of them streams, some of clients that hang up; then clients are cut off after a random number of
bytes, of the request or of the answer.  Refusals may be 429 and 503 only, each with `Retry-After`; resident memory may
grow by 1 % from the middle of the overload to its end; after all no page is held, within a second, and the server
reaches 80 % of its old pace, which a machine that does nothing else can tell.  Ends with status 1 where one of these
does not hold, and says which.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.host.llm_support import text_checkpoint

PLACES = 24
LEAST_PACE = 0.8  # of the requests a second before the overload


def start(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """The server, once it answers."""
    command = [sys.executable, "-m", "tilewright", "serve", str(folder), "--port", str(port), "--memory", "1",
               "--requests", str(PLACES), "--seconds", "60"]  # fmt: skip
    server = subprocess.Popen(command)
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return server
        except OSError:
            time.sleep(0.1)
    sys.exit(f"the server ended with {server.returncode}")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def request(rng: random.Random) -> bytes:
    """One completion, as it goes over the line."""
    length = rng.randint(1, 60)
    body = json.dumps({
        "prompt": "".join(rng.choice("abcdef ") for _ in range(length)), "max_tokens": rng.randint(1, 60),
        "stream": rng.random() < 0.5, "ignore_eos": True, "n": rng.choice([1, 1, 2]),
    }).encode()  # fmt: skip
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def ask(port: int, content: bytes, sent: int | None = None, received: int | None = None) -> bytes:
    """The answer; the client sends and takes so many bytes at most, and then cuts the line."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(content[:sent])
        await writer.drain()
        if sent is not None and sent < len(content):
            return b""
        if received is None:
            return await reader.read(-1)
        found = b""
        while len(found) < received and (piece := await reader.read(received - len(found))):
            found += piece
        return found
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


def status(answer: bytes) -> int:
    """Of an answer; 0 without one, and 1 for a refusal that does not say when to come again."""
    found = int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0
    return 1 if found in (429, 503) and b"retry-after" not in answer.lower() else found


async def capacity(port: int, rng: random.Random, seconds: float) -> float:
    """Requests a second when as many run as there are places for."""
    end, done = time.monotonic() + seconds, 0

    async def client() -> None:
        nonlocal done
        while time.monotonic() < end:
            answer = await ask(port, request(rng))
            done += status(answer) == 200

    began = time.monotonic()
    await asyncio.gather(*(client() for _ in range(PLACES // 3)))
    return done / (time.monotonic() - began)


async def overload(port: int, rng: random.Random, rate: float, seconds: float, memory: list[float], process: int) -> (
    collections.Counter[int]
):  # fmt: skip
    """Requests at a rate; the statuses of those whose clients stayed."""
    found: collections.Counter[int] = collections.Counter()
    running: set[asyncio.Task[None]] = set()

    async def one() -> None:
        leaves = rng.randint(0, 300) if rng.random() < 0.1 else None
        answer = await ask(port, request(rng), received=leaves)
        if leaves is None:
            found[status(answer)] += 1

    began = time.monotonic()
    every = min(5.0, seconds / 8)
    sampled = -every
    while (now := time.monotonic() - began) < seconds:
        task = asyncio.ensure_future(one())
        running.add(task)
        task.add_done_callback(running.discard)
        if now - sampled >= every:
            sampled = now
            memory.append(resident(process))
        await asyncio.sleep(rng.expovariate(rate))
    await asyncio.gather(*running)
    memory.append(resident(process))
    return found


async def left(port: int) -> float:
    """Seconds until no page is held."""
    began = time.monotonic()
    while time.monotonic() - began < 60:
        answer = await ask(port, b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        if re.search(rb"tilewright_kv_cache_usage_perc 0\n", answer):
            break
    return time.monotonic() - began


def resident(process: int) -> float:
    """Memory that a process holds, in MB."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096 / 1e6


async def soak(port: int, process: int, seconds: float, kills: int, seed: int) -> bool:
    """All of it; whether all held."""
    rng = random.Random(seed)
    await capacity(port, rng, 2)
    before = await capacity(port, rng, min(20.0, seconds / 4))
    memory: list[float] = []
    statuses = await overload(port, rng, 3 * before, seconds, memory, process)
    drained = await left(port)
    growth = memory[-1] / memory[len(memory) // 2] - 1
    print(f"capacity {before:.0f} requests/s; {3 * before:.0f}/s for {seconds:.0f} s: {dict(statuses)}; memory "
          f"{memory[0]:.0f}, {memory[len(memory) // 2]:.0f}, {memory[-1]:.0f} MB; "
          f"pages free after {drained:.2f} s")  # fmt: skip
    slowest = 0.0
    for _ in range(kills):
        content = request(rng)
        at = rng.randint(0, len(content) + 400)
        await ask(port, content, min(at, len(content)), max(0, at - len(content)))
        slowest = max(slowest, await left(port))
    after = await capacity(port, rng, min(20.0, seconds / 4))
    print(f"{kills} clients killed; pages free after at most {slowest:.2f} s; then {after:.0f} requests/s")
    passed = {
        "refusals are 429 and 503 with Retry-After": set(statuses) <= {200, 429, 503} and statuses[200] > 0,
        "memory grows by at most 1 %": growth <= 0.01,
        "pages are free within a second": max(drained, slowest) < 1.0,
        f"{LEAST_PACE:.0%} of the old pace": after >= LEAST_PACE * before,
    }
    print("".join(f"does not hold: {name}\n" for name, holds in passed.items() if not holds), end="")
    return all(passed.values())


def main() -> None:
    """Start the server, and load it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.seconds <= 0 or given.kills < 0:
        parser.error("--seconds is more than 0, --kills 0 or more")
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        server = start(text_checkpoint(Path(folder) / "bytes"), port)
        try:
            passed = asyncio.run(soak(port, server.pid, given.seconds, given.kills, given.seed))
        finally:
            server.terminate()
            server.wait(60)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
