"""The ASGI application: routes, keys, bounds, and answers in one piece or as server-sent events.

    GET  /                     the page: a chat, and what the server does; without a key
    GET  /health               whether the engine works; without a key
    GET  /ready                whether requests are taken now
    GET  /metrics              Prometheus
    GET  /openapi.json         the routes and the fields of their bodies, as OpenAPI
    GET  /version
    GET  /v1/models            and /v1/models/NAME
    POST /v1/completions
    POST /v1/chat/completions
    POST /v1/responses         without state: nothing is stored
    POST /v1/embeddings        where there is an encoder
    POST /tokenize             and /detokenize

What is over a bound is answered with an error and costs nothing more.  A client that goes away ends its request within
a step.  Error bodies hold no paths, addresses or tracebacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import threading
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from tilewright import __version__
from tilewright.errors import ImportModelError, InputError, TilewrightError
from tilewright.llm.asynchronous import AsyncLLM, EngineStopped
from tilewright.llm.encoder import TextEncoder
from tilewright.llm.requests import Output
from tilewright.llm.serve import protocol, responses, schema
from tilewright.llm.serve.keys import OPEN, Keys
from tilewright.llm.serve.local import check_local
from tilewright.llm.serve.metrics import Metrics
from tilewright.llm.serve.page import page
from tilewright.llm.serve.protocol import Refused, Wanted
from tilewright.llm.serve.responses import ResponsesForm
from tilewright.llm.serve.results import About, ChatForm, TextForm
from tilewright.llm.serve.tracing import Tracing
from tilewright.llm.tokenizer import TemplateOptions
from tilewright.llm.tools import Tools

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
_log = logging.getLogger("tilewright")
_RETRY = [(b"retry-after", b"1")]
_T = TypeVar("_T")
_MODEL = "/v1/models/"  # and a name
_JSON = b"application/json"
_PART = 64 << 10  # bytes of an answer that are sent at once
_AT_ONCE = 512  # items of a list that `json.dumps` writes at once, each of fewer values than
_FEW = 32


@dataclass(frozen=True)
class Bounds:
    """What a server takes at most."""

    body: int = 4 << 20  # bytes
    requests: int = 256  # prompts that are read, worked on or wait
    tokens: int = 1 << 20  # of these prompts together
    seconds: float = 600.0  # of a request
    body_seconds: float = 30.0  # until a body has come
    send_seconds: float = 30.0  # after those of the request, until the client has read the answer


class Application:
    """Serves one language model under `name`; with `keys` each request needs one of them, without keys it must come
    from this machine and from no other site's page.

    Prefixes are shared among the requests of one key.  `encoder` gives embeddings, `tracing` spans of requests.
    """

    def __init__(
        self, llm: AsyncLLM, name: str, keys: Sequence[str] = (), bounds: Bounds | None = None,
        encoder: TextEncoder | None = None, tracing: Tracing | None = None,
    ) -> None:  # fmt: skip
        self.llm, self.name, self.bounds, self.encoder = llm, name, bounds or Bounds(), encoder
        self._keys = Keys(keys)
        self.metrics, self._tracing = Metrics(), tracing or Tracing()
        self._encoding = asyncio.Lock()  # one request's embeddings at a time
        self.requests = self.tokens = 0  # that are read, worked on or wait
        self._started = int(time.time())
        self._routes: dict[tuple[str, str], Callable[[str, Receive, Send], Awaitable[None]]] = {
            ("GET", "/"): self._page,
            ("GET", "/health"): self._health, ("GET", "/ready"): self._ready, ("GET", "/metrics"): self._metrics,
            ("GET", "/openapi.json"): self._openapi, ("GET", "/version"): self._version,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/v1/chat/completions"): self._chat, ("POST", "/v1/responses"): self._responses,
            ("POST", "/v1/embeddings"): self._embeddings,
            ("POST", "/tokenize"): self._tokenize, ("POST", "/detokenize"): self._detokenize,
        }  # fmt: skip

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """An ASGI connection."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = _Answer(send, self.metrics)
        with self._tracing.request(scope["path"], self.name, scope["headers"]):
            await self._serve(scope, receive, answer)
            if answer.status:
                self._tracing.note(http__response__status_code=answer.status)
            if answer.failure or not answer.is_whole:
                self._tracing.failed(answer.failure or "incomplete_answer")

    async def _serve(self, scope: Message, receive: Receive, answer: _Answer) -> None:
        try:
            if not self._keys:
                check_local(scope["method"], scope["headers"])
            await self._route(scope)(self._tenant(scope), receive, answer)
        except Refused as refused:
            await answer.refuse(refused)
        except InputError as error:
            await answer.refuse(Refused(400, str(error)))
        except EngineStopped:
            await answer.refuse(Refused(503, "the engine has stopped"))
        except asyncio.CancelledError:
            raise
        except Exception as error:  # whatever it is ends this request only, and says nothing of the inside
            _log.exception("a request failed")
            await answer.refuse(Refused(500, f"internal error ({type(error).__name__})"))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await asyncio.to_thread(self.llm.close)
        await send({"type": "lifespan.shutdown.complete"})

    def _route(self, scope: Message) -> Callable[[str, Receive, Send], Awaitable[None]]:
        path, method = scope["path"], "GET" if scope["method"] == "HEAD" else scope["method"]
        if (method, path) in self._routes:
            return self._routes[method, path]
        if method == "GET" and path.startswith(_MODEL):
            return functools.partial(self._model, path[len(_MODEL) :])
        known = [name for name, other in self._routes if other == path]
        if path not in OPEN:
            self._tenant(scope)  # without a key nobody learns which routes there are
        if known:
            raise Refused(405, f"use {known[0]}", headers=[(b"allow", known[0].encode())])
        raise Refused(404, "no such route")

    def _tenant(self, scope: Message) -> str:
        return self._keys.tenant(scope["path"], scope["headers"])

    # -- Small routes -----------------------------------------------------------------------------

    async def _health(self, tenant: str, receive: Receive, send: Send) -> None:
        if not self.llm.engine.is_healthy:
            why = "steps of the model fail" if self.llm.engine.is_ready else "the engine has stopped"
            raise Refused(503, why)
        await _send_json(send, 200, {"status": "ok"})

    async def _page(self, tenant: str, receive: Receive, send: Send) -> None:
        text, policy = page()
        headers = [(b"content-security-policy", policy), (b"referrer-policy", b"no-referrer"),
                   (b"cross-origin-opener-policy", b"same-origin"), (b"x-frame-options", b"DENY")]  # fmt: skip
        await _send_whole(send, 200, text, b"text/html; charset=utf-8", headers)

    async def _ready(self, tenant: str, receive: Receive, send: Send) -> None:
        if not self.llm.engine.is_ready:
            raise Refused(503, "the engine has stopped")
        if self.requests >= self.bounds.requests:
            raise Refused(503, "all places are taken", headers=_RETRY)
        await _send_json(send, 200, {"status": "ready"})

    async def _metrics(self, tenant: str, receive: Receive, send: Send) -> None:
        text = self.metrics.text(self.llm.engine.statistics)
        await _send_whole(send, 200, text.encode(), b"text/plain; version=0.0.4; charset=utf-8")

    async def _openapi(self, tenant: str, receive: Receive, send: Send) -> None:
        await _send_json(send, 200, schema.document(list(self._routes), bool(self._keys), OPEN))

    async def _version(self, tenant: str, receive: Receive, send: Send) -> None:
        await _send_json(send, 200, {"version": __version__})

    async def _models(self, tenant: str, receive: Receive, send: Send) -> None:
        await _send_json(send, 200, {"object": "list", "data": self._all_models()})

    async def _model(self, name: str, tenant: str, receive: Receive, send: Send) -> None:
        found = next((one for one in self._all_models() if one["id"] == name), None)
        if found is None:
            raise self._unknown_model([one["id"] for one in self._all_models()])
        await _send_json(send, 200, found)

    def _all_models(self) -> list[dict[str, Any]]:
        engine = self.llm.llm.engine
        model = {"object": "model", "created": self._started, "owned_by": "tilewright",
                 "max_model_len": engine.scheduler.longest}  # fmt: skip
        adapters = [{"id": name, **model, "parent": self.name} for name in engine.adapters]
        models = [{"id": self.name, **model}, *adapters]
        models = [{**one, "task": "generate"} for one in models]
        if self.encoder is not None:
            models.append({"id": self.encoder.name, **model, "max_model_len": self.encoder.longest, "task": "embed"})
        return models

    async def _embeddings(self, tenant: str, receive: Receive, send: Send) -> None:
        encoder = self.encoder
        if encoder is None:
            raise Refused(404, "no encoder is served")
        with self._admitted() as place:
            fields = await self._fields(receive, [encoder.name])
            texts, is_packed = protocol.read_embeddings(fields)
            place.take(len(texts))
            try:
                prompts = [await asyncio.to_thread(encoder.tokens, text) for text in texts]
            except InputError as error:
                raise Refused(400, str(error), "input") from error
            place.take(len(texts), sum(map(len, prompts)))
            began = time.monotonic()
            vectors = await self._vectors(encoder, prompts, receive)
            tokens = sum(map(len, prompts))
            self._tracing.note(gen_ai__request__model=encoder.name, gen_ai__usage__input_tokens=tokens)
            body = await asyncio.to_thread(
                lambda: _json(protocol.embeddings(vectors, encoder.name, tokens, is_packed))
            )  # fmt: skip
            most = began + self.bounds.seconds + self.bounds.send_seconds - time.monotonic()
            await _until(_send_whole(send, 200, body, _JSON), receive, most)

    async def _vectors(self, encoder: TextEncoder, prompts: list[list[int]], receive: Receive) -> np.ndarray:
        """The vectors of prompts, unless the client goes away or the time of a request is over."""
        is_over = threading.Event()  # batches that have not begun are left out

        async def encode() -> np.ndarray:
            async with self._encoding:
                return await asyncio.to_thread(encoder.encode_tokens, prompts, is_over.is_set)

        work, gone = asyncio.ensure_future(encode()), asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({work, gone}, timeout=self.bounds.seconds, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise Refused(400, "the client has gone")
            if not work.done():
                raise Refused(503, self._time_over(), headers=_RETRY)
            return work.result()
        finally:
            is_over.set()
            await _end(work, gone)

    # -- Completions ------------------------------------------------------------------------------

    async def _completions(self, tenant: str, receive: Receive, send: Send) -> None:
        with self._admitted() as place:
            fields = await self._fields(receive)
            wanted = self._adapted(fields, protocol.read_completion(fields))
            place.take(len(wanted.prompts))
            whole = [await self._tokens(prompt, wanted.special) for prompt in wanted.prompts]
            prompts = [self._last_tokens(wanted, prompt) for prompt in whole]
            echoed = [given if len(tokens) == len(every) else tokens
                     for given, tokens, every in zip(wanted.prompts, prompts, whole, strict=True)]  # fmt: skip
            form = TextForm(self._about(wanted), replace(wanted, prompts=echoed))
            await self._answer(form, wanted, prompts, place, tenant, receive, send)

    async def _chat(self, tenant: str, receive: Receive, send: Send) -> None:
        with self._admitted() as place:
            await self._talk(ChatForm, await self._fields(receive), {}, place, tenant, receive, send)

    async def _responses(self, tenant: str, receive: Receive, send: Send) -> None:
        with self._admitted() as place:
            given = await self._fields(receive)
            fields = responses.as_chat(given)
            try:
                await self._talk(ResponsesForm, fields, given, place, tenant, receive, send)
            except Refused as refused:
                raise responses.renamed(refused) from refused

    async def _talk(
        self, kind: type[ChatForm], fields: dict[str, Any], given: dict[str, Any], place: _Place, tenant: str,
        receive: Receive, send: Send,
    ) -> None:  # fmt: skip
        """Answer the fields of a chat, in the form of `kind`; `given` are those of the request where they differ."""
        wanted = self._adapted(fields, protocol.read_chat(fields, self.llm.llm.engine.scheduler.longest))
        tokenizer = self.llm.llm.text_tokenizer
        try:
            if wanted.tools is not None:
                wanted = protocol.forced(wanted, tokenizer.call_format)
            tokens = await self._chat_tokens(wanted.messages, wanted.tools, wanted.template, kind.prompt_field)
        except ImportModelError as error:
            _log.warning("a chat has no prompt: %s", error)
            why = "the model has no chat template, or it fails for these messages and tools"
            raise Refused(400, why, kind.prompt_field) from error
        form = kind(self._about(wanted), wanted, given)
        await self._answer(form, wanted, [self._last_tokens(wanted, tokens)], place, tenant, receive, send)

    async def _chat_tokens(self, messages: Any, tools: Tools | None, options: TemplateOptions, field: str) -> list[int]:
        """The prompt of a chat; raises `Refused` for messages that are none."""
        try:
            return await asyncio.to_thread(self.llm.llm.text_tokenizer.chat, messages or [], tools, options)
        except InputError as error:
            raise Refused(400, str(error), field) from error

    async def _tokenize(self, tenant: str, receive: Receive, send: Send) -> None:
        """The tokens of a text, or of a chat as /v1/chat/completions makes them."""
        with self._admitted():
            fields, tokenizer = await self._fields(receive), self.llm.llm.text_tokenizer
            special, strings, options, tools = protocol.read_tokenize(fields)
            if "messages" in fields:
                tokens = await self._chat_tokens(fields["messages"], tools, options, "messages")
            elif isinstance(fields["prompt"], str):
                tokens = await self._tokens(fields["prompt"], special)
            else:
                raise Refused(400, "prompt is a text", "prompt")
            names = await asyncio.to_thread(tokenizer.names, tokens) if strings else None
            longest = self.llm.llm.engine.scheduler.longest
            content = {"count": len(tokens), "max_model_len": longest, "tokens": tokens, "token_strs": names}
            await _send_whole(send, 200, await asyncio.to_thread(_json, content), _JSON)

    async def _detokenize(self, tenant: str, receive: Receive, send: Send) -> None:
        with self._admitted():
            fields, llm = await self._fields(receive), self.llm.llm
            tokens = protocol.read_detokenize(fields, llm.description.vocabulary)
            text = await asyncio.to_thread(llm.text_tokenizer.decode, tokens)
            await _send_whole(send, 200, await asyncio.to_thread(_json, {"prompt": text}), _JSON)

    def _about(self, wanted: Wanted) -> About:
        return About(wanted.adapter or self.name, self.llm.llm.tokenizer)

    async def _answer(
        self, form: TextForm, wanted: Wanted, prompts: list[list[int]], place: _Place, tenant: str, receive: Receive,
        send: Send,
    ) -> None:  # fmt: skip
        """Answer until all is sent or the client has gone."""
        place.take(len(prompts), wanted.load(sum(map(len, prompts))))
        try:
            await asyncio.to_thread(self.llm.llm.engine.matcher, wanted.parameters)
        except InputError as error:
            raise Refused(400, f"{wanted.form_field}: {error}", wanted.form_field) from error
        salt = f"{tenant}\0{wanted.salt}" if wanted.salt else tenant
        streams = [
            self.llm.stream(prompt, wanted.parameters, salt=salt, seconds=self.bounds.seconds, adapter=wanted.adapter)
            for prompt in prompts
        ]
        try:
            most = self.bounds.seconds + self.bounds.send_seconds  # a client that does not read holds no place
            await _until(self._send_answer(form, wanted, streams, send), receive, most)
        except InputError as error:
            raise protocol.refusal(error, form.prompt_field) from error
        finally:
            for stream in streams:
                await stream.aclose()

    async def _send_answer(
        self, form: TextForm, wanted: Wanted, streams: Sequence[AsyncGenerator[Output, None]], send: Send
    ) -> None:
        began = time.monotonic()
        self._tracing.note_request(wanted)
        if wanted.stream:
            timed = [self._timed(stream, began) for stream in streams]
            async with contextlib.aclosing(_merged(timed)) as merged:
                await self._send_events(form, wanted, merged, send)
            return
        tasks = [asyncio.ensure_future(_last(self._timed(stream, began))) for stream in streams]
        try:
            outputs = await asyncio.gather(*tasks)
        finally:
            await _end(*tasks)  # one that is refused ends the others
        failed = next((output for output in outputs if output.error is not None), None)
        if failed is not None:
            raise Refused(400 if failed.is_refused else 500, str(failed.error))
        self._check_scored(wanted, outputs)
        self._tracing.answered(form.id, outputs)
        await _send_whole(send, 200, await asyncio.to_thread(lambda: _json(form.whole(outputs))), _JSON)

    def _check_scored(self, wanted: Wanted, outputs: Sequence[Output]) -> None:
        """Raises `Refused` where a prompt's logprobs are wanted and the request ended before they were there."""
        if wanted.parameters.prompt_logprobs is None:
            return
        for output in outputs:
            if output.prompt_logprobs is None:
                if output.error is not None:
                    raise Refused(400 if output.is_refused else 500, output.error)
                raise Refused(503, f"{self._time_over()} before the prompt was computed", headers=_RETRY)

    def _time_over(self) -> str:
        return f"the time of a request, {self.bounds.seconds:g} s, is over"

    async def _send_events(
        self, form: TextForm, wanted: Wanted, outputs: AsyncIterator[tuple[int, Output]], send: Send
    ) -> None:
        first = await anext(outputs)  # what is refused is refused before an answer begins
        self._check_scored(wanted, [first[1]])
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        last: dict[int, Output] = {}
        for event in form.opening():
            await _send_event(send, event)
        is_large = wanted.parameters.prompt_logprobs is not None
        async for number, output in _chain(first, outputs):
            last[number] = output
            found = form.events
            for event in await asyncio.to_thread(found, output, number) if is_large else found(output, number):
                await _send_event(send, event, is_large)
        ended = [last[number] for number in sorted(last)]
        failed = next((output for output in ended if output.error is not None), None)
        if failed is not None:
            self._tracing.failed("400" if failed.is_refused else "500")
        self._tracing.answered(form.id, ended)
        for event in form.closing(ended):
            await _send_event(send, event)
        await send({"type": "http.response.body", "body": form.end, "more_body": False})

    async def _timed(self, outputs: AsyncIterator[Output], began: float) -> AsyncGenerator[Output, None]:
        is_first = True
        async for output in outputs:
            if is_first:
                self.metrics.first_token.observe(time.monotonic() - began)
                self._tracing.note(gen_ai__response__time_to_first_chunk=time.monotonic() - began)
                is_first = False
            yield output
        self.metrics.whole_request.observe(time.monotonic() - began)

    @contextlib.contextmanager
    def _admitted(self) -> Iterator[_Place]:
        """A place for a request, from before its body is read to its end; raises `Refused` where there is none."""
        if not self.llm.engine.is_ready:
            raise Refused(503, "the engine has stopped")
        place = _Place(self)
        place.take(1)
        try:
            yield place
        finally:
            place.give_back()

    def _adapted(self, fields: dict[str, Any], wanted: Wanted) -> Wanted:
        """A request whose model is the name of an adapter."""
        model = fields.get("model", self.name)
        return wanted if model == self.name else replace(wanted, adapter=model)

    def _last_tokens(self, wanted: Wanted, prompt: list[int]) -> list[int]:
        """As much of a prompt as a request wants."""
        if wanted.last_tokens is None:
            return prompt
        return prompt[-wanted.last_tokens if wanted.last_tokens > 0 else 1 - self.llm.llm.engine.scheduler.longest :]

    async def _tokens(self, prompt: str | list[int], special: bool = True) -> list[int]:
        if not isinstance(prompt, str):
            return prompt
        try:
            return await asyncio.to_thread(self.llm.llm.text_tokenizer.encode, prompt, special)
        except InputError as error:
            raise Refused(400, str(error), "prompt") from error

    async def _fields(self, receive: Receive, models: Sequence[str] = ()) -> dict[str, Any]:
        """The body's JSON object, for one of these models, or the one that is served and its adapters."""
        try:
            body = await asyncio.wait_for(_body(receive, self.bounds.body), self.bounds.body_seconds)
        except TimeoutError as error:
            raise Refused(408, "the body did not come in time") from error
        # While a thread reads a long body, answers to others go on.
        fields = protocol.parse(body) if len(body) < _PART else await asyncio.to_thread(protocol.parse, body)
        models = models or [self.name, *self.llm.llm.engine.adapters]
        if fields.get("model", models[0]) not in models:
            raise self._unknown_model(models)
        return fields

    @staticmethod
    def _unknown_model(models: Sequence[str]) -> Refused:
        return Refused(404, f"the model is {' or '.join(map(repr, models))}", "model", "model_not_found")


class _Place:
    """What one request takes of the bounds of an application: prompts, and tokens once they are known."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._requests = self._tokens = 0

    def take(self, requests: int, tokens: int = 0) -> None:
        """Take so much in all; raises `Refused` where it is not there."""
        owner, bounds = self._application, self._application.bounds
        token_label = "tokens (with echo and logprobs times logprobs + 1, times n)"
        for name, count, most in (("prompts", requests, bounds.requests), (token_label, tokens, bounds.tokens)):
            if count > most:  # it would not fit later either
                raise Refused(400, f"the request takes {count} {name}; the server takes at most {most}")
        all_requests, all_tokens = owner.requests + requests - self._requests, owner.tokens + tokens - self._tokens
        if all_requests > bounds.requests or all_tokens > bounds.tokens:
            owner.metrics.rejections += 1
            raise Refused(429, "all places are taken; try again later", code="overloaded", headers=_RETRY)
        owner.requests, owner.tokens, self._requests, self._tokens = all_requests, all_tokens, requests, tokens

    def give_back(self) -> None:
        """The request has ended."""
        self.take(0)


class _Answer:
    """Sends; knows whether an answer has begun, and counts what was answered."""

    def __init__(self, send: Send, metrics: Metrics) -> None:
        self._send, self._metrics = send, metrics
        self.status = 0  # none yet
        self.failure = ""  # the status of an error in the middle of an answer
        self.is_whole = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._metrics.responses[message["status"]] = self._metrics.responses.get(message["status"], 0) + 1
        await self._send(message)
        self.is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)

    async def refuse(self, refused: Refused) -> None:
        """Answer with an error; in the middle of an answer, as its last event."""
        if not self.status:
            await _send_json(self, refused.status, refused.body, refused.headers)
            return
        self.failure = str(refused.status)
        await _send_event(self, refused.body)
        await self({"type": "http.response.body", "body": b"", "more_body": False})


async def _body(receive: Receive, most: int) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the client has gone")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise Refused(413, f"the body has more than {most} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)


async def _end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _until(work: Coroutine[Any, Any, None], receive: Receive, seconds: float) -> None:
    """Wait for work, which ends before it is done when the client goes away or the time is over."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        await _end(task, gone)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _last(outputs: AsyncIterator[Output]) -> Output:
    last = None
    async for output in outputs:
        last = output
    if last is None:
        raise TilewrightError("a request ended without an output")
    return last


async def _chain(first: _T, items: AsyncIterator[_T]) -> AsyncIterator[_T]:
    yield first
    async for item in items:
        yield item


async def _merged(streams: Sequence[AsyncGenerator[_T, None]]) -> AsyncGenerator[tuple[int, _T], None]:
    """The items of several streams as they come, each with the number of its stream."""
    waiting = {asyncio.ensure_future(anext(stream)): number for number, stream in enumerate(streams)}
    try:
        while waiting:
            for task in (await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED))[0]:
                number = waiting.pop(task)
                try:
                    item = task.result()
                except StopAsyncIteration:
                    continue
                yield number, item
                waiting[asyncio.ensure_future(anext(streams[number]))] = number
    finally:
        await _end(*waiting)
        for stream in streams:
            await stream.aclose()


async def _send_event(send: Send, content: dict[str, Any], is_large: bool = False) -> None:
    kind = f"event: {content['type']}\n" if "type" in content else ""
    if is_large:
        await _send_parts(send, b"%sdata: %s\n\n" % (kind.encode(), await asyncio.to_thread(_json, content)), True)
        return
    data = f"{kind}data: {json.dumps(content, ensure_ascii=False)}\n\n".encode("utf-8", "replace")
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def _send_json(
    send: Send, status: int, content: dict[str, Any], headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    await _send_whole(send, status, _json(content), _JSON, headers)


async def _send_whole(
    send: Send, status: int, body: bytes, kind: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    length = (b"content-length", str(len(body)).encode())
    all_headers = [(b"content-type", kind), length, (b"x-content-type-options", b"nosniff"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await _send_parts(send, body, False)


async def _send_parts(send: Send, body: bytes, more: bool) -> None:
    """Send in parts: a server waits before each until the client has read most of those before."""
    for begin in range(0, max(1, len(body)), _PART):
        end = begin + _PART
        await send({"type": "http.response.body", "body": body[begin:end], "more_body": more or end < len(body)})


def _json(content: Any) -> bytes:
    """The JSON of a body; other threads run in between, whose turn does not come while `json.dumps` works."""
    body = bytearray()
    for part in _json_parts(content):
        body += part.encode("utf-8", "replace")
    return bytes(body)


def _json_parts(content: Any) -> Iterator[str]:
    if isinstance(content, dict) and not _is_short(content):
        for number, (name, value) in enumerate(content.items()):
            yield f"{', ' if number else '{'}{json.dumps(name, ensure_ascii=False)}: "
            yield from _json_parts(value)
        yield "}"
    elif isinstance(content, list) and not all(map(_is_short, content)):
        for number, item in enumerate(content):
            yield ", " if number else "["
            yield from _json_parts(item)
        yield "]"
    elif isinstance(content, list) and len(content) > _AT_ONCE:
        for begin in range(0, len(content), _AT_ONCE):
            yield ", " if begin else "["
            yield json.dumps(content[begin : begin + _AT_ONCE], ensure_ascii=False)[1:-1]
        yield "]"
    else:
        yield json.dumps(content, ensure_ascii=False)


def _is_short(content: Any) -> bool:
    """Whether it takes `json.dumps` no time: nothing in it holds more."""
    if not isinstance(content, (dict, list)):
        return True
    inner = content.values() if isinstance(content, dict) else content
    return len(content) < _FEW and not any(isinstance(item, (dict, list)) for item in inner)
