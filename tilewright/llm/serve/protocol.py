"""Converts request bodies for the engine, and outputs to bodies: OpenAI's completions and chat completions.

Every field is checked, and one that is not known is refused by its name: a request never does less than it says.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.engine.bounded_json import read_json
from tilewright.errors import InputError, PromptTooLongError
from tilewright.llm.requests import MOST_LOGPROBS, MOST_RESULTS, Completion, Output, SamplingParameters, TokenLogprobs
from tilewright.llm.serve import schema
from tilewright.llm.structure import StructuredOutput
from tilewright.llm.text import TextOffsets
from tilewright.llm.tokenizer import TemplateOptions
from tilewright.llm.tools import Format, Tools, read_tools

_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "n",
    "min_tokens", "ignore_eos", "include_stop_str_in_output",
)  # fmt: skip
_FORMS = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}


class Refused(Exception):
    """A request that is answered with an error: an HTTP status, what it was about, and the field."""

    def __init__(self, status: int, message: str, field: str | None = None, code: str | None = None,
                 headers: Sequence[tuple[bytes, bytes]] = ()) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.field, self.code, self.headers = status, message, field, code, list(headers)

    @property
    def body(self) -> dict[str, Any]:
        """As OpenAI's API writes errors."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.field, "code": self.code}}


@dataclass(frozen=True)
class Wanted:
    """A request that was read: its prompts as given, how to sample, and how to answer."""

    prompts: list[str | list[int]]
    messages: list[Any] | None
    parameters: SamplingParameters
    stream: bool
    usage_at_end: bool
    form_field: str | None = None  # which says what the text must be
    tools: Tools | None = None
    adapter: str | None = None
    best: int | None = None  # of its results so many are given, those of the largest mean logprob
    has_logprobs: bool = False  # whether they are wanted in the answer
    parallel: bool = True  # whether several tools may be called at once
    salt: str = ""  # prefixes are shared with the same one only
    last_tokens: int | None = None  # of the prompt, those before are left out; -1: as many as fit
    special: bool = True  # whether a prompt begins with the tokens that the model wants around a text
    numbers_tokens: bool = False  # whether logprobs name tokens by their numbers
    returns_tokens: bool = False  # whether the answer has the tokens by their numbers
    usage_always: bool = False  # whether each event of a stream says how many tokens there were
    template: TemplateOptions = TemplateOptions()
    echo: bool = False  # results begin with the prompt, and hold
    is_empty: bool = False  # nothing else

    def load(self, tokens: int) -> int:
        """What prompts of so many tokens take of the server's bound of tokens: once for each result, and with their
        logprobs as many as the answer has entries for them."""
        count = self.parameters.prompt_logprobs
        return tokens * self.parameters.n * (1 if count is None else count + 1)


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object of a body, without fields that are null, which are as absent; raises `Refused`."""
    try:
        content = read_json(body, len(body))
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"the body is no JSON: {str(error)[:200]}") from error
    if not isinstance(content, dict):
        raise Refused(400, "the body is no JSON object")
    return {name: value for name, value in content.items() if value is not None}


def read_completion(fields: Mapping[str, Any]) -> Wanted:
    """A body of /v1/completions; raises `Refused` that names the field."""
    _check_known(fields, schema.COMPLETION)
    logprobs, most, echo = fields.get("logprobs"), fields.get("max_tokens", 16), _flag(fields, "echo")
    is_empty = echo and type(most) is int and most == 0  # a token is computed, and not shown
    wanted = _wanted(fields, _prompts(fields.get("prompt")), None, logprobs, 1 if is_empty else most)
    wanted = dataclasses.replace(wanted, special=_flag(fields, "add_special_tokens", True))
    if echo:
        parameters = dataclasses.replace(wanted.parameters, prompt_logprobs=logprobs)
        wanted = dataclasses.replace(wanted, parameters=parameters, echo=True, is_empty=is_empty)
    count = fields.get("best_of")
    if count is None or (type(count) is int and count == wanted.parameters.n):
        return wanted
    if type(count) is not int or not wanted.parameters.n <= count <= MOST_RESULTS or wanted.stream:
        raise Refused(400, f"best_of is a whole number from n to {MOST_RESULTS}, and goes with no stream", "best_of")
    parameters = dataclasses.replace(wanted.parameters, n=count, logprobs=logprobs or 0)
    return dataclasses.replace(
        wanted, parameters=parameters, best=wanted.parameters.n, has_logprobs=logprobs is not None
    )  # fmt: skip


def best_of(output: Output, count: int, with_logprobs: bool) -> Output:
    """The results of the largest mean logprob, the best first."""

    def quality(one: Completion) -> float:
        values = [item.logprob for item in one.logprobs or ()]
        return sum(values) / max(1, len(values))

    ranked = sorted(output.completions, key=quality, reverse=True)
    chosen = [dataclasses.replace(one, index=place, logprobs=one.logprobs if with_logprobs else None)
            for place, one in enumerate(ranked[:count])]  # fmt: skip
    return dataclasses.replace(output, completions=chosen)


def read_chat(fields: Mapping[str, Any], longest: int) -> Wanted:
    """A body of /v1/chat/completions; results are as long as fits, `longest`, unless it says otherwise."""
    _check_known(fields, schema.CHAT)
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "messages is a list of at least one message", "messages")
    flag, top = _flag(fields, "logprobs"), fields.get("top_logprobs")
    if top is not None and not flag:
        raise Refused(400, "top_logprobs needs logprobs", "top_logprobs")
    most = fields.get("max_completion_tokens", fields.get("max_tokens"))
    logprobs = (0 if top is None else top) if flag else None
    wanted = _wanted(fields, [], messages, logprobs, longest if most is None else most)
    tools, parallel = _tools(fields), fields.get("parallel_tool_calls")
    if tools is not None and tools.is_forced and wanted.form_field is not None:
        raise Refused(400, f"tool_choice and {wanted.form_field} both say what the text must be", "tool_choice")
    _flag(fields, "parallel_tool_calls")
    return dataclasses.replace(
        wanted, tools=tools, parallel=parallel is not False, template=read_template(fields)
    )  # fmt: skip


def read_template(fields: Mapping[str, Any]) -> TemplateOptions:
    """How a chat becomes a prompt, by the fields that other servers have for it; raises `Refused`."""
    variables = fields.get("chat_template_kwargs", {})
    if not isinstance(variables, dict) or len(variables) > schema.MOST_VARIABLES:
        raise Refused(400, f"chat_template_kwargs is an object of at most {schema.MOST_VARIABLES} values",
                      "chat_template_kwargs")  # fmt: skip
    effort = fields.get("reasoning_effort")
    if effort is not None:
        if not isinstance(effort, str) or len(effort) > schema.LONGEST_VARIABLE:
            raise Refused(400, f"reasoning_effort is a text of at most {schema.LONGEST_VARIABLE} characters",
                          "reasoning_effort")  # fmt: skip
        variables = {"reasoning_effort": effort, **variables}
    for name, value in variables.items():
        if isinstance(value, str) and len(value) > schema.LONGEST_VARIABLE:
            raise Refused(400, f"a value of chat_template_kwargs has at most {schema.LONGEST_VARIABLE} characters",
                          "chat_template_kwargs")  # fmt: skip
        if not isinstance(value, (str, bool, int)) or abs(value if type(value) is int else 0) > schema.LARGEST_VARIABLE:
            raise Refused(400, f"{name[:50]!r} of a chat template is a text, a whole number, true or false",
                          "chat_template_kwargs")  # fmt: skip
    continues = _flag(fields, "continue_final_message")
    reply = _flag(fields, "add_generation_prompt", not continues)
    if continues and reply:
        raise Refused(400, "continue_final_message goes with add_generation_prompt false", "continue_final_message")
    try:
        return TemplateOptions(reply, continues, variables)
    except InputError as error:
        raise Refused(400, str(error), "chat_template_kwargs") from error


def read_tokenize(fields: Mapping[str, Any]) -> tuple[bool, bool, TemplateOptions, Tools | None]:
    """Of a body of /tokenize: whether a text gets special tokens, whether tokens are wanted as texts as well, and how a
    chat becomes a prompt; raises `Refused`."""
    _check_known(fields, schema.TOKENIZE)
    if ("prompt" in fields) == ("messages" in fields):
        raise Refused(400, "give prompt, a text, or messages", "prompt")
    special, strings = _flag(fields, "add_special_tokens", True), _flag(fields, "return_token_strs")
    for name in fields if "prompt" in fields else ():
        if name in schema.CHAT and name not in schema.COMPLETION:
            raise Refused(400, f"{name} goes with messages", name)
    if "messages" in fields and fields.get("add_special_tokens"):
        raise Refused(
            400, "add_special_tokens goes with prompt: the template has those of a chat", "add_special_tokens"
        )
    return special, strings, read_template(fields), _tools(fields)


def read_detokenize(fields: Mapping[str, Any], vocabulary: int) -> list[int]:
    """The tokens of a body of /detokenize; raises `Refused`."""
    _check_known(fields, schema.DETOKENIZE)
    tokens = fields.get("tokens")
    if not isinstance(tokens, list) or not all(type(token) is int and 0 <= token < vocabulary for token in tokens):
        raise Refused(400, f"tokens is a list of whole numbers from 0 to {vocabulary - 1}", "tokens")
    return tokens


def refusal(error: InputError, prompt_field: str) -> Refused:
    """The answer to a request that the engine refuses: the field is the one that the message begins with, or that of
    the prompt."""
    first = str(error).split(" ", 1)[0]
    field = {"stop_tokens": "stop_token_ids"}.get(first, first)
    known = field in schema.COMPLETION or field in schema.CHAT
    code = "context_length_exceeded" if isinstance(error, PromptTooLongError) else None
    return Refused(400, str(error), field if known else prompt_field, code)


def forced(wanted: Wanted, form: Format) -> Wanted:
    """The same request, whose text must be a call of a tool where `tool_choice` says so."""
    if wanted.tools is None or not wanted.tools.is_forced:
        return wanted
    try:
        structured = StructuredOutput(json=wanted.tools.schema(form, wanted.parallel))
    except InputError as error:
        raise Refused(400, f"tools: {error}", "tools") from error
    parameters = dataclasses.replace(wanted.parameters, structured_output=structured)
    return dataclasses.replace(wanted, parameters=parameters, form_field="tools")


def _tools(fields: Mapping[str, Any]) -> Tools | None:
    """The tools that may be called, by the fields tools and tool_choice."""
    given, choice = fields.get("tools"), fields.get("tool_choice")
    if given is None or given == []:
        if choice not in (None, "none", "auto"):
            raise Refused(400, "tool_choice needs tools", "tool_choice")
        return None
    try:
        functions = read_tools(given)
    except InputError as error:
        raise Refused(400, str(error), "tools") from error
    if choice == "none":
        return None
    if choice is None or choice in ("auto", "required"):
        return Tools(functions, str(choice or "auto"))
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in [one["name"] for one in functions]:
        raise Refused(400, "tool_choice is none, auto, required, or {'type': 'function', 'function': {'name': …}} "
                      "with the name of a tool", "tool_choice")  # fmt: skip
    return Tools(functions, str(name), is_named=True)


def read_embeddings(fields: Mapping[str, Any]) -> tuple[list[str | list[int]], bool]:
    """The texts of a body of /v1/embeddings, and whether vectors are wanted in base64; raises `Refused`."""
    _check_known(fields, schema.EMBEDDINGS)
    form = fields.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise Refused(400, "encoding_format is float or base64", "encoding_format")
    return _prompts(fields.get("input"), schema.MOST_TEXTS, "input"), form == "base64"


def embeddings(vectors: np.ndarray, model: str, tokens: int, is_packed: bool) -> dict[str, Any]:
    """The body of an answer to /v1/embeddings."""
    rows = [base64.b64encode(row.astype("<f4").tobytes()).decode() if is_packed else row.tolist() for row in vectors]
    data = [{"object": "embedding", "index": number, "embedding": row} for number, row in enumerate(rows)]
    return {"object": "list", "data": data, "model": model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}  # fmt: skip


def completion_choice(completion: Completion, first: int, tokens: Any, offsets: TextOffsets) -> dict[str, Any]:
    """A choice of /v1/completions; `first` is the number of the request's first choice, `tokens` gives their texts,
    and `offsets` where these begin in the choice's text."""
    logprobs = None
    if completion.logprobs is not None:
        logprobs = {
            "tokens": [tokens(one.token) for one in completion.logprobs],
            "token_logprobs": [one.logprob for one in completion.logprobs],
            "top_logprobs": [_top(one, tokens) for one in completion.logprobs],
            "text_offset": [offsets.push(one.token) for one in completion.logprobs],
        }
    return {"index": first + completion.index, "text": completion.text, "logprobs": logprobs,
            "finish_reason": finish_reason(completion)}  # fmt: skip


def prompt_logprobs(output: Output, prompt: str, tokens: Any, offsets: TextOffsets) -> dict[str, list[Any]] | None:
    """The logprobs of a prompt, as those of a choice of /v1/completions; its first token has none."""
    found = output.prompt_logprobs
    if found is None:
        return None
    return {
        "tokens": [tokens(token) for token in output.prompt_tokens],
        "token_logprobs": [None, *(one.logprob for one in found)],
        "top_logprobs": [None, *(_top(one, tokens) for one in found)],
        "text_offset": [min(offsets.push(token), len(prompt)) for token in output.prompt_tokens],
    }


def echoed(choice: dict[str, Any], prompt: str, scored: Mapping[str, list[Any]] | None) -> dict[str, Any]:
    """A choice of /v1/completions that begins with the prompt, whose `prompt_logprobs` are `scored`."""
    logprobs = choice["logprobs"]
    if logprobs is not None and scored is not None:
        logprobs = {name: scored[name] + values for name, values in logprobs.items()}
    return {**choice, "text": prompt + choice["text"], "logprobs": logprobs}


def without_results(output: Output) -> Output:
    """An output of a request that wanted its prompt alone."""
    empty = [
        Completion(one.index, [], "", one.finish_reason and "length", None if one.logprobs is None else [])
        for one in output.completions
    ]
    return dataclasses.replace(output, completions=empty)


def chat_logprobs(found: Sequence[TokenLogprobs] | None, tokens: Any) -> dict[str, Any] | None:
    """The logprobs of a choice of /v1/chat/completions."""
    if found is None:
        return None

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text = tokens(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return {
        "content": [
            {**entry(one.token, one.logprob), "top_logprobs": [entry(*each) for each in one.top]} for one in found
        ]
    }


def finish_reason(completion: Completion) -> str | None:
    """As OpenAI's API names it: a deadline is a length of time."""
    reason = completion.finish_reason
    return "length" if reason == "deadline" else reason


def usage(outputs: Sequence[Output]) -> dict[str, Any]:
    """How many tokens there were."""
    prompt = sum(len(output.prompt_tokens) for output in outputs)
    generated = sum(len(one.tokens) for output in outputs for one in output.completions)
    cached = sum(output.cached_tokens for output in outputs)
    drafted = sum(output.drafted_tokens for output in outputs)
    accepted = sum(output.accepted_tokens for output in outputs)
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"accepted_prediction_tokens": accepted,
                                          "rejected_prediction_tokens": drafted - accepted}}  # fmt: skip


def _wanted(
    fields: Mapping[str, Any], prompts: list[str | list[int]], messages: list[Any] | None, logprobs: Any, most: Any
) -> Wanted:
    stream = _flag(fields, "stream")
    options = _stream_options(fields, stream)
    given = {name: fields[name] for name in _SAMPLING if fields.get(name) is not None}
    seed = fields.get("seed")
    if type(seed) is int:
        given["seed"] = seed % 2**63
    elif seed is not None:
        raise Refused(400, "seed is a whole number", "seed")
    stop = fields.get("stop")
    given["stop"] = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(given["stop"], list):
        raise Refused(400, "stop is a text or a list of texts", "stop")
    given["stop_tokens"] = [] if fields.get("stop_token_ids") is None else fields["stop_token_ids"]
    if not isinstance(given["stop_tokens"], list):
        raise Refused(400, "stop_token_ids is a list of tokens", "stop_token_ids")
    given["logit_bias"] = _biases(fields.get("logit_bias"))
    if logprobs is not None and (type(logprobs) is not int or not 0 <= logprobs <= MOST_LOGPROBS):
        raise Refused(400, f"logprobs are a whole number from 0 to {MOST_LOGPROBS}", "logprobs")
    structured, form_field = _structured(fields)
    try:
        parameters = SamplingParameters(**given, max_tokens=most, logprobs=logprobs, structured_output=structured)
    except InputError as error:
        raise refusal(error, "prompt" if messages is None else "messages") from error
    salt, last = fields.get("cache_salt", ""), fields.get("truncate_prompt_tokens")
    if not isinstance(salt, str) or len(salt) > schema.LONGEST_SALT or ("cache_salt" in fields and not salt):
        raise Refused(400, f"cache_salt is a text of 1 to {schema.LONGEST_SALT} characters", "cache_salt")
    if last is not None and (type(last) is not int or last == 0 or not -1 <= last < 1 << 31):
        raise Refused(400, "truncate_prompt_tokens is a number of tokens from 1, or -1", "truncate_prompt_tokens")
    usage_at_end = _flag(options, "include_usage")
    return Wanted(
        prompts, messages, parameters, stream, usage_at_end, form_field, salt=salt, last_tokens=last,
        numbers_tokens=_flag(fields, "return_tokens_as_token_ids"),
        returns_tokens=_flag(fields, "return_token_ids"),
        usage_always=usage_at_end and _flag(options, "continuous_usage_stats"),
    )  # fmt: skip


def _stream_options(fields: Mapping[str, Any], stream: bool) -> dict[str, Any]:
    options = fields.get("stream_options")
    if options is None:
        return {}
    known = schema.COMPLETION["stream_options"]["properties"]
    if not isinstance(options, dict) or any(name not in known for name in options):
        raise Refused(400, f"stream_options takes {', '.join(known)}", "stream_options")
    if not stream:
        raise Refused(400, "stream_options goes with stream true", "stream_options")
    for name, value in options.items():
        why = schema.unsupported(name, value, known)
        if why is not None and value is not None:
            raise Refused(400, why, "stream_options")
    return options


def _structured(fields: Mapping[str, Any]) -> tuple[StructuredOutput | None, str | None]:
    """What the text must be, by whichever field says it, OpenAI's or those of other servers; and that field."""
    found: list[tuple[str, dict[str, Any]]] = [
        (name, {kind: fields[name]}) for name, kind in _FORMS.items() if fields.get(name) is not None
    ]
    several = fields.get("structured_outputs")
    if several is not None:
        kinds = {"json", "json_object", "regex", "choice", "grammar"}
        if not isinstance(several, dict) or set(several) - kinds:
            raise Refused(400, f"structured_outputs takes one of {', '.join(sorted(kinds))}", "structured_outputs")
        found.append(("structured_outputs", {name: value for name, value in several.items() if value is not None}))
    response = fields.get("response_format")
    if response is not None and response != {"type": "text"}:
        found.append(("response_format", _response_format(response)))
    if len(found) > 1:
        raise Refused(400, f"{found[0][0]} and {found[1][0]} both say what the text must be", found[1][0])
    for name, form in found:
        try:
            return StructuredOutput(**form), name
        except InputError as error:
            raise Refused(400, f"{name}: {error}", name) from error
    return None, None


def _response_format(given: Any) -> dict[str, Any]:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "json_object":
        return {"json_object": True}
    described = given.get("json_schema") if kind == "json_schema" else None
    if isinstance(described, dict) and isinstance(described.get("schema"), dict):
        return {"json": described["schema"]}
    raise Refused(
        400, "response_format has the type text, json_object, or json_schema with a json_schema.schema",
        "response_format",
    )  # fmt: skip


def _prompts(given: Any, most: int = schema.MOST_PROMPTS, field: str = "prompt") -> list[str | list[int]]:
    if isinstance(given, str) or (isinstance(given, list) and given and all(type(item) is int for item in given)):
        return [given]
    if isinstance(given, list) and 0 < len(given) <= most:
        if all(isinstance(item, str) for item in given):
            return given
        if all(isinstance(item, list) and all(type(token) is int for token in item) for item in given):
            return given
    raise Refused(400, f"{field} is a text, a list of tokens, or a list of up to {most} of one kind", field)


def _biases(given: Any) -> dict[int, float]:
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(key.isascii() and key.isdigit() and len(key) < 12 for key in given):
        raise Refused(400, "logit_bias is an object of tokens and numbers", "logit_bias")
    return {int(key): value for key, value in given.items()}


def _flag(fields: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refused(400, f"{name} is true or false", name)
    return default if value is None else value


def _check_known(fields: Mapping[str, Any], known: Mapping[str, schema.Schema]) -> None:
    for name, value in fields.items():
        why = None if value is None else schema.unsupported(name, value, known)
        if why is not None:
            raise Refused(400, why, name[:100])


def _top(found: TokenLogprobs, tokens: Any) -> dict[str, float]:
    return {tokens(token): value for token, value in found.top}
