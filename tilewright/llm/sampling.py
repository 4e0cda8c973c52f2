"""Chooses a token from logits, in NumPy: the same token for the same request, whatever else is in the step.

The order: biases and penalties, temperature, then the filters top-k, top-p and min-p, then one random number.  That
number follows from the seed, the result's index and the position alone (Philox, by counter).  Equal logits are
ordered by their tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tilewright.errors import InputError
from tilewright.graph.choices import IN_PROMPT
from tilewright.llm.requests import SamplingParameters, TokenLogprobs

_HEADS = (1024, 16384)  # most probable tokens that nearly always hold what top-p keeps
_MOST_EXACT_TOKENS = 16384  # tokens whose exponentials are taken in float64
_BLOCK = 512
_NUMBERS = 64  # random numbers that are drawn at once: making a generator takes as long as many of them
_NOT_FINITE = "the model's logits are no finite numbers"
_LARGEST_SHARE = 1.0 - 2.0**-24  # below 1 in float32


class Draw(NamedTuple):
    """How a row's token is chosen where nothing but these matters: `share` is the random number, `floor` min-p,
    `portion` top-p, `most` top-k; `history` has the penalties and biases, and the tokens so far, if these matter."""

    temperature: float = 0.0
    share: float = 0.0
    floor: float = 0.0
    portion: float = 1.0
    most: int = 0
    history: Sampler | None = None


GREEDY = Draw()


class Sampler:
    """The choice of tokens of one result."""

    def __init__(self, parameters: SamplingParameters, seed: int, index: int, prompt: Sequence[int]) -> None:
        self.parameters, self.seed, self.index = parameters, seed, index
        self._output: Counter[int] = Counter()
        self._repeated = set(prompt) if parameters.repetition_penalty != 1.0 else set()
        self._changes = self.penalties != (0.0, 0.0, 1.0) or bool(parameters.logit_bias)
        self._biases = np.array(list(parameters.logit_bias.items()), np.float64).reshape(-1, 2)
        self._count = 0
        self._shares: list[float] = []  # random numbers from the place `_first` on
        self._first = 0

    def draw(self, ahead: int = 0) -> Draw | None:
        """How the token `ahead` places after the next one may be chosen with its logits alone; None where more matters
        than a `Draw` has."""
        wanted = self.parameters
        if wanted.logprobs is not None or wanted.structured_output is not None:
            return None
        history = self if self._changes else None
        if wanted.is_greedy:
            return GREEDY if history is None else Draw(history=history)
        share = min(self._share(ahead), _LARGEST_SHARE)
        return Draw(wanted.temperature, share, wanted.min_p, wanted.top_p, wanted.top_k, history)

    @property
    def penalties(self) -> tuple[float, float, float]:
        """Presence, frequency, repetition."""
        wanted = self.parameters
        return wanted.presence_penalty, wanted.frequency_penalty, wanted.repetition_penalty

    def tables(self, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
        """How often each token was seen, int32, and what is added to its logit, float32, as `graph.choices` has it."""
        seen, biases = np.zeros(vocabulary, np.int32), np.zeros(vocabulary, np.float32)
        seen[list(self._output.keys())] = list(self._output.values())
        seen[[token for token in self._repeated if token not in self._output]] = IN_PROMPT
        inside = self._biases[self._biases[:, 0] < vocabulary]
        biases[inside[:, 0].astype(np.int64)] = inside[:, 1]
        return seen, biases

    def choose(
        self, logits: np.ndarray | int, banned: Sequence[int] = (), allowed: np.ndarray | None = None
    ) -> TokenLogprobs:
        """The next token for logits float32 [vocabulary]; `banned` are tokens that it must not be, `allowed`, bool
        [vocabulary], those that it may be.  In the place of logits may be the token that was chosen from them as
        `draw` says, where none is banned; -1: the logits are no numbers.

        Raises `FloatingPointError` when the logits are no numbers, and `InputError` when the parameters leave no token.
        """
        if isinstance(logits, int):
            if logits < 0:
                raise FloatingPointError(_NOT_FINITE)
            return self._accept(logits)
        if not np.isfinite(logits.max()):
            raise FloatingPointError(_NOT_FINITE)
        chosen = self._accept(self._among(logits, banned, allowed))
        if self.parameters.logprobs is None:
            return chosen
        return logprobs_of(logits, chosen.token, self.parameters.logprobs)

    def _among(self, logits: np.ndarray, banned: Sequence[int], allowed: np.ndarray | None) -> int:
        """The token that is picked."""
        scores = self._adjusted(logits, banned)
        candidates = None if allowed is None else np.flatnonzero(allowed[: len(scores)])
        if candidates is not None:
            scores = scores[candidates]
        if scores is not logits and not (len(scores) and np.isfinite(scores.max())):
            raise InputError("the parameters leave no token that could come next")
        place = self._pick(scores)
        return place if candidates is None else int(candidates[place])

    def _accept(self, token: int) -> TokenLogprobs:
        """A token that is the next one, without its logprob."""
        self._count += 1
        self._output[token] += 1
        if self._repeated or self.parameters.repetition_penalty != 1.0:
            self._repeated.add(token)
        return TokenLogprobs(token, 0.0)

    def propose(self, logits: np.ndarray, ahead: int) -> int | None:
        """A guess of the token `ahead` places after the next one, with that place's random number; changes nothing.

        None where the logits are no numbers.
        """
        return self._pick(logits, ahead) if np.isfinite(logits.max()) else None

    def _pick(self, scores: np.ndarray, ahead: int = 0) -> int:
        return int(np.argmax(scores)) if self.parameters.is_greedy else self._draw(scores, ahead)

    def _adjusted(self, logits: np.ndarray, banned: Sequence[int]) -> np.ndarray:
        wanted, scores = self.parameters, logits
        changed = self._repeated or len(self._biases) or banned
        if not changed and not wanted.presence_penalty and not wanted.frequency_penalty:
            return scores
        scores = logits.astype(np.float64)
        inside = self._biases[self._biases[:, 0] < len(scores)]
        scores[inside[:, 0].astype(np.int64)] += inside[:, 1]
        if self._repeated:
            tokens = np.fromiter(self._repeated, np.int64)
            penalty = wanted.repetition_penalty
            scores[tokens] = np.where(scores[tokens] > 0, scores[tokens] / penalty, scores[tokens] * penalty)
        if self._output and (wanted.presence_penalty or wanted.frequency_penalty):
            tokens = np.fromiter(self._output.keys(), np.int64)
            counts = np.fromiter(self._output.values(), np.float64)
            scores[tokens] -= wanted.presence_penalty + wanted.frequency_penalty * counts
        scores[[token for token in banned if token < len(scores)]] = -np.inf
        return scores

    def _share(self, ahead: int) -> float:
        """The random number of a place, from 0 to below 1."""
        place = self._count + ahead - self._first
        if not 0 <= place < len(self._shares):
            self._first, place = self._count, ahead
            self._shares = random_numbers(self.seed, self.index, self._count, ahead + _NUMBERS)
        return self._shares[place]

    def _draw(self, scores: np.ndarray, ahead: int) -> int:
        share, wanted = self._share(ahead), self.parameters
        if not wanted.top_k and wanted.top_p == 1.0 and wanted.min_p == 0.0:
            return _place(_powers(scores, wanted.temperature), share)
        tokens, powers = self._filtered(scores)
        return int(tokens[_place(powers, share)])

    def _filtered(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that are left, with what their probabilities are proportional to; exact for what is left."""
        wanted, most = self.parameters, scores.max()
        tokens = _largest(scores, wanted.top_k) if wanted.top_k else np.arange(len(scores))
        if wanted.top_p < 1.0:
            powers = _powers(scores if len(tokens) == len(scores) else scores[tokens], wanted.temperature)
            tokens = tokens[_nucleus(powers, wanted.top_p)]
        elif wanted.min_p > 0.0:  # a little below the bound, which is looked at exactly below
            least = most + wanted.temperature * (np.log(wanted.min_p) - 1e-3)
            tokens = tokens[scores[tokens] >= least] if wanted.top_k else np.flatnonzero(scores >= least)
        powers = np.exp((scores[tokens].astype(np.float64) - most) / max(wanted.temperature, 1e-30))
        if wanted.min_p > 0.0:
            likely = powers >= wanted.min_p  # the largest power is 1
            tokens, powers = tokens[likely], powers[likely]
        return tokens, powers


def random_numbers(seed: int, index: int, first: int, count: int) -> list[float]:
    """Numbers from 0 to below 1 of places from `first` on: the first 64 bits of Philox-4x64-10 with the key (seed,
    index) at the counter place + 1.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """
    generator = np.random.Philox(key=[seed, index], counter=[first, 0, 0, 0])
    numbers: list[float] = ((generator.random_raw(4 * count)[::4] >> np.uint64(11)) * 2.0**-53).tolist()
    return numbers


def _powers(scores: np.ndarray, temperature: float) -> np.ndarray:
    """What the probabilities are proportional to, 1 for the largest; of many tokens in float32."""
    if len(scores) > _MOST_EXACT_TOKENS:
        return np.exp((scores - scores.max()).astype(np.float32) * np.float32(1.0 / max(temperature, 1e-30)))
    return np.exp((scores.astype(np.float64) - scores.max()) / max(temperature, 1e-30))


def _place(powers: np.ndarray, share: float) -> int:
    """Where the running sum of powers passes a share of their sum; sums are in float64, of blocks first."""
    blocks = np.add.reduceat(powers, np.arange(0, len(powers), _BLOCK), dtype=np.float64)
    ends = np.cumsum(blocks)
    place = share * ends[-1]
    block = min(int(np.searchsorted(ends, place, side="right")), len(ends) - 1)
    inside = np.cumsum(powers[block * _BLOCK : (block + 1) * _BLOCK], dtype=np.float64) + (ends[block] - blocks[block])
    found = int(np.searchsorted(inside, place, side="right"))
    return block * _BLOCK + min(found, len(inside) - 1)


def _largest(scores: np.ndarray, count: int) -> np.ndarray:
    """The tokens of the `count` largest scores in the order of tokens; of equal scores the first tokens."""
    if count >= len(scores):
        return np.arange(len(scores))
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    return np.sort(np.concatenate([above, equal[: count - len(above)]]))


def _nucleus(powers: np.ndarray, share: float) -> np.ndarray:
    """The places of the fewest powers, the largest first, that hold a share of their sum; in their order."""
    total = powers.sum(dtype=np.float64)
    places = np.arange(len(powers))
    for size in _HEADS:
        if size < len(powers):
            head = _largest(powers, size)
            if powers[head].sum(dtype=np.float64) >= share * total:
                places = head
                break
    ordered = places[np.argsort(-powers[places], kind="stable")]
    sums = np.cumsum(powers[ordered], dtype=np.float64)
    return np.sort(ordered[sums - powers[ordered] < share * total])


def logprobs_of(logits: np.ndarray, token: int, count: int) -> TokenLogprobs:
    """The logprob of a token and the `count` largest, of the model's own distribution."""
    most = float(logits.max())
    total = most + float(np.log(_powers(logits, 1.0).sum(dtype=np.float64)))
    best = _largest(logits, count) if count else np.zeros(0, np.int64)
    best = best[np.argsort(-logits[best], kind="stable")]
    return TokenLogprobs(
        token, float(logits[token]) - total, tuple((int(one), float(logits[one]) - total) for one in best)
    )
