"""Tools: calls are read from a text the same however it is cut, and through the server, where calls can be forced."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("llguidance")

from tests.host.llm_support import text_checkpoint
from tests.host.test_llm_serve import ask, events
from tilewright.errors import InputError
from tilewright.llm.asynchronous import AsyncLLM
from tilewright.llm.serve.application import Application
from tilewright.llm.tools import FORMATS, CallReader, format_of, read_tools

TEMPLATE = """{% if tools %}[tools]{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}\
{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% for call in message.tool_calls or [] %}\
BEGIN{{ call.function.arguments.city }}{% endfor %}</s>{% endfor %}{% if add_generation_prompt %}<|assistant|>\
{% endif %}"""
TEXTS = [
    ("hermes", 'Let me see.\n<tool_call>\n{"name": "get", "arguments": {"a": "x}\\"", "b": [1, {"c": 2}]}}\n'
     "</tool_call>", "Let me see.", [("get", '{"a": "x}\\"", "b": [1, {"c": 2}]}')]),
    ("hermes", '<tool_call>{"name": "get", "arguments": {}}</tool_call>\n'
     '<tool_call>{"arguments": {"z": 1}, "name": "put"}</tool_call>', "", [("get", "{}"), ("put", '{"z": 1}')]),
    ("hermes", "a <tool text < tool_call> b  ", "a <tool text < tool_call> b  ", []),
    ("hermes", "see <tool_call>no JSON</tool_call> more", "see <tool_call>no JSON</tool_call> more", []),
    ("hermes", '<tool_call>{"name": "other", "arguments": {}}', '<tool_call>{"name": "other", "arguments": {}}', []),
    ("hermes", '<tool_call>{"name": "get", "argu', '<tool_call>{"name": "get", "argu', []),
    ("hermes", '<tool_call>{"name": "get"}</tool_call>', "", [("get", "{}")]),
    ("llama", '{"name": "get", "parameters": {"a": 1}}', "", [("get", '{"a": 1}')]),
    ("llama", '<|python_tag|>{"name": "get", "parameters": {}}; {"name": "put", "parameters": {}}', "",
     [("get", "{}"), ("put", "{}")]),
    ("llama", 'Hello {"name"', 'Hello {"name"', []),
    ("llama", '{"x": 5} is what', '{"x": 5} is what', []),
    ("mistral", '[TOOL_CALLS] [{"name": "get", "arguments": {"a": 1}}, {"name": "put", "arguments": {"b": [2]}}]', "",
     [("get", '{"a": 1}'), ("put", '{"b": [2]}')]),
    ("mistral", '[{"name": "get", "arguments": {"a": 1}}]', "", [("get", '{"a": 1}')]),
    ("mistral", '[TOOL_CALLS]get[ARGS]{"a": {"b": "}"}}[TOOL_CALLS]put{"c": 1}', "",
     [("get", '{"a": {"b": "}"}}'), ("put", '{"c": 1}')]),
    ("mistral", "getting there is easy", "getting there is easy", []),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "content", "calls"), TEXTS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_calls_are_read_however_a_text_is_cut(form, text, content, calls, data):
    reader, at, found_content = CallReader(FORMATS[form], ["get", "put"]), 0, ""
    arguments: dict[int, str] = {}
    while at < len(text):
        count = data.draw(st.integers(1, 12))
        found = reader.push(text[at : at + count])
        at += count
        found_content += found.content
        for number, piece in found.arguments.items():
            arguments[number] = arguments.get(number, "") + piece
    found_content += reader.finish().content
    assert found_content == content
    assert [(call.name, call.arguments) for call in reader.calls] == calls == [
        (call.name, arguments[number]) for number, call in enumerate(reader.calls)
    ]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(text=st.text('{}[]":, a\\<tool_call>/', max_size=60), form=st.sampled_from(sorted(FORMATS)))
def test_any_text_can_be_read(text, form):
    whole, parts = (CallReader(FORMATS[form], ["a"]) for _ in range(2))
    at_once = whole.push(text).content + whole.finish().content
    in_parts = "".join(parts.push(letter).content for letter in text) + parts.finish().content
    assert at_once == in_parts and whole.calls == parts.calls


def test_no_more_calls_than_wanted():
    reader = CallReader(FORMATS["hermes"], ["get"], most=1)
    reader.push('<tool_call>{"name": "get", "arguments": {}}</tool_call> ' * 3)
    assert len(reader.calls) == 1 and reader.finish().content == ""


@pytest.mark.parametrize(
    "tools",
    [
        [], {}, [5], [{"type": "function"}], [{"type": "function", "function": {"name": "a b"}}],
        [{"type": "function", "function": {"name": "a", "parameters": 5}}],
        [{"type": "function", "function": {"name": "a"}}] * 2, [{"type": "code", "function": {"name": "a"}}],
        [{"type": "function", "function": {"name": "a" * 65}}],
    ],
    ids=str,
)  # fmt: skip
def test_tools_that_are_refused(tools):
    with pytest.raises(InputError):
        read_tools(tools)


@pytest.fixture(scope="module", params=["<tool_call>", "<|python_tag|>", "[TOOL_CALLS]"])
def application(request, tmp_path_factory):
    template = TEMPLATE.replace("BEGIN", request.param)
    assert format_of(template).begin == request.param
    folder = text_checkpoint(tmp_path_factory.mktemp("tools") / "bytes", template, max_position_embeddings=1024)
    llm = AsyncLLM(folder, memory=4 << 20, sequences=8)
    yield Application(llm, "bytes")
    llm.close()


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties),
                  "additionalProperties": False}  # fmt: skip
    return {"type": "function", "function": {"name": name, "description": f"{name} it", "parameters": parameters}}


WEATHER = tool("weather", city={"enum": ["Rome", "Oslo"]}, days={"type": "integer", "minimum": 1, "maximum": 9})
SHARED = tool("shared", item={"$ref": "#/$defs/item"})
SHARED["function"]["parameters"]["$defs"] = {"item": {"enum": ["left", "right"]}}
QUESTION = [{"role": "user", "content": "How is it?"}]
PATH = "/v1/chat/completions"


def test_a_call_that_must_follow(application):
    named = {"type": "function", "function": {"name": "weather"}}
    for seed in range(2):
        body = {"messages": QUESTION, "tools": [WEATHER, SHARED], "tool_choice": named, "seed": seed, "max_tokens": 300}
        status, content = ask(application, "POST", PATH, body)
        (choice,) = content["choices"]
        (call,) = choice["message"]["tool_calls"]
        assert status == 200 and choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
        arguments = json.loads(call["function"]["arguments"])
        assert arguments["city"] in ("Rome", "Oslo") and 1 <= arguments["days"] <= 9
        assert call["type"] == "function" and call["function"]["name"] == "weather" and call["id"]


def test_some_call_must_follow_and_comes_in_pieces(application):
    seen = set()
    for seed in range(4):
        body = {"messages": QUESTION, "tools": [WEATHER, SHARED], "tool_choice": "required", "seed": seed,
                "temperature": 8, "max_tokens": 600, "parallel_tool_calls": seed % 2 == 0}  # fmt: skip
        whole = ask(application, "POST", PATH, body)[1]["choices"][0]
        pieces = [event["choices"][0] for event in events(ask(application, "POST", PATH, {**body, "stream": True})[1])]
        calls: dict[int, dict] = {}
        for piece in pieces:
            for delta in piece["delta"].get("tool_calls", []):
                if "id" in delta:
                    calls[delta["index"]] = {"name": delta["function"]["name"], "arguments": ""}
                calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
        assert list(calls.values()) == [call["function"] for call in whole["message"]["tool_calls"]]
        assert pieces[-1]["finish_reason"] == whole["finish_reason"] == "tool_calls"
        assert seed % 2 == 0 or len(calls) == 1
        for call in calls.values():
            seen.add(call["name"])
            value = json.loads(call["arguments"])
            assert call["name"] == "weather" or value["item"] in ("left", "right")
    assert seen == {"weather", "shared"}


def test_a_call_may_follow_and_results_of_calls_are_in_the_prompt(application):
    answer = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function",
         "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}]}  # fmt: skip
    messages = [*QUESTION, answer, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
    tokenizer = application.llm.llm.text_tokenizer
    assert f"{tokenizer.call_format.begin}Oslo" in tokenizer.render(messages)
    body = {"messages": messages, "tools": [WEATHER], "max_tokens": 8, "temperature": 0}
    status, content = ask(application, "POST", PATH, body)
    assert status == 200 and content["choices"][0]["message"]["content"]
    longer = content["usage"]["prompt_tokens"]
    without = ask(application, "POST", PATH, {**body, "tool_choice": "none"})[1]
    assert without["usage"]["prompt_tokens"] < longer


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": 5}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "required", "guided_regex": "a"}, "tool_choice"),
        ({"tools": [tool("a", b={"type": "nothing"})], "tool_choice": "required"}, "tools"),
        ({"tools": [WEATHER], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{"}}]}]},
            "messages",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, "messages"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bodies_that_are_refused(application, fields, field):
    status, content = ask(application, "POST", PATH, {"messages": QUESTION, "max_tokens": 3, **fields})
    assert status == 400 and content["error"]["param"] == field
