"""Speculative decoding: tokens are drafted cheaply, and one step of the model checks several of them.

A token is chosen from the model's own logits with the random number of its position, whatever was drafted; a draft is
accepted when it is that token.  So results follow the model's distribution, and with a seed they are the same tokens as
without drafts.  A draft model proposes with the same random numbers, which makes both agree often (Daliri, Musco and
Suresh, "Coupling without communication and drafter-invariant speculative decoding", 2024).

Drafts of `PromptLookup` repeat what followed the last tokens before (Saxena, "Prompt lookup decoding", 2023); those of
`DraftModel` are a smaller model's.  `Pace` says how many tokens to draft: none where checking them costs more than
they bring.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.llm.model import Chunk, StepRunner
from tilewright.llm.sampling import Sampler
from tilewright.llm.scheduler import ScheduledTokens
from tilewright.llm.scheduler import Sequence as Scheduled

MOST_DRAFTS = 16
_LONGEST_MATCH, _SHORTEST_MATCH = 4, 2  # tokens
_GAIN = 1.03  # what drafts must promise to be worth their risk
_MEMORY = 512  # steps after which a time is measured again
_WEIGHT = 0.15  # of the last observation in a mean
_PROBE = 32  # steps without drafts after which a draft model is tried again


@dataclass
class Drafting:
    """What is known of the drafts for one result."""

    lookup: PromptLookup
    likelihood: float = 0.6  # that the next draft is right
    proposed: list[int] = field(default_factory=list)  # for the next token on, by the lookup
    drafted: int = 0  # tokens that were checked, and of those accepted
    accepted: int = 0

    def observe(self, was_right: bool) -> None:
        """A draft has been compared with the token that was chosen."""
        self.likelihood += _WEIGHT * (was_right - self.likelihood)


class PromptLookup:
    """The tokens of a sequence, and what followed where its last few tokens were before."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = np.empty(max(64, 2 * len(tokens)), np.int64)
        self._count = 0
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """More tokens at the end."""
        count = self._count + len(tokens)
        if count > len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty(max(count, len(self._tokens)), np.int64)])
        self._tokens[self._count : count] = tokens
        self._count = count

    def propose(self, most: int) -> list[int]:
        """Up to `most` tokens that followed the last place where the longest end of the sequence was before."""
        tokens = self._tokens[: self._count]
        places = np.flatnonzero(tokens[:-1] == tokens[-1]) if self._count > 1 else np.zeros(0, np.int64)
        best = None
        for length in range(2, _LONGEST_MATCH + 1):
            if length > self._count:
                break
            places = places[places >= length - 1]
            places = places[tokens[places - (length - 1)] == tokens[-length]]
            if not len(places):
                break
            if length >= _SHORTEST_MATCH:
                best = int(places[-1])
        return [] if best is None else tokens[best + 1 : best + 1 + most].tolist()


class Pace:
    """How many tokens to draft, from what steps of different sizes take and how often drafts were right."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._seconds: dict[int, tuple[float, int]] = {}  # of a step by its tokens, and when it was measured
        self._draft_seconds = 0.0  # of a round of a draft model
        self._steps = 0

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens, none of a prompt, has taken so long."""
        self._steps += 1
        size = _size(tokens)
        before, when = self._seconds.get(size, (seconds, self._steps))
        mean = before + _WEIGHT * (seconds - before) if self._steps - when < _MEMORY else seconds
        self._seconds[size] = (mean, self._steps)

    def observe_drafts(self, rounds: int, seconds: float) -> None:
        """A draft model has taken so long for rounds of one token for each sequence."""
        each = seconds / max(rounds, 1)
        self._draft_seconds += (_WEIGHT if self._draft_seconds else 1.0) * (each - self._draft_seconds)

    def choose(self, sequences: int, drafts: Sequence[tuple[float, int]]) -> int:
        """The number of drafts for each sequence that promises most tokens a second, 0 for none.

        `drafts` are a likelihood and how many tokens there are, for each sequence that can have some.
        """
        best, best_rate = 0, sequences / self._estimate(sequences) * _GAIN
        for count in range(1, self.most + 1):
            checked = sum(min(count, there) for _, there in drafts)
            gain = sum(_expected(likelihood, min(count, there)) for likelihood, there in drafts)
            seconds = self._estimate(sequences + checked) + count * self._draft_seconds
            rate = (sequences + gain) / seconds
            if rate > best_rate:
                best, best_rate = count, rate
        return best

    def _estimate(self, tokens: int) -> float:
        """Seconds of a step; of one that was not measured lately those of the next smaller one, so that it is tried.

        A larger step takes no less than a smaller one, whatever was measured: on a busy machine a lucky time would let
        drafts look as if they cost nothing.
        """
        size = _size(tokens)
        known = {one: mean for one, (mean, when) in self._seconds.items() if self._steps - when < _MEMORY or one <= 1}
        if not known:
            return 1e-9
        least = max((mean for one, mean in known.items() if one <= size), default=1e-9)
        if size in known or not any(one > size for one in known):
            return max(least, 1e-9)
        high = min(one for one in known if one > size)
        low = max((one for one in known if one < size), default=None)
        if low is None:
            return max(known[high], 1e-9)
        between = known[low] + (size - low) / (high - low) * (known[high] - known[low])
        return max(between, least, 1e-9)


class DraftModel:
    """A smaller model with the same tokens, whose pools have a page for each page of the large model's.

    It follows the tokens that the large model computes, so that shared prefixes are known to both.
    """

    def __init__(self, model: StepRunner, vocabulary: int) -> None:
        self.model, self.vocabulary = model, vocabulary
        self.idle_steps = 0

    def fill(self, work: Sequence[ScheduledTokens], samplers: Sequence[Sampler | None]) -> int:
        """Draft tokens for the work that wants some; gives the rounds that this took."""
        for item in work:
            item.sequence.drafts = []
        rounds = max((item.drafts for item in work), default=0)
        self.idle_steps = 0 if rounds else self.idle_steps + all(item.end - item.begin == 1 for item in work)
        for item in work:
            item.sequence.mirrored = min(item.sequence.mirrored, item.begin)
        followers = [number for number, item in enumerate(work) if self._must_follow(item)]
        if not followers:
            return 0
        work, samplers = [work[number] for number in followers], [samplers[number] for number in followers]
        chunks = [
            Chunk(_known(item.sequence.tokens[item.sequence.mirrored : item.end], self.vocabulary),
                  item.sequence.mirrored, item.sequence.blocks)
            for item in work
        ]  # fmt: skip
        last = self._run_all(chunks, [item.drafts > 0 for item in work])
        for item in work:
            item.sequence.mirrored = item.end
        active = [number for number, item in enumerate(work) if item.drafts]
        active = [
            number
            for number, logits in zip(active, last, strict=True)
            if self._draft(work[number].sequence, samplers[number], logits)
        ]
        for _ in range(1, rounds):
            active = [number for number in active if work[number].drafts > len(work[number].sequence.drafts)]
            if not active:
                break
            sequences = [work[number].sequence for number in active]
            ends = [work[number].end for number in active]
            steps = [
                Chunk(_known(one.drafts[-1:], self.vocabulary), end + len(one.drafts) - 1, one.blocks, (0,))
                for one, end in zip(sequences, ends, strict=True)
            ]
            followed = []
            for number, sequence, logits in zip(active, sequences, self.model.run(steps), strict=True):
                sequence.mirrored += 1
                if self._draft(sequence, samplers[number], logits):
                    followed.append(number)
            active = followed
        return rounds

    def _must_follow(self, item: ScheduledTokens) -> bool:
        """Whether its tokens are computed now: for drafts, in chunks of a prompt, or since they fill a page, which may
        be shared once both models have computed it.  A few single tokens can wait.
        """
        page = self.model.limits.page
        return item.drafts > 0 or item.end - item.begin > 1 or item.end // page > item.sequence.mirrored // page

    def _draft(self, sequence: Scheduled, sampler: Sampler | None, logits: np.ndarray) -> bool:
        """Draft one more token; False where the draft model has none, since its logits are no numbers."""
        assert sampler is not None
        token = sampler.propose(logits[: self.vocabulary], len(sequence.drafts))
        if token is None:
            return False
        sequence.drafts.append(token)
        return True

    def _run_all(self, chunks: Sequence[Chunk], wanted: Sequence[bool]) -> list[np.ndarray]:
        """Run chunks in as many steps as they need; the last logits of those that want them, in their order."""
        found: dict[int, np.ndarray] = {}
        batch: list[tuple[int, Chunk]] = []
        room = self.model.limits.tokens

        def run() -> None:
            logits = self.model.run([chunk for _, chunk in batch])
            wants = [number for number, chunk in batch if chunk.wanted]
            found.update(zip(wants, logits, strict=True))
            batch.clear()

        for number, chunk in enumerate(chunks):
            tokens, begin = list(chunk.tokens), chunk.begin
            while tokens:
                used = sum(len(one.tokens) for _, one in batch)
                if used == room or len(batch) == self.model.limits.sequences:
                    run()
                    used = 0
                part, tokens = tokens[: room - used], tokens[room - used :]
                rows = (len(part) - 1,) if wanted[number] and not tokens else ()
                batch.append((number, Chunk(part, begin, chunk.pages, rows)))
                begin += len(part)
                if tokens:
                    run()
        if batch:
            run()
        return [found[number] for number in sorted(found)]


class Speculator:
    """Drafts for the sequences of an engine: at most `most` tokens each, by lookup, or by a draft model."""

    def __init__(self, most: int, model: DraftModel | None = None) -> None:
        self.pace, self.model = Pace(most), model

    def plan(self, waiting: Sequence[tuple[Scheduled, Drafting, int]]) -> None:
        """Say how many drafts each sequence wants: those that have one token to compute, with the most that fit."""
        drafts = []
        for _, drafting, room in waiting:
            most = min(self.pace.most, room)
            drafting.proposed = drafting.lookup.propose(most) if self.model is None and most > 0 else []
            there = most if self.model is not None else len(drafting.proposed)
            drafts.append((drafting.likelihood, max(there, 0)))
        count = self.pace.choose(max(len(waiting), 1), drafts) if any(there for _, there in drafts) else 0
        if self.model is not None and count == 0 and self.model.idle_steps >= _PROBE:
            count = 1
        for (sequence, _, _), (_, there) in zip(waiting, drafts, strict=True):
            sequence.wanted = min(count, there)

    def fill(
        self, work: Sequence[ScheduledTokens], samplers: Sequence[Sampler | None], draftings: Sequence[Drafting]
    ) -> None:
        """Give the work of a step its drafts."""
        if self.model is None:
            for item, drafting in zip(work, draftings, strict=True):
                item.sequence.drafts = drafting.proposed[: item.drafts] if item.drafts else []
            return
        began = time.perf_counter()
        rounds = self.model.fill(work, samplers)
        if rounds and all(item.end - item.begin == 1 for item in work):
            self.pace.observe_drafts(rounds, time.perf_counter() - began)


def _known(tokens: Sequence[int], vocabulary: int) -> list[int]:
    """Tokens that a model with a smaller vocabulary can take."""
    return [token if token < vocabulary else 0 for token in tokens]


def _expected(likelihood: float, count: int) -> float:
    """How many of so many drafts are accepted, one after the other, in the mean."""
    total, chance = 0.0, 1.0
    for _ in range(count):
        chance *= likelihood
        total += chance
    return total


def _size(tokens: int) -> int:
    """Steps of nearly one size are one: up to 16 tokens each size, then multiples of 8."""
    return tokens if tokens <= 16 else -(-tokens // 8) * 8
