"""Writes results: the bodies and events of completions and chats."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.llm.requests import Completion, Output
from tilewright.llm.serve import protocol
from tilewright.llm.serve.protocol import Refused, Wanted
from tilewright.llm.text import TextOffsets
from tilewright.llm.tokenizer import Tokenizer
from tilewright.llm.tools import MOST_CALLS, CallReader


@dataclass(frozen=True)
class About:
    """The model that answers."""

    model: str
    tokenizer: Tokenizer | None


class TextForm:
    """How /v1/completions writes results."""

    kind = chunk_kind = "text_completion"
    prefix = "cmpl-"
    prompt_field = "prompt"
    numbers_prompts = True  # whether choices may be of several prompts
    end = b"data: [DONE]\n\n"

    def __init__(self, about: About, wanted: Wanted, given: Mapping[str, Any] | None = None) -> None:
        self.about, self.wanted, self.given = about, wanted, given or {}
        self.id, self.created = f"{self.prefix}{secrets.token_hex(12)}", int(time.time())
        self._texts: dict[int, int] = {}  # of each choice, how much text and how many logprobs were sent
        self._logprobs: dict[int, int] = {}
        self._sent_tokens: dict[int, int] = {}
        self._offsets: dict[int, TextOffsets] = {}  # of each choice in a stream
        self._tokens: dict[int, str] = {}
        self._prompts: dict[int, tuple[str, dict[str, list[Any]] | None]] = {}  # texts of prompts and their logprobs

    def head(self, kind: str) -> dict[str, Any]:
        """What all bodies of an answer begin with."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.about.model}

    def token(self, number: int) -> str:
        """The text of a token alone."""
        if self.wanted.numbers_tokens:
            return f"token_id:{number}"
        if number not in self._tokens:
            tokenizer = self.about.tokenizer
            self._tokens[number] = str(number) if tokenizer is None else tokenizer.decode([number])
        return self._tokens[number]

    def whole(self, outputs: Sequence[Output]) -> dict[str, Any]:
        """The answer in one piece."""
        n, best = self.wanted.parameters.n, self.wanted.best
        outputs = [protocol.without_results(one) for one in outputs] if self.wanted.is_empty else outputs
        usage = protocol.usage(outputs)
        if best is not None:
            n, outputs = best, [protocol.best_of(output, best, self.wanted.has_logprobs) for output in outputs]
        body: dict[str, Any] = {**self.head(self.kind), "choices": [], "usage": usage}
        for number, output in enumerate(outputs):
            for one in output.completions:
                body["choices"].append(self.choice(output, one, number * n))
                self._add_tokens(body, output, one.tokens, True)
        return body

    def _add_tokens(self, body: dict[str, Any], output: Output, tokens: Sequence[int], is_first: bool) -> None:
        """The tokens of the last choice of a body by their numbers, and at first the prompt's, if they are wanted."""
        if not self.wanted.returns_tokens:
            return
        body["choices"][-1]["token_ids"] = list(tokens)
        if is_first:
            (body["choices"][-1] if self.numbers_prompts else body)["prompt_token_ids"] = output.prompt_tokens

    def opening(self) -> list[dict[str, Any]]:
        """Events before the first piece."""
        return []

    def closing(self, outputs: Sequence[Output]) -> list[dict[str, Any]]:
        """Events after the last piece of all prompts."""
        failed = [
            Refused(400 if last.is_refused else 500, last.error).body for last in outputs if last.error is not None
        ]
        outputs = [protocol.without_results(one) for one in outputs] if self.wanted.is_empty else outputs
        usage = {**self.head(self.chunk_kind), "choices": [], "usage": protocol.usage(outputs)}
        return [*failed, *([usage] if self.wanted.usage_at_end else [])]

    def choice(self, output: Output, one: Any, first: int) -> dict[str, Any]:
        """A whole result."""
        return self._begun(output, one, first, first // (self.wanted.best or self.wanted.parameters.n))

    def _begun(self, output: Output, one: Any, first: int, number: int) -> dict[str, Any]:
        """A choice from its beginning; `number` is its prompt's."""
        prompt, scored = self._prompt(output, number) if self.wanted.echo else ("", None)
        offsets = self._offsets[first + one.index] = TextOffsets(self.about.tokenizer, len(prompt))
        choice = protocol.completion_choice(one, first, self.token, offsets)
        return protocol.echoed(choice, prompt, scored) if self.wanted.echo else choice

    def _prompt(self, output: Output, number: int) -> tuple[str, dict[str, list[Any]] | None]:
        """The text of a prompt, and its logprobs where they are wanted, which all of its choices share."""
        if number not in self._prompts:
            given, tokenizer = self.wanted.prompts[number], self.about.tokenizer
            decoded = "" if tokenizer is None or isinstance(given, str) else tokenizer.decode(output.prompt_tokens)
            text = given if isinstance(given, str) else decoded
            scored = protocol.prompt_logprobs(output, text, self.token, TextOffsets(tokenizer))
            self._prompts[number] = text, scored
        return self._prompts[number]

    def events(self, output: Output, number: int = 0) -> list[dict[str, Any]]:
        """What is new of each result of a prompt, of which there may be several, since the last time."""
        found = []
        first_index = number * self.wanted.parameters.n
        output = protocol.without_results(output) if self.wanted.is_empty else output
        for one in output.completions:
            at = first_index + one.index
            sent = self._texts.get(at, 0)
            if sent < 0 or (len(one.text) == sent and one.finish_reason is None):
                continue
            first = self._logprobs.get(at, 0)
            logprobs = None if one.logprobs is None else one.logprobs[first:]
            self._texts[at] = -1 if one.finish_reason is not None else len(one.text)
            self._logprobs[at] = first + len(logprobs or ())
            event = self.event(output, replace(one, text=one.text[sent:], logprobs=logprobs), number)
            found.append({**self.head(self.chunk_kind), "choices": [event]})
            begin, self._sent_tokens[at] = self._sent_tokens.get(at, 0), len(one.tokens)
            self._add_tokens(found[-1], output, one.tokens[begin:], begin == 0)
            if self.wanted.usage_always:
                found[-1]["usage"] = protocol.usage([output])
        return found

    def event(self, output: Output, piece: Completion, number: int) -> dict[str, Any]:
        """One piece of one result."""
        first = number * self.wanted.parameters.n
        if first + piece.index not in self._offsets:
            return self._begun(output, piece, first, number)
        return protocol.completion_choice(piece, first, self.token, self._offsets[first + piece.index])


class ChatForm(TextForm):
    """How /v1/chat/completions writes results, with the calls of tools in them."""

    kind, chunk_kind = "chat.completion", "chat.completion.chunk"
    prefix = "chatcmpl-"
    prompt_field = "messages"
    numbers_prompts = False

    def __init__(self, about: About, wanted: Wanted, given: Mapping[str, Any] | None = None) -> None:
        super().__init__(about, wanted, given)
        self._readers: dict[int, CallReader] = {}
        self._call_ids: dict[tuple[int, int], str] = {}
        self._begun_choices: set[int] = set()

    def choice(self, output: Output, one: Any, first: int) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": one.text, "refusal": None}
        reader = self.reader(one.index)
        if reader is not None:
            found = [reader.push(one.text), reader.finish()]
            message["content"] = "".join(part.content for part in found) or None
            if reader.calls:
                message["tool_calls"] = [self.call(one.index, number, call.arguments)
                                         for number, call in enumerate(reader.calls)]  # fmt: skip
        return {"index": one.index, "message": message, "logprobs": protocol.chat_logprobs(one.logprobs, self.token),
                "finish_reason": self._reason(one)}  # fmt: skip

    def event(self, output: Output, one: Completion, number: int) -> dict[str, Any]:
        # Clients join the texts of deltas field by field, so only the first has the role.
        delta: dict[str, Any] = {} if one.index in self._begun_choices else {"role": "assistant"}
        self._begun_choices.add(one.index)
        delta["content"] = one.text
        reader = self.reader(one.index)
        if reader is not None:
            parts = [reader.push(one.text), *([reader.finish()] if one.finish_reason is not None else [])]
            delta["content"] = "".join(part.content for part in parts) or None
            begun = [call for part in parts for call in part.begun]
            texts: dict[int, str] = {call: "" for call in begun}
            for part in parts:
                for call, text in part.arguments.items():
                    texts[call] = texts.get(call, "") + text
            if texts:
                delta["tool_calls"] = [
                    {"index": call, **self.call(one.index, call, text)} if call in begun
                    else {"index": call, "function": {"arguments": text}}
                    for call, text in texts.items()
                ]  # fmt: skip
        return {"index": one.index, "delta": delta, "logprobs": protocol.chat_logprobs(one.logprobs, self.token),
                "finish_reason": self._reason(one)}  # fmt: skip

    def reader(self, index: int) -> CallReader | None:
        tools, tokenizer = self.wanted.tools, self.about.tokenizer
        if tools is None or tokenizer is None:
            return None
        if index not in self._readers:
            names = [function["name"] for function in tools.functions]
            most = MOST_CALLS if self.wanted.parallel else 1
            self._readers[index] = CallReader(tokenizer.call_format, names, tools.is_forced, most)
        return self._readers[index]

    def call(self, index: int, number: int, arguments: str) -> dict[str, Any]:
        name = self._call_ids.setdefault((index, number), f"call_{secrets.token_hex(12)}")
        function = {"name": self._readers[index].calls[number].name, "arguments": arguments}
        return {"id": name, "type": "function", "function": function}

    def _reason(self, one: Any) -> str | None:
        reader = self._readers.get(one.index)
        reason = protocol.finish_reason(one)
        return "tool_calls" if reason == "stop" and reader is not None and reader.calls else reason
