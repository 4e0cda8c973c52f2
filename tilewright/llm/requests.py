"""Requests, their state and their outputs: data without tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tilewright.errors import InputError
from tilewright.llm.structure import StructuredOutput

MOST_RESULTS = 128  # n of a request
MOST_LOGPROBS = 20
MOST_STOPS = 16  # strings, each of at most
LONGEST_STOP = 256  # characters
MOST_STOP_TOKENS = 1024
MOST_BIASES = 1024


@dataclass(frozen=True)
class SamplingParameters:
    """How tokens are chosen, and when a sequence ends.

    `temperature` 0 takes the most probable token, the first of equals. `top_k` 0 or -1, `top_p` 1 and `min_p` 0 keep
    all tokens. `repetition_penalty` divides positive and multiplies negative logits of tokens of the prompt and the
    output; `presence_penalty` and `frequency_penalty` are subtracted for tokens of the output. With a `seed` the same
    tokens come again, whatever else runs. `logprobs` wants the logarithms of the probabilities of so many tokens
    beside the chosen one, before temperature and filters; `prompt_logprobs` wants the same of the prompt, which is then
    computed whole, whatever is shared. `stop` are texts, which are part of the result only with
    `include_stop_str_in_output`, `stop_tokens` tokens, which always are. With `structured_output` the text has a form,
    unless another bound ends it early.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_tokens: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1
    structured_output: StructuredOutput | None = None

    def __post_init__(self) -> None:
        """Raises `InputError` that names the parameter which is out of its range."""
        for name, low, high in REALS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise InputError(f"{name} is {str(value)[:50]!r}, expected a number from {low:g} to {high:g}")
        if self.top_p == 0:
            raise InputError("top_p is 0, expected more")
        for name, least, most in WHOLE_NUMBERS:
            value = getattr(self, name)
            if value is None and name in ("seed", "logprobs", "prompt_logprobs"):
                continue
            if type(value) is not int or not least <= value <= most:
                raise InputError(f"{name} is {str(value)[:50]!r}, expected a whole number from {least} to {most}")
        for name in ("ignore_eos", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise InputError(f"{name} is true or false")
        if self.top_k == -1:  # as other servers say it
            object.__setattr__(self, "top_k", 0)
        if self.min_tokens > self.max_tokens:
            raise InputError(f"min_tokens {self.min_tokens} is more than max_tokens {self.max_tokens}")
        self._check_lists()

    def _check_lists(self) -> None:
        if not isinstance(self.structured_output, (StructuredOutput, type(None))):
            raise InputError("structured_output takes a StructuredOutput")
        stops, tokens = self.stop, self.stop_tokens
        if not _is_list(stops) or len(stops) > MOST_STOPS or not all(isinstance(one, str) for one in stops):
            raise InputError(f"stop takes a list of at most {MOST_STOPS} texts")
        if any(not 0 < len(one) <= LONGEST_STOP for one in stops):
            raise InputError(f"stop takes texts of 1 to {LONGEST_STOP} characters")
        if not _is_list(tokens) or any(type(token) is not int or token < 0 for token in tokens):
            raise InputError("stop_tokens takes a list of token numbers")
        if len(tokens) > MOST_STOP_TOKENS:
            raise InputError(f"stop_tokens takes at most {MOST_STOP_TOKENS} tokens")
        if not isinstance(self.logit_bias, Mapping):
            raise InputError("logit_bias takes a mapping of token numbers to numbers")
        if len(self.logit_bias) > MOST_BIASES:
            raise InputError(f"logit_bias takes at most {MOST_BIASES} tokens")
        for token, bias in self.logit_bias.items():
            if type(token) is not int or token < 0 or not isinstance(bias, (int, float)) or not abs(bias) <= 100:
                raise InputError("logit_bias takes token numbers with numbers from -100 to 100")

    @property
    def is_greedy(self) -> bool:
        """Whether no random number is drawn."""
        return self.temperature == 0.0


def _is_list(value: object) -> bool:
    """A list or a tuple, say, but no text."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


REALS = (  # parameters, with their ranges
    ("temperature", 0.0, 100.0),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("repetition_penalty", 0.01, 100.0),
)
WHOLE_NUMBERS = (
    ("top_k", -1, 2**31 - 1),
    ("seed", 0, 2**63 - 1),
    ("max_tokens", 1, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("logprobs", 0, MOST_LOGPROBS),
    ("prompt_logprobs", 0, MOST_LOGPROBS),
    ("n", 1, MOST_RESULTS),
)


class TokenLogprobs(NamedTuple):
    """The chosen token with its logprob, and the most probable tokens with theirs, the best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class Completion:
    """One result: its tokens and text, why it ended, and logprobs where they were wanted.

    `finish_reason`: ``stop`` (an end token or a stop text), ``length``, ``abort``, ``deadline`` or ``error``.
    """

    index: int
    tokens: list[int]
    text: str
    finish_reason: str | None = None
    logprobs: list[TokenLogprobs] | None = None


@dataclass
class Output:
    """A request's results, in the order of `index`; of a step the new state of what it changed."""

    request: str
    prompt_tokens: list[int]
    completions: list[Completion]
    cached_tokens: int = 0  # of the prompt, whose keys and values were found
    error: str | None = None
    drafted_tokens: int = 0  # that were guessed and checked, and how many of them were right
    accepted_tokens: int = 0
    prompt_logprobs: list[TokenLogprobs] | None = None  # of the second token on, once the prompt is computed
    is_refused: bool = False  # whether the error is one of the request, not of the engine

    @property
    def is_finished(self) -> bool:
        """Whether all results have ended."""
        return all(completion.finish_reason is not None for completion in self.completions)


def tokens_of(prompt: Any, vocabulary: int) -> list[int]:
    """A prompt that is a list of tokens; raises `InputError` for others."""
    if not isinstance(prompt, (list, tuple)):
        raise InputError(f"a prompt is a text or a list of tokens, not of type {type(prompt).__name__}")
    if not prompt:
        raise InputError("the prompt is empty; give at least one token to begin with")
    for token in prompt:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            raise InputError(f"the token {str(token)[:50]!r} is no whole number from 0 to {vocabulary - 1}")
    return list(prompt)
