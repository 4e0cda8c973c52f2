"""Which replica takes a request, without Ray; and with Ray, where it is installed, replicas of which one is killed."""

from __future__ import annotations

import collections
import random
from pathlib import Path

import pytest

from tilewright.llm.serve.affinity import BLOCK, MOST_BLOCKS, Affinity, digests_of

MODEL = Path(__file__).resolve().parents[2] / "demo" / "model"


def test_prompts_share_the_digests_of_their_common_beginning():
    first, second = b"a" * 3 * BLOCK + b"one", b"a" * 2 * BLOCK + b"b" * BLOCK
    one, other = digests_of(first), digests_of(second)
    assert len(one) == len(other) == 3 and one[:2] == other[:2] and one[2] != other[2]
    assert not set(one) & set(digests_of(first, b"another tenant"))
    assert digests_of(b"a" * (BLOCK - 1)) == []
    assert len(digests_of(b"a" * (MOST_BLOCKS + 5) * BLOCK)) == MOST_BLOCKS


def test_a_prompt_goes_where_most_of_it_is_held():
    affinity = Affinity(seed=0)
    short, long = digests_of(b"x" * BLOCK), digests_of(b"x" * 4 * BLOCK)
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
    prompts = [digests_of(bytes([65 + number]) * 4 * BLOCK) for number in range(4)]
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
        prompt = digests_of(f"{group} ".encode() * BLOCK)
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


@pytest.mark.slow
def test_requests_outlive_a_replica():
    pytest.importorskip("ray")
    from tools.kill_replica import is_good, run

    report = run(MODEL, seconds=6, clients=4, autoscale=False)
    assert is_good(report, 4), report
