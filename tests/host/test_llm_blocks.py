"""The pool of blocks: random operations against a plain model of it, and what its cache gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tilewright.llm.block_pool import BlockPool, next_digest, root_digest

ROOT = root_digest("")


class Pool(RuleBasedStateMachine):
    """Blocks are held, shared, published and given back in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(7, 2)
        self.held: list[int] = []  # a block once for each holder
        self.contents: dict[int, tuple[bytes, tuple[int, ...]]] = {}

    @precondition(lambda self: self.pool.free)
    @rule()
    def allocate(self) -> None:
        block = self.pool.allocate()
        assert block not in self.held
        self.contents.pop(block, None)
        self.held.append(block)

    @precondition(lambda self: not self.pool.free)
    @rule()
    def allocate_without_room(self) -> None:
        with pytest.raises(IndexError):
            self.pool.allocate()

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        block = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.release([block])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), token=st.integers(0, 3), salt=st.sampled_from(["", "other"]))
    def publish(self, data: st.DataObject, token: int, salt: str) -> None:
        block = data.draw(st.sampled_from(self.held))
        before, tokens = root_digest(salt), (token, token + 1)
        known = {key for key in self.contents.values()}
        self.pool.publish(block, before, tokens)
        if block not in self.contents and (before, tokens) not in known:
            self.contents[block] = (before, tokens)

    @rule(token=st.integers(0, 3), salt=st.sampled_from(["", "other"]))
    def find_and_hold(self, token: int, salt: str) -> None:
        wanted = (root_digest(salt), (token, token + 1))
        block = self.pool.find(*wanted)
        assert (block is not None) == (wanted in self.contents.values())
        if block is not None:
            assert self.contents[block] == wanted
            self.pool.hold(block)
            self.held.append(block)

    @rule()
    def give_back_twice(self) -> None:
        free = next((block for block in range(self.pool.count) if block not in self.held), None)
        if free is not None:
            with pytest.raises(ValueError, match="nobody holds"):
                self.pool.release([free])

    @invariant()
    def counts_agree(self) -> None:
        self.pool.check()
        for block in range(self.pool.count):
            assert self.pool.holders(block) == self.held.count(block)


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_many_random_operations(rng):
    """A long walk, which ends with everything given back."""
    pool = BlockPool(64, 4)
    held: list[int] = []
    for number, choice in enumerate(rng.random(100_000)):
        if choice < 0.45 and pool.free:
            held.append(pool.allocate())
        elif choice < 0.55 and held:
            pool.publish(held[-1], ROOT, tuple(rng.integers(0, 6, 4).tolist()))
        elif choice < 0.65:
            block = pool.find(ROOT, tuple(rng.integers(0, 6, 4).tolist()))
            if block is not None:
                pool.hold(block)
                held.append(block)
        elif held:
            pool.release([held.pop(int(rng.integers(len(held))))])
        if number % 5000 == 0:
            pool.check()
    pool.release(held)
    pool.check()
    assert pool.free == pool.count


def test_the_block_given_back_first_is_taken_first():
    pool = BlockPool(4, 1)
    blocks = [pool.allocate() for _ in range(4)]
    pool.release([blocks[2], blocks[0]])
    assert [pool.allocate(), pool.allocate()] == [blocks[2], blocks[0]]


def test_a_block_stays_known_until_its_place_is_needed():
    pool = BlockPool(2, 2)
    block = pool.allocate()
    pool.publish(block, ROOT, (5, 6))
    pool.release([block])
    assert pool.find(ROOT, (5, 6)) == block and pool.find(ROOT, (5, 7)) is None
    pool.allocate()
    assert pool.find(ROOT, (5, 6)) == block  # the other one was older
    pool.allocate()
    assert pool.find(ROOT, (5, 6)) is None


def test_salts_and_beginnings_are_part_of_the_digest():
    digests = {root_digest(salt) for salt in ("", "a", "b")}
    digests |= {next_digest(root_digest(salt), tokens) for salt in ("", "a") for tokens in ((1, 2), (1, 3), (12,))}
    assert len(digests) == 9


def test_a_collision_gives_no_block(monkeypatch):
    """Tokens are compared: a digest that two contents share does not make them one."""
    monkeypatch.setattr("tilewright.llm.block_pool.next_digest", lambda before, tokens: b"same")
    pool = BlockPool(2, 2)
    pool.publish(pool.allocate(), ROOT, (1, 2))
    assert pool.find(ROOT, (1, 2)) is not None
    assert pool.find(ROOT, (3, 4)) is None and pool.find(root_digest("other"), (1, 2)) is None


def test_everything_can_be_forgotten():
    pool = BlockPool(3, 2)
    block = pool.allocate()
    pool.publish(block, ROOT, (1, 2))
    pool.clear()
    assert pool.find(ROOT, (1, 2)) is None and pool.holders(block) == 1
    pool.check()


def test_the_digest_does_not_depend_on_how_tokens_are_held():
    assert next_digest(ROOT, [1, 2]) == next_digest(ROOT, (1, 2)) == next_digest(ROOT, np.array([1, 2]).tolist())
