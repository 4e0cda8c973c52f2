"""/v1/responses: what a chat completion gives, as items and events."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("llguidance")

from tests.host.llm_support import text_checkpoint
from tests.host.test_llm_serve import ask
from tests.host.test_llm_tools import TEMPLATE
from tilewright.llm.asynchronous import AsyncLLM
from tilewright.llm.serve.application import Application

PATH = "/v1/responses"
TOOL = {"type": "function", "name": "weather", "description": "It.", "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"],
    "additionalProperties": False}}  # fmt: skip


@pytest.fixture(scope="module")
def application(tmp_path_factory):
    template = TEMPLATE.replace("BEGIN", "<tool_call>")
    folder = text_checkpoint(tmp_path_factory.mktemp("responses") / "bytes", template, max_position_embeddings=512)
    llm = AsyncLLM(folder, memory=2 << 20, sequences=8)
    yield Application(llm, "bytes")
    llm.close()


def events(content):
    found = []
    for block in content.decode().strip().split("\n\n"):
        kind, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_texts_are_those_of_chats(application):
    chat = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}
    wanted = ask(application, "POST", "/v1/chat/completions", {**chat, "max_tokens": 9, "temperature": 0})[1]
    body = {
        "instructions": "Be brief.",
        "input": "Hi",
        "max_output_tokens": 9,
        "temperature": 0,
        "metadata": {"a": "b"},
    }
    status, content = ask(application, "POST", PATH, body)
    (item,) = content["output"]
    assert status == 200 and content["object"] == "response" and content["metadata"] == {"a": "b"}
    assert item["content"][0]["text"] == wanted["choices"][0]["message"]["content"]
    assert content["status"] == "incomplete" and content["incomplete_details"] == {"reason": "max_output_tokens"}
    assert content["usage"]["input_tokens"] == wanted["usage"]["prompt_tokens"]
    found = events(ask(application, "POST", PATH, {**body, "stream": True})[1])
    assert [event["type"].removeprefix("response.") for event in found][:4] == [
        "created", "in_progress", "output_item.added", "content_part.added",
    ]  # fmt: skip
    pieces = [event["delta"] for event in found if event["type"] == "response.output_text.delta"]
    assert "".join(pieces) == item["content"][0]["text"] and found[-1]["type"] == "response.incomplete"
    assert found[-1]["response"]["output"][0]["content"] == item["content"]


def test_forms_and_calls(application):
    form = {"format": {"type": "json_schema", "name": "n", "schema": {"enum": [1, 22]}}}
    status, content = ask(application, "POST", PATH, {"input": "Hi", "text": form})
    assert status == 200 and content["status"] == "completed" and content["text"] == form
    assert content["output"][0]["content"][0]["text"] in ("1", "22")
    body = {"input": "Hi", "tools": [TOOL], "tool_choice": {"type": "function", "name": "weather"}, "seed": 1}
    (call,) = ask(application, "POST", PATH, body)[1]["output"]
    assert call["type"] == "function_call" and json.loads(call["arguments"])["city"] in ("Rome", "Oslo")
    found = events(ask(application, "POST", PATH, {**body, "stream": True})[1])
    pieces = [event["delta"] for event in found if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(pieces) == call["arguments"] and found[-1]["type"] == "response.completed"
    history = [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}, call,
               {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}]  # fmt: skip
    assert ask(application, "POST", PATH, {"input": history, "max_output_tokens": 3})[0] == 200


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input"), ({"input": []}, "input"), ({"input": [5]}, "input"), ({"input": "x", "store": True}, "store"),
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"), ({"input": "x", "n": 2}, "n"),
        ({"input": "x", "text": 5}, "text"), ({"input": "x", "text": {"format": {"type": "xml"}}}, "text"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": "x", "instructions": 5}, "instructions"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"type": "reasoning"}]}, "input"), ({"input": [{"role": 5, "content": "x"}]}, "input"),
        ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"), ({"input": "x", "tools": {}}, "tools"),
        ({"input": "x", "reasoning": {"effort": 3}}, "reasoning"),
    ],
    ids=str,
)  # fmt: skip
def test_bodies_that_are_refused(application, body, field):
    status, content = ask(application, "POST", PATH, body)
    assert status == 400 and content["error"]["param"] == field
