"""How tokens are chosen: filters and penalties against plain definitions, and the distribution of what is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.llm.requests import SamplingParameters
from tilewright.llm.sampling import Sampler, _place, logprobs_of, random_numbers


def sampler(prompt=(), seed=0, index=0, **parameters):
    return Sampler(SamplingParameters(**parameters), seed, index, prompt)


def kept(logits, **parameters):
    """Tokens with their probabilities, as the filters leave them."""
    tokens, powers = sampler(**parameters)._filtered(logits.astype(np.float64))
    return dict(zip(tokens.tolist(), (powers / powers.sum()).tolist(), strict=True))


def plain_filter(logits, temperature, top_k, top_p, min_p):
    """The definitions: the k largest; the fewest that hold the share; those not below a part of the largest."""
    probabilities = np.exp((logits - logits.max()) / temperature)
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    order = order[:top_k] if top_k else order
    total, before, nucleus = sum(probabilities[order]), 0.0, []
    for token in order:
        if top_p == 1 or before < top_p * total:  # rounding of the sum leaves no token out
            nucleus.append(token)
        before += probabilities[token]
    left = [token for token in nucleus if probabilities[token] >= min_p]
    return {token: probabilities[token] / sum(probabilities[left]) for token in sorted(left)}


@pytest.mark.parametrize("size", [5, 3000])
def test_filters_are_their_definitions(size, rng):
    for _ in range(40):
        logits = rng.normal(0, 3, size).round(1 if size == 5 else 8)  # with equal ones
        chosen = {
            "temperature": float(rng.uniform(0.2, 2)), "top_k": int(rng.integers(0, size + 3)),
            "top_p": float(rng.choice([1.0, 0.9, 0.3, 0.99])), "min_p": float(rng.choice([0.0, 0.1, 0.001])),
        }  # fmt: skip
        actual, wanted = kept(logits, **chosen), plain_filter(logits, **chosen)
        assert list(actual) == list(wanted)
        np.testing.assert_allclose(list(actual.values()), list(wanted.values()), rtol=1e-9)


def test_random_numbers_follow_from_their_place_alone(rng):
    """Whatever was drawn before; the numbers themselves are part of what a seed means."""
    assert random_numbers(7, 2, 4, 2) == [0.9825608993152459, 0.5117282008006275]
    for _ in range(50):
        seed, index = int(rng.integers(2**63)), int(rng.integers(8))
        numbers, one = random_numbers(seed, index, 0, 300), sampler(seed=seed, index=index)
        for place in range(150):
            ahead = int(rng.integers(0, 17))
            assert one._share(ahead) == numbers[place + ahead]
            one._count += 1


def test_draws_follow_the_distribution(rng):
    """Chi-square of 20,000 draws: 9 degrees of freedom, beyond 40 once in 10^5."""
    logits = rng.normal(0, 1, 10).astype(np.float32)
    wanted = np.exp(logits.astype(np.float64))
    wanted /= wanted.sum()
    draw = sampler(seed=int(rng.integers(2**62)))
    counts = np.bincount([draw.choose(logits).token for _ in range(20_000)], minlength=10)
    assert ((counts - 20_000 * wanted) ** 2 / (20_000 * wanted)).sum() < 40


def test_large_vocabularies(rng):
    """Sums of blocks and exponentials in float32 where there are many tokens."""
    logits = rng.normal(0, 3, 40_000).astype(np.float32)
    powers = np.exp(logits.astype(np.float64) - logits.max())
    ends = np.cumsum(powers) / powers.sum()
    for share in rng.random(200):
        assert _place(powers, share) == min(np.searchsorted(ends, share, side="right"), 39_999)
        assert abs(_place(powers.astype(np.float32), share) - np.searchsorted(ends, share)) <= 1
    found = logprobs_of(logits, 7, 3)
    assert found.logprob == pytest.approx(np.log(powers[7] / powers.sum()), abs=1e-6)
    for chosen in ({"top_p": 0.5}, {"top_p": 0.99}, {"min_p": 0.01}, {"top_k": 40, "top_p": 0.7}):
        actual = kept(logits, temperature=0.8, **chosen)
        off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
        wanted = plain_filter(logits.astype(np.float64), 0.8, **{**off, **chosen})
        assert abs(len(actual) - len(wanted)) <= 1  # at the bound, by rounding


def test_a_seed_gives_the_same_tokens_and_others_do_not(rng):
    logits = rng.normal(0, 1, (30, 50)).astype(np.float32)

    def draws(seed, index):
        one = sampler(seed=seed, index=index)
        return [one.choose(row).token for row in logits]

    assert draws(7, 0) == draws(7, 0)
    assert len({tuple(draws(seed, index)) for seed in (7, 8) for index in (0, 1)}) == 4


def test_greedy_takes_the_first_of_the_largest():
    assert sampler(temperature=0.0).choose(np.array([0, 5, 5, 1], np.float32)).token == 1


def test_penalties_and_biases():
    logits = np.array([2.0, 1.9, -1.0, -1.1], np.float32)
    frequent = sampler(temperature=0.0, frequency_penalty=0.06)
    assert [frequent.choose(logits).token for _ in range(4)] == [0, 0, 1, 0]
    present = sampler(temperature=0.0, presence_penalty=0.5)
    assert [present.choose(logits).token for _ in range(3)] == [0, 1, 0]
    repeated = sampler(prompt=[0], temperature=0.0, repetition_penalty=2.0)
    assert repeated.choose(logits).token == 1
    negative = sampler(prompt=[2], temperature=0.0, repetition_penalty=2.0, logit_bias={0: -100, 1: -100})
    assert negative.choose(logits).token == 3  # a negative logit is multiplied
    assert sampler(temperature=0.0, logit_bias={3: 10.0, 900: 5.0}).choose(logits).token == 3
    assert sampler(temperature=0.0).choose(logits, banned=[0, 900]).token == 1


def test_logprobs_are_of_the_model_itself(rng):
    logits = rng.normal(0, 2, 40).astype(np.float32)
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    found = sampler(temperature=0.0, logprobs=3, logit_bias={5: 100.0}).choose(logits)
    assert found.token == 5 and found.logprob == pytest.approx(exact[5], rel=1e-12)
    assert [token for token, _ in found.top] == np.argsort(-exact)[:3].tolist()
    assert logprobs_of(logits, 0, 0).top == ()


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_logits_must_be_numbers(number):
    with pytest.raises(FloatingPointError):
        sampler().choose(np.array([0.0, number], np.float32))


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1}, {"temperature": float("nan")}, {"temperature": "1"}, {"top_p": 0}, {"top_p": 1.1},
        {"min_p": -0.1}, {"top_k": -2}, {"top_k": 1.5}, {"n": 0}, {"n": 129}, {"max_tokens": 0}, {"seed": -1},
        {"seed": 2**63}, {"logprobs": 21}, {"stop": "text"}, {"stop": [""]}, {"stop": ["a"] * 17},
        {"stop": ["a" * 257]}, {"stop_tokens": [-1]}, {"logit_bias": {1: 101}}, {"logit_bias": {"a": 1}},
        {"repetition_penalty": 0},
        {"presence_penalty": 3}, {"min_tokens": 17}, {"logit_bias": {number: 1 for number in range(1025)}},
        {"max_tokens": True},
    ],
    ids=lambda wrong: str(wrong)[:40],
)  # fmt: skip
def test_parameters_out_of_their_ranges_are_refused_by_name(wrong):
    with pytest.raises(InputError, match=next(iter(wrong)).removesuffix("s").replace("stop_token", "stop_tokens")):
        SamplingParameters(**wrong)
