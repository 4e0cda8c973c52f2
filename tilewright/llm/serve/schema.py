"""The fields of requests as JSON schemas, and the server's OpenAPI document.

`protocol.py` refuses fields that are not here, and checks what a schema does not say: that fields go together.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from tilewright import __version__
from tilewright.llm import requests
from tilewright.llm.structure import DEEPEST_SCHEMA, LARGEST_FORM, MOST_CHOICES
from tilewright.llm.tools import MOST_TOOLS

MOST_PROMPTS = 64  # of a request
MOST_TEXTS = 256  # of a request for embeddings

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean"}
_ANY_OBJECT: Schema = {"type": "object"}
_TOKENS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


def _object(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    found: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**found, "required": list(required)} if required else found


def _whole(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most}


def _list(items: Schema, most: int | None = None, least: int = 0) -> Schema:
    found: Schema = {"type": "array", "items": items, "minItems": least}
    return found if most is None else {**found, "maxItems": most}


def _texts(most: int) -> Schema:
    """A text, its tokens, or several of one kind."""
    return {"anyOf": [_TEXT, _TOKENS, _list(_TEXT, most, 1), _list(_TOKENS, most, 1)]}


_NUMBERS: dict[str, Schema] = {
    **{name: {"type": "number", "minimum": low, "maximum": high} for name, low, high in requests.REALS},
    **{name: _whole(low, high) for name, low, high in requests.WHOLE_NUMBERS},
}
_FORM: dict[str, Schema] = {
    "json": {"anyOf": [_ANY_OBJECT, _TEXT], "description": f"a JSON schema, {DEEPEST_SCHEMA} levels deep at most"},
    "regex": {"type": "string", "maxLength": LARGEST_FORM},
    "choice": _list({"type": "string", "minLength": 1}, MOST_CHOICES, 1),
    "grammar": {"type": "string", "maxLength": LARGEST_FORM},
}
_RESPONSE_FORMAT: Schema = {
    "anyOf": [
        {"type": "object", "properties": {"type": {"enum": ["text", "json_object"]}}, "required": ["type"]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {"type": "object", "properties": {"schema": _ANY_OBJECT, "name": _TEXT},
                                "required": ["schema"]},
            },
            "required": ["type", "json_schema"],
        },
    ]
}  # fmt: skip
_FUNCTION = {"name": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"}, "description": _TEXT,
             "parameters": _ANY_OBJECT}  # fmt: skip
_TOOL: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": _FUNCTION, "required": ["name"]},
    },
    "required": ["type", "function"],
}
_PART: Schema = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": _TEXT},
    "required": ["type", "text"],
}
_CONTENT: Schema = {"anyOf": [_TEXT, _list(_PART)]}
_MESSAGE: Schema = {
    "type": "object",
    "properties": {"role": {"enum": ["system", "user", "assistant", "tool"]}, "content": _CONTENT},
    "required": ["role", "content"],
}
_ITEM: Schema = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"role": {"enum": ["developer", "system", "user", "assistant"]}, "content": _TEXT},
            "required": ["role", "content"],
        },
        {
            "type": "object",
            "properties": {"type": {"const": "function_call"}, "call_id": _TEXT, "name": _TEXT, "arguments": _TEXT},
            "required": ["type", "call_id", "name", "arguments"],
        },
        {
            "type": "object",
            "properties": {"type": {"const": "function_call_output"}, "call_id": _TEXT, "output": _TEXT},
            "required": ["type", "call_id", "output"],
        },
    ]
}
_COMMON: dict[str, Schema] = {
    "model": _TEXT,
    **{name: _NUMBERS[name] for name in (
        "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "n",
        "min_tokens", "max_tokens")},
    "ignore_eos": _FLAG,
    "seed": {"type": "integer"},
    "stop": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": requests.LONGEST_STOP},
                       _list({"type": "string", "minLength": 1, "maxLength": requests.LONGEST_STOP},
                             requests.MOST_STOPS)]},
    "stop_token_ids": _list({"type": "integer", "minimum": 0}, requests.MOST_STOP_TOKENS),
    "logit_bias": {"type": "object", "propertyNames": {"pattern": "^[0-9]{1,11}$"},
                   "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
                   "maxProperties": requests.MOST_BIASES},
    "stream": _FLAG,
    "stream_options": _object(include_usage=_FLAG),
    "user": _TEXT,
    "metadata": _ANY_OBJECT,
    "store": {"const": False},
    **{f"guided_{name}": form for name, form in _FORM.items()},
    "structured_outputs": _object(json_object={"const": True}, **_FORM),
    "response_format": _RESPONSE_FORMAT,
}  # fmt: skip
COMPLETION: dict[str, Schema] = {
    **_COMMON, "prompt": _texts(MOST_PROMPTS), "logprobs": _NUMBERS["logprobs"],
    "best_of": _whole(1, requests.MOST_RESULTS), "echo": _FLAG,
    "max_tokens": {**_NUMBERS["max_tokens"], "minimum": 0, "description": "0 goes with echo"},
}  # fmt: skip
CHAT: dict[str, Schema] = {
    **_COMMON, "messages": _list(_MESSAGE, least=1), "max_completion_tokens": _NUMBERS["max_tokens"],
    "logprobs": _FLAG, "top_logprobs": _NUMBERS["logprobs"], "tools": _list(_TOOL, MOST_TOOLS),
    "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]},
                              {"type": "object", "properties": {"type": {"const": "function"}, "function": _object(
                                  ("name",), name=_FUNCTION["name"])}, "required": ["type", "function"]}]},
    "parallel_tool_calls": _FLAG,
}  # fmt: skip
RESPONSES: dict[str, Schema] = {
    **{name: _COMMON[name] for name in (
        "model", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed", "stream",
        "metadata", "user", "repetition_penalty", "store")},
    "parallel_tool_calls": _FLAG,
    "input": {"anyOf": [_TEXT, _list(_ITEM, least=1)]},
    "instructions": _TEXT,
    "max_output_tokens": _NUMBERS["max_tokens"],
    "tools": _list({"type": "object", "properties": {"type": {"const": "function"}, **_FUNCTION},
                    "required": ["type", "name"]}, MOST_TOOLS),
    "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]},
                              {"type": "object", "properties": {"type": {"const": "function"}, "name": _TEXT},
                               "required": ["type", "name"]}]},
    "text": _object(("format",), format={"anyOf": [
        {"type": "object", "properties": {"type": {"enum": ["text", "json_object"]}}, "required": ["type"]},
        {"type": "object", "properties": {"type": {"const": "json_schema"}, "name": _TEXT, "schema": _ANY_OBJECT},
         "required": ["type", "schema"]},
    ]}),
}  # fmt: skip
EMBEDDINGS: dict[str, Schema] = {
    "input": _texts(MOST_TEXTS), "model": _TEXT, "encoding_format": {"enum": ["float", "base64"]}, "user": _TEXT,
}  # fmt: skip
_BODIES: dict[str, tuple[dict[str, Schema], tuple[str, ...]]] = {
    "/v1/completions": (COMPLETION, ("prompt",)),
    "/v1/chat/completions": (CHAT, ("messages",)),
    "/v1/responses": (RESPONSES, ("input",)),
    "/v1/embeddings": (EMBEDDINGS, ("input",)),
}
_ERROR = _object(("error",), error=_ANY_OBJECT)


def document(routes: list[tuple[str, str]], has_keys: bool, open_paths: Container[str] = ()) -> Schema:
    """The OpenAPI document of these routes, (method, path); those of `open_paths` need no key."""
    paths: dict[str, Schema] = {}
    for method, path in routes:
        answer = {"description": "done", "content": {"application/json": {"schema": _ANY_OBJECT}}}
        refused = {"description": "refused; the body says why", "content": {"application/json": {"schema": _ERROR}}}
        route: Schema = {"responses": {"200": answer, "4XX": refused, "503": refused}}
        if has_keys and path in open_paths:
            route["security"] = []
        if path in _BODIES:
            fields, required = _BODIES[path]
            body = {"application/json": {"schema": _object(required, **fields)}}
            route["requestBody"] = {"required": True, "content": body}
        paths.setdefault(path, {})[method.lower()] = route
    found: Schema = {"openapi": "3.1.0", "info": {"title": "tilewright", "version": __version__}, "paths": paths}
    if has_keys:
        found["components"] = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
        found["security"] = [{"key": []}]
    return found
