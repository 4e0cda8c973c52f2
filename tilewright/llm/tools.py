"""Tool calls: the notation of each family, and parsing calls in a growing text.

`hermes` (Qwen, Hermes) writes ``<tool_call>{"name": …, "arguments": …}</tool_call>`` as often as it calls, `llama`
(Llama 3) ``{"name": …, "parameters": …}`` alone, `mistral` ``[TOOL_CALLS][{"name": …, "arguments": …}, …]`` or
``[TOOL_CALLS]name{…}``.  Markers that are special tokens are no part of a text, so they may be missing.  Nothing that
a model writes is run, and each character is looked at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.errors import InputError

MOST_TOOLS = 128
MOST_CALLS = 64  # in a text
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True)
class Format:
    """How calls are written: `begin` stands before each (or before a list of them), `end` after it."""

    name: str
    begin: str
    end: str
    arguments: str  # the key of the arguments
    needs_begin: bool  # whether a text without the marker holds no calls
    is_list: bool = False

    @property
    def opening(self) -> str:
        """What a prompt ends with where a call must follow."""
        return {"hermes": f"{self.begin}\n", "mistral": self.begin}.get(self.name, "")


FORMATS = {
    form.name: form
    for form in (
        Format("hermes", "<tool_call>", "</tool_call>", "arguments", needs_begin=True),
        Format("llama", "<|python_tag|>", "", "parameters", needs_begin=False),
        Format("mistral", "[TOOL_CALLS]", "", "arguments", needs_begin=False, is_list=True),
    )
}


def format_of(template: str) -> Format:
    """The format of a chat template, by the markers in it; `hermes` where there are none."""
    return next((form for form in reversed(FORMATS.values()) if form.begin in template), FORMATS["hermes"])


@dataclass(frozen=True)
class Tools:
    """Functions that a model may call.

    `choice` is ``auto`` (it may), ``required`` (it must call one), or a function's name (it must call this one).
    """

    functions: Sequence[Mapping[str, Any]]
    choice: str = "auto"
    is_named: bool = False

    @property
    def is_forced(self) -> bool:
        """Whether a call must follow."""
        return self.choice == "required" or self.is_named

    @property
    def offered(self) -> list[dict[str, Any]]:
        """As chat templates take them."""
        return [{"type": "function", "function": dict(function)} for function in self.functions]

    def schema(self, form: Format, parallel: bool = True) -> dict[str, Any]:
        """The JSON schema of a call that must follow, or of several in `parallel` where the format has lists."""
        wanted = [one for one in self.functions if not self.is_named or one["name"] == self.choice]
        definitions: dict[str, Any] = {}
        calls = []
        for number, function in enumerate(wanted):
            parameters = _with_own_definitions(function.get("parameters") or {"type": "object"}, number, definitions)
            calls.append({"type": "object", "properties": {"name": {"const": function["name"]},
                          form.arguments: parameters}, "required": ["name", form.arguments],
                          "additionalProperties": False})  # fmt: skip
        call: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
        if form.is_list:
            call = {
                "type": "array",
                "items": call,
                "minItems": 1,
                "maxItems": 4 if parallel and not self.is_named else 1,
            }
        return {**call, **({"$defs": definitions} if definitions else {})}


def read_tools(given: Any) -> list[dict[str, Any]]:
    """The functions of a list of OpenAI's tools; raises `InputError` for what is none."""
    if not isinstance(given, list) or not 0 < len(given) <= MOST_TOOLS:
        raise InputError(f"tools is a list of 1 to {MOST_TOOLS} tools")
    functions: dict[str, dict[str, Any]] = {}
    for tool in given:
        function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
        if not isinstance(function, Mapping) or not _is_name(function.get("name")):
            raise InputError("a tool is {'type': 'function', 'function': {'name': …}}, with a name of at most 64 "
                             "letters, digits, _, . and -")  # fmt: skip
        parameters, description = function.get("parameters"), function.get("description")
        if not isinstance(parameters, (dict, type(None))) or not isinstance(description, (str, type(None))):
            raise InputError(f"the tool {function['name']} has a description, a text, and parameters, a JSON schema")
        if function["name"] in functions:
            raise InputError(f"two tools are called {function['name']}")
        known = {key: function[key] for key in ("name", "description", "parameters") if function.get(key) is not None}
        functions[function["name"]] = known
    return list(functions.values())


@dataclass
class ToolCall:
    """A call that was found; `arguments` is text of JSON."""

    name: str
    arguments: str = ""


@dataclass
class Found:
    """What a piece of text brought: more content, calls that begin, and more of calls' arguments, by their number."""

    content: str = ""
    begun: list[int] = field(default_factory=list)
    arguments: dict[int, str] = field(default_factory=dict)


class CallReader:
    """Takes a text that grows apart into content and calls.

    With `is_forced` it is calls from its beginning on.  What follows after `most` calls is left out.
    """

    def __init__(self, form: Format, names: Sequence[str], is_forced: bool = False, most: int = MOST_CALLS) -> None:
        self.form, self.names, self.most = form, frozenset(names), most
        self.calls: list[ToolCall] = []
        self._text = ""  # that is not decided yet
        self._spaces: list[str] = []  # white space before it
        self._pending = ""  # before both, markers that are content if no call follows
        self._is_outside = form.needs_begin and not is_forced
        self._is_content = False  # no call can follow any more
        self._scanner: _Scanner | None = None

    def push(self, piece: str) -> Found:
        """More of the text."""
        found = Found()
        self._text += piece
        while self._text and self._advance(found):
            pass
        return found

    def finish(self) -> Found:
        """The text has ended: what was held back is content, unless it belongs to a call."""
        found = Found()
        if self._scanner is not None:
            if self._scanner.number is None:  # an object that is no call
                found.content += self._pending + "".join(self._scanner.pieces)
            self._scanner = None
        elif not self.calls or self._text.strip():
            found.content += self._pending + self._take_spaces() + self._text
        self._text = self._pending = ""
        return found

    def _take_spaces(self) -> str:
        found, self._spaces = "".join(self._spaces), []
        return found

    def _advance(self, found: Found) -> bool:
        """One step; False when more text is needed."""
        if self._is_content:
            found.content, self._text = found.content + self._take_spaces() + self._text, ""
            return False
        if self._scanner is not None:
            return self._scan(found)
        if len(self.calls) >= self.most:
            self._text = ""
            return False
        if self._is_outside:
            return self._look_for_begin(found)
        return self._look_for_call(found)

    def _look_for_begin(self, found: Found) -> bool:
        begin = self.form.begin
        place = self._text.find(begin)
        end = place if place >= 0 else len(self._text) - _beginning(self._text, begin)
        content = self._text[:end].rstrip()
        if content:
            found.content += self._take_spaces() + content
        self._spaces.append(self._text[len(content) : end])  # no content if a call follows
        self._text = self._text[end:]
        if place < 0:
            return False
        self._pending, self._text, self._is_outside = self._take_spaces() + begin, self._text[len(begin) :], False
        return True

    def _look_for_call(self, found: Found) -> bool:
        """Where an object or a list of them may begin, after a marker or at the beginning of a text."""
        text = self._text.lstrip()
        self._spaces.append(self._text[: len(self._text) - len(text)])
        self._text = text
        for marker in (self.form.begin, self.form.end):
            if marker and text.startswith(marker):
                self._text, self._spaces = text[len(marker) :], []
                self._pending += "" if self.calls else marker
                self._is_outside = self.form.needs_begin and marker == self.form.end
                return True
            if marker and text and marker.startswith(text):
                return False
        if not text:
            return False
        if text[0] in "[,;]" and (self.form.is_list or self.calls):
            self._text, self._spaces = text[1:], []
            return True
        if text[0] == "{":
            self._scanner, self._spaces = _Scanner(self.form.arguments), []
            return True
        name = _NAME.match(text)
        if self.form.is_list and name is not None and name.end() == len(text) <= 64:
            return False  # a name that may not be whole
        after = "" if name is None else text[name.end() :].removeprefix("[ARGS]")
        if name is not None and self.form.is_list and name.group() in self.names:
            if after.startswith("{"):
                self._begin(name.group(), found)
                self._scanner = _Scanner(None, len(self.calls) - 1)
                self._text, self._spaces = after, []
                return True
            if "[ARGS]{".startswith(after):
                return False
        self._give_up(found, "")
        return True

    def _give_up(self, found: Found, text: str) -> None:
        """What looked like a call is none."""
        found.content += self._pending + text
        self._pending = ""
        self._is_outside, self._is_content = self.form.needs_begin, not self.form.needs_begin

    def _begin(self, name: str, found: Found) -> None:
        self._pending = ""
        self.calls.append(ToolCall(name))
        found.begun.append(len(self.calls) - 1)

    def _scan(self, found: Found) -> bool:
        scanner = self._scanner
        assert scanner is not None
        used = scanner.push(self._text)
        self._text = self._text[used:]
        if scanner.number is None and scanner.name in self.names and (scanner.has_arguments or scanner.is_done):
            self._begin(str(scanner.name), found)
            scanner.number = len(self.calls) - 1
        if scanner.number is not None:
            piece = scanner.take_arguments() or ("{}" if scanner.is_done and not scanner.has_arguments else "")
            if piece:
                self.calls[scanner.number].arguments += piece
                found.arguments[scanner.number] = found.arguments.get(scanner.number, "") + piece
        if scanner.is_done:
            if scanner.number is None:
                self._give_up(found, "".join(scanner.pieces))
            self._scanner = None
        return bool(self._text)


class _Scanner:
    """Follows one JSON object by its characters: a call's name, and its arguments as they come.

    Without a key for the arguments the whole object is the arguments.
    """

    def __init__(self, key: str | None, number: int | None = None) -> None:
        self._key, self.number = key, number
        self.pieces: list[str] = []
        self._unsent: list[str] = []
        self.name: str | None = None
        self.has_arguments = key is None
        self.is_done = False
        self._depth = 0
        self._in_string = self._escaped = False
        self._is_value = False
        self._part: list[str] = []  # the key or the value that is read at depth 1
        self._current = ""

    def push(self, text: str) -> int:
        """Read on; gives how many characters belong to the object."""
        for used, character in enumerate(text):
            self._read(character)
            if self.is_done:
                self.pieces.append(text[: used + 1])
                return used + 1
        self.pieces.append(text)
        return len(text)

    def take_arguments(self) -> str:
        """What came of the arguments since the last time."""
        piece, self._unsent = "".join(self._unsent), []
        return piece

    def _read(self, character: str) -> None:
        outside = not self._in_string
        if self._in_string:
            self._in_string = self._escaped or character != '"'
            self._escaped = character == "\\" and not self._escaped
        elif character == '"':
            self._in_string = True
        if self._key is None:
            self._unsent.append(character)
        elif self._depth == 1 and outside and character in ":,}":
            self._end_of_part(character)
        elif self._depth >= 1:
            self._part.append(character)
            if self._is_value and self._current in (self._key, "arguments", "parameters"):
                if self.has_arguments or not character.isspace():
                    self.has_arguments = True
                    self._unsent.append(character)
        if outside and character in "{[":
            self._depth += 1
        elif outside and character in "}]":
            self._depth -= 1
            self.is_done = self._depth == 0

    def _end_of_part(self, character: str) -> None:
        if character == ":":
            self._current, self._is_value = _string("".join(self._part)), True
        else:
            if self._current == "name":
                self.name = _string("".join(self._part)) or None
            self._current, self._is_value = "", False
        self._part = []


def with_objects(messages: Sequence[Any]) -> list[Any]:
    """Messages whose calls have arguments as objects, which chat templates write themselves.

    Raises `InputError` for what is no list.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise InputError(f"messages are a list of objects with role and content, not {type(messages).__name__}")
    return [_message_with_objects(message) for message in messages]


def _message_with_objects(message: Any) -> Any:
    if not isinstance(message, Mapping) or message.get("tool_calls") is None:
        return message
    calls = message["tool_calls"]
    if not isinstance(calls, list) or len(calls) > MOST_CALLS:
        raise InputError(f"tool_calls is a list of at most {MOST_CALLS} calls")
    read = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InputError("a call has a function with a name and arguments")
        arguments = function.get("arguments", "{}")
        try:
            value = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError) as error:
            raise InputError("the arguments of a call are text of JSON") from error
        read.append({**call, "type": "function", "function": {"name": function["name"], "arguments": value}})
    return {**message, "tool_calls": read}


def _with_own_definitions(schema: Any, number: int, definitions: dict[str, Any]) -> Any:
    """A schema as a part of another: its definitions go to the whole's, under names of their own."""
    found: dict[str, Any] = {}
    for name in ("$defs", "definitions"):
        own = schema.get(name, {})
        if not isinstance(own, Mapping):
            raise InputError(f"{name} of a tool's parameters is no object")
        found |= own
    definitions.update({f"{number}.{key}": _renamed(value, number) for key, value in found.items()})
    return _renamed({key: value for key, value in schema.items() if key not in ("$defs", "definitions")}, number)


def _renamed(node: Any, number: int) -> Any:
    if isinstance(node, list):
        return [_renamed(item, number) for item in node]
    if not isinstance(node, Mapping):
        return node
    renamed = {key: _renamed(value, number) for key, value in node.items()}
    reference = node.get("$ref")
    if isinstance(reference, str):
        for begin in ("#/$defs/", "#/definitions/"):
            if reference.startswith(begin):
                renamed["$ref"] = f"#/$defs/{number}.{reference.removeprefix(begin)}"
    return renamed


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _string(text: str) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""


def _beginning(text: str, marker: str) -> int:
    """The length of the longest end of a text with which a marker begins."""
    return next((size for size in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:size])), 0)
