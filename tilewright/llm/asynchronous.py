"""`AsyncLLM`: many callers in one event loop share a language model, whose steps run in a thread.

    async with AsyncLLM("models/small") as llm:
        async for output in llm.stream("Once upon a time"):
            print(output.completions[0].text)

The thread alone touches the engine: calls reach it through a queue, outputs go back through the loop.  A caller that
stops listening ends its request, whose pages are free after the step that runs.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tilewright.errors import TilewrightError
from tilewright.llm.engine import LLMEngine, Statistics
from tilewright.llm.llm import LLM, Prompt
from tilewright.llm.requests import Output, SamplingParameters

_log = logging.getLogger("tilewright")
_MOST_FAILURES = 3  # steps one after the other


class EngineStopped(TilewrightError):
    """The thread of an `AsyncLLM` has ended: it was closed, or its engine failed."""


class _Listener:
    """Where a request's outputs go; it keeps the latest, which has all that those before had."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._latest: Output | BaseException | None = None
        self._has_come = asyncio.Event()

    async def take(self) -> Output:
        """The latest output, once there is one that was not taken; raises what was given as an error."""
        await self._has_come.wait()
        self._has_come.clear()
        item, self._latest = self._latest, None
        if isinstance(item, BaseException):
            raise item
        assert item is not None
        return item

    def keep(self, item: Output | BaseException) -> None:
        """For the loop alone."""
        self._latest = item
        self._has_come.set()


_Given = Sequence[tuple[_Listener, Output | BaseException]]


class _Deliverer:
    """Hands outputs to event loops, in a thread of its own.

    Waking a loop is a system call, in which a thread gives Python's lock away; the loop then keeps it for as long as
    it has something to do, up to 5 ms.  The engine's thread must not wait for that: it goes on to the next step, whose
    machine code needs no lock, and the loop works meanwhile.  A loop is woken once for all of a step's outputs.
    """

    def __init__(self) -> None:
        self._given: queue.SimpleQueue[_Given | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="tilewright-llm-outputs", daemon=True)
        self._thread.start()

    def give(self, items: _Given) -> None:
        """Any thread may call this."""
        if items:
            self._given.put(items)

    def close(self) -> None:
        """End, once all that was given has gone out."""
        self._given.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (items := self._given.get()) is not None:
            by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Listener, Output | BaseException]]] = {}
            for listener, item in items:
                by_loop.setdefault(listener.loop, []).append((listener, item))
            for loop, together in by_loop.items():
                try:
                    loop.call_soon_threadsafe(_keep, together)
                except RuntimeError:
                    pass  # the loop is closed: nobody listens


def _keep(items: _Given) -> None:
    for listener, item in items:
        listener.keep(item)


class AsyncEngine:
    """An `LLMEngine` in a thread of its own; any number of event loops may call it."""

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._listeners: dict[str, _Listener] = {}
        self._failure: BaseException | None = None
        self._entry = threading.Lock()  # a call put after the thread's last read would wait for ever
        self._deliverer = _Deliverer()
        self._thread = threading.Thread(target=self._work, name="tilewright-llm", daemon=True)
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken."""
        return self._thread.is_alive() and self._failure is None

    @property
    def is_healthy(self) -> bool:
        """Whether requests are taken, and the last steps have not all failed."""
        return self.is_ready and self._engine.failures < _MOST_FAILURES

    @property
    def statistics(self) -> Statistics:
        """Counts of the engine, of one moment between two steps or in one."""
        return self._engine.statistics

    async def stream(
        self,
        prompt: list[int],
        parameters: SamplingParameters | None = None,
        salt: str = "",
        seconds: float | None = None,
        adapter: str | None = None,
    ) -> AsyncGenerator[Output, None]:
        """The state of a request's results after steps that changed them; its lists are the caller's own.

        A caller that is slower than the steps gets the latest state, which holds those it missed.

        Closing the iterator ends the request.  Raises `InputError` as `LLMEngine.add`, and `EngineStopped`.
        """
        if parameters is not None and parameters.structured_output is not None:
            await asyncio.to_thread(self._engine.matcher, parameters)  # compiled while the steps of others go on
        name = secrets.token_hex(8)
        listener = _Listener(asyncio.get_running_loop())

        def begin() -> None:
            try:
                self._engine.add(prompt, parameters, name, salt, seconds, adapter)
            except Exception as error:  # whatever it is ends this request only
                self._deliverer.give([(listener, error)])
            else:
                self._listeners[name] = listener

        self._call(begin)
        try:
            while True:
                item = await listener.take()
                yield item
                if item.is_finished:
                    return
        finally:
            self._calls.put(lambda: self._forget(name))

    def close(self) -> None:
        """End all requests and the thread; waits for the step that runs."""
        self._calls.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _call(self, function: Callable[[], None]) -> None:
        with self._entry:
            if not self.is_ready:
                raise EngineStopped("the language model's engine has stopped") from self._failure
            self._calls.put(function)

    def _forget(self, name: str) -> None:
        if self._listeners.pop(name, None) is not None:
            self._engine.abort(name)

    def _work(self) -> None:
        try:
            while self._take_calls():
                given = []
                for output in self._engine.step():
                    listener = self._listeners.get(output.request)
                    if listener is not None:
                        given.append((listener, _copy(output)))
                        if output.is_finished:
                            del self._listeners[output.request]
                self._deliverer.give(given)
        except BaseException as error:  # whatever it was, callers must not wait for ever
            _log.exception("the language model's engine has failed")
            self._failure = error
        finally:
            with self._entry:
                self._failure = self._failure or EngineStopped("the language model was closed")
            self._stop()

    def _take_calls(self) -> bool:
        """Do what callers want, waiting for it when there is nothing else to do; False at the end."""
        while True:
            try:
                call = self._calls.get(block=not self._engine.has_work)
            except queue.Empty:
                return True
            if call is None:
                return False
            call()

    def _stop(self) -> None:
        """Tell everybody, those whose calls came meanwhile too; then give back what the requests hold."""
        names: list[str] = []
        while True:
            names += self._listeners
            self._refuse_all()
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                break
            if call is not None:
                call()
        self._deliverer.close()
        try:
            for name in names:
                self._engine.abort(name)
            self._engine.clear_ended()
        except Exception:  # an engine that has failed may do so again
            _log.exception("the language model's engine could not end its requests")

    def _refuse_all(self) -> None:
        stopped = EngineStopped("the language model's engine has stopped")
        self._deliverer.give([(listener, stopped) for listener in self._listeners.values()])
        self._listeners.clear()


def _copy(output: Output) -> Output:
    """An output that later steps do not change."""
    completions = [
        replace(one, tokens=list(one.tokens), logprobs=None if one.logprobs is None else list(one.logprobs))
        for one in output.completions
    ]
    return replace(output, completions=completions)


class AsyncLLM:
    """A language model for `asyncio`; takes what `LLM` takes.  Close it, or use it in ``async with``."""

    def __init__(self, path: str | Path, **options: Any) -> None:
        self.llm = LLM(path, **options)
        self.engine = AsyncEngine(self.llm.engine)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def stream(
        self,
        prompt: Prompt,
        parameters: SamplingParameters | None = None,
        *,
        salt: str = "",
        seconds: float | None = None,
        adapter: str | None = None,
    ) -> AsyncGenerator[Output, None]:
        """The state of one prompt's results after each step that changed them; closing it ends the request."""
        return self.engine.stream(self.llm.tokens(prompt), parameters, salt, seconds, adapter)

    async def generate(
        self,
        prompt: Prompt,
        parameters: SamplingParameters | None = None,
        *,
        salt: str = "",
        seconds: float | None = None,
        adapter: str | None = None,
    ) -> Output:
        """The results of one prompt; cancelling ends the request."""
        last: Output | None = None
        async for output in self.stream(prompt, parameters, salt=salt, seconds=seconds, adapter=adapter):
            last = output
        assert last is not None
        return last

    def close(self) -> None:
        """End all requests and the thread."""
        self.engine.close()
