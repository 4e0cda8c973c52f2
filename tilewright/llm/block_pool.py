"""Pages of the KV cache: their owners, free pages, and the prefixes that they still hold.

A block is a page of the pools, by its number; there are no tensors here.  A full block may be published under the
digest of its tokens and of all before them (a chain of SHA-256, with the tenant's salt at its root), so that another
sequence with the same beginning takes it instead of computing it again; tokens are compared as well.  A block that
nobody holds stays known until its place is needed: free blocks lie in a linked list, the one that was given back
first is taken first.

The list and the cache of chained digests follow vLLM's block pool (Kwon et al., 2023).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_NONE = -1


def root_digest(salt: str) -> bytes:
    """The digest before the first block of sequences that may share blocks: those of one salt."""
    return hashlib.sha256(b"tilewright prefix\0" + salt.encode(errors="surrogatepass")).digest()


def next_digest(before: bytes, tokens: Sequence[int]) -> bytes:
    """The digest of a full block after the block with the digest `before`."""
    return hashlib.sha256(before + array("q", tokens).tobytes()).digest()


@dataclass(frozen=True)
class _Known:
    """What a published block holds."""

    digest: bytes
    before: bytes
    tokens: tuple[int, ...]


class BlockPool:
    """`count` blocks of `size` tokens each.  All operations take a time that does not depend on `count`."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self._holders = [0] * count
        self._known: list[_Known | None] = [None] * count
        self._by_digest: dict[bytes, int] = {}
        # A ring through the free blocks; number `count` is its head.
        self._next = [*range(1, count + 1), 0]
        self._previous = [count, *range(count)]
        self.free = count

    def allocate(self) -> int:
        """A block that nobody holds, forgotten by the cache.  Raises `IndexError` when there is none."""
        block = self._next[self.count]
        if block == self.count:
            raise IndexError("no block is free")
        self._unlink(block)
        self._forget(block)
        self._holders[block] = 1
        return block

    def find(self, before: bytes, tokens: Sequence[int]) -> int | None:
        """The published block of these tokens after `before`; it is not held by that."""
        block = self._by_digest.get(next_digest(before, tokens))
        if block is None:
            return None
        known = self._known[block]
        assert known is not None
        return block if known.before == before and known.tokens == tuple(tokens) else None

    def hold(self, block: int) -> None:
        """One more holder of a published block or a held one."""
        if self._holders[block] == 0:
            self._unlink(block)
        self._holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One holder less of each, the last block of a sequence first: beginnings are wanted again most often.

        Raises `ValueError` for a block that nobody holds.
        """
        for block in blocks:
            if self._holders[block] <= 0:
                raise ValueError(f"block {block} is given back, and nobody holds it")
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self._append(block)

    def publish(self, block: int, before: bytes, tokens: Sequence[int]) -> bytes:
        """Make a full block known, unless another with its contents is; gives its digest."""
        digest = next_digest(before, tokens)
        if digest not in self._by_digest and self._known[block] is None:
            self._known[block] = _Known(digest, before, tuple(tokens))
            self._by_digest[digest] = block
        return digest

    def holders(self, block: int) -> int:
        """How many sequences hold a block."""
        return self._holders[block]

    def is_free(self, block: int) -> bool:
        """Whether nobody holds a block."""
        return self._holders[block] == 0

    def clear(self) -> None:
        """Forget all published blocks."""
        for block in list(self._by_digest.values()):
            self._forget(block)

    def check(self) -> None:
        """Raise `AssertionError` where the lists contradict each other; for tests."""
        listed, block = [], self._next[self.count]
        while block != self.count:
            assert self._previous[self._next[block]] == block
            listed.append(block)
            block = self._next[block]
        assert len(listed) == len(set(listed)) == self.free
        assert set(listed) == {number for number in range(self.count) if self._holders[number] == 0}
        for digest, number in self._by_digest.items():
            known = self._known[number]
            assert known is not None and known.digest == digest == next_digest(known.before, known.tokens)
        assert sum(known is not None for known in self._known) == len(self._by_digest)

    def _forget(self, block: int) -> None:
        known = self._known[block]
        if known is not None:
            del self._by_digest[known.digest]
            self._known[block] = None

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        self._next[block] = self._previous[block] = _NONE
        self.free -= 1

    def _append(self, block: int) -> None:
        last = self._previous[self.count]
        self._next[last], self._previous[block] = block, last
        self._next[block], self._previous[self.count] = self.count, block
        self.free += 1
