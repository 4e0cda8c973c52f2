"""Spans of requests: what they say, whose trace they are of, and that no text is in them."""

from __future__ import annotations

import asyncio
import http.server
import threading

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("opentelemetry.sdk")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from typer.testing import CliRunner

from tests.host.llm_support import text_checkpoint
from tests.host.test_llm_serve import call
from tilewright.cli.main import application
from tilewright.llm.asynchronous import AsyncLLM
from tilewright.llm.sampling import Sampler
from tilewright.llm.serve.application import Application
from tilewright.llm.serve.results import TextForm
from tilewright.llm.serve.tracing import OpenTelemetryTracing

pytestmark = pytest.mark.usefixtures("quick_engines")


def test_a_span_for_each_request(tmp_path, monkeypatch):
    llm = AsyncLLM(text_checkpoint(tmp_path / "bytes"), memory=1 << 20)
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    application = Application(llm, "bytes", tracing=OpenTelemetryTracing(provider))
    parent = [(b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]

    def span(path, body, headers=(), leave_after=None):
        kept.clear()
        asyncio.run(call(application, "POST", path, body, headers, leave_after))
        (found,) = kept.get_finished_spans()
        return found

    body = {"prompt": "a secret", "max_tokens": 3, "n": 2, "seed": 4, "stop": ["a secret end"], "ignore_eos": True}
    for stream in (False, True):
        one = span("/v1/completions", {**body, "stream": stream}, parent)
        found = dict(one.attributes)
        assert one.name == "text_completion bytes" and one.kind.name == "SERVER"
        assert format(one.context.trace_id, "032x") == "0af7651916cd43dd8448eb211c80319c"
        assert found["gen_ai.usage.input_tokens"] == 8 and found["gen_ai.usage.output_tokens"] == 6
        assert found["gen_ai.response.finish_reasons"] == ("length", "length")
        assert found["gen_ai.request.choice.count"] == 2 and found["gen_ai.request.stream"] is stream
        assert found["gen_ai.response.time_to_first_chunk"] >= 0 and found["http.response.status_code"] == 200
        assert "secret" not in str(found) and found["tilewright.request.stop_sequence_count"] == 1
        assert one.status.is_unset
    messages = [{"role": "user", "content": "Hi"}]
    assert span("/v1/chat/completions", {"messages": messages, "max_tokens": 1}).name == "chat bytes"
    refused = span("/v1/completions", {"prompt": 5})
    assert refused.attributes["http.response.status_code"] == 400 and refused.status.is_ok
    long = {**body, "max_tokens": 100, "stream": True}
    for after, status in ((0, None), (2, 200)):
        left = span("/v1/completions", {**long, "stream": after > 0}, leave_after=after)
        assert left.attributes.get("http.response.status_code") == status
        assert left.status.status_code.name == "ERROR" and left.attributes["error.type"] == "incomplete_answer"
    with monkeypatch.context() as context:
        context.setattr(TextForm, "closing", lambda form, last: 1 // 0)
        failed = span("/v1/completions", {**body, "stream": True})
    assert failed.attributes["http.response.status_code"] == 200 and failed.attributes["error.type"] == "500"
    assert failed.status.status_code.name == "ERROR"
    with monkeypatch.context() as context:
        context.setattr(Sampler, "choose", lambda *given: 1 // 0)
        failed = span("/v1/completions", {**body, "stream": True})
    assert failed.status.status_code.name == "ERROR" and failed.attributes["error.type"] == "500"
    monkeypatch.setattr(llm.llm.engine, "matcher", lambda parameters: 1 // 0)
    failed = span("/v1/completions", body)
    assert failed.attributes["error.type"] == "500" and not failed.status.is_ok
    llm.close()


def test_spans_go_to_a_collector():
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    received = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            received.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        tracing = OpenTelemetryTracing.to(f"http://127.0.0.1:{server.server_port}/v1/traces")
        with tracing.request("/v1/completions", "bytes", []):
            tracing.note(http__response__status_code=200)
        assert tracing._tracer.span_processor.force_flush()
        server.shutdown()
    ((path, body),) = received
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    (span,) = resource.scope_spans[0].spans
    assert path == "/v1/traces" and span.name == "text_completion bytes"
    assert [("service.name", "tilewright")] == [
        (each.key, each.value.string_value) for each in resource.resource.attributes if each.key == "service.name"
    ]


@pytest.mark.parametrize(
    "address", ["127.0.0.1:4318/v1/traces", "localhost:4318", "grpc://a:4317", "http://", "http://a:x/", "http://["]
)
def test_addresses_that_are_none(address):
    found = CliRunner().invoke(application(), ["serve", "nowhere", "--otlp-traces-endpoint", address])
    assert found.exit_code == 2 and "expected http:// or https://" in " ".join(found.output.replace("│", "").split())
