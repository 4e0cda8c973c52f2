"""Requests drawn from the OpenAPI document that the language model server gives of itself, in this process.

python tools/fuzz_server.py [--requests 100000] [--seed 0] [--at-once 16]

Bodies follow the document, leave it in one place or in many, or are no JSON; some clients go away in the middle.  No
answer may be a 5xx, nothing may be left of a request, and the server must work after all of them.  The model is one of
the tests', with a layer and an alphabet of bytes.  Ends with status 1 after a failure, and prints its seed and body.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
import resource
import string
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.host.llm_support import text_checkpoint
from tilewright.llm.asynchronous import AsyncLLM
from tilewright.llm.serve.application import Application, Bounds

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, -(2**63) - 1, 10**400, 0.0, -0.5, 1.5, 1e-308, 1e308, "", "a",
    "\0", "é\ud800", "x" * 70, "y" * 3000, "1", "null", [], [[]], [None], [0], ["a", 1], [[0], [1]], list(range(300)),
    {}, {"a": {}}, {"type": "object"}, {"type": "function"}, {"1": 1}, "{{ 7 }}", "%s%n", "../../etc/passwd",
]  # fmt: skip
FORMS: dict[str, list[Any]] = {
    "regex": ["a+b?", "[0-9]{1,3}", "(a|b)*", "(", "(?x)a # b", "a{0,9999}", "\\d+", "(?=a)",
              "a{" + " " * 60_000, "a{1" + "1" * 60_000, "a{1,2" + " " * 30_000 + "3" * 30_000],
    "grammar": ['root ::= "a" [0-9]+', 'start: "a" b\nb: /[0-9]/', "start: start", 'root ::= "a" # "', "root ::=",
                "\n" * 60_000, 'root ::= "a"{' + " " * 60_000],
    "json": [{"type": "object"}, {"enum": [1, "a"]}, {"$ref": "#"}, {"type": "string", "pattern": "a{2}"}, True,
             '{"type": "integer"}', {"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"const": 1}}}],
}  # fmt: skip


class Drawn:
    """Values of schemas."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def text(self, schema: dict[str, Any]) -> str:
        least, most = schema.get("minLength", 0), min(schema.get("maxLength", 24), 24)
        letters = self.rng.choice([string.ascii_lowercase + " ", string.printable, "aé漢🙂\u0301\u200b"])
        return "".join(self.rng.choice(letters) for _ in range(self.rng.randint(least, max(least, most))))

    def number(self, schema: dict[str, Any]) -> float:
        low, high = schema.get("minimum", -3), schema.get("maximum", 300)
        if schema["type"] == "integer":
            return self.rng.choice(
                [low, min(high, low + self.rng.randint(0, 8)), self.rng.randint(low, min(high, 300)), high]
            )
        return self.rng.choice([low, high, self.rng.uniform(low, high), (low + high) / 2, int(high)])

    def value(self, schema: dict[str, Any], name: str = "") -> Any:
        rng = self.rng
        kind = next((form for form in FORMS if name.endswith(form)), None)
        if kind is not None and rng.random() < 0.8:
            return rng.choice(FORMS[kind])
        if "anyOf" in schema:
            return self.value(rng.choice(schema["anyOf"]), name)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return rng.choice(schema["enum"])
        if schema["type"] == "array":
            least, most = schema.get("minItems", 0), min(schema.get("maxItems", 5), 5)
            return [self.value(schema["items"]) for _ in range(rng.randint(least, max(least, most)))]
        if schema["type"] == "object":
            return self.fields(schema)
        if schema["type"] == "boolean":
            return rng.random() < 0.5
        if "pattern" in schema:
            return "f" + str(rng.randint(0, 3))
        return self.text(schema) if schema["type"] == "string" else self.number(schema)

    def fields(self, schema: dict[str, Any], share: float = 0.3) -> dict[str, Any]:
        wanted = schema.get("required", ())
        found = {name: self.value(one, name) for name, one in schema.get("properties", {}).items()
                 if name in wanted or self.rng.random() < share}  # fmt: skip
        if isinstance(schema.get("additionalProperties"), dict):
            found |= {str(self.rng.randint(0, 300)): self.value(schema["additionalProperties"]) for _ in range(3)}
        elif "properties" not in schema and self.rng.random() < 0.5:
            found["type"] = "object"
        return found

    def body(self, schema: dict[str, Any], models: list[str]) -> bytes:
        """One body: half of them follow the schema."""
        rng = self.rng
        fields = self.fields(schema, rng.choice([0.0, 0.05, 0.2, 0.5]))
        if "model" in fields:
            fields["model"] = rng.choice(models)
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            if name in schema["properties"] and rng.random() < 0.8:
                fields[name] = rng.randint(1, 6)
        odd: Any = fields
        for _ in range(rng.choice([0, 0, 0, 1, 1, 4])):
            odd = self.changed(odd)
        text = json.dumps(odd).encode()
        if rng.random() < 0.03:
            at = rng.randrange(len(text) + 1)
            text = rng.choice(
                [text[:at], text[:at] + rng.randbytes(3) + text[at:], b"[" * 5000, b"", rng.randbytes(20)]
            )
        return text

    def changed(self, value: Any) -> Any:
        """The value with one thing in it that is odd."""
        rng = self.rng
        if isinstance(value, dict) and value and rng.random() < 0.85:
            name = rng.choice(list(value))
            return {**value, name: self.changed(value[name])}
        if isinstance(value, dict) and rng.random() < 0.5:
            return {**value, rng.choice(["x", "echo", "prompt", "role", "type", "$ref", "n"]): rng.choice(ODD)}
        if isinstance(value, list) and value and rng.random() < 0.7:
            at = rng.randrange(len(value))
            return [*value[:at], self.changed(value[at]), *value[at + 1 :]]
        return rng.choice(ODD)


async def send(application: Application, path: str, body: bytes, leaves: int | None) -> int | None:
    """The status of one request, None where the client went before it; an error in a stream is a status of 500."""
    parts = [body[:7], body[7:]]
    gone, status, failed = asyncio.Event(), None, False
    count = 0

    async def receive() -> dict[str, Any]:
        if parts:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def take(message: Any) -> None:
        nonlocal status, failed, count
        status = message.get("status", status)
        failed |= b'"server_error"' in message.get("body", b"")
        count += 1
        if leaves is not None and count > leaves:
            gone.set()
            await asyncio.sleep(0)

    if leaves == 0:
        gone.set()
    headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
    await application({"type": "http", "method": "POST", "path": path, "headers": headers}, receive, take)
    return 500 if failed else status


async def idle(application: Application, seconds: float = 60.0) -> None:
    """Wait until nothing is left of any request; raises `TimeoutError`."""
    engine, end = application.llm.llm.engine, time.monotonic() + seconds
    while engine.has_work or engine.statistics.used_pages or application.requests or application.tokens:
        if time.monotonic() > end:
            raise TimeoutError(f"requests have ended, and {engine.statistics} is left")
        await asyncio.sleep(0.01)


async def fuzz(application: Application, count: int, seed: int, at_once: int) -> collections.Counter[Any]:
    """All requests; raises what went wrong."""
    document: list[bytes] = []

    async def nothing() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def keep(message: Any) -> None:
        document.append(message.get("body", b""))

    await application({"type": "http", "method": "GET", "path": "/openapi.json", "headers": []}, nothing, keep)
    bodies = {path: route["post"]["requestBody"]["content"]["application/json"]["schema"]
              for path, route in json.loads(b"".join(document))["paths"].items() if "post" in route}  # fmt: skip
    if application.encoder is None:
        bodies.pop("/v1/embeddings")
    statuses: collections.Counter[Any] = collections.Counter()
    left = iter(range(count))

    async def client() -> None:
        for number in left:
            drawn = Drawn(seed * 1_000_003 + number)
            path = drawn.rng.choice(list(bodies))
            body = drawn.body(bodies[path], [application.name, application.name, "other"])
            leaves = drawn.rng.randint(0, 4) if drawn.rng.random() < 0.1 else None
            status = await send(application, path, body, leaves)
            statuses[status] += 1
            if status is not None and status >= 500:
                raise AssertionError(f"request {number} of seed {seed}: status {status} of {path} for {body!r}")
            if number % 5000 == 4999:
                print(number + 1, dict(statuses), f"{_memory():.0f} MB", flush=True)

    await asyncio.gather(*(client() for _ in range(at_once)))
    await idle(application)
    if (
        not application.llm.engine.is_healthy
        or await send(application, "/v1/completions", b'{"prompt": "x"}', None) != 200
    ):
        raise AssertionError("the server does not work any more")
    await idle(application)
    return statuses


def _memory() -> float:
    """The most that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Draw and send."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=16)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = AsyncLLM(text_checkpoint(Path(folder) / "bytes", num_hidden_layers=1), memory=1 << 20, tokens=128)
        application = Application(model, "bytes", bounds=Bounds(requests=1024))
        began = time.monotonic()
        statuses = asyncio.run(fuzz(application, given.requests, given.seed, given.at_once))
        model.close()
    print(f"{given.requests} requests in {time.monotonic() - began:.0f} s, {_memory():.0f} MB: {dict(statuses)}")


if __name__ == "__main__":
    main()
