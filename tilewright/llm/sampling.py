"""From logits to a token, in NumPy: the same token for the same request, whatever else is in the step.

The order: biases and penalties, temperature, then the filters top-k, top-p and min-p, then one random number.  That
number follows from the seed, the result's index and the position alone (Philox, by counter).  Equal logits are
ordered by their tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tilewright.llm.requests import SamplingParameters, TokenLogprobs

_HEAD = 1024  # most probable tokens that nearly always hold what top-p keeps


class Sampler:
    """The choice of tokens of one result."""

    def __init__(self, parameters: SamplingParameters, seed: int, index: int, prompt: Sequence[int]) -> None:
        self.parameters, self.seed, self.index = parameters, seed, index
        self._output: Counter[int] = Counter()
        self._repeated = set(prompt) if parameters.repetition_penalty != 1.0 else set()
        self._biases = np.array(list(parameters.logit_bias.items()), np.float64).reshape(-1, 2)
        self._count = 0

    @property
    def is_plain(self) -> bool:
        """Whether the token is the largest logit's, and nothing else is wanted."""
        wanted = self.parameters
        penalties = wanted.presence_penalty or wanted.frequency_penalty or wanted.repetition_penalty != 1.0
        return wanted.is_greedy and not penalties and not len(self._biases) and wanted.logprobs is None

    def choose(
        self, logits: np.ndarray, banned: Sequence[int] = (), allowed: np.ndarray | None = None
    ) -> TokenLogprobs:
        """The next token for logits float32 [vocabulary]; `banned` are tokens that it must not be, `allowed`, bool
        [vocabulary], those that it may be.

        Raises `FloatingPointError` when the logits are no numbers.
        """
        if not np.isfinite(logits.max()):
            raise FloatingPointError("the model's logits are no finite numbers")
        scores = self._adjusted(logits, banned)
        if allowed is None:
            token = self._pick(scores)
        else:
            candidates = np.flatnonzero(allowed[: len(scores)])
            token = int(candidates[self._pick(scores[candidates])])
        self._count += 1
        self._output[token] += 1
        if self._repeated or self.parameters.repetition_penalty != 1.0:
            self._repeated.add(token)
        if self.parameters.logprobs is None:
            return TokenLogprobs(token, 0.0)
        return logprobs_of(logits, token, self.parameters.logprobs)

    def propose(self, logits: np.ndarray, ahead: int) -> int:
        """A guess of the token `ahead` places after the next one, with that place's random number; changes nothing."""
        return self._pick(logits, ahead)

    def _pick(self, scores: np.ndarray, ahead: int = 0) -> int:
        return int(np.argmax(scores)) if self.parameters.is_greedy else self._draw(scores, ahead)

    def _adjusted(self, logits: np.ndarray, banned: Sequence[int]) -> np.ndarray:
        wanted, scores = self.parameters, logits
        if self.is_plain and not banned:
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

    def _draw(self, scores: np.ndarray, ahead: int) -> int:
        tokens, probabilities = self._filtered(scores)
        bits = np.random.Philox(key=[self.seed, self.index], counter=[self._count + ahead, 0, 0, 0]).random_raw()
        place = (int(bits) >> 11) * 2.0**-53 * probabilities.sum()
        found = int(np.searchsorted(np.cumsum(probabilities), place, side="right"))
        return int(tokens[min(found, len(tokens) - 1)])

    def _filtered(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that are left, with what their probabilities are proportional to."""
        wanted = self.parameters
        tokens = _largest(scores, wanted.top_k) if wanted.top_k else np.arange(len(scores))
        powers = np.exp((scores - scores.max()) / wanted.temperature)
        if wanted.top_p < 1.0:
            tokens = _nucleus(tokens, powers, wanted.top_p)
        if wanted.min_p > 0.0:
            tokens = tokens[powers[tokens] >= wanted.min_p]  # the largest power is 1
        return tokens, powers[tokens]


def _largest(scores: np.ndarray, count: int) -> np.ndarray:
    """The tokens of the `count` largest scores in the order of tokens; of equal scores the first tokens."""
    if count >= len(scores):
        return np.arange(len(scores))
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    return np.sort(np.concatenate([above, equal[: count - len(above)]]))


def _nucleus(tokens: np.ndarray, powers: np.ndarray, share: float) -> np.ndarray:
    """The fewest tokens, the most probable first, that hold a share of the probability; in the order of tokens."""
    total = powers[tokens].sum()
    head = tokens
    if len(tokens) > _HEAD:
        head = tokens[_largest(powers[tokens], _HEAD)]
        if powers[head].sum() < share * total:
            head = tokens
    ordered = head[np.argsort(-powers[head], kind="stable")]
    before = np.cumsum(powers[ordered]) - powers[ordered]
    return np.sort(ordered[before < share * total])


def logprobs_of(logits: np.ndarray, token: int, count: int) -> TokenLogprobs:
    """The logprob of a token and the `count` largest, of the model's own distribution."""
    exact = logits.astype(np.float64)
    exact -= exact.max()
    exact -= np.log(np.exp(exact).sum())
    best = _largest(exact, count) if count else np.zeros(0, np.int64)
    best = best[np.argsort(-exact[best], kind="stable")]
    return TokenLogprobs(token, float(exact[token]), tuple((int(one), float(exact[one])) for one in best))
