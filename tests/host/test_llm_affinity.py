"""Which replica takes a request, without Ray; and with Ray, where it is installed, replicas of which one is killed."""

from __future__ import annotations

import asyncio
import collections
import json
import random
from pathlib import Path

import pytest

from tilewright.llm.serve.affinity import DIGEST_BLOCK, MOST_BLOCKS, Affinity, digests_of, prompt_digests
from tilewright.llm.serve.application import Bounds
from tilewright.llm.serve.gateway import Gate
from tilewright.llm.serve.protocol import Refused

MODEL = Path(__file__).resolve().parents[2] / "demo" / "model"


def test_prompts_share_the_digests_of_their_common_beginning():
    first, second = b"a" * 3 * DIGEST_BLOCK + b"one", b"a" * 2 * DIGEST_BLOCK + b"b" * DIGEST_BLOCK
    one, other = digests_of(first), digests_of(second)
    assert len(one) == len(other) == 3 and one[:2] == other[:2] and one[2] != other[2]
    assert not set(one) & set(digests_of(first, b"another tenant"))
    assert digests_of(b"a" * (DIGEST_BLOCK - 1)) == []
    assert len(digests_of(b"a" * (MOST_BLOCKS + 5) * DIGEST_BLOCK)) == MOST_BLOCKS


def test_a_prompt_goes_where_most_of_it_is_held():
    affinity = Affinity(seed=0)
    short, long = digests_of(b"x" * DIGEST_BLOCK), digests_of(b"x" * 4 * DIGEST_BLOCK)
    affinity.note(short, "a")
    affinity.note(long, "b")
    idle = {"a": 0, "b": 0, "c": 0}
    assert affinity.choose(long, {**idle, "b": 3}) == "b"
    assert affinity.choose(short, {**idle, "a": 1}) == "b"  # both hold it
    assert affinity.choose(long, {**idle, "b": 9}) == "a"  # too much to do: the next best
    affinity.keep({"a", "c"})
    assert affinity.choose(long, {"a": 1, "c": 0}) == "a"


def test_what_is_remembered_is_bounded_and_the_oldest_is_forgotten():
    affinity = Affinity(most=8, seed=0)
    prompts = [digests_of(bytes([65 + number]) * 4 * DIGEST_BLOCK) for number in range(4)]
    for prompt in prompts:
        affinity.note(prompt, "a")
    assert affinity.choose(prompts[3], {"a": 2, "b": 0}) == "a"
    assert affinity.choose(prompts[0], {"a": 2, "b": 0}) == "b"


@pytest.mark.parametrize("groups", [1, 7, 40])
def test_groups_of_prompts_stay_together_and_load_is_shared(groups: int):
    """Requests of groups that begin alike, each of which takes a while; against any order of arrival and end."""
    rng, affinity = random.Random(groups), Affinity(seed=groups)
    loads = dict.fromkeys("abcd", 0)
    running: collections.deque[str] = collections.deque()
    held: set[tuple[int, str]] = set()
    found = 0
    for _ in range(2000):
        group = rng.randrange(groups)
        prompt = digests_of(f"{group} ".encode() * DIGEST_BLOCK)
        name = affinity.choose(prompt, loads)
        assert loads[name] <= 2 * min(loads.values()) + 4
        affinity.note(prompt, name)
        found += (group, name) in held
        held.add((group, name))
        loads[name] += 1
        running.append(name)
        if len(running) > 32:
            running.rotate(-rng.randrange(len(running)))
            loads[running.popleft()] -= 1
    assert found >= 2000 - 4 * groups  # each replica computes a beginning once at most
    assert len(held) <= max(4, 2.5 * groups)


KEY = "a key of enough characters"


def test_a_gateway_asks_for_a_key_before_it_reads():
    gate = Gate([KEY], Bounds())
    for headers in ([], [(b"authorization", b"Bearer another key, as long")], [(b"host", b"localhost")]):
        with pytest.raises(Refused) as refused:
            gate.check("/v1/completions", headers)
        assert refused.value.status == 401
    gate.check("/v1/completions", [(b"Authorization", b"bearer " + KEY.encode())])
    gate.check("/health", [])


def test_bodies_are_bounded_each_and_together():
    gate = Gate([KEY], Bounds(body=100, body_seconds=0.05), most_held=150)

    async def pieces(*sizes: int, seconds: float = 0.0):
        for size in sizes:
            await asyncio.sleep(seconds)
            yield bytes(size)

    async def status_of(given) -> int:
        try:
            async with gate.body(given) as body:
                return len(body)
        except Refused as refused:
            return -refused.status

    async def run() -> None:
        assert await status_of(pieces(40, 60)) == 100
        assert await status_of(pieces(60, 41)) == -413
        assert await status_of(pieces(10, 10, seconds=0.04)) == -408
        async with gate.body(pieces(100)):
            assert gate.body_bytes == 100
            assert await status_of(pieces(30, 21)) == -503
            assert await status_of(pieces(50)) == 50
        assert gate.body_bytes == 0

    asyncio.run(run())


def test_the_prompt_of_a_body_is_found_without_parsing_it():
    text = 'once "prompt": ' + "upon a time " * 100
    headers = [(b"Authorization", b"Bearer " + KEY.encode())]

    def digests(fields, given=headers, **how):
        return prompt_digests(given, json.dumps(fields, **how).encode())

    chat = [{"role": "user", "content": text}]
    found = digests({"model": "m", "max_tokens": 7, "messages": chat})
    assert len(found) >= 4
    longer = [*chat, {"role": "assistant", "content": "yes " * 99}, {"role": "user", "content": "more"}]
    assert digests({"seed": 12, "messages": longer, "model": "m"})[: len(found) - 1] == found[:-1]
    assert digests({"model": "n", "messages": chat})[0] != found[0]
    assert digests({"model": "m", "messages": chat}, [])[0] != found[0]
    assert digests({"model": "m"}) == [] and prompt_digests(headers, b"\xff" * 999) == []
    assert len(prompt_digests(headers, b'{"prompt": "' + b"x" * 9 * DIGEST_BLOCK)) == 9  # whether or not it is JSON
    for hostile in (b'"model"' + b" " * (4 << 20), b'{"a":' * 800_000, b'"model":' * 500_000):
        assert prompt_digests(headers, hostile) == []


@pytest.mark.slow
def test_requests_outlive_a_replica():
    pytest.importorskip("ray")
    from tools.kill_replica import is_good, run

    report = run(MODEL, seconds=6, clients=4, autoscale=False)
    assert is_good(report, 4), report
