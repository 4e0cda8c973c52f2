"""The HTTP application, called as ASGI servers call it: answers, streams, keys, bounds, clients that go away."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("llguidance")

from tests.host.llm_support import served, text_checkpoint
from tilewright import __version__
from tilewright.cli.serve import listen
from tilewright.errors import ImportModelError, InputError
from tilewright.llm import SamplingParameters
from tilewright.llm.asynchronous import AsyncLLM
from tilewright.llm.sampling import Sampler
from tilewright.llm.serve import protocol
from tilewright.llm.serve.application import Application, Bounds, _json
from tilewright.llm.serve.local import is_loopback
from tilewright.llm.serve.results import TextForm
from tilewright.llm.text import TextOffsets
from tools.fuzz_server import fuzz

pytestmark = pytest.mark.usefixtures("quick_engines")

GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    llm = AsyncLLM(text_checkpoint(tmp_path_factory.mktemp("serve") / "bytes"), memory=1 << 20, tokens=64, sequences=8)
    yield llm
    llm.close()


async def call(application, method, path, body=b"", headers=(), leave_after=None):
    """(status, headers, body) of one request; the client goes away after so many pieces of the answer."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    incoming = [{"type": "http.request", "body": body[:10], "more_body": True},
                {"type": "http.request", "body": body[10:], "more_body": False}]  # fmt: skip
    gone, sent = asyncio.Event(), []

    async def receive():
        if incoming:
            return incoming.pop(0)
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if leave_after is not None and len(sent) > leave_after:
            gone.set()
            await asyncio.sleep(0.001)

    if leave_after == 0:
        gone.set()
    headers = [(b"content-type", b"application/json"), *headers]
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b""}
    await application(scope, receive, send)
    status = sent[0]["status"] if sent else None
    return status, dict(sent[0]["headers"]) if sent else {}, b"".join(part.get("body", b"") for part in sent[1:])


def ask(application, method, path, body=b"", headers=()):
    status, given, content = asyncio.run(call(application, method, path, body, headers))
    return status, json.loads(content) if given[b"content-type"].startswith(b"application/json") else content


def events(content):
    parts = content.decode().split("\n\n")
    assert parts[-2:] == ["data: [DONE]", ""]
    return [json.loads(part.removeprefix("data: ")) for part in parts[:-2]]


def idle(llm, seconds=60.0):
    """Wait until nothing is worked on: a request that has ended holds no memory."""
    end = time.monotonic() + seconds
    while llm.llm.engine.has_work or llm.engine.statistics.used_pages:
        assert time.monotonic() < end
        time.sleep(0.002)


def test_completions_are_those_of_the_model(llm):
    application = Application(llm, "bytes")
    wanted = asyncio.run(llm.generate("Once", SamplingParameters(**GREEDY))).completions[0]
    status, content = ask(application, "POST", "/v1/completions", {"model": "bytes", "prompt": "Once", **GREEDY})
    assert status == 200 and content["choices"][0]["text"] == wanted.text
    assert content["choices"][0]["finish_reason"] == "length" and content["object"] == "text_completion"
    assert content["usage"]["prompt_tokens"] == 4 and content["usage"]["completion_tokens"] == 6
    body = {"prompt": ["Once", "Twice"], "n": 2, "logprobs": 3, **GREEDY}
    status, content = ask(application, "POST", "/v1/completions", body)
    assert [choice["index"] for choice in content["choices"]] == [0, 1, 2, 3]
    assert content["choices"][0]["text"] == wanted.text
    assert len(content["choices"][3]["logprobs"]["token_logprobs"]) == 6
    status, content = ask(application, "POST", "/v1/completions", {"prompt": list(b"Once"), **GREEDY})
    assert status == 200


def test_the_best_of_several(llm):
    application = Application(llm, "bytes")
    body = {"prompt": "Once", "max_tokens": 6, "seed": 3, "ignore_eos": True, "logprobs": 0}
    every = ask(application, "POST", "/v1/completions", {**body, "n": 5})[1]["choices"]
    means = sorted((sum(one["logprobs"]["token_logprobs"]) for one in every), reverse=True)
    content = ask(application, "POST", "/v1/completions", {**body, "n": 2, "best_of": 5})[1]
    assert [sum(one["logprobs"]["token_logprobs"]) for one in content["choices"]] == means[:2]
    assert content["usage"]["completion_tokens"] == 30
    plain = ask(application, "POST", "/v1/completions", {**body, "logprobs": None, "best_of": 5})[1]["choices"]
    assert [one["logprobs"] for one in plain] == [None] and plain[0]["text"] == content["choices"][0]["text"]


def test_prompts_with_their_logprobs(llm):
    """A text is scored as the model would have written it, in chunks of any size, in one piece and in a stream."""
    application = Application(llm, "bytes")
    body = {"prompt": "Once more " * 9, "max_tokens": 5, "temperature": 0, "logprobs": 2, "ignore_eos": True}
    written = ask(application, "POST", "/v1/completions", body)[1]["choices"][0]["logprobs"]["token_logprobs"]
    tokens = asyncio.run(
        llm.generate(body["prompt"], SamplingParameters(temperature=0.0, max_tokens=5, ignore_eos=True))
    )
    prompt = [*tokens.prompt_tokens, *tokens.completions[0].tokens]
    for more in ({}, {"max_tokens": 2, "n": 2}, {"best_of": 3}):
        content = ask(
            application, "POST", "/v1/completions", {**body, "prompt": prompt, "max_tokens": 0, "echo": True} | more
        )[1]
        found = content["choices"][0]["logprobs"]
        assert found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
        assert found["token_logprobs"][len(prompt) - 5 : len(prompt)] == pytest.approx(written, abs=1e-5)
        assert len(found["tokens"]) == len(prompt) + more.get("max_tokens", 0)
    assert content["usage"]["completion_tokens"] == 0 and content["choices"][0]["text"].startswith(body["prompt"])
    whole = ask(application, "POST", "/v1/completions", {**body, "echo": True})[1]["choices"][0]
    stream = events(ask(application, "POST", "/v1/completions", {**body, "echo": True, "stream": True})[1])
    pieces = [event["choices"][0] for event in stream]
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    for name in ("text_offset", "tokens"):
        assert sum((piece["logprobs"][name] for piece in pieces), []) == whole["logprobs"][name]
    idle(llm)


def test_places_of_tokens_in_a_text(llm):
    """A character of several tokens has one place, and texts are counted in characters."""
    application, prompt = Application(llm, "bytes"), "aé漢🙂 list"
    places = [place for place, letter in enumerate(prompt) for _ in letter.encode()]
    for form in (prompt, llm.llm.tokens(prompt)):
        body = {"prompt": form, "max_tokens": 12, "seed": 1, "n": 2, "logprobs": 0, "echo": True, "ignore_eos": True}
        choices = ask(application, "POST", "/v1/completions", body)[1]["choices"]
        content = ask(application, "POST", "/v1/completions", body | {"stream": True})[1]
        stream = [event["choices"][0] for event in events(content)]
        for choice in choices:
            found, text = choice["logprobs"], choice["text"]
            assert found["text_offset"][: len(places)] == places and found["text_offset"][len(places)] == len(prompt)
            for token, at in zip(found["tokens"], found["text_offset"], strict=True):
                assert "\ufffd" in token or text[at:].startswith(token)
            pieces = [one["logprobs"]["text_offset"] for one in stream if one["index"] == choice["index"]]
            assert sum(pieces, []) == found["text_offset"]
    offsets = TextOffsets(llm.llm.tokenizer)
    assert [offsets.push(0x80 if number < 5000 else 65) for number in range(5001)][-1] > 4900


def test_what_the_logprobs_of_prompts_take(llm, monkeypatch):
    """They count in the bound of tokens, are written once for all results, and not by the thread that answers."""
    built, threads = [], set()
    whole, one = TextForm.whole, protocol.prompt_logprobs
    monkeypatch.setattr(protocol, "prompt_logprobs", lambda *given: built.append(1) or one(*given))
    monkeypatch.setattr(TextForm, "whole", lambda *given: threads.add(threading.current_thread()) or whole(*given))
    application = Application(llm, "bytes", bounds=Bounds(tokens=40))
    body = {"prompt": "Once", "max_tokens": 0, "echo": True, "n": 2}
    for stream in (False, True):
        built.clear()
        assert ask(application, "POST", "/v1/completions", {**body, "logprobs": 4, "stream": stream})[0] == 200
        assert len(built) == 1
        status, content = ask(application, "POST", "/v1/completions", {**body, "logprobs": 5, "stream": stream})
        assert status == 400 and "48 tokens" in content["error"]["message"] and "40" in content["error"]["message"]
    assert ask(application, "POST", "/v1/completions", body)[0] == 200
    assert threads and threading.current_thread() not in threads


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_not_scored_in_time(llm, stream):
    hurried = Application(llm, "bytes", bounds=Bounds(seconds=0.0))
    body = {"prompt": "Once", "echo": True, "logprobs": 1, "stream": stream}
    status, content = ask(hurried, "POST", "/v1/completions", body)
    assert status == 503 and "before the prompt" in content["error"]["message"]
    assert ask(hurried, "POST", "/v1/completions", {**body, "logprobs": None})[0] == 200


@pytest.mark.parametrize("wrap", [lambda item: item, lambda item: [item], lambda item: {"a": item, "é": [[], item]}])
def test_bodies_are_written_as_json_has_them(wrap):
    for item in (None, 1.5, "é\ud800", [], {}, [1, "b"], list(range(1300)), [{"a": [[0.5]]}] * 513, [[], {"x": {}}]):
        body = wrap(item)
        assert _json(body) == json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")


@pytest.mark.parametrize("n", [1, 3])
def test_streams_are_the_same_in_pieces(llm, n):
    application = Application(llm, "bytes")
    body = {"prompt": "Hello there", "max_tokens": 12, "seed": 4, "n": n, "logprobs": 1}
    whole = ask(application, "POST", "/v1/completions", body)[1]
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    status, content = ask(application, "POST", "/v1/completions", body)
    found = events(content)
    assert status == 200 and found[-1]["usage"] == {**whole["usage"], "prompt_tokens_details":
                                                    found[-1]["usage"]["prompt_tokens_details"]}  # fmt: skip
    for choice in whole["choices"]:
        pieces = [event["choices"][0] for event in found[:-1] if event["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert pieces[-1]["finish_reason"] == choice["finish_reason"]
        for name in ("token_logprobs", "text_offset"):
            assert sum((piece["logprobs"][name] for piece in pieces), []) == choice["logprobs"][name]


def test_a_stream_of_several_prompts(llm):
    """Events of all prompts come as they are computed, each with the number of its choice, and one count at the end."""
    application = Application(llm, "bytes")
    body = {"prompt": ["Hello", "there", "a longer one"], "n": 2, "seed": 4, "max_tokens": 5, "logprobs": 1}
    whole = ask(application, "POST", "/v1/completions", body | {"echo": True})[1]
    body |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}, "echo": True}
    found = events(ask(application, "POST", "/v1/completions", body)[1])
    for choice in whole["choices"]:
        pieces = [event["choices"][0] for event in found[:-1] if event["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert sum((piece["logprobs"]["tokens"] for piece in pieces), []) == choice["logprobs"]["tokens"]
    assert found[-1]["usage"]["completion_tokens"] == 30 and all("usage" in event for event in found)
    bad = body | {"prompt": ["Hello", [9999]]}
    status, content = ask(application, "POST", "/v1/completions", bad)
    assert (status, content["error"]["param"]) == (400, "prompt") if status != 200 else b"9999" in content
    idle(llm)


def test_chats(llm):
    application = Application(llm, "bytes")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    ]
    wanted = {"messages": messages, "temperature": 0, "max_completion_tokens": 5, "logprobs": True, "top_logprobs": 2}
    status, content = ask(application, "POST", "/v1/chat/completions", wanted)
    (choice,) = content["choices"]
    assert status == 200 and choice["message"]["role"] == "assistant"
    assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 2
    found = events(ask(application, "POST", "/v1/chat/completions", {**wanted, "stream": True})[1])
    assert "".join(event["choices"][0]["delta"]["content"] for event in found) == choice["message"]["content"]
    broken = {"messages": [{"role": "user", "content": "half a pair: \ud800"}], "max_tokens": 2}
    assert ask(application, "POST", "/v1/chat/completions", broken)[0] == 400
    without_limit = {"messages": messages[1:], "temperature": 0}
    assert ask(application, "POST", "/v1/chat/completions", without_limit)[0] == 200


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [1, 22]}}}},
            "1|22",
        ),
        ({"structured_outputs": {"regex": "a{3,5}"}}, "a{3,5}"),
        ({"structured_outputs": {"json_object": True}}, r"\{.*"),
        ({"guided_choice": ["one", "two"]}, "one|two"),
        ({"guided_json": '{"type": "boolean"}'}, "true|false"),
        ({"guided_grammar": 'root ::= "x" [0-9]'}, "x[0-9]"),
        ({"response_format": {"type": "text"}}, ".*"),
    ],
    ids=str,
)
def test_structured_output(llm, form, pattern):
    application = Application(llm, "bytes")
    body = {"messages": [{"role": "user", "content": "Hi"}], "seed": 3, "max_tokens": 20, **form}
    status, content = ask(application, "POST", "/v1/chat/completions", body)
    assert status == 200 and re.fullmatch(pattern, content["choices"][0]["message"]["content"], re.DOTALL)


def test_small_routes(llm):
    application = Application(llm, "bytes")
    assert ask(application, "GET", "/health") == (200, {"status": "ok"})
    assert ask(application, "GET", "/ready")[0] == 200
    models = ask(application, "GET", "/v1/models")[1]["data"]
    assert models[0]["id"] == "bytes" and ask(application, "GET", "/v1/models/bytes") == (200, models[0])
    assert ask(application, "GET", "/v1/models/other")[1]["error"]["code"] == "model_not_found"
    assert ask(application, "GET", "/version")[1] == {"version": __version__}
    ask(application, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 2})
    text = ask(application, "GET", "/metrics")[1].decode()
    assert "tilewright_num_requests_running 0" in text and 'tilewright_http_responses_total{status="200"}' in text
    assert 'tilewright_time_to_first_token_seconds_bucket{le="+Inf"} 1' in text
    assert ask(application, "GET", "/v1/completions")[0] == 405 and ask(application, "GET", "/nothing")[0] == 404


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"{", 400, None),
        (b"[]", 400, None),
        (b"\xff", 400, None),
        (b"[" * 100_000, 400, None),
        ({}, 400, "prompt"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": 5}, 400, "prompt"),
        ({"prompt": [1, "a"]}, 400, "prompt"),
        ({"prompt": ["x"] * 65}, 400, "prompt"),
        ({"prompt": [9999]}, 400, "prompt"),
        ({"prompt": "x" * 5000}, 400, "prompt"),
        ({"prompt": "x\ud800"}, 400, "prompt"),
        ({"prompt": "x", "n": 129}, 400, "n"),
        ({"prompt": "x", "n": 16384}, 400, "n"),
        ({"prompt": "x", "temperature": "hot"}, 400, "temperature"),
        ({"prompt": "x", "best_of": 129}, 400, "best_of"),
        ({"prompt": "x", "n": 3, "best_of": 2}, 400, "best_of"),
        ({"prompt": "x", "best_of": 2, "stream": True}, 400, "best_of"),
        ({"prompt": "x", "echo": 1}, 400, "echo"),
        ({"prompt": "x", "stop": ["a"] * 17}, 400, "stop"),
        ({"prompt": "x", "stop": "a" * 257}, 400, "stop"),
        ({"prompt": "x", "stop_token_ids": [9999]}, 400, "stop_token_ids"),
        ({"prompt": "x", "stop": {"a": 1}}, 400, "stop"),
        ({"prompt": "x", "logit_bias": {"a": 1}}, 400, "logit_bias"),
        ({"prompt": "x", "logit_bias": {"9999": 1}}, 400, "logit_bias"),
        ({"prompt": "x", "logprobs": 21}, 400, "logprobs"),
        ({"prompt": "x", "stream": "yes"}, 400, "stream"),
        ({"prompt": "x", "model": "other"}, 404, "model"),
        ({"prompt": "x", "prompt_embeds": "AAAA"}, 400, "prompt_embeds"),
        ({"prompt": "x", "stream_options": []}, 400, "stream_options"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"prompt": "x", "stream": True, "stream_options": {"include_obfuscation": True}}, 400, "stream_options"),
        ({"prompt": "x", "top_k": -2}, 400, "top_k"),
        ({"prompt": "x", "use_beam_search": True}, 400, "use_beam_search"),
        ({"prompt": "x", "skip_special_tokens": False}, 400, "skip_special_tokens"),
        ({"prompt": "x", "priority": 3}, 400, "priority"),
        ({"prompt": "x", "cache_salt": ""}, 400, "cache_salt"),
        ({"prompt": "x", "truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens"),
        ({"prompt": "x", "add_special_tokens": "no"}, 400, "add_special_tokens"),
        ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens"),
        ({"prompt": "x", "chat_template": "{{ 1 }}"}, 400, "chat_template"),
        ({"prompt": "x", "seed": 1.5}, 400, "seed"),
        ({"prompt": "x", "ignore_eos": "no"}, 400, "ignore_eos"),
        ({"prompt": "x", "store": True}, 400, "store"),
        ({"prompt": "x", "guided_regex": "("}, 400, "guided_regex"),
        ({"prompt": "x", "guided_regex": "a", "guided_choice": ["b"]}, 400, "guided_choice"),
        ({"prompt": "x", "guided_choice": "yes"}, 400, "guided_choice"),
        ({"prompt": "x", "structured_outputs": {"xml": "a"}}, 400, "structured_outputs"),
        ({"prompt": "x", "structured_outputs": {"regex": "a{1000000}"}}, 400, "structured_outputs"),
        ({"prompt": "x", "response_format": {"type": "json_schema"}}, 400, "response_format"),
        (
            {"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}},
            400,
            "response_format",
        ),
        ({"prompt": "x", "response_format": "json"}, 400, "response_format"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bodies_that_are_refused(llm, body, status, field):
    found, content = ask(Application(llm, "bytes"), "POST", "/v1/completions", body)
    assert found == status and content["error"]["param"] == field
    assert "Traceback" not in content["error"]["message"] and "/tmp" not in content["error"]["message"]
    idle(llm)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 30) | st.floats() | st.sampled_from(["", "a", "user", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "1", "type"]), inner)
    ),
    max_leaves=6,
)
fields_drawn = st.dictionaries(
    st.sampled_from(
        ["prompt", "messages", "n", "max_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "seed", "logprobs",
         "top_logprobs", "stream", "stream_options", "logit_bias", "stop_token_ids", "model", "user", "echo",
         "repetition_penalty", "min_tokens", "tools", "tool_choice", "guided_json", "guided_regex"]
    ),
    json_values,
)  # fmt: skip
functions = st.fixed_dictionaries({"name": st.just("f"), "parameters": json_values})
fields_in_range = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([1e-308, 0.01, 100.0]),
        "min_tokens": st.integers(0, 3),
        "stop_token_ids": st.sampled_from([[], [5], list(range(261))]),
        "top_p": st.sampled_from([1e-308, 0.9]),
        "min_p": st.sampled_from([1e-308, 0.5]),
        "stream": st.booleans(),
        "tools": st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": functions}), max_size=2),
        "tool_choice": st.sampled_from(["auto", "required", "none"]),
        "guided_regex": st.sampled_from(["a{2,}", "x|y", "("]),
        "guided_json": st.fixed_dictionaries({}, optional={"$defs": json_values, "enum": json_values}),
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=fields_drawn, in_range=fields_in_range, chat=st.booleans(), sound=st.booleans())
def test_no_body_breaks_the_server(llm, drawn, in_range, chat, sound):
    fields = in_range if sound else drawn | in_range
    if not chat:
        fields = {name: value for name, value in fields.items() if not name.startswith("tool")}
    if sound:
        fields |= {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"prompt": "Hi"}
    fields["max_tokens"] = fields.get("max_tokens") if isinstance(fields.get("max_tokens"), str) else 3
    path = "/v1/chat/completions" if chat else "/v1/completions"
    application = Application(llm, "bytes")
    status, _, content = asyncio.run(call(application, "POST", path, fields))
    assert status < 500 and b"server_error" not in content
    idle(llm)
    assert ask(application, "GET", "/health")[0] == 200


@pytest.mark.parametrize("seed", range(2))
def test_requests_drawn_from_the_server_s_own_document(llm, seed):
    statuses = asyncio.run(fuzz(Application(llm, "bytes"), 100, seed, 4))
    assert statuses[200] and statuses[400] and sum(statuses.values()) == 100


def test_the_document_has_the_routes_and_their_fields(llm):
    status, content = ask(Application(llm, "bytes"), "GET", "/openapi.json")
    assert status == 200 and content["openapi"] == "3.1.0" and "security" not in content
    assert {"/health", "/v1/models", "/v1/responses"} < set(content["paths"])
    content = ask(Application(llm, "bytes", [KEY]), "GET", "/openapi.json",
                  headers=[(b"authorization", f"Bearer {KEY}".encode())])[1]  # fmt: skip
    assert content["security"] == [{"key": []}]
    assert [path for path, one in content["paths"].items() if one.get("get", {}).get("security") == []] == [
        "/", "/health"]  # fmt: skip
    body = content["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["n"] == {"type": "integer", "minimum": 1, "maximum": 128} and "prompt" in body["required"]


@pytest.mark.parametrize(
    "fields",
    [
        {"min_tokens": 1, "stop_token_ids": list(range(261))},
        {"repetition_penalty": 1e-308, "top_p": 0.9},
        {"stop_token_ids": [1] * 1025},
    ],
    ids=str,
)
def test_parameters_that_leave_no_token(llm, fields):
    application = Application(llm, "bytes")
    assert ask(application, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 2, **fields})[0] == 400
    assert ask(application, "GET", "/health")[0] == 200


def test_what_goes_wrong_in_one_result_ends_this_one(llm, monkeypatch, caplog):
    application = Application(llm, "bytes")
    monkeypatch.setattr(Sampler, "choose", lambda *_: [][0])
    status, content = ask(application, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 2})
    assert status == 500 and "IndexError" in content["error"]["message"] and "Traceback" in caplog.text
    monkeypatch.undo()
    assert ask(application, "POST", "/v1/completions", {"prompt": "x", "max_tokens": 2})[0] == 200


def test_a_client_that_does_not_read_holds_no_place(llm):
    application = Application(llm, "bytes", bounds=Bounds(seconds=0.05, send_seconds=0.05))

    async def main():
        async def receive():
            return incoming.pop() if incoming else await asyncio.Event().wait()

        async def send(message):
            await asyncio.Event().wait()

        body = json.dumps({"prompt": "word", "max_tokens": 100, "stream": True}).encode()
        incoming = [{"type": "http.request", "body": body}]
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
        await asyncio.wait_for(application(scope, receive, send), 30)

    asyncio.run(main())
    assert application.requests == 0
    idle(llm)


def test_keys(llm):
    application = Application(llm, "bytes", [KEY, "another key of 20 c"])
    for path, method in (("/v1/models", "GET"), ("/metrics", "GET"), ("/ready", "GET"), ("/nothing", "GET"),
                         ("/v1/completions", "POST"), ("/v1/models", "POST")):  # fmt: skip
        for header in (b"", b"Bearer wrong", b"Bearer ", b"Basic " + KEY.encode(), KEY.encode()):
            assert ask(application, method, path, headers=[(b"authorization", header)])[0] == 401
    for header in (b"Bearer " + KEY.encode(), b"bearer " + KEY.encode()):
        assert ask(application, "GET", "/v1/models", headers=[(b"authorization", header)])[0] == 200
    assert ask(application, "GET", "/health")[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:8000", "origin": "http://localhost:8000"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "rebound.example:8000"}, 403),
        ({"host": "127.0.0.1.example"}, 403),
        ({"host": "localhost", "origin": "https://site.example"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
        ({"host": "localhost", "content-type": "text/plain"}, 415),
    ],
    ids=str,
)
def test_without_keys_nothing_comes_from_other_sites(llm, headers, status):
    sent = [(name.encode(), value.encode()) for name, value in headers.items()]
    body = {"prompt": "x", "max_tokens": 1}
    assert ask(Application(llm, "bytes"), "POST", "/v1/completions", body, sent)[0] == status
    assert ask(Application(llm, "bytes", [KEY]), "GET", "/health", headers=sent)[0] == 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"tool_choice": "required", "tools": [
            {"type": "function", "function": {"name": "f", "parameters": {"$defs": 5}}}]}),
        ("/v1/chat/completions", {"messages": [{"role": "broken", "content": "x"}]}),
        ("/v1/responses", {"input": "x", "tool_choice": "required"}),
    ],
    ids=str,
)  # fmt: skip
def test_chats_that_are_refused(llm, monkeypatch, path, fields):
    def chat(messages, *others):
        if messages[0]["role"] == "broken":
            raise ImportModelError("/tmp/model: the chat template failed")
        return [1]

    monkeypatch.setattr(llm.llm.text_tokenizer, "chat", chat)
    if "chat" in path:
        fields = {"messages": [{"role": "user", "content": "x"}]} | fields
    status, content = ask(Application(llm, "bytes"), "POST", path, fields)
    assert status == 400 and "/tmp" not in content["error"]["message"]


def test_fields_that_are_null_are_absent(llm):
    body = {"prompt": "x", "max_tokens": None, "model": None, "stream": None, "ignore_eos": True}
    status, content = ask(Application(llm, "bytes"), "POST", "/v1/completions", body)
    assert status == 200 and content["usage"]["completion_tokens"] == 16


def test_prefixes_are_shared_within_a_key_only(llm):
    application = Application(llm, "bytes", [KEY, KEY[::-1]])
    prompt = {"prompt": "shared beginning, long enough for some pages of the pool", "max_tokens": 1}
    cached = []
    for key in (KEY, KEY, KEY[::-1]):
        _, content = ask(application, "POST", "/v1/completions", prompt, [(b"authorization", f"Bearer {key}".encode())])
        cached.append(content["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0 and cached[1] > 0 and cached[2] == 0


def test_bounds(llm):
    small = Application(llm, "bytes", bounds=Bounds(body=100, requests=2, tokens=10))
    assert ask(small, "POST", "/v1/completions", b" " * 101)[0] == 413
    for prompt, most in ((["a"] * 3, 2), ("a" * 11, 10)):  # these would not fit later either
        status, content = ask(small, "POST", "/v1/completions", {"prompt": prompt})
        assert status == 400 and f"at most {most}" in content["error"]["message"]
    assert ask(small, "POST", "/v1/completions", {"prompt": "a"})[0] == 200
    assert small.requests == small.tokens == small.metrics.rejections == 0

    async def places():
        """A body that is on its way holds a place."""
        coming = asyncio.Event()

        async def receive():
            await coming.wait()
            return {"type": "http.request", "body": b"{}"}

        async def send(message):
            pass

        scope = {"type": "http", "method": "POST", "path": "/v1/completions",
                 "headers": [(b"content-type", b"application/json")]}  # fmt: skip
        slow = [asyncio.ensure_future(small(scope, receive, send)) for _ in range(2)]
        await asyncio.sleep(0)
        status, headers, _ = await call(small, "POST", "/v1/completions", {"prompt": "a"})
        coming.set()
        await asyncio.gather(*slow)
        return status, headers[b"retry-after"]

    assert asyncio.run(places()) == (429, b"1") and small.requests == 0 and small.metrics.rejections == 1
    hurried = Application(llm, "bytes", bounds=Bounds(seconds=0.0))
    _, content = ask(hurried, "POST", "/v1/completions", {"prompt": "a", "max_tokens": 100})
    assert content["choices"][0]["finish_reason"] == "length" and content["usage"]["completion_tokens"] < 100


def test_more_requests_than_places(llm):
    application = Application(llm, "bytes", bounds=Bounds(requests=6))

    async def main():
        body = {"prompt": "word", "max_tokens": 8}
        return await asyncio.gather(*(call(application, "POST", "/v1/completions", body) for _ in range(18)))

    statuses = [status for status, _, _ in asyncio.run(main())]
    assert set(statuses) == {200, 429} and statuses.count(200) >= 6
    assert application.requests == application.tokens == 0
    idle(llm)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_a_client_that_goes_away_frees_its_memory(llm, stream, after):
    application = Application(llm, "bytes")
    body = {"prompt": "word", "max_tokens": 100, "stream": stream, "n": 2, "ignore_eos": True}
    asyncio.run(call(application, "POST", "/v1/completions", body, leave_after=after))
    idle(llm)
    assert application.requests == 0
    assert ask(application, "POST", "/v1/completions", {"prompt": "word", "max_tokens": 2})[0] == 200


def test_a_stopped_engine_is_reported(tmp_path):
    llm = AsyncLLM(text_checkpoint(tmp_path / "bytes"), memory=1 << 20)
    application = Application(llm, "bytes")
    llm.close()
    for method, path in (("GET", "/health"), ("GET", "/ready"), ("POST", "/v1/completions")):
        assert ask(application, method, path, {"prompt": "x"})[0] == 503


def test_listening_for_others_needs_keys(tmp_path):
    def run(*arguments):
        command = [sys.executable, "-m", "tilewright", "serve", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    open_to_all = run("--host", "0.0.0.0")
    assert open_to_all.returncode == 2 and "--key-file" in open_to_all.stderr
    (tmp_path / "keys").write_text("short\n")
    short = run("--host", "0.0.0.0", "--key-file", str(tmp_path / "keys"))
    assert short.returncode == 1 and "16 characters" in short.stderr
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = run("--port", str(other.getsockname()[1]))
    assert taken.returncode == 1 and "--port" in taken.stderr and "serving" not in taken.stderr
    own = [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "example.com", "10.0.0.1")]
    assert own == [True] * 3 + [False] * 4


def test_a_long_body_is_parsed_next_to_the_loop(llm, monkeypatch):
    parse, threads = protocol.parse, []
    monkeypatch.setattr(protocol, "parse", lambda body: [threads.append(threading.get_ident()), parse(body)][1])
    for count in (1, 1 << 16):
        fields = {"prompt": "a" * count, **GREEDY}
        ask(Application(llm, "bytes"), "POST", "/v1/completions", fields)
    assert threads[0] == threading.get_ident() != threads[1]


def test_a_port_is_taken_while_the_model_is_opened():
    first = listen("localhost", _free_port())
    port = first[0].getsockname()[1]
    for one in first:
        with socket.create_connection(one.getsockname()[:2], timeout=5):
            pass
    with pytest.raises(InputError, match="choose another --port"):
        listen("localhost", port)
    for one in first:
        one.close()
    for one in listen("127.0.0.1", port):  # a client's connection does not hold the port
        one.close()


@pytest.mark.parametrize("host", ["a" * 64 + ".example", ".."])
def test_a_host_that_is_none(host):
    with pytest.raises(InputError, match=r"--host .* cannot be listened on"):
        listen(host, 8000)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def test_over_a_socket(llm):
    pytest.importorskip("uvicorn")
    with served(Application(llm, "bytes")) as address:
        request = urllib.request.Request(
            f"{address}/v1/completions", json.dumps({"prompt": "Once", **GREEDY}).encode(),
            {"content-type": "application/json"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 6


class _Wide:
    """An encoder of long vectors."""

    name, longest = "wide", 64

    def tokens(self, text):
        return [0]

    def encode_tokens(self, prompts, is_over):
        return np.full((len(prompts), 1 << 16), 0.5, np.float32)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings"])
def test_a_client_that_does_not_read(llm, monkeypatch, path):
    """Its answer keeps its place, and for a time only."""
    monkeypatch.setattr(TextForm, "whole", lambda form, outputs: {"text": "a" * (12 << 20)})
    application = Application(llm, "bytes", encoder=_Wide())
    packed = {"input": ["a"] * 32, "encoding_format": "base64"}
    body = json.dumps(packed if path == "/v1/embeddings" else {"prompt": "a", "max_tokens": 1}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    with served(application) as address:
        for reads in (True, False):
            application.bounds = Bounds() if reads else Bounds(seconds=1.0, send_seconds=1.0)
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096 if not reads else 1 << 20)
            client.connect(("127.0.0.1", int(address.rsplit(":", 1)[1])))
            client.settimeout(30)
            client.sendall(f"{head}\r\nconnection: close\r\n\r\n".encode() + body)
            if reads:
                with client, client.makefile("rb") as answer:
                    content = answer.read().split(b"\r\n\r\n", 1)[1]
                assert len(content) > 8 << 20 and json.loads(content)
                continue
            with client:
                end = time.monotonic() + 20
                while application.metrics.responses[200] < 2 and time.monotonic() < end:
                    time.sleep(0.01)
                time.sleep(0.1)
                assert application.requests
                while application.requests and time.monotonic() < end:
                    time.sleep(0.01)
                assert not application.requests
