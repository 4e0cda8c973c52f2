"""Text to tokens and back, and chats to prompts: tokenizer.json by the `tokenizers` library, templates by Jinja.

A chat template is code from the checkpoint, which runs in Jinja's sandbox with bounds; none ever comes from a request.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from tilewright.errors import ImportModelError, InputError, MissingDependencyError
from tilewright.importers.gguf_files import damage_refused, is_gguf, read_metadata
from tilewright.importers.gguf_tokenizer import tokenizer_of
from tilewright.llm.tools import Format, Tools, format_of, with_objects

_LARGEST_JSON = 64 << 20
_LONGEST_TEMPLATE = 256 << 10  # characters
_LONGEST_PROMPT = 16 << 20  # characters that a template may give
_END_MARK = "\ue000"  # a character without a meaning
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
_OWN_VARIABLES = ("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now", "range",
                  "dict", "lipsum", "cycler", "joiner", "namespace", *_SPECIAL)  # fmt: skip


@dataclass(frozen=True)
class TemplateOptions:
    """How a chat becomes a prompt.

    With `reply` an answer follows, with `continues` the rest of the last message. `variables` are for the template,
    which has others of its own: `InputError` for one of their names.
    """

    reply: bool = True
    continues: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.variables:
            if not name.isidentifier() or name in _OWN_VARIABLES:
                raise InputError(f"{name[:50]!r} is no variable of a chat template that a request may set")


class Tokenizer:
    """The tokenizer of a checkpoint folder, or of a GGUF file.

    Raises `MissingDependencyError` without the library, `ImportModelError` where there is no tokenizer.json or it
    cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise MissingDependencyError("texts need the package tokenizers: pip install 'tilewright[llm]'") from error
        self.folder = Path(folder)
        self._template: Any = None
        if is_gguf(folder):
            metadata = read_metadata(self.folder)
            with damage_refused(self.folder, "its tokenizer"):
                text, self.settings = tokenizer_of(metadata, self.folder)
                self._tokenizer = tokenizers.Tokenizer.from_str(text)
            return
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise ImportModelError(
                f"{path}: missing; texts need it, so take it from where the model is from. Without it there are "
                "`tilewright bench llm` and, in Python, tilewright.llm.LLM with prompts that are lists of tokens"
            )
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library's only class
            raise ImportModelError(f"{path}: cannot be read ({str(error)[:200]})") from error
        self.settings = read_json(self.folder / "tokenizer_config.json")

    @property
    def text(self) -> str:
        """As tokenizer.json has it, without padding and truncation."""
        import tokenizers

        copy = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
        copy.no_padding()
        copy.no_truncation()
        return str(copy.to_str())

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return int(self._tokenizer.get_vocab_size())

    @property
    def words(self) -> dict[str, int]:
        """All tokens by their texts."""
        return dict(self._tokenizer.get_vocab())

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text; with `special` those that the model wants around it.

        Raises `InputError` for a text that is no valid Unicode (half of a surrogate pair, from JSON).
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError("the text is no valid Unicode") from error
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def names(self, tokens: Sequence[int]) -> list[str | None]:
        """The tokens as the vocabulary has them, None for numbers without a token."""
        return [self._tokenizer.id_to_token(token) for token in tokens]

    def token(self, text: str) -> int | None:
        """The number of a token by its text."""
        found = self._tokenizer.token_to_id(text)
        return None if found is None else int(found)

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Tools | None = None, options: TemplateOptions | None = None
    ) -> list[int]:
        """The tokens of a chat by the checkpoint's template; the answer may call `tools`.

        A message is ``{"role": "user", "content": "…"}``, as OpenAI's chats have them.  Raises `InputError` for
        messages that the template refuses, and `ImportModelError` where the checkpoint has no template or it does not
        work.
        """
        return self.encode(self.render(messages, tools, options), special=False)

    def check_chats(self) -> None:
        """Raises `ImportModelError` where the checkpoint has no chat template, or one that cannot be read."""
        self._compiled()

    @functools.cached_property
    def call_format(self) -> Format:
        """How the checkpoint's chat template writes calls of tools."""
        return format_of(self._source())

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Tools | None = None, options: TemplateOptions | None = None
    ) -> str:
        """The prompt of a chat as text."""
        options = options or TemplateOptions()
        checked = [_message(message) for message in with_objects(messages)]
        if not checked:
            raise InputError("a chat has at least one message")
        import jinja2

        template = self._compiled()
        marked = [*checked[:-1], _marked(checked[-1])] if options.continues else checked
        parts, length = [], 0
        try:
            offered = None if tools is None else tools.offered
            for part in template.generate(
                {**options.variables, **self._special_tokens()}, messages=marked, tools=offered,
                add_generation_prompt=options.reply,
            ):  # fmt: skip
                parts.append(part)
                length += len(part)
                if length > _LONGEST_PROMPT:
                    raise InputError(f"the chat gives a prompt of more than {_LONGEST_PROMPT} characters")
        except jinja2.TemplateError as error:
            raise InputError(f"the chat template refuses the messages: {str(error)[:300]}") from error
        except (TypeError, ValueError, LookupError, AttributeError, RecursionError, ArithmeticError) as error:
            raise ImportModelError(
                f"{self.folder}: the chat template failed ({type(error).__name__}: {str(error)[:200]})"
            ) from error
        text = "".join(parts)
        if options.continues:
            text = _without_end(text, checked[-1]["content"])
        return text if tools is None or not tools.is_forced else text + self.call_format.opening

    def _compiled(self) -> Any:
        if self._template is None:
            try:
                import jinja2
                from jinja2.sandbox import ImmutableSandboxedEnvironment
            except ImportError as error:
                raise MissingDependencyError("chats need the package Jinja2: pip install 'tilewright[llm]'") from error
            environment = ImmutableSandboxedEnvironment(
                trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
            )
            environment.filters["tojson"] = _to_json
            environment.globals.update(raise_exception=_refuse, strftime_now=_now)
            try:
                self._template = environment.from_string(self._source())
            except jinja2.TemplateError as error:
                raise ImportModelError(f"{self.folder}: the chat template is wrong: {str(error)[:300]}") from error
        return self._template

    def _source(self) -> str:
        path = self.folder / "chat_template.jinja"
        source: Any = self.settings.get("chat_template")
        if path.is_file():
            if path.stat().st_size > 4 * _LONGEST_TEMPLATE:
                raise ImportModelError(f"{path}: more than {_LONGEST_TEMPLATE} characters")
            source = path.read_text(encoding="utf-8", errors="replace")
        if isinstance(source, list):  # several by name
            named = {item.get("name"): item.get("template") for item in source if isinstance(item, dict)}
            source = named.get("default")
        if not isinstance(source, str):
            raise ImportModelError(f"{self.folder}: has no chat template; use generate with a prompt of your own")
        if len(source) > _LONGEST_TEMPLATE:
            raise ImportModelError(f"{self.folder}: the chat template has more than {_LONGEST_TEMPLATE} characters")
        return source

    def _special_tokens(self) -> dict[str, str]:
        found = {}
        for name in _SPECIAL:
            value = self.settings.get(name)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                found[name] = value
        return found


def end_tokens(folder: str | Path, tokenizer: Tokenizer | None) -> list[int]:
    """The tokens that end a result: of generation_config.json, config.json and the tokenizer."""
    found: set[int] = set()
    if is_gguf(folder):
        value = read_metadata(Path(folder)).get("tokenizer.ggml.eos_token_id")
        found |= {value} if type(value) is int else set()
    for name in ("generation_config.json", "config.json"):
        value = read_json(Path(folder) / name).get("eos_token_id")
        items = value if isinstance(value, list) else [value]
        found |= {item for item in items if type(item) is int and item >= 0}
        if found:
            break
    if tokenizer is not None:
        value = tokenizer.settings.get("eos_token")
        value = value.get("content") if isinstance(value, dict) else value
        token = tokenizer.token(value) if isinstance(value, str) else None
        found |= set() if token is None else {token}
    return sorted(found)


def read_json(path: Path) -> dict[str, Any]:
    """An optional JSON object; raises `ImportModelError` when it is there and is none."""
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ImportModelError(f"{path}: more than {_LARGEST_JSON} bytes")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ImportModelError(f"{path}: cannot be read as JSON ({str(error)[:300]})") from error
    if not isinstance(content, dict):
        raise ImportModelError(f"{path}: expected a JSON object")
    return content


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InputError("a message is an object with a role and a content")
    content = message.get("content")
    if isinstance(content, list):  # parts of text
        parts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
                 for part in content]  # fmt: skip
        if any(not isinstance(part, str) for part in parts):
            raise InputError("parts of a message's content must be texts")
        content = "".join(part for part in parts if part)
    if content is None and message.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise InputError("a message's content is a text")
    return {**message, "content": content}


def _marked(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose content ends in a mark that a template keeps, and a space that it may not keep."""
    return {**message, "content": f"{message['content']}{_END_MARK} "}


def _without_end(prompt: str, content: str) -> str:
    """A prompt up to the end of its last message's `content`, which is marked; without the spaces at its end where the
    template removes those of the message."""
    at = prompt.rfind(_END_MARK)
    if at < 0:
        raise InputError("continue_final_message: the chat template does not show the last message as it is")
    found, spaces = prompt[:at], content[len(content.rstrip()) :]
    return found if prompt.startswith(" ", at + len(_END_MARK)) else found.removesuffix(spaces)


def _refuse(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
