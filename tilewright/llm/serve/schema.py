"""The fields of requests as JSON schemas, and the server's OpenAPI document.

`protocol.py` refuses fields that are not here, and checks what a schema does not say: that fields go together.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any

from tilewright import __version__
from tilewright.llm import requests
from tilewright.llm.structure import DEEPEST_SCHEMA, LARGEST_FORM, MOST_CHOICES
from tilewright.llm.tools import MOST_TOOLS

MOST_PROMPTS = 64  # of a request
MOST_TEXTS = 256  # of a request for embeddings
LONGEST_SALT = 1024
MOST_VARIABLES = 16  # of a chat template, each of at most
LONGEST_VARIABLE = 1024  # characters
LARGEST_VARIABLE = 1 << 20

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
# Fields of other servers that say what is done anyway, and hints that change nothing.
_ONLY: dict[str, Schema] = {
    **{name: {"const": value} for name, value in (
        ("detokenize", True), ("skip_special_tokens", True), ("spaces_between_special_tokens", True),
        ("use_beam_search", False), ("early_stopping", False), ("length_penalty", 1.0), ("priority", 0))},
    "service_tier": {"enum": ["auto", "default"]},
    "safety_identifier": _TEXT, "prompt_cache_key": _TEXT, "user": _TEXT, "metadata": _ANY_OBJECT,
    "store": {"const": False},
}  # fmt: skip
_TEMPLATE_VALUE: Schema = {
    "anyOf": [{"type": "string", "maxLength": LONGEST_VARIABLE}, _FLAG, _whole(-LARGEST_VARIABLE, LARGEST_VARIABLE)]
}
_COMMON: dict[str, Schema] = {
    "model": _TEXT,
    **{name: _NUMBERS[name] for name in (
        "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "n",
        "min_tokens", "max_tokens")},
    **_ONLY,
    "ignore_eos": _FLAG,
    "include_stop_str_in_output": _FLAG,
    "return_tokens_as_token_ids": _FLAG,
    "return_token_ids": _FLAG,
    "truncate_prompt_tokens": {"anyOf": [{"const": -1}, _whole(1, 2**31 - 1)]},
    "cache_salt": {"type": "string", "minLength": 1, "maxLength": LONGEST_SALT},
    "seed": {"type": "integer"},
    "stop": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": requests.LONGEST_STOP},
                       _list({"type": "string", "minLength": 1, "maxLength": requests.LONGEST_STOP},
                             requests.MOST_STOPS)]},
    "stop_token_ids": _list({"type": "integer", "minimum": 0}, requests.MOST_STOP_TOKENS),
    "logit_bias": {"type": "object", "propertyNames": {"pattern": "^[0-9]{1,11}$"},
                   "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
                   "maxProperties": requests.MOST_BIASES},
    "stream": _FLAG,
    "stream_options": _object(
        include_usage=_FLAG, continuous_usage_stats=_FLAG, include_obfuscation={"const": False}),
    **{f"guided_{name}": form for name, form in _FORM.items()},
    "structured_outputs": _object(json_object={"const": True}, **_FORM),
    "response_format": _RESPONSE_FORMAT,
}  # fmt: skip
COMPLETION: dict[str, Schema] = {
    **_COMMON, "prompt": _texts(MOST_PROMPTS), "logprobs": _NUMBERS["logprobs"],
    "best_of": _whole(1, requests.MOST_RESULTS), "echo": _FLAG,
    "add_special_tokens": _FLAG,
    "max_tokens": {**_NUMBERS["max_tokens"], "minimum": 0, "description": "0 goes with echo"},
}  # fmt: skip
CHAT: dict[str, Schema] = {
    **_COMMON, "messages": _list(_MESSAGE, least=1), "max_completion_tokens": _NUMBERS["max_tokens"],
    "logprobs": _FLAG, "top_logprobs": _NUMBERS["logprobs"], "tools": _list(_TOOL, MOST_TOOLS),
    "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]},
                              {"type": "object", "properties": {"type": {"const": "function"}, "function": _object(
                                  ("name",), name=_FUNCTION["name"])}, "required": ["type", "function"]}]},
    "parallel_tool_calls": _FLAG, "echo": {"const": False}, "add_special_tokens": {"const": False},
    "modalities": {"const": ["text"]}, "reasoning_effort": {"type": "string", "maxLength": LONGEST_VARIABLE},
    "chat_template_kwargs": {"type": "object", "additionalProperties": _TEMPLATE_VALUE,
                             "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]{0,63}$"},
                             "maxProperties": MOST_VARIABLES},
    "add_generation_prompt": _FLAG, "continue_final_message": _FLAG,
}  # fmt: skip
RESPONSES: dict[str, Schema] = {
    **{name: _COMMON[name] for name in (
        "model", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed", "stream",
        "repetition_penalty", "truncate_prompt_tokens", "cache_salt")},
    **_ONLY,
    "include": {"const": []}, "truncation": {"const": "disabled"}, "background": {"const": False},
    "stream_options": _object(include_obfuscation={"const": False}),
    "reasoning": _object(effort={"type": "string", "maxLength": LONGEST_VARIABLE}),
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
TOKENIZE: dict[str, Schema] = {
    "model": _TEXT, "prompt": _TEXT, "add_special_tokens": _FLAG, "return_token_strs": _FLAG,
    **{name: CHAT[name] for name in (
        "messages", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")},
}  # fmt: skip
DETOKENIZE: dict[str, Schema] = {"model": _TEXT, "tokens": {**_TOKENS, "minItems": 0}}
EMBEDDINGS: dict[str, Schema] = {
    "input": _texts(MOST_TEXTS), "model": _TEXT, "encoding_format": {"enum": ["float", "base64"]}, "user": _TEXT,
}  # fmt: skip
_BODIES: dict[str, tuple[dict[str, Schema], tuple[str, ...]]] = {
    "/v1/completions": (COMPLETION, ("prompt",)),
    "/v1/chat/completions": (CHAT, ("messages",)),
    "/v1/responses": (RESPONSES, ("input",)),
    "/v1/embeddings": (EMBEDDINGS, ("input",)),
    "/tokenize": (TOKENIZE, ()),
    "/detokenize": (DETOKENIZE, ("tokens",)),
}
_ERROR = _object(("error",), error=_ANY_OBJECT)


def unsupported(name: str, value: Any, known: Mapping[str, Schema]) -> str | None:
    """Why a field cannot be taken: there is none of its name, or it has another value than the only ones; else None."""
    if name not in known:
        return f"{name[:100]!r} is not supported"
    only = [known[name]["const"]] if "const" in known[name] else known[name].get("enum")
    if only is None or any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in only):
        return None
    return f"{name} can only be {' or '.join(map(json.dumps, only))}"


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
