"""Many callers with every kind of request, in steps that overlap, follow drafts, or fail: each gets what it gets alone,
those that go away or run out of time a beginning of it, and everybody an end."""

from __future__ import annotations

import asyncio
import itertools
import random

import numpy as np
import pytest

from tests.host.llm_support import Overlapping, StandIn
from tests.host.test_llm_engine import END, LENGTH, Letters
from tests.host.test_llm_speculation import speculator
from tilewright.llm.asynchronous import AsyncEngine, EngineStopped
from tilewright.llm.engine import LLMEngine
from tilewright.llm.requests import SamplingParameters
from tilewright.llm.step_graph import Limits
from tilewright.llm.structure import StructuredOutput

ADAPTERS = ("first", "second")


class Form:
    """A form that allows every third token, ends between them, and nothing more after a few."""

    def __init__(self, kind=0, taken=()):
        self.kind, self.taken = kind, taken

    def matcher(self, wanted):
        return Form(len(wanted.regex))

    def copy(self):
        return Form(self.kind, self.taken)

    def allowed(self):
        allowed = np.arange(17) % 3 == (sum(self.taken) + self.kind) % 3
        allowed[END] = len(self.taken) % 4 == 3
        return allowed

    def take(self, token):
        assert self.allowed()[token]
        self.taken += (token,)

    @property
    def is_complete(self):
        return len(self.taken) >= 6 + self.kind


def adapted(chunks):
    """Chunks whose tokens say by which adapter their keys and values are made."""
    return [
        chunk._replace(tokens=[token + 100 * chunk.adapter if token >= 0 else token for token in chunk.tokens])
        for chunk in chunks
    ]


class Plain(StandIn):
    def run(self, chunks):
        return super().run(adapted(chunks))


class Late(Overlapping):
    """Steps are computed late, and a few of them fail when they begin or end."""

    def __init__(self, limits, pages, rng):
        super().__init__(limits, pages)
        self.rng, self.failing = rng, rng.choice([0.0, 0.05])

    def run(self, chunks):
        return super().run(adapted(chunks))

    def start(self, chunks):
        self.fail()
        return super().start(chunks)

    def finish(self, rows):
        found = super().finish(rows)
        self.fail()
        return found

    def fail(self):
        if self.rng.random() < self.failing:
            raise RuntimeError


FEATURES = [
    {}, {"presence_penalty": 1.0, "frequency_penalty": 0.5}, {"repetition_penalty": 1.3}, {"logit_bias": {4: 2.0}},
    {"logprobs": 3}, {"prompt_logprobs": 2}, {"structured_output": StructuredOutput(regex="aa")},
    {"top_k": 4}, {"top_p": 0.6}, {"min_p": 0.2}, {"min_tokens": 1}, {"ignore_eos": True}, {"stop": ("ab", "k")},
    {"stop_tokens": (5,)},
]  # fmt: skip


def parameters(rng):
    wanted = {"temperature": rng.choice([0.0, 0.7, 1.0]), "seed": rng.randrange(5), "max_tokens": rng.randint(1, 15)}
    for feature in rng.sample(FEATURES, 3):
        wanted |= feature
    return SamplingParameters(n=rng.choice([1, 1, 2, 3]), **wanted)


def core(model, share=True, drafts=None):
    return LLMEngine(
        model, 17, Letters(), [END], share, forms=Form, speculator=drafts, adapters=ADAPTERS,
    )  # fmt: skip


def alone(prompt, wanted, adapter):
    engine = core(Plain(Limits(LENGTH, 256, 8, LENGTH), 16), share=False)
    engine.add(prompt, wanted, adapter=adapter)
    outputs = itertools.chain.from_iterable(engine.step() for _ in range(200))
    return next(output for output in outputs if output.is_finished)


def shown(output):
    results = [(one.tokens, one.text, one.finish_reason, one.logprobs) for one in output.completions]
    return results, output.prompt_logprobs


async def call(engine, rng):
    """One caller; whether its results came whole."""
    await asyncio.sleep(rng.random() * 0.01)
    prompt, wanted = [rng.randrange(2) for _ in range(rng.randint(1, 25))], parameters(rng)
    adapter, seconds, patience = rng.choice([None, *ADAPTERS]), rng.choice([None, None, 0.02]), rng.choice([99, 99, 2])
    stream, outputs = engine.stream(prompt, wanted, rng.choice(["", "salt"]), seconds, adapter), []
    try:
        async for each in stream:
            outputs.append(each)
            if len(outputs) == patience:
                break
    except EngineStopped:
        return False
    finally:
        await stream.aclose()
    whole, output = alone(prompt, wanted, adapter), outputs[-1]
    if output.is_finished and not output.error and all(one.finish_reason != "deadline" for one in output.completions):
        assert shown(output) == shown(whole)
        return True
    for one, other in zip(output.completions, whole.completions, strict=True):
        assert one.tokens == other.tokens[: len(one.tokens)]
    return False


def model_of(kind, limits, pages, rng):
    return Late(limits, pages, rng) if kind == "overlapping" else Plain(limits, pages)


@pytest.mark.parametrize("kind", ["overlapping", "plain", "lookup", "model"])
def test_callers_of_every_kind(kind):
    async def main(seed):
        rng = random.Random(f"{kind} {seed}")
        limits = Limits(rng.randint(1, 6), rng.randint(1, 12), rng.randint(1, 5), LENGTH)
        pages = limits.columns + rng.randint(0, 6)
        drafts = speculator(kind, limits, pages) if kind in ("lookup", "model") else None
        engine = AsyncEngine(core(model_of(kind, limits, pages, rng), rng.random() < 0.7, drafts))
        calls = [call(engine, random.Random(rng.random())) for _ in range(12)]
        together = asyncio.gather(*calls)
        if seed % 4 == 3:
            await asyncio.sleep(0.02)
            await asyncio.to_thread(engine.close)
        whole = await asyncio.wait_for(together, 120)
        await asyncio.to_thread(engine.close)
        engine._engine.scheduler.pool.check()
        assert not engine._engine.has_work and not engine.statistics.used_pages, seed
        return sum(whole)

    assert sum(asyncio.run(main(seed)) for seed in range(8))
