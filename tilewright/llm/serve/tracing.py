"""Traces of requests for OpenTelemetry: a span for each, by the semantic conventions for generative AI.

A span has the parameters of a request, how many tokens there were, why results ended, the time to the first of them,
and the HTTP status; texts of prompts and results are not in it.  A `traceparent` header makes it part of the caller's
trace.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tilewright import __version__
from tilewright.errors import MissingDependencyError
from tilewright.llm.requests import Output
from tilewright.llm.serve import protocol

_OPERATIONS = {"/v1/completions": "text_completion", "/v1/chat/completions": "chat", "/v1/responses": "chat",
               "/v1/embeddings": "embeddings"}  # fmt: skip
_REQUEST_ATTRIBUTES = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_tokens": "max_tokens",
          "seed": "seed", "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
          "n": "choice.count"}  # fmt: skip


class Tracing:
    """No traces."""

    @contextlib.contextmanager
    def request(self, path: str, model: str, headers: Iterable[tuple[bytes, bytes]]) -> Iterator[None]:
        """The span of one request, while it is worked on."""
        yield

    def note(self, **attributes: Any) -> None:
        """Attributes of the request that is worked on, by their names with `__` for dots."""

    def failed(self, kind: str) -> None:
        """The request that is worked on gets no whole answer: an HTTP status, or a word, says why."""

    def note_request(self, wanted: protocol.Wanted) -> None:
        """What the request wants."""

    def answered(self, name: str, outputs: Sequence[Output]) -> None:
        """What it got."""


class OpenTelemetryTracing(Tracing):
    """Traces of the tracer of `provider`, by default the one of this process.

    Raises `MissingDependencyError` without the package opentelemetry-api.
    """

    def __init__(self, provider: Any = None) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError as error:
            raise MissingDependencyError(
                "traces need the package opentelemetry-sdk: pip install 'tilewright[trace]'"
            ) from error
        self._propagate: Any = propagate
        self._trace: Any = trace
        self._tracer: Any = trace.get_tracer("tilewright", __version__, provider)

    @classmethod
    def to(cls, endpoint: str) -> OpenTelemetryTracing:
        """Traces that go to a collector over OTLP and HTTP, such as http://127.0.0.1:4318/v1/traces."""
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise MissingDependencyError(
                "traces need opentelemetry-sdk and its exporter: pip install 'tilewright[trace]'"
            ) from error
        provider = TracerProvider(resource=Resource.create({"service.name": "tilewright"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        return cls(provider)

    @contextlib.contextmanager
    def request(self, path: str, model: str, headers: Iterable[tuple[bytes, bytes]]) -> Iterator[None]:
        operation = _OPERATIONS.get(path)
        if operation is None:
            yield
            return
        carrier = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers
                   if name.lower() in (b"traceparent", b"tracestate")}  # fmt: skip
        attributes = {"gen_ai.operation.name": operation, "gen_ai.provider.name": "tilewright",
                      "gen_ai.request.model": model, "gen_ai.response.model": model, "url.path": path}  # fmt: skip
        with self._tracer.start_as_current_span(
            f"{operation} {model}", self._propagate.extract(carrier), self._trace.SpanKind.SERVER, attributes
        ):
            yield

    def note(self, **attributes: Any) -> None:
        span = self._trace.get_current_span()
        for name, value in attributes.items():
            span.set_attribute(name.replace("__", "."), value)
        status = attributes.get("http__response__status_code", 0)
        if status >= 500:
            self.failed(str(status))

    def failed(self, kind: str) -> None:
        span = self._trace.get_current_span()
        span.set_attribute("error.type", kind)
        span.set_status(self._trace.StatusCode.ERROR)

    def note_request(self, wanted: protocol.Wanted) -> None:
        values = {f"gen_ai__request__{name.replace('.', '__')}": getattr(wanted.parameters, field)
                  for field, name in _REQUEST_ATTRIBUTES.items()}  # fmt: skip
        self.note(
            **{name: value for name, value in values.items() if value is not None},
            gen_ai__request__stream=wanted.stream,
            tilewright__request__stop_sequence_count=len(wanted.parameters.stop),  # they are texts of the client
            **({"gen_ai__request__model": wanted.adapter} if wanted.adapter else {}),
        )  # fmt: skip

    def answered(self, name: str, outputs: Sequence[Output]) -> None:
        counts = protocol.usage(outputs)
        reasons = [str(protocol.finish_reason(one)) for output in outputs for one in output.completions]
        self.note(
            gen_ai__response__id=name, gen_ai__response__finish_reasons=reasons,
            gen_ai__usage__input_tokens=counts["prompt_tokens"],
            gen_ai__usage__output_tokens=counts["completion_tokens"],
            gen_ai__usage__cache_read__input_tokens=counts["prompt_tokens_details"]["cached_tokens"],
        )  # fmt: skip
