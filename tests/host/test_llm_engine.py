"""The scheduler and the engine, with a model whose tokens follow from what its blocks hold.

Whatever is asked at once, in whatever batches and with however little memory, each request gives what it gives alone.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.host.llm_support import Overlapping, StandIn, check_together, shown
from tilewright.errors import DeviceError, InputError
from tilewright.llm.engine import LLMEngine
from tilewright.llm.requests import SamplingParameters
from tilewright.llm.step_graph import Limits

pytestmark = pytest.mark.usefixtures("quick_engines")

LENGTH = 48
END = 3


class Letters:
    """Tokens are letters; a decoder for tests."""

    def decode(self, tokens):
        return "".join(chr(ord("a") + token) for token in tokens)


def run(engine, most=3000):
    """All outputs that end, by name, with the pool checked after every step."""
    done = {}
    for _ in range(most):
        if not engine.has_work:
            break
        for output in engine.step():
            if output.is_finished:
                done[output.request] = output
        engine.scheduler.pool.check()
    assert not engine.has_work, "a request does not end"
    assert engine.scheduler.pool.free == engine.scheduler.pool.count
    return done


def alone(prompt, parameters):
    """The results of a request that has the machine for itself, in one chunk, without a cache."""
    engine = LLMEngine(StandIn(Limits(LENGTH, 256, 8, LENGTH), 16), 17, Letters(), [END], share_prefixes=False)
    name = engine.add(prompt, parameters)
    return run(engine)[name]


limits_drawn = st.builds(
    Limits, page=st.integers(1, 6), tokens=st.integers(1, 12), sequences=st.integers(1, 5), length=st.just(LENGTH)
)
requests_drawn = st.lists(
    st.tuples(
        st.lists(st.integers(0, 1), min_size=1, max_size=25),
        st.builds(
            SamplingParameters,
            temperature=st.sampled_from([0.0, 1.0]), seed=st.integers(0, 5), max_tokens=st.integers(1, 15),
            n=st.integers(1, 3), stop=st.sampled_from([(), ("ab",), ("k", "fe")]),
            presence_penalty=st.sampled_from([0.0, 1.0]),
        ),
        st.sampled_from(["", "tenant"]),
        st.integers(0, 6),  # steps before it comes
    ),
    min_size=1,
    max_size=8,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(limits=limits_drawn, spare=st.integers(0, 6), requests=requests_drawn, share=st.booleans())
def test_requests_together_give_what_they_give_alone(limits, spare, requests, share):
    engine = LLMEngine(StandIn(limits, limits.columns + spare), 17, Letters(), [END], share)
    check_together(engine, requests, run, alone)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(limits=limits_drawn, data=st.data())
def test_aborts_and_deadlines_leave_nothing(limits, data):
    clock = [0.0]
    engine = LLMEngine(StandIn(limits, limits.columns + 2), 17, end_tokens=[END], clock=lambda: clock[0])
    parameters = SamplingParameters(max_tokens=20, temperature=0.0, ignore_eos=True, n=2)
    names = []
    for _ in range(6):
        seconds = data.draw(st.sampled_from([None, 2.0, 7.0]))
        names.append(engine.add(data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=20)), parameters,
                                seconds=seconds))  # fmt: skip
    done = {}
    for _ in range(data.draw(st.integers(0, 8))):
        clock[0] += 1.0
        done |= {output.request: output for output in engine.step() if output.is_finished}
        engine.abort(data.draw(st.sampled_from(names)))
    done |= run(engine)
    assert set(done) == set(names)
    reasons = {one.finish_reason for output in done.values() for one in output.completions}
    assert reasons <= {"length", "abort", "deadline"}


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(limits=limits_drawn, spare=st.integers(0, 6), requests=requests_drawn, share=st.booleans())
def test_steps_that_overlap_give_what_those_one_by_one_give(limits, spare, requests, share):
    """Penalties and lists of requests with stop texts are among them, whose steps nothing may follow, and others."""
    engine = LLMEngine(Overlapping(limits, limits.columns + spare), 17, Letters(), [END], share)
    check_together(engine, requests, run, alone)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(limits=limits_drawn, data=st.data())
def test_steps_that_overlap_leave_nothing_when_requests_end(limits, data):
    """Aborts, deadlines, names that come again, and steps that fail when they begin or later, while others run."""

    class Failing(Overlapping):
        def start(self, chunks):
            if data.draw(st.integers(0, 9)) == 0:
                raise DeviceError("no start")
            return super().start(chunks)

        def finish(self, rows):
            found = super().finish(rows)
            if data.draw(st.integers(0, 9)) == 0:
                raise DeviceError("no end")
            return found

    clock = [0.0]
    engine = LLMEngine(Failing(limits, limits.columns + 2), 17, end_tokens=[END], clock=lambda: clock[0])
    parameters = SamplingParameters(max_tokens=12, temperature=0.0, n=2)
    running, ended = {}, []
    for number in range(25):
        clock[0] += 1.0
        name = f"{number % 4}"
        if name not in running and number < 16:
            prompt = data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=20))
            engine.add(prompt, parameters, name=name, seconds=data.draw(st.sampled_from([None, 2.0, 7.0])))
            running[name] = prompt
        if data.draw(st.integers(0, 3)) == 0:
            engine.abort(name)
        for output in engine.step():
            assert output.prompt_tokens == running[output.request]
            if output.is_finished:
                ended.append((running.pop(output.request), output))
        engine.scheduler.pool.check()
    for name, output in run(engine).items():
        ended.append((running.pop(name), output))
    assert not running
    for prompt, output in ended:
        whole = alone(prompt, parameters)
        for one, other in zip(output.completions, whole.completions, strict=True):
            assert one.tokens == other.tokens[: len(one.tokens)]


def test_what_may_follow_does():
    limits = Limits(4, 64, 8, LENGTH)

    def ahead(**parameters):
        engine = LLMEngine(Overlapping(limits, 40), 17, end_tokens=[END])
        for number in range(4):
            engine.add([0, 1] * (number + 1), SamplingParameters(max_tokens=6, seed=number, **parameters))
        run(engine)
        return engine.model.most_ahead, engine.statistics.steps

    assert ahead(temperature=0.0, ignore_eos=True) == (2, 6)
    assert ahead(temperature=0.7, min_p=0.1, ignore_eos=True)[0] == 2
    assert ahead(logprobs=1)[0] == 1
    assert ahead(min_tokens=6)[0] == 1
    assert ahead(prompt_logprobs=0, ignore_eos=True)[0] == 2  # once the prompts are computed
    deterministic = LLMEngine(Overlapping(limits, 40), 17, deterministic=True)
    deterministic.add([0, 1], SamplingParameters(temperature=0.0))
    run(deterministic)
    assert deterministic.model.most_ahead == 0


def test_aligned_chunks_follow_from_a_sequence_s_own_tokens():
    """The same runs for a request that is alone, has company, loses its pages, or finds its prefix."""

    class Recording(StandIn):
        def run(self, chunks):
            for chunk in chunks:
                tokens = [int(self.held[chunk.pages[place // 4] * 4 + place % 4]) for place in range(chunk.begin)]
                self.seen.setdefault((*tokens, *chunk.tokens), set()).add(len(chunk.tokens))
            assert len(chunks) == 1
            return super().run(chunks)

    limits = Limits(4, 8, 4, LENGTH)
    model = Recording(limits, limits.columns + 2)
    model.seen = {}
    engine = LLMEngine(model, 17, deterministic=True)
    parameters = SamplingParameters(max_tokens=9, temperature=0.0, ignore_eos=True, n=2)
    prompts = [[0] * 21, [0] * 21 + [1] * 5, [0] * 8, [0] * 21, [1]]
    names = [engine.add(prompt, parameters) for prompt in prompts]
    done = run(engine)
    assert engine.statistics.preemptions > 0 and engine.scheduler.found > 0
    for prompt, name in zip(prompts, names, strict=True):
        assert shown(done[name])[0][0] == alone(prompt, parameters).completions[0].tokens
        for end in range(8, len(prompt) + 1, 8):
            assert 8 in model.seen[tuple(prompt[:end])]


def test_results_of_one_request_share_its_prompt():
    engine = LLMEngine(StandIn(Limits(4, 64, 8, LENGTH), 40), 17)
    name = engine.add([0, 1] * 8, SamplingParameters(n=4, seed=1, max_tokens=6))
    output = run(engine)[name]
    assert len({tuple(one.tokens) for one in output.completions}) > 1
    assert engine.scheduler.found == 3 * 12  # whole pages, of which one token is left to compute


def test_equal_beginnings_are_found_by_those_of_one_salt():
    engine = LLMEngine(StandIn(Limits(4, 64, 8, LENGTH), 40), 17)
    prompt = [0, 1, 1, 0] * 5
    cached = []
    for salt in ("a", "a", "b", "a", "\ud800", "\ud800"):
        name = engine.add(prompt, SamplingParameters(max_tokens=3, temperature=0.0), salt=salt)
        cached.append(run(engine)[name].cached_tokens)
    assert cached == [0, 16, 0, 16, 0, 16]


def test_memory_for_one_sequence_is_enough_for_many():
    limits = Limits(4, 16, 8, LENGTH)
    engine = LLMEngine(StandIn(limits, limits.columns), 17, end_tokens=[END])
    parameters = SamplingParameters(max_tokens=20, temperature=0.0, ignore_eos=True)
    names = [engine.add([number % 2] * (5 + number), parameters) for number in range(8)]
    done = run(engine)
    assert engine.statistics.preemptions > 0 and len(done) == len(names)
    for number, name in enumerate(names):
        assert shown(done[name])[0][0] == alone([number % 2] * (5 + number), parameters).completions[0].tokens


def test_the_oldest_request_never_waits_for_younger_ones():
    limits = Limits(4, 8, 8, LENGTH)
    model = StandIn(limits, limits.columns)
    engine = LLMEngine(model, 17)
    parameters = SamplingParameters(max_tokens=25, temperature=0.0)
    oldest = engine.add([0] * 20, parameters)
    for number in range(6):
        engine.add([1] * (10 + number), parameters)
    steps = 0
    while oldest not in {output.request for output in engine.step() if output.is_finished}:
        steps += 1
    assert steps <= 3 + 25  # its prompt in chunks, then a token in each step


def test_a_step_that_fails_ends_its_requests_only():
    class Failing(StandIn):
        def run(self, chunks):
            if self.steps == 1:
                self.steps += 1
                raise DeviceError("the machine is on fire at 0xdeadbeef")
            return super().run(chunks)

    engine = LLMEngine(Failing(Limits(4, 16, 8, LENGTH), 20), 17)
    first = engine.add([0, 1], SamplingParameters(max_tokens=5))
    failed = run(engine)[first]
    assert failed.completions[0].finish_reason == "error" and "0xdead" not in failed.error
    second = engine.add([0, 1], SamplingParameters(max_tokens=5))
    assert run(engine)[second].completions[0].finish_reason == "length"


def test_a_step_that_cannot_be_started_counts_as_the_last_failure():
    """A step that was started before, and is done afterwards, is not later than it."""

    class Failing(Overlapping):
        is_broken = False

        def start(self, chunks):
            if self.is_broken:
                raise DeviceError("no start")
            self.is_broken = True
            return super().start(chunks)

    model = Failing(Limits(4, 16, 8, LENGTH), 20)
    engine = LLMEngine(model, 17)
    for failures in (1, 2):
        engine.add([0, 1], SamplingParameters(max_tokens=5, temperature=0.0))
        engine.step()
        assert engine.failures == failures
    model.is_broken = False
    engine.add([0, 1], SamplingParameters(max_tokens=1, temperature=0.0))
    run(engine)
    assert engine.failures == 0


def test_logits_that_are_no_numbers_end_one_request_only():
    class Broken(StandIn):
        def logits(self, tokens):
            return np.full(17, np.nan, np.float32) if tokens[0] == 1 else super().logits(tokens)

    engine = LLMEngine(Broken(Limits(4, 16, 8, LENGTH), 20), 17)
    bad = engine.add([1, 1], SamplingParameters(max_tokens=5, n=3))
    good = engine.add([0, 1], SamplingParameters(max_tokens=5))
    done = run(engine)
    assert {one.finish_reason for one in done[bad].completions} == {"error"}
    assert done[good].completions[0].finish_reason == "length"


def test_stop_tokens_least_tokens_and_lengths():
    prompt = [0, 1, 0]
    plain = alone(prompt, SamplingParameters(max_tokens=12, temperature=0.0, ignore_eos=True)).completions[0]
    assert plain.finish_reason == "length" and len(plain.tokens) == 12
    fifth = plain.tokens[4]
    first = plain.tokens.index(fifth)
    wanted = SamplingParameters(max_tokens=12, temperature=0.0, ignore_eos=True, stop_tokens=[fifth])
    stopped = alone(prompt, wanted).completions[0]
    assert stopped.finish_reason == "stop" and stopped.tokens == plain.tokens[: first + 1]
    late = SamplingParameters(max_tokens=12, temperature=0.0, stop_tokens=[fifth], min_tokens=8)
    result = alone(prompt, late).completions[0]
    assert fifth not in result.tokens[:8] and END not in result.tokens[:8]


def test_a_sequence_ends_at_the_longest_length():
    engine = LLMEngine(StandIn(Limits(4, 16, 8, 16), 8), 17)
    name = engine.add([0] * 10, SamplingParameters(max_tokens=100, temperature=0.0))
    result = run(engine)[name].completions[0]
    assert result.finish_reason == "length" and len(result.tokens) == 6


@pytest.mark.parametrize("prompt", [[], [0] * LENGTH, [17], [-1], ["a"], [True], "text", [0.5]])
def test_prompts_that_are_refused(prompt):
    engine = LLMEngine(StandIn(Limits(4, 16, 8, LENGTH), 40), 17)
    with pytest.raises(InputError):
        engine.add(prompt)
    assert not engine.has_work


def test_a_name_is_used_once_at_a_time():
    engine = LLMEngine(StandIn(Limits(4, 16, 8, LENGTH), 40), 17)
    engine.add([0], name="mine")
    with pytest.raises(InputError, match="mine"):
        engine.add([0], name="mine")
    assert not engine.abort("other")
    with pytest.raises(InputError, match="tokenizer"):
        engine.add([0], SamplingParameters(stop=["x"]))


def test_statistics_count_what_was_done():
    engine = LLMEngine(StandIn(Limits(4, 16, 8, LENGTH), 40), 17)
    for _ in range(2):
        engine.add([0, 1] * 5, SamplingParameters(max_tokens=4, temperature=0.0))
        run(engine)
    counts = engine.statistics
    assert (counts.prompt_tokens, counts.cached_tokens, counts.generated_tokens) == (20, 8, 8)
    assert counts.finished == {"length": 2} and counts.running == counts.waiting == counts.used_pages == 0


@pytest.mark.parametrize("seconds", [None, 2.5])
def test_logprobs_of_a_prompt_are_held_once(seconds):
    """Not beside the list that the output has, and not at all once the time is over."""
    clock = itertools.count()
    engine = LLMEngine(StandIn(Limits(4, 4, 4, LENGTH), 40), 17, clock=lambda: float(next(clock)))
    name = engine.add([3] * 12, SamplingParameters(prompt_logprobs=2, max_tokens=3), seconds=seconds)
    request = engine._requests[name]
    while engine.has_work and request.prompt_logprobs is None:
        engine.step()
    assert request.found == {} and (request.prompt_logprobs is None) == (seconds is not None)
