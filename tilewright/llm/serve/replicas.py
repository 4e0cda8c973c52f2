"""A Ray Serve application: replicas of a language model behind one address (`pip install 'tilewright[ray]'`).

    serve run tilewright.llm.serve.replicas:application path=models/small key_file=keys replicas=2

A replica is an `Application` in an actor: its routes, keys and bounds are those of `tilewright serve`.  The gateway
takes requests with a key from Ray's proxies, and gives each to a replica that holds the beginning of its prompt
(`affinity.py`).  Ray decides on which addresses its proxies listen, so there is no service without keys.
A request whose replica dies goes to another one, unless a part of its answer has been sent; then the answer ends with
an error event.  Nothing here compiles or computes: Ray starts, watches, replaces and scales the replicas.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.errors import InputError, MissingDependencyError

try:
    from pydantic import BaseModel, ConfigDict, Field, ValidationError
    from ray import serve
    from ray.exceptions import RayActorError
    from ray.serve.config import AutoscalingConfig, RequestRouterConfig
    from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
    from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
    from ray.util.metrics import Counter, Gauge
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response, StreamingResponse
except ImportError as missing:
    raise MissingDependencyError("replicas need the package ray: pip install 'tilewright[ray]'") from missing

from tilewright.llm.asynchronous import AsyncLLM
from tilewright.llm.serve.affinity import Affinity, prompt_digests
from tilewright.llm.serve.application import Application, Bounds
from tilewright.llm.serve.gateway import Gate
from tilewright.llm.serve.keys import read_keys
from tilewright.llm.serve.protocol import Refused
from tilewright.settings import settings as process

_log = logging.getLogger("tilewright")
_MOST_TRIES = 3  # replicas that a request is given to, one after the other has died
_FULL = "all replicas have too much to do; try again later"


class ReplicaSettings(BaseModel):
    """What `application` takes: a model, how it is opened (as `LLM` has it, `memory` in MiB), and its replicas.

    With `most_replicas` there are as many as give each about `requests_each` requests at a time, from `replicas` up.
    """

    model_config = ConfigDict(extra="forbid")

    path: Path  # the same on all machines
    key_file: Path
    name: str | None = None
    replicas: int = Field(1, ge=1)
    most_replicas: int | None = Field(None, ge=1)
    requests_each: int = Field(32, ge=1)
    gateways: int = Field(1, ge=1)  # each remembers what it gave to whom
    threads: int = Field(2, ge=1)  # of a replica, for which Ray keeps as many CPUs
    dtype: str = "auto"
    weights: str = "auto"
    kv_cache_dtype: str = "auto"
    length: int | None = Field(None, ge=1)
    memory: int = Field(1024, ge=1)
    speculate: int = Field(0, ge=0)
    requests: int = Field(256, ge=1)  # that a replica works on, and that wait for one
    seconds: float = Field(600.0, gt=0)
    health_seconds: float = Field(5.0, gt=0)  # between looks at a replica's health

    @property
    def served_name(self) -> str:
        """What the model is called."""
        return self.name or self.path.resolve().name


@dataclass(frozen=True)
class ReplicaCall:
    """An HTTP request on its way to a replica."""

    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    digests: list[bytes] = field(default_factory=list)  # of its prompt's beginning


@dataclass(frozen=True)
class Head:
    """How an answer begins; its body follows in pieces of bytes."""

    status: int
    headers: list[tuple[bytes, bytes]]


class AffinityRouter(RequestRouter):
    """Ray's router of calls to replicas, with the choice of `Affinity`."""

    def initialize_state(self, **options: Any) -> None:
        """Called once by Ray."""
        self._affinity = Affinity(**options)
        self._known: set[str] = set()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replica to ask first, and then the others."""
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # Ray waits before it asks again
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        if self._known - by_name.keys():
            self._affinity.keep(by_name.keys())
        self._known = set(by_name)
        lengths = self.replica_queue_len_cache
        loads = {name: lengths.get(replica.replica_id) or 0 for name, replica in by_name.items()}
        if not loads:
            return []
        best = by_name.pop(self._affinity.choose(_digests(pending_request), loads))
        return [[best], list(by_name.values())]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """A replica has taken a request."""
        self._affinity.note(_digests(pending_request), replica_id.unique_id)


def _digests(request: PendingRequest | None) -> list[bytes]:
    found = next((one for one in request.args if isinstance(one, ReplicaCall)), None) if request is not None else None
    return found.digests if found is not None else []


class Exported:
    """A replica's metrics among those that Ray gives to Prometheus, there under ``ray_tilewright_``."""

    def __init__(self, model: str) -> None:
        self._tags = {"model": model, "replica": serve.get_replica_context().replica_tag}
        self._metrics: dict[str, Any] = {}
        self._counted: dict[str, float] = {}

    def update(self, gauges: Mapping[str, float], counters: Mapping[str, float]) -> None:
        """Export values, as `Metrics.values` has them."""
        for name, value in gauges.items():
            self._metric(Gauge, name).set(value)
        for name, value in counters.items():
            more = value - self._counted.get(name, 0.0)
            if more > 0:
                self._metric(Counter, name.removesuffix("_total")).inc(more)  # Ray adds the ending
            self._counted[name] = value

    def _metric(self, kind: Any, name: str) -> Any:
        if name not in self._metrics:
            self._metrics[name] = kind(f"tilewright_{name}", tag_keys=tuple(self._tags))
            self._metrics[name].set_default_tags(self._tags)
        return self._metrics[name]


class Replica:
    """One engine with the application around it, in an actor of its own."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        wanted = ReplicaSettings(**options)
        process.threads = wanted.threads
        llm = AsyncLLM(
            wanted.path, dtype=wanted.dtype, weights=wanted.weights, kv_cache_dtype=wanted.kv_cache_dtype,
            length=wanted.length, memory=wanted.memory << 20, speculate=wanted.speculate,
        )  # fmt: skip
        llm.llm.text_tokenizer  # noqa: B018  # raises why there is none
        bounds = Bounds(requests=wanted.requests, seconds=wanted.seconds)
        self.application = Application(llm, wanted.served_name, read_keys(wanted.key_file), bounds)
        self._exported = Exported(wanted.served_name)

    def check_health(self) -> None:
        """Ray replaces the replica when this raises."""
        self._exported.update(*self.application.metrics.values(self.application.llm.engine.statistics))
        if not self.application.llm.engine.is_healthy:
            raise RuntimeError("the engine has stopped, or its steps fail")

    async def answer(self, call: ReplicaCall) -> AsyncGenerator[Head | bytes, None]:
        """The answer to a request; closing it ends the request, as a client does that goes away."""
        pieces: asyncio.Queue[Head | bytes | None] = asyncio.Queue()
        incoming = [{"type": "http.request", "body": call.body, "more_body": False}]
        is_gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if incoming:
                return incoming.pop()
            await is_gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                pieces.put_nowait(Head(message["status"], list(message["headers"])))
            elif message.get("body"):
                pieces.put_nowait(message["body"])

        async def work() -> None:
            scope = {"type": "http", "method": call.method, "path": call.path, "headers": call.headers}
            try:
                await self.application(scope, receive, send)
            finally:
                pieces.put_nowait(None)

        task = asyncio.ensure_future(work())
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            task.result()
        finally:
            is_gone.set()
            await task


class Gateway:
    """Where requests come in: reads the body of one that has a key, and passes the request on."""

    def __init__(self, replicas: Any, key_file: str) -> None:
        self._replicas = replicas.options(stream=True)
        self._gate = Gate(read_keys(Path(key_file)), Bounds())

    async def __call__(self, request: Request) -> Response:
        """Answer a request, as the replica that it was given to does."""
        headers = [(name, value) for name, value in request.headers.raw if name.lower() != b"content-length"]
        has_body = request.method == "POST"
        try:
            self._gate.check(request.url.path, headers)
            if request.url.path == "/metrics":
                raise Refused(404, "Ray gives the metrics of all replicas, at the metrics port of each node")
            async with self._gate.body(request.stream() if has_body else None) as body:
                digests = prompt_digests(headers, body) if has_body else []
                return await self._pass_on(ReplicaCall(request.method, request.url.path, headers, body, digests))
        except Refused as refused:
            return _refusal(refused)
        except ClientDisconnect:
            return Response(status_code=400)

    async def _pass_on(self, call: ReplicaCall) -> Response:
        """The answer of a replica, once it has begun."""
        for _ in range(_MOST_TRIES):
            pieces = self._replicas.answer.remote(call)
            try:
                head = await anext(pieces)
            except RayActorError:
                _log.warning("a replica died before it answered; the request goes to another one")
            except (BackPressureError, DeploymentUnavailableError):
                raise Refused(503, _FULL, code="overloaded", headers=[(b"retry-after", b"1")]) from None
            else:
                is_stream = any(value.startswith(b"text/event-stream") for _, value in head.headers)
                response = StreamingResponse(_body_of(pieces, is_stream), head.status)
                response.raw_headers = head.headers
                return response
        raise Refused(503, "replicas died before they answered", headers=[(b"retry-after", b"1")])


async def _body_of(pieces: Any, is_stream: bool) -> AsyncGenerator[bytes, None]:
    """The pieces of a body; when its replica dies, the last of a stream is an error event."""
    try:
        async for piece in pieces:
            yield piece
    except RayActorError:
        _log.warning("a replica died in the middle of an answer")
        if not is_stream:
            raise  # the connection breaks off before the length that was promised
        yield b"data: %s\n\n" % json.dumps(Refused(500, "the replica that answered has died").body).encode()
    finally:
        pieces.cancel()


def _refusal(refused: Refused) -> Response:
    headers = {name.decode(): value.decode() for name, value in refused.headers}
    return JSONResponse(refused.body, refused.status, headers)


def application(arguments: Mapping[str, Any] | ReplicaSettings) -> serve.Application:
    """The application, for `serve run`, `serve deploy` and `ray.serve.run`, with the fields of `ReplicaSettings`.

    Raises `InputError` for settings that are unknown, of a wrong type, or do not go together.
    """
    try:
        settings = arguments if isinstance(arguments, ReplicaSettings) else ReplicaSettings(**arguments)
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise InputError(f"the settings of replicas: {wrong}") from error
    read_keys(settings.key_file)
    if settings.most_replicas is not None and settings.most_replicas < settings.replicas:
        raise InputError(f"most_replicas is {settings.most_replicas}, less than replicas, {settings.replicas}")
    scale: dict[str, Any] = {"num_replicas": settings.replicas}
    if settings.most_replicas is not None:
        scale = {"autoscaling_config": AutoscalingConfig(
            min_replicas=settings.replicas, max_replicas=settings.most_replicas,
            target_ongoing_requests=settings.requests_each,
        )}  # fmt: skip
    replicas = serve.deployment(
        Replica, name="replica", ray_actor_options={"num_cpus": settings.threads},
        max_ongoing_requests=settings.requests, max_queued_requests=settings.requests,
        health_check_period_s=settings.health_seconds, health_check_timeout_s=max(30.0, settings.health_seconds),
        request_router_config=RequestRouterConfig(request_router_class=AffinityRouter), **scale,
    )  # fmt: skip
    gateway = serve.deployment(
        Gateway, name="gateway", num_replicas=settings.gateways, ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=16 * settings.requests,
    )  # fmt: skip
    return gateway.bind(replicas.bind(settings.model_dump(mode="json")), str(settings.key_file))
