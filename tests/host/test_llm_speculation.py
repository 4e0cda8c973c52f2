"""Speculative decoding: whatever is drafted, results are those without drafts, and nothing of the memory is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.host.llm_support import StandIn, check_together, checkpoint_of
from tests.host.test_llm_engine import END, LENGTH, Letters, alone, limits_drawn, requests_drawn, run
from tilewright.errors import InputError
from tilewright.llm import LLM, SamplingParameters
from tilewright.llm.engine import LLMEngine
from tilewright.llm.requests import SamplingParameters as Wanted
from tilewright.llm.speculation import DraftModel, Pace, PromptLookup, Speculator
from tilewright.llm.step_graph import Limits


class Often(StandIn):
    """A draft model that is right in about half of all cases."""

    def logits(self, tokens):
        return super().logits(tokens) if sum(tokens) % 2 else np.zeros(self.vocabulary, np.float32)


class Eager(Pace):
    """Always as many drafts as there may be."""

    def choose(self, sequences, drafts):
        return self.most


def speculator(kind, limits, pages):
    model = None if kind == "lookup" else DraftModel(Often(limits, pages), 17)
    found = Speculator(4, model)
    found.pace = Eager(4)
    return found


@pytest.mark.parametrize("kind", ["lookup", "model"])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(limits=limits_drawn, spare=st.integers(0, 6), requests=requests_drawn, share=st.booleans())
def test_drafts_change_no_result(kind, limits, spare, requests, share):
    pages = limits.columns + spare
    engine = LLMEngine(StandIn(limits, pages), 17, Letters(), [END], share, speculator=speculator(kind, limits, pages))
    done = check_together(engine, requests, run, alone)
    counts = engine.statistics
    assert counts.accepted_tokens <= counts.drafted_tokens
    assert counts.drafted_tokens == sum(output.drafted_tokens for output in done.values())


class Coins(StandIn):
    """Tokens are drawn from one distribution, whatever was before."""

    PROBABILITIES = np.array([0.5, 0.25, 0.15, 0.1])

    def logits(self, tokens):
        return np.log(self.PROBABILITIES).astype(np.float32)


class Biased(Coins):
    PROBABILITIES = np.array([0.1, 0.2, 0.6, 0.1])


@pytest.mark.parametrize("kind", ["lookup", "model"])
def test_the_distribution_is_the_model_s(kind):
    """Pearson's test of pairs of tokens that follow each other, 15 degrees of freedom."""
    limits = Limits(8, 64, 8, 1024)
    model = None if kind == "lookup" else DraftModel(Biased(limits, 256, 4), 4)
    drafts = Speculator(4, model)
    drafts.pace = Eager(4)
    engine = LLMEngine(Coins(limits, 256, 4), 4, speculator=drafts)
    names = [engine.add([0, 1, 2, 3] * 2, Wanted(max_tokens=161, seed=seed)) for seed in range(12)]
    done = run(engine)
    pairs = np.zeros((4, 4))
    for name in names:
        tokens = done[name].completions[0].tokens
        np.add.at(pairs, (tokens[:-1:2], tokens[1::2]), 1)
    expected = np.outer(Coins.PROBABILITIES, Coins.PROBABILITIES) * pairs.sum()
    assert ((pairs - expected) ** 2 / expected).sum() < 44.3  # one in 10,000 is above
    assert 0 < engine.statistics.accepted_tokens < engine.statistics.drafted_tokens


def test_a_draft_model_that_is_the_model_is_always_right():
    limits = Limits(4, 64, 8, LENGTH)
    for temperature in (0.0, 1.0):
        drafts = Speculator(3, DraftModel(StandIn(limits, 40), 17))
        drafts.pace = Eager(3)
        engine = LLMEngine(StandIn(limits, 40), 17, speculator=drafts)
        engine.add([0, 1] * 4, Wanted(max_tokens=17, temperature=temperature, seed=3))
        run(engine)
        counts = engine.statistics
        assert counts.drafted_tokens == counts.accepted_tokens == 12 and counts.steps == 1 + 4


def test_prefixes_that_are_found_are_those_of_both_models():
    """Pages that were filled while nothing was drafted are the draft model's too, or are not shared."""
    limits = Limits(4, 64, 8, LENGTH)
    engine = LLMEngine(StandIn(limits, 40), 17, speculator=Speculator(3, DraftModel(StandIn(limits, 40), 17)))
    wanted = Wanted(max_tokens=17, temperature=0.0)
    engine.speculator.pace.choose = lambda sequences, drafts: 0
    name = engine.add([0, 1], wanted)
    text = [0, 1, *run(engine)[name].completions[0].tokens]
    engine.speculator.pace.choose = lambda sequences, drafts: 3
    name = engine.add(text, wanted)
    output = run(engine)[name]
    assert output.cached_tokens >= 12 and output.drafted_tokens == output.accepted_tokens > 0


class Broken(StandIn):
    """A draft model whose logits are sometimes no numbers."""

    def run(self, chunks):
        logits = super().run(chunks)
        logits[:, 3] = np.where(logits[:, 0] < 2.0, np.nan, logits[:, 3])
        return logits


def test_a_draft_that_is_no_number_is_none():
    wanted, limits = SamplingParameters(max_tokens=30, seed=5, top_p=0.9, ignore_eos=True), Limits(4, 16, 8, 64)
    found = []
    for drafts in (None, Speculator(3, DraftModel(Broken(limits, 40), 17))):
        engine = LLMEngine(StandIn(limits, 40), 17, speculator=drafts)
        for prompt in ([1, 2], [4, 5], [7, 8]):
            engine.add(prompt, wanted)
        while engine.has_work:
            found += [one.completions[0].tokens for one in engine.step() if one.is_finished]
    assert sorted(found[:3]) == sorted(found[3:]) and engine.statistics.drafted_tokens


def test_lookups_find_what_followed_last(rng):
    lookup = PromptLookup([1, 2, 3, 4, 1, 2, 3, 5, 9, 1, 2])
    assert lookup.propose(3) == [3, 5, 9]
    lookup.extend([3, 4])
    assert lookup.propose(2) == [1, 2]  # three tokens before the last are those of the first place alone
    lookup.extend([7])
    assert lookup.propose(2) == [] and PromptLookup([5]).propose(3) == [] and PromptLookup([5, 5, 5]).propose(4) == [5]
    tokens = rng.integers(0, 3, 200).tolist()
    lookup = PromptLookup(tokens[:50])
    for token in tokens[50:]:
        lookup.extend([token])
    assert lookup.propose(5) == PromptLookup(tokens).propose(5)


def test_the_pace_follows_what_drafts_cost_and_bring():
    free, dear = Pace(4), Pace(4)
    for tokens in range(1, 9):
        free.observe(tokens, 1.0)
        dear.observe(tokens, float(tokens))
    assert free.choose(1, [(0.9, 4)]) == 4 and free.choose(1, [(0.01, 4)]) == 0
    assert dear.choose(1, [(0.9, 4)]) == 0 and free.choose(2, [(0.9, 4), (0.0, 0)]) == 4
    free.observe_drafts(1, 2.0)
    assert free.choose(1, [(0.9, 4)]) == 0
    lucky = Pace(4)
    for tokens, seconds in ((1, 2.0), (2, 1.0), (3, 3.0)):
        lucky.observe(tokens, seconds)
    assert lucky.choose(1, [(0.02, 4)]) == 0  # two tokens do not take less than one
    fresh = Pace(4)
    fresh.observe(1, 1.0)
    assert fresh.choose(1, [(0.6, 4)]) > 0  # what was not measured is tried


def test_a_checkpoint_with_drafts(tmp_path):
    folder = checkpoint_of("llama", tmp_path)
    plain = LLM(folder, memory=1 << 20)
    prompts = [[5, 6, 7, 8] * 3, [9, 10] * 5, [1]]
    wanted = SamplingParameters(temperature=0.0, max_tokens=40, ignore_eos=True)
    expected = [output.completions[0].tokens for output in plain.generate_all(prompts, wanted)]
    for options in ({}, {"draft": folder}):
        llm = LLM(folder, memory=2 << 20, speculate=4, **options)
        llm.engine.speculator.pace = Eager(4)
        outputs = llm.generate_all(prompts, wanted)
        assert [output.completions[0].tokens for output in outputs] == expected
        counts = llm.engine.statistics
        assert counts.drafted_tokens > 0 and counts.used_pages == 0
        assert not options or counts.accepted_tokens == counts.drafted_tokens
    with pytest.raises(InputError, match="speculate"):
        LLM(folder, draft=folder)
    with pytest.raises(InputError, match="speculate"):
        LLM(folder, speculate=99)
    with pytest.raises(InputError, match="same tokens"):
        LLM(folder, speculate=2, draft=_other_vocabulary(tmp_path))


def _other_vocabulary(folder):
    from tests.host.llm_reference import Reference
    from tests.host.llm_support import CASES, write_checkpoint

    settings_of = {**CASES["llama"], "vocab_size": 50}
    model = Reference(settings_of)
    model.logits([0])
    return write_checkpoint(folder / "other", settings_of, model.shapes)
