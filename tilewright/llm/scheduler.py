"""Chooses the tokens and sequences of the next step: policy without tensors.

There are no phases.  A sequence has tokens (its prompt, and what was sampled) of which a number is computed; a step
hands out a budget of tokens so that the computed ones catch up.  Prompts in chunks, single new tokens, prefixes that
were found, and sequences that start again after they lost their blocks are all this one rule.

Work is planned (`schedule`), begins (`begin`), and is done (`advance`).  The next work may be planned once the last has
begun: a token that it is still choosing has its place in the sequence, as a number below 0 (`llm.model.Chunk`).

Sequences that run come first, in the order of their arrival; then waiting ones, as long as there is budget and there
are blocks.  When a running sequence needs a block and none is free, the one that arrived last gives all of its blocks
back and waits; it computes its tokens again later.  The oldest sequence is never the one, and fits into the pool, or
it would not have been taken: so that every sequence ends.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import NamedTuple

from tilewright.llm.block_pool import BlockPool, next_digest, root_digest
from tilewright.llm.step_graph import Limits


@dataclass(eq=False)
class Sequence:
    """One sequence; `order` is the place of its arrival, `name` says whose it is."""

    name: tuple[str, int]
    tokens: list[int]  # the last one is below 0 while a step chooses it
    order: tuple[int, int]
    salt: str = ""
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)  # the root's, then of each full block that is computed
    cached: int = 0  # tokens of the prompt that were found when it first ran
    has_run: bool = False
    adapter: int = 0  # its number, or none
    prompt: int = 0  # tokens that it came with
    wanted: int = 0  # drafts that the next step may check
    drafts: list[int] = field(default_factory=list)  # tokens that may follow, for the step that runs
    mirrored: int = 0  # tokens that a draft model has computed
    is_whole: bool = False  # the prompt is computed from its beginning, whatever is known of it
    is_ending: bool = False  # its last token is being chosen: nothing is left to compute

    @property
    def missing(self) -> int:
        """Tokens that are not computed yet."""
        return len(self.tokens) - self.computed


class ScheduledTokens(NamedTuple):
    """Tokens `begin` to `end - 1` of a sequence; `is_last` where the next token follows from them.

    After the last there is room for `drafts` tokens that may follow.
    """

    sequence: Sequence
    begin: int
    end: int
    drafts: int = 0

    @property
    def is_last(self) -> bool:
        return self.end == len(self.sequence.tokens)


class Scheduler:
    """Owns the order of sequences and their blocks.

    With `aligned` the tokens of a prompt are computed in chunks that begin at multiples of the step's budget, those
    after it one by one, and only whole chunks of prompts are shared: what is computed at once follows from a sequence's
    own tokens.  Each sequence then has the budget for itself.
    """

    def __init__(self, limits: Limits, pages: int, share_prefixes: bool = True, aligned: bool = False) -> None:
        self.limits, self.share_prefixes, self.aligned = limits, share_prefixes, aligned
        self.pool = BlockPool(pages, limits.page)
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.preemptions = 0
        self.is_mirrored = False  # whether a draft model follows: only pages that it has computed too are shared
        self.queried = self.found = 0  # tokens that were looked for in the cache, and that were there

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that can be taken."""
        return min(self.limits.length, self.pool.count * self.pool.size)

    def add(self, sequence: Sequence) -> None:
        """Let a sequence wait for its turn, by its order."""
        sequence.digests, sequence.prompt = [root_digest(sequence.salt)], len(sequence.tokens)
        bisect.insort(self.waiting, sequence, key=lambda item: item.order)

    def remove(self, sequence: Sequence) -> None:
        """A sequence has ended, however it did."""
        self.running = [item for item in self.running if item is not sequence]
        at = bisect.bisect_left(self.waiting, sequence.order, key=lambda item: item.order)
        if self.waiting[at : at + 1] == [sequence]:
            del self.waiting[at]
        self._give_back(sequence)

    def schedule(self) -> list[ScheduledTokens]:
        """The work of the next step, running sequences first; empty when nothing waits or runs."""
        budget = self.limits.tokens * (self.limits.sequences if self.aligned else 1)
        work: list[ScheduledTokens] = []
        preempted = self.preemptions
        for sequence in list(self.running):
            if sequence.is_ending or budget == 0:
                continue
            if self.preemptions != preempted and sequence not in self.running:
                continue  # it lost its blocks to an older one
            begin = sequence.computed
            end = begin + min(self._chunk(sequence, begin), budget)
            if end <= len(sequence.blocks) * self.pool.size or self._make_room(sequence, end):
                work.append(ScheduledTokens(sequence, begin, end))
                budget -= end - begin
        if self.preemptions != preempted:
            work = [item for item in work if item.sequence in self.running]
        else:
            self._add_drafts(work, self._admit(work, budget))
        return work

    @staticmethod
    def begin(work: ScheduledTokens) -> None:
        """A step computes its tokens: the next one goes on from there."""
        work.sequence.computed = work.end

    def advance(self, work: ScheduledTokens) -> None:
        """A step that began has computed its tokens: blocks that are full now can be shared."""
        sequence, size = work.sequence, self.pool.size
        if not self.share_prefixes:
            return
        computed = min(work.end, sequence.computed)  # none of a sequence that lost its blocks meanwhile
        shared = computed if not self.aligned else min(computed, self._whole(sequence.prompt))
        shared = min(shared, sequence.mirrored) if self.is_mirrored else shared
        for number in range(len(sequence.digests) - 1, shared // size):
            tokens = sequence.tokens[number * size : (number + 1) * size]
            sequence.digests.append(self.pool.publish(sequence.blocks[number], sequence.digests[-1], tokens))

    def _admit(self, work: list[ScheduledTokens], budget: int) -> int:
        """Let sequences begin; gives what is left of the budget."""
        while self.waiting and budget > 0 and len(self.running) < self.limits.sequences:
            sequence = self.waiting[0]
            found = self._find(sequence)
            count = min(self._chunk(sequence, len(found) * self.pool.size), budget)
            end = len(found) * self.pool.size + count
            fresh = self._blocks_for(end) - len(found)
            if fresh > self.pool.free - sum(map(self.pool.is_free, found)):
                return budget
            self.waiting.pop(0)
            self._begin(sequence, found)
            self._extend(sequence, end)
            bisect.insort(self.running, sequence, key=lambda item: item.order)
            work.append(ScheduledTokens(sequence, sequence.computed, end))
            budget -= count
        return budget

    def _add_drafts(self, work: list[ScheduledTokens], budget: int) -> None:
        """Give drafts what is left of the budget and of the blocks."""
        for number, item in enumerate(work):
            count = min(item.sequence.wanted, budget) if item.is_last else 0
            while count and self._blocks_for(item.end + count) - len(item.sequence.blocks) > self.pool.free:
                count -= 1
            if count:
                self._extend(item.sequence, item.end + count)
                work[number] = item._replace(drafts=count)
                budget -= count

    def _find(self, sequence: Sequence) -> list[int]:
        """Published blocks of a sequence's beginning; one token at least is left to compute."""
        if not self.share_prefixes or sequence.is_whole:
            return []
        size, found = self.pool.size, []
        digests = [root_digest(sequence.salt)]
        for number in range((len(sequence.tokens) - 1) // size):
            tokens = sequence.tokens[number * size : (number + 1) * size]
            block = self.pool.find(digests[-1], tokens)
            if block is None:
                break
            found.append(block)
            digests.append(next_digest(digests[-1], tokens))
        if self.aligned:
            found = found[: self._whole(len(found) * size) // size]
            digests = digests[: len(found) + 1]
        sequence.digests = digests
        return found

    def _chunk(self, sequence: Sequence, computed: int) -> int:
        """How many tokens a sequence may compute at once, of which so many are computed."""
        if not self.aligned:
            return len(sequence.tokens) - computed
        if computed >= sequence.prompt:
            return min(1, len(sequence.tokens) - computed)
        return min(sequence.prompt, self._whole(computed) + self.limits.tokens) - computed

    def _whole(self, tokens: int) -> int:
        """The tokens of whole chunks."""
        return tokens // self.limits.tokens * self.limits.tokens

    def _begin(self, sequence: Sequence, found: list[int]) -> None:
        for block in found:
            self.pool.hold(block)
        sequence.blocks = list(found)
        sequence.computed = sequence.mirrored = len(found) * self.pool.size
        self.queried += len(sequence.tokens)
        self.found += sequence.computed
        if not sequence.has_run:
            sequence.cached, sequence.has_run = sequence.computed, True

    def _make_room(self, sequence: Sequence, tokens: int) -> bool:
        """Blocks for so many tokens, from the youngest sequences if need be; False when it is the youngest itself."""
        while self._blocks_for(tokens) - len(sequence.blocks) > self.pool.free:
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        self._extend(sequence, tokens)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._give_back(sequence)
        bisect.insort(self.waiting, sequence, key=lambda item: item.order)
        self.preemptions += 1

    def _give_back(self, sequence: Sequence) -> None:
        self.pool.release(reversed(sequence.blocks))
        sequence.blocks, sequence.computed, sequence.wanted, sequence.mirrored = [], 0, 0, 0
        sequence.digests = sequence.digests[:1]

    def _extend(self, sequence: Sequence, tokens: int) -> None:
        while len(sequence.blocks) < self._blocks_for(tokens):
            sequence.blocks.append(self.pool.allocate())

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.pool.size)
