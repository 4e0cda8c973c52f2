"""Many callers of an event loop: results, cancelling, failures, the end."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tests.host.llm_support import StandIn, checkpoint_of
from tilewright.errors import InputError
from tilewright.llm.asynchronous import AsyncEngine, AsyncLLM, EngineStopped
from tilewright.llm.engine import LLMEngine
from tilewright.llm.requests import SamplingParameters
from tilewright.llm.step_graph import Limits

pytestmark = pytest.mark.usefixtures("quick_engines")

LIMITS = Limits(4, 16, 8, 64)


def made(model=None):
    return AsyncEngine(LLMEngine(model or StandIn(LIMITS, 40), 17))


async def last(stream):
    output = None
    async for item in stream:
        output = item
    return output


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_callers_get_what_each_gets_alone():
    async def main():
        engine = made()
        wanted = [SamplingParameters(seed=seed, max_tokens=5 + seed) for seed in range(12)]
        prompts = [[0, 1] * (1 + seed % 5) for seed in range(12)]
        together = await asyncio.gather(*(last(engine.stream(*each)) for each in zip(prompts, wanted, strict=True)))
        alone = [await last(engine.stream(*each)) for each in zip(prompts, wanted, strict=True)]
        engine.close()
        assert [one.completions[0].tokens for one in together] == [one.completions[0].tokens for one in alone]
        assert engine.statistics.used_pages == 0

    asyncio.run(main())


def test_a_loop_is_woken_once_for_all_requests_of_a_step(monkeypatch):
    async def main():
        engine, loop, wakes = made(), asyncio.get_running_loop(), []
        wake = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *given: wakes.append(given) or wake(*given))
        wanted = SamplingParameters(max_tokens=30, ignore_eos=True)
        outputs = await asyncio.gather(*(last(engine.stream([number], wanted)) for number in range(8)))
        assert sum(len(output.completions[0].tokens) for output in outputs) == 240
        assert len(wakes) <= engine.statistics.steps
        engine.close()

    asyncio.run(main())


def test_a_slow_caller_gets_the_latest_output():
    first_came = threading.Event()

    class Waiting(StandIn):
        def run(self, chunks):
            if self.steps:
                assert first_came.wait(60)  # without it all steps may be over before the first output is read
            return super().run(chunks)

    async def main():
        engine = made(Waiting(LIMITS, 40))
        stream = engine.stream([0], SamplingParameters(max_tokens=40, seed=1, ignore_eos=True))
        assert len((await anext(stream)).completions[0].tokens) == 1
        first_came.set()
        await asyncio.to_thread(until, lambda: not engine._engine.has_work)
        engine.close()  # all that was given has come when it returns
        await asyncio.sleep(0)
        outputs = [item async for item in stream]
        assert [len(item.completions[0].tokens) for item in outputs] == [40]

    asyncio.run(main())


def test_a_caller_that_goes_ends_its_request():
    async def main():
        engine = made()
        stream = engine.stream([0], SamplingParameters(max_tokens=60, ignore_eos=True))
        await anext(stream)
        await stream.aclose()
        task = asyncio.create_task(last(engine.stream([1], SamplingParameters(max_tokens=60))))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(until, lambda: not engine.statistics.used_pages and not engine._engine.has_work)
        engine.close()

    asyncio.run(main())


def test_a_prompt_that_is_refused_ends_nothing_else():
    async def main():
        engine = made()
        with pytest.raises(InputError):
            await last(engine.stream([99]))
        output = await last(engine.stream([1], SamplingParameters(max_tokens=2)))
        engine.close()
        assert output.is_finished

    asyncio.run(main())


class Failing(StandIn):
    """A model with steps to fail."""

    left = 0

    def run(self, chunks):
        if self.left:
            self.left -= 1
            raise ZeroDivisionError("at 0xdeadbeef")
        return super().run(chunks)


def test_steps_that_fail_end_their_requests_and_show_in_health():
    async def main():
        model = Failing(LIMITS, 40)
        engine, wanted = made(model), SamplingParameters(max_tokens=3, ignore_eos=True)
        for failures in (1, 3):
            model.left = failures
            for _ in range(failures):
                output = await last(engine.stream([0], wanted))
                assert output.error == "the step failed (ZeroDivisionError)" and not output.is_refused
            assert engine.is_ready and engine.is_healthy == (failures < 3)
            assert (await last(engine.stream([0], wanted))).error is None and engine.is_healthy
        assert engine.statistics.used_pages == 0
        engine.close()
        assert not engine.is_healthy

    asyncio.run(main())


def test_a_failure_and_the_end_reach_everybody():
    class Slow(StandIn):
        def run(self, chunks):
            time.sleep(0.02)  # so that the end comes before that of the tokens
            return super().run(chunks)

    async def main():
        engine = made()
        engine._engine.scheduler.schedule = None  # not callable: a fault of the engine itself
        with pytest.raises(EngineStopped):
            await last(engine.stream([0]))
        assert not engine.is_ready
        with pytest.raises(EngineStopped):
            await last(engine.stream([0]))
        closed = made(Slow(LIMITS, 40))
        stream = closed.stream([0], SamplingParameters(max_tokens=60))
        await anext(stream)
        await asyncio.to_thread(closed.close)
        with pytest.raises(EngineStopped):
            await last(stream)
        with pytest.raises(EngineStopped):
            await last(closed.stream([0]))

    asyncio.run(main())


def test_an_engine_that_cannot_end_its_requests_tells_its_callers():
    class Broken(LLMEngine):
        def step(self):
            raise ZeroDivisionError

        abort = step

    async def main():
        engine = AsyncEngine(Broken(StandIn(LIMITS, 40), 17))
        with pytest.raises(EngineStopped):
            await asyncio.wait_for(last(engine.stream([0])), 60)

    asyncio.run(main())


def test_a_call_that_comes_while_the_engine_ends_is_refused(monkeypatch):
    async def main():
        engine = made()
        closing = threading.Thread(target=engine.close)

        def closed_meanwhile(self):
            closing.start()
            closing.join(0.2)  # it ends only if nothing keeps it until the call is there
            return True

        monkeypatch.setattr(AsyncEngine, "is_ready", property(closed_meanwhile))
        with pytest.raises(EngineStopped):
            await asyncio.wait_for(last(engine.stream([0])), 60)
        closing.join()
        assert not engine._engine.has_work and not engine.statistics.used_pages

    asyncio.run(main())


def test_a_folder(tmp_path):
    async def main():
        wanted = SamplingParameters(max_tokens=4, temperature=0.0)
        async with AsyncLLM(checkpoint_of("llama", tmp_path), memory=1 << 20) as llm:
            first, second = await asyncio.gather(llm.generate([1, 2], wanted), llm.generate([1, 2], wanted))
        assert first.completions[0].tokens == second.completions[0].tokens
        assert not llm.engine.is_ready

    asyncio.run(main())
