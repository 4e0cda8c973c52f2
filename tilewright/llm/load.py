"""A load generator for OpenAI-compatible servers: random arrivals, latency and throughput.

Definitions, as benchmarks of language models have them: TTFT is from sending to the first streamed token, TPOT the rest
of the time for each further token (one value for each request, those with one token left out), ITL each gap between
pieces of a stream, E2EL from sending to the last byte.  Goodput counts the requests a second that meet all bounds.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from tilewright.errors import InputError

LATENCY_METRICS = ("ttft", "tpot", "itl", "e2el")
_MOST_LINE = 1 << 20  # bytes of a line of an answer


@dataclass
class RequestTiming:
    """One request as the client saw it; seconds."""

    input_tokens: int
    output_tokens: int = 0
    start: float = 0.0
    ttft: float = 0.0
    gaps: list[float] = field(default_factory=list)
    latency: float = 0.0
    error: str | None = None

    @property
    def tpot(self) -> float | None:
        """Of a request with at least two tokens."""
        return None if self.output_tokens < 2 else (self.latency - self.ttft) / (self.output_tokens - 1)


def arrivals(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """When requests are sent, in seconds: gaps of a gamma distribution (1 is Poisson), all at once at infinite rate."""
    if not np.isfinite(rate):
        return [0.0] * count
    gaps = np.random.default_rng(seed).gamma(burstiness, 1.0 / (rate * burstiness), count)
    return list(np.cumsum(gaps) - gaps[0])


def random_prompts(
    count: int, length: int, spread: float, vocabulary: int, seed: int, shared: int = 0
) -> list[list[int]]:
    """Prompts of random tokens, of lengths within `spread` of `length`, after `shared` tokens that all begin with."""
    rng = np.random.default_rng(seed)
    prefix = rng.integers(0, vocabulary, shared).tolist()
    lengths = rng.integers(max(1, round(length * (1 - spread))), round(length * (1 + spread)) + 1, count)
    return [[*prefix, *rng.integers(0, vocabulary, size).tolist()] for size in lengths]


async def run(
    address: str,
    model: str | None,
    prompts: Sequence[Sequence[int]],
    output_tokens: int,
    starts: Sequence[float],
    *,
    concurrency: int | None = None,
    key: str | None = None,
    sampling: Mapping[str, Any] | None = None,
    timeout: float = 600.0,
    progress: Callable[[], None] = lambda: None,
) -> tuple[list[RequestTiming], float]:
    """Send a streamed completion for each prompt at its time; gives the timings and the seconds of the whole.

    At most `concurrency` requests run at once.  What fails is in a timing's `error`.
    """
    host, port, path = _address(address)
    gate = asyncio.Semaphore(concurrency or len(prompts))
    began = time.perf_counter()
    body = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": output_tokens, "ignore_eos": True,
            **({"model": model} if model else {}), **(sampling or {})}  # fmt: skip

    async def one(prompt: Sequence[int], start: float) -> RequestTiming:
        await asyncio.sleep(max(0.0, began + start - time.perf_counter()))
        timing = RequestTiming(len(prompt))
        async with gate:
            timing.start = time.perf_counter() - began
            try:
                async with asyncio.timeout(timeout):
                    await _complete(host, port, path, {**body, "prompt": list(prompt)}, key, timing)
            except Exception as error:  # whatever one answer holds, the other requests go on
                timing.error = f"{type(error).__name__}: {str(error)[:200]}"
        progress()
        return timing

    timings = await asyncio.gather(*(one(prompt, start) for prompt, start in zip(prompts, starts, strict=True)))
    return timings, time.perf_counter() - began


def summary(
    timings: Sequence[RequestTiming], duration: float, percentiles: Sequence[float] = (50, 90, 99),
    bounds: Mapping[str, float] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The conventional keys; `bounds` in milliseconds by metric give the goodput."""
    good = [timing for timing in timings if timing.error is None]
    inputs, outputs = (sum(getattr(one, name) for one in good) for name in ("input_tokens", "output_tokens"))
    found: dict[str, Any] = {
        "duration": duration, "completed": len(good), "failed": len(timings) - len(good),
        "total_input_tokens": inputs, "total_output_tokens": outputs,
        "request_throughput": len(good) / duration, "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration, "max_concurrent_requests": _most_at_once(good),
    }  # fmt: skip
    if bounds:
        met = [one for one in good if all(_milliseconds(one, name) <= most for name, most in bounds.items())]
        found["request_goodput"] = len(met) / duration
    values = {
        "ttft": [one.ttft for one in good], "tpot": [one.tpot for one in good if one.tpot is not None],
        "itl": [gap for one in good for gap in one.gaps], "e2el": [one.latency for one in good],
    }  # fmt: skip
    for name, seconds in values.items():
        each = np.array(seconds or [0.0]) * 1e3
        found |= {f"mean_{name}_ms": float(each.mean()), f"median_{name}_ms": float(np.median(each)),
                  f"std_{name}_ms": float(each.std())}  # fmt: skip
        found |= {f"p{percentile:g}_{name}_ms": float(np.percentile(each, percentile)) for percentile in percentiles}
    return found


def details(timings: Sequence[RequestTiming]) -> dict[str, Any]:
    """Each request's numbers."""
    return {
        "input_lens": [one.input_tokens for one in timings], "output_lens": [one.output_tokens for one in timings],
        "ttfts": [one.ttft for one in timings], "itls": [one.gaps for one in timings],
        "latencies": [one.latency for one in timings], "start_times": [one.start for one in timings],
        "errors": [one.error or "" for one in timings],
    }  # fmt: skip


def _milliseconds(timing: RequestTiming, metric: str) -> float:
    value = {"ttft": timing.ttft, "tpot": timing.tpot or 0.0, "e2el": timing.latency}[metric]
    return value * 1e3


def _most_at_once(timings: Sequence[RequestTiming]) -> int:
    changes = [(one.start, 1) for one in timings] + [(one.start + one.latency, -1) for one in timings]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def _address(address: str) -> tuple[str, int, str]:
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise InputError(f"{address!r} is no address like http://127.0.0.1:8000 ({error})") from error
    if parts.scheme != "http" or not parts.hostname:
        raise InputError(f"{address!r} is no address like http://127.0.0.1:8000")
    return parts.hostname, 80 if port is None else port, parts.path.rstrip("/") + "/v1/completions"


async def _complete(host: str, port: int, path: str, body: Any, key: str | None, timing: RequestTiming) -> None:
    """One streamed completion."""
    content = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"host: {host}:{port}", "content-type: application/json", "connection: close",
             f"content-length: {len(content)}"]  # fmt: skip
    if key is not None:
        lines.append(f"authorization: Bearer {key}")
    began = last = time.perf_counter()
    reader, writer = await asyncio.open_connection(host, port, limit=_MOST_LINE)
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        await writer.drain()
        async for event in _events(reader):
            now = time.perf_counter()
            if "error" in event:
                found = event["error"]
                raise ValueError(str(found.get("message") if isinstance(found, dict) else found))
            if event.get("usage"):
                timing.output_tokens = int(event["usage"]["completion_tokens"])
            if event.get("choices"):
                if timing.ttft == 0.0:
                    timing.ttft = now - began
                else:
                    timing.gaps.append(now - last)
                last = now
        timing.latency = time.perf_counter() - began
        if last == began:
            raise ValueError("the answer ended without a token")
    finally:
        writer.close()


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The events of an answer; raises `ValueError` for one that is no stream."""
    status = (await reader.readline()).split()
    headers: dict[str, str] = {}
    while (line := (await reader.readline()).strip()) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    text = b""
    async for piece in _pieces(reader, "chunked" in headers.get("transfer-encoding", "")):
        text += piece
        while (end := text.find(b"\n\n")) >= 0:
            event, text = text[:end].removeprefix(b"data: "), text[end + 2 :]
            if event and event != b"[DONE]":
                found = json.loads(event)
                if not isinstance(found, dict):
                    raise ValueError(f"an event is no object: {event[:100].decode('utf-8', 'replace')}")
                yield found
    if len(status) < 2 or status[1] != b"200":
        raise ValueError(
            f"status {status[1].decode() if len(status) > 1 else 'none'}: {text[:200].decode('utf-8', 'replace')}"
        )


async def _pieces(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    while chunked:
        size = int((await reader.readline()).strip() or b"0", 16)
        if size == 0:
            return
        yield await reader.readexactly(size)
        await reader.readline()
    while piece := await reader.read(1 << 16):
        yield piece
