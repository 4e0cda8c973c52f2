"""OpenAI's stateless responses: a request as a chat, and results as items and events."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.llm.requests import Output
from tilewright.llm.serve import protocol, schema
from tilewright.llm.serve.protocol import Refused
from tilewright.llm.serve.results import ChatForm

_SAME = ("model", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "seed", "stream",
         "parallel_tool_calls", "metadata", "user", "repetition_penalty", "truncate_prompt_tokens",
         "cache_salt")  # fmt: skip
_TEXTS = ("input_text", "output_text", "text")
_NAMES = {"messages": "input", "max_tokens": "max_output_tokens", "response_format": "text",
          "reasoning_effort": "reasoning"}  # of fields of a chat that have others here  # fmt: skip


def renamed(refused: Refused) -> Refused:
    """An error of a chat, about the field that /v1/responses has in its place."""
    field = refused.field or ""
    if field not in _NAMES:
        return refused
    message = refused.message.removeprefix(field)
    message = refused.message if message == refused.message else _NAMES[field] + message
    return Refused(refused.status, message, _NAMES[field], refused.code, refused.headers)


def as_chat(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a chat completion that asks for the same; raises `Refused` that names the field."""
    for name, value in given.items():
        why = None if value is None else schema.unsupported(name, value, schema.RESPONSES)
        if why is not None:
            raise Refused(400, why, name[:100])
    reasoning, options = _object(given, "reasoning", ("effort",)), _object(given, "stream_options")
    if options.get("include_obfuscation"):
        raise Refused(400, "include_obfuscation can only be false", "stream_options")
    messages = _messages(given.get("input"))
    instructions = given.get("instructions")
    if instructions is not None:
        if not isinstance(instructions, str):
            raise Refused(400, "instructions is a text", "instructions")
        messages = [{"role": "system", "content": instructions}, *messages]
    fields = {name: given[name] for name in _SAME if given.get(name) is not None}
    form = given.get("text")
    if form is not None:
        fields["response_format"] = _format(form)
    if given.get("tools") is not None:
        fields["tools"] = [_tool(tool) for tool in _list(given["tools"], "tools")]
    choice = given.get("tool_choice")
    if choice is not None:
        fields["tool_choice"] = (
            {"type": "function", "function": {"name": choice.get("name")}} if isinstance(choice, dict) else choice
        )
    if reasoning.get("effort") is not None:
        fields["reasoning_effort"] = reasoning["effort"]
    return {**fields, "messages": messages, "max_completion_tokens": given.get("max_output_tokens")}


def _object(given: Mapping[str, Any], name: str, known: Sequence[str] = ("include_obfuscation",)) -> Mapping[str, Any]:
    """A field that is an object with nothing but fields that are known."""
    found = given.get(name, {})
    if not isinstance(found, dict) or any(key not in known for key in found):
        raise Refused(400, f"{name} takes {', '.join(known)}", name)
    return found


def _messages(given: Any) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for item in _list(given, "input"):
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            role = {"developer": "system"}.get(str(item.get("role")), item.get("role"))
            messages.append({"role": role, "content": _content(item.get("content"))})
        elif kind == "function_call":
            call = {"id": item.get("call_id"), "type": "function",
                    "function": {"name": item.get("name"), "arguments": item.get("arguments", "{}")}}  # fmt: skip
            if messages and messages[-1].get("tool_calls"):
                messages[-1]["tool_calls"].append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
        else:
            raise Refused(400, "an item of input is a message, a function_call or a function_call_output", "input")
    return messages


def _content(given: Any) -> Any:
    if not isinstance(given, list):
        return given
    if not all(isinstance(part, dict) and part.get("type") in _TEXTS for part in given):
        raise Refused(400, "parts of a message's content must be texts", "input")
    return [{"type": "text", "text": part.get("text")} for part in given]


def _format(given: Any) -> Any:
    form = given.get("format") if isinstance(given, dict) and not set(given) - {"format"} else None
    if not isinstance(form, dict):
        raise Refused(400, "text is an object with a format", "text")
    return {"type": "json_schema", "json_schema": form} if form.get("type") == "json_schema" else form


def _tool(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict) or given.get("type") != "function":
        raise Refused(400, "a tool has the type function", "tools")
    return {"type": "function", "function": {key: given.get(key) for key in ("name", "description", "parameters")}}


def _list(given: Any, field: str) -> list[Any]:
    if not isinstance(given, list) or not given:
        raise Refused(
            400, f"{field} is a list of at least one item" + (", or a text" if field == "input" else ""), field
        )
    return given


class ResponsesForm(ChatForm):
    """How /v1/responses writes a result: one message, and a call for each tool that is called."""

    prefix = "resp_"
    end = b""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._events = 0
        self._message = f"msg_{secrets.token_hex(12)}"
        self._text: str | None = None  # of the message, once there is one
        self._calls: dict[int, str] = {}  # the arguments of each call so far
        self._order: list[int | None] = []  # items as they began: None for the message, or the number of a call
        self._sent = 0

    def whole(self, outputs: Sequence[Output]) -> dict[str, Any]:
        self.events(outputs[0])
        return self._body(outputs[0])

    def opening(self) -> list[dict[str, Any]]:
        body = {**self._body(None), "status": "in_progress"}
        return [self._event("created", response=body), self._event("in_progress", response=body)]

    def _call_begun(self, number: int) -> dict[str, Any]:
        """The event that a call of a tool begins."""
        self._order.append(number)
        self._calls[number] = ""
        return self._event("output_item.added", output_index=self._place(number), item=self._call(number))

    def events(self, output: Output, number: int = 0) -> list[dict[str, Any]]:
        one = output.completions[0]
        piece, self._sent = one.text[self._sent :], len(one.text)
        reader, is_end = self.reader(0), one.finish_reason is not None
        if reader is None:
            return self._grow(piece) if piece else []
        events: list[dict[str, Any]] = []
        for found in [reader.push(piece), *([reader.finish()] if is_end else [])]:
            events += self._grow(found.content) if found.content else []
            events += [self._call_begun(number) for number in found.begun]
            for number, text in found.arguments.items():
                self._calls[number] += text
                events.append(self._event("function_call_arguments.delta", item_id=self._call(number)["id"],
                                          output_index=self._place(number), delta=text))  # fmt: skip
        return events

    def closing(self, outputs: Sequence[Output]) -> list[dict[str, Any]]:
        (last,), events = outputs, []
        for place, number in enumerate(self._order):
            if number is None:
                at = {"item_id": self._message, "output_index": place, "content_index": 0}
                events += [self._event("output_text.done", **at, text=self._text, logprobs=[]),
                           self._event("content_part.done", **at, part=self._part())]  # fmt: skip
            else:
                call = self._call(number)
                events.append(self._event("function_call_arguments.done", item_id=call["id"], output_index=place,
                                          name=call["name"], arguments=call["arguments"]))  # fmt: skip
            events.append(self._event("output_item.done", output_index=place, item=self._item(number)))
        body = self._body(last)
        return [*events, self._event(body["status"], response=body)]

    def _grow(self, piece: str) -> list[dict[str, Any]]:
        events = []
        if self._text is None:
            self._text = ""
            self._order.append(None)
            item = {**self._item(None), "status": "in_progress", "content": []}
            events = [self._event("output_item.added", output_index=self._place(None), item=item),
                      self._event("content_part.added", item_id=self._message, output_index=self._place(None),
                                  content_index=0, part=self._part())]  # fmt: skip
        self._text += piece
        delta = self._event("output_text.delta", item_id=self._message, output_index=self._place(None), content_index=0,
                            delta=piece, logprobs=[])  # fmt: skip
        return [*events, delta]

    def _place(self, number: int | None) -> int:
        return self._order.index(number)

    def _part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self._text or "", "annotations": [], "logprobs": []}

    def _item(self, number: int | None) -> dict[str, Any]:
        if number is not None:
            return self._call(number)
        return {"type": "message", "id": self._message, "status": "completed", "role": "assistant",
                "content": [self._part()]}  # fmt: skip

    def _call(self, number: int) -> dict[str, Any]:
        call = self.call(0, number, self._calls[number])
        return {"type": "function_call", "id": call["id"].replace("call_", "fc_"), "call_id": call["id"],
                "name": call["function"]["name"], "arguments": call["function"]["arguments"],
                "status": "completed"}  # fmt: skip

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._events += 1
        return {"type": f"response.{kind}", "sequence_number": self._events - 1, **fields}

    def _body(self, output: Output | None) -> dict[str, Any]:
        parameters, given = self.wanted.parameters, self.given
        reason = None if output is None else protocol.finish_reason(output.completions[0])
        body = {
            "id": self.id, "object": "response", "created_at": self.created, "model": self.about.model,
            "status": {"stop": "completed", "length": "incomplete", None: "in_progress"}.get(reason, "failed"),
            "incomplete_details": {"reason": "max_output_tokens"} if reason == "length" else None,
            "error": {"code": "server_error", "message": output.error} if output and output.error else None,
            "output": [self._item(number) for number in self._order], "instructions": given.get("instructions"),
            "max_output_tokens": given.get("max_output_tokens"), "metadata": given.get("metadata") or {},
            "parallel_tool_calls": self.wanted.parallel, "previous_response_id": None, "store": False,
            "temperature": parameters.temperature, "top_p": parameters.top_p,
            "text": given.get("text") or {"format": {"type": "text"}}, "tools": given.get("tools") or [],
            "tool_choice": given.get("tool_choice") or "auto", "usage": None,
        }  # fmt: skip
        if output is not None:
            counts = protocol.usage([output])
            body["usage"] = {
                "input_tokens": counts["prompt_tokens"], "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"], "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": counts["total_tokens"],
            }  # fmt: skip
        return body
