"""The engine: requests in, results out. The scheduler decides, the model computes, samplers choose.

`LLMEngine` is for one thread, which calls `add`, `abort` and `step`; a step gives the requests that it changed.  Every
request ends: with its last token, by a stop text, at its deadline, by `abort`, or with an error, which ends no other.
"""

from __future__ import annotations

import functools
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real

import numpy as np

from tilewright.errors import InputError, PromptTooLongError
from tilewright.llm.model import Chunk, OverlappingRunner, Rows, StepRunner
from tilewright.llm.requests import Completion, Output, SamplingParameters, TokenLogprobs, tokens_of
from tilewright.llm.sampling import Draw, Sampler, logprobs_of
from tilewright.llm.scheduler import ScheduledTokens, Scheduler
from tilewright.llm.scheduler import Sequence as Scheduled
from tilewright.llm.speculation import Drafting, PromptLookup, Speculator
from tilewright.llm.structure import FormCompiler, Matcher
from tilewright.llm.text import StopTexts, TextDecoder, TextStream

_log = logging.getLogger("tilewright")


@dataclass
class Statistics:
    """Counts since the engine was made, and what is there now."""

    prompt_tokens: int = 0  # of prompts that began
    cached_tokens: int = 0  # of those, found in the cache
    generated_tokens: int = 0
    steps: int = 0
    preemptions: int = 0
    drafts: int = 0  # times that tokens were drafted
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    finished: dict[str, int] = field(default_factory=dict)  # by reason
    running: int = 0
    waiting: int = 0
    used_pages: int = 0
    pages: int = 0


@dataclass(eq=False)
class _Result:
    """One of a request's results while it grows."""

    completion: Completion
    scheduled: Scheduled
    sampler: Sampler
    stream: TextStream | None
    stops: StopTexts
    matcher: Matcher | None = None
    drafting: Drafting | None = None

    @property
    def is_finished(self) -> bool:
        return self.completion.finish_reason is not None


@dataclass(eq=False)
class _Request:
    """A request while it is worked on."""

    name: str
    prompt: list[int]
    parameters: SamplingParameters
    results: list[_Result]
    deadline: float | None
    ends: frozenset[int]  # tokens that end a result
    has_begun: bool = False  # its first result has computed the prompt
    found: dict[int, TokenLogprobs] = field(default_factory=dict)  # logprobs of the prompt by the place of the token
    prompt_logprobs: list[TokenLogprobs] | None = None
    error: str | None = None
    is_refused: bool = False  # the error is the request's own

    @property
    def output(self) -> Output:
        completions = [result.completion for result in self.results]
        drafted = accepted = 0
        for result in self.results:
            if result.drafting is not None:
                drafted, accepted = drafted + result.drafting.drafted, accepted + result.drafting.accepted
        return Output(
            self.name, self.prompt, completions, self.results[0].scheduled.cached, self.error, drafted, accepted,
            self.prompt_logprobs, self.is_refused,
        )  # fmt: skip


@dataclass(eq=False)
class _StepPart:
    """A sequence's share of a step that has begun."""

    work: ScheduledTokens
    request: _Request
    result: _Result
    is_last: bool  # the next token follows from it
    wants_prompt: bool
    count_of_rows: int = 0  # of logits
    place: int | None = None  # among the sequence's tokens, of the one that is being chosen, where a step may follow


@dataclass(eq=False)
class _Step:
    """A step that has begun; `rows` waits for it."""

    parts: list[_StepPart]
    rows: Callable[[], Rows]
    began: float
    may_be_followed: bool  # by another before its rows are there


class LLMEngine:
    """Works on many requests at once.

    Where the model can (`OverlappingRunner`), a step is planned and started while the one before runs.  Tokens that
    this one is choosing are where they are chosen; so a step is followed only if all of its tokens are chosen there.

    `decoder` turns tokens into text, without one results have no text and no stop texts. `end_tokens` end a result.
    `clock` gives seconds, for deadlines. `forms` makes the compiler of structured outputs, when one is wanted first.
    `speculator` drafts tokens. `adapters` are the names of those that the model has, in the order of their numbers.
    With `deterministic` each sequence is computed alone, in chunks that follow from its own tokens.
    """

    def __init__(
        self,
        model: StepRunner,
        vocabulary: int,
        decoder: TextDecoder | None = None,
        end_tokens: Sequence[int] = (),
        share_prefixes: bool = True,
        clock: Callable[[], float] = time.monotonic,
        forms: Callable[[], FormCompiler] | None = None,
        speculator: Speculator | None = None,
        adapters: Sequence[str] = (),
        deterministic: bool = False,
    ) -> None:
        self.model, self.vocabulary, self.decoder, self.clock = model, vocabulary, decoder, clock
        self.end_tokens = frozenset(token for token in end_tokens if token < vocabulary)
        self.deterministic = deterministic
        self.scheduler = Scheduler(model.limits, model.pages, share_prefixes, deterministic)
        self.scheduler.is_mirrored = speculator is not None and speculator.model is not None
        self._statistics = Statistics(pages=model.pages)
        self._requests: dict[str, _Request] = {}
        self._arrivals = 0
        self.failures = 0  # how many of the last steps failed, in the order in which they were started
        self.speculator = speculator
        self.adapters = tuple(adapters)
        self._forms = None if forms is None else functools.cache(forms)
        self._under_way: _Step | None = None
        self._runner: OverlappingRunner | None = None
        if isinstance(model, OverlappingRunner) and speculator is None and not deterministic:
            self._runner = model

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._requests)

    @property
    def statistics(self) -> Statistics:
        """A copy of the counts."""
        pool, scheduler, counts = self.scheduler.pool, self.scheduler, self._statistics
        return replace(
            counts, finished=dict(counts.finished), preemptions=scheduler.preemptions, running=len(scheduler.running),
            waiting=len(scheduler.waiting), used_pages=pool.count - pool.free, pages=pool.count,
        )  # fmt: skip

    def matcher(self, parameters: SamplingParameters) -> Matcher | None:
        """The matcher of a structured output that is wanted, compiled now or before; any thread may call this.

        Raises `InputError` for a form that cannot be used.
        """
        if parameters.structured_output is None:
            return None
        if self._forms is None:
            raise InputError("structured output needs a tokenizer")
        return self._forms().matcher(parameters.structured_output)

    def add(
        self,
        prompt: Sequence[int],
        parameters: SamplingParameters | None = None,
        name: str | None = None,
        salt: str = "",
        seconds: float | None = None,
        adapter: str | None = None,
    ) -> str:
        """Take a request; gives its name.

        Requests share the keys and values of equal beginnings when they have the same `salt`, one for each tenant, and
        the same `adapter`, the name of one of `adapters`. After `seconds` the request ends with what it has. Raises
        `InputError` for a prompt that is not valid, does not fit with its results, or a name that is in use.
        """
        parameters = parameters or SamplingParameters()
        tokens = tokens_of(prompt, self.vocabulary)
        name = name or secrets.token_hex(8)
        if name in self._requests:
            raise InputError(f"a request {name!r} is being worked on")
        longest = self.scheduler.longest
        if len(tokens) >= longest:
            raise PromptTooLongError(
                f"the prompt has {len(tokens)} tokens; with a result at most {longest} fit, the maximum context length"
            )
        for field_name, given in (("logit_bias", parameters.logit_bias), ("stop_tokens", parameters.stop_tokens)):
            if any(token >= self.vocabulary for token in given):
                raise InputError(f"{field_name} takes tokens from 0 to {self.vocabulary - 1}")
        if parameters.stop and self.decoder is None:
            raise InputError("stop texts need a tokenizer; use stop_tokens")
        matcher = self.matcher(parameters)
        number = 0 if adapter is None else self._adapter(adapter)
        if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, Real) or seconds != seconds):
            raise InputError(f"seconds is {str(seconds)[:50]!r}, expected a number")
        salt = f"{number} {salt}"  # keys and values are those of the adapter
        seed = secrets.randbits(63) if parameters.seed is None else parameters.seed
        deadline = None if seconds is None else self.clock() + seconds
        ends = frozenset(parameters.stop_tokens) | (frozenset() if parameters.ignore_eos else self.end_tokens)
        request = _Request(name, tokens, parameters, [], deadline, ends)
        for index in range(parameters.n):
            scheduled = Scheduled((name, index), list(tokens), (self._arrivals, index), salt, adapter=number)
            scheduled.is_whole = parameters.prompt_logprobs is not None and index == 0
            completion = Completion(index, [], "", logprobs=None if parameters.logprobs is None else [])
            stream = None if self.decoder is None else TextStream(self.decoder)
            sampler = Sampler(parameters, seed, index, tokens)
            form = None if matcher is None else matcher.copy()
            drafting = None if self.speculator is None else Drafting(PromptLookup(tokens))
            stops = StopTexts(parameters.stop, parameters.include_stop_str_in_output)
            request.results.append(_Result(completion, scheduled, sampler, stream, stops, form, drafting))
        self._arrivals += 1
        self._requests[name] = request
        self.scheduler.add(request.results[0].scheduled)  # the others begin with what it has computed
        return name

    def _adapter(self, name: str) -> int:
        if name not in self.adapters:
            known = f"known are {', '.join(self.adapters)}" if self.adapters else "there are none"
            raise InputError(f"there is no adapter {str(name)[:100]!r}; {known}")
        return self.adapters.index(name) + 1

    def abort(self, name: str) -> bool:
        """End a request now, and give its memory back; False when there is none of the name.

        Its output comes with the next step.
        """
        request = self._requests.get(name)
        if request is None:
            return False
        self._end(request, "abort")
        return True

    def step(self) -> list[Output]:
        """Compute one step, and give the requests that it changed; nothing when there is no work."""
        changed = self._expire()
        step, self._under_way = self._under_way, None
        if step is None or all(part.result.is_finished for part in step.parts):
            step = self._begin_step(changed)
        if step is not None:
            before = self.failures
            if step.may_be_followed:
                self._under_way = self._begin_step(changed)
            self._finish_step(step, changed, self.failures - before)
        outputs = [request.output for request in dict.fromkeys(changed)]
        for output in outputs:
            if output.is_finished:
                self._requests.pop(output.request, None)
        return outputs

    def _begin_step(self, changed: list[_Request]) -> _Step | None:
        """Plan a step and start it; None where there is no work, or it failed."""
        self._plan_drafts()
        work = self.scheduler.schedule()
        if not work:
            return None
        self._statistics.steps += 1
        parts = [self._part(item) for item in work]
        try:
            self._draft(parts)
            began = time.perf_counter()
            chunks = [self._chunk(part) for part in parts]
            rows = self._start(chunks)
        except Exception as error:
            self._fail(parts, error, changed)
            return None
        for part in parts:
            self.scheduler.begin(part.work)
        can_be = self._runner is not None and all(_is_drawn(chunk) for chunk in chunks)
        if can_be:
            _await_tokens(parts, self.scheduler.longest)
        return _Step(parts, rows, began, can_be)

    def _start(self, chunks: Sequence[Chunk]) -> Callable[[], Rows]:
        if self._runner is not None:
            return self._runner.start(chunks)
        if self.deterministic:
            rows: Rows = np.concatenate([self.model.run([chunk]) for chunk in chunks])
        else:
            rows = self.model.run(chunks)
        return lambda: rows

    def _finish_step(self, step: _Step, changed: list[_Request], later_failures: int) -> None:
        try:
            rows = step.rows()
            self._observe(step.parts, time.perf_counter() - step.began)
        except Exception as error:
            self._fail(step.parts, error, changed)
        else:
            self.failures = later_failures  # of a step that followed this one and could not be started
            changed += self._take(step.parts, rows)

    def _fail(self, parts: Sequence[_StepPart], error: Exception, changed: list[_Request]) -> None:
        """Whatever it is ends the requests of this step only."""
        _log.error("a step of %d sequences failed", len(parts), exc_info=error)
        self.failures += 1
        for part in parts:
            if not part.result.is_finished:
                part.request.error = f"the step failed ({type(error).__name__})"
                self._end(part.request, "error")
                changed.append(part.request)

    def clear_ended(self) -> None:
        """Forget requests that have ended and whose outputs nobody waits for."""
        self._requests = {
            name: request
            for name, request in self._requests.items()
            if not all(one.is_finished for one in request.results)
        }

    # -- A step's results ---------------------------------------------------------------------------

    def _take(self, parts: Sequence[_StepPart], logits: Rows) -> list[_Request]:
        changed, end = [], 0
        for part in parts:
            row, end = end, end + part.count_of_rows
            if part.result.is_finished:  # since the step began
                continue
            self.scheduler.advance(part.work)
            if part.wants_prompt:
                row += self._take_prompt(part.work, part.request, logits[row:])
            if not part.is_last:
                continue
            if not part.request.has_begun:
                self._begin(part.request)
            self._check_drafts(part, logits[row:end])
            changed.append(part.request)
        return changed

    def _part(self, work: ScheduledTokens) -> _StepPart:
        request = self._requests[work.sequence.name[0]]
        wants_prompt = request.parameters.prompt_logprobs is not None and not request.has_begun
        return _StepPart(work, request, request.results[work.sequence.name[1]], work.is_last, wants_prompt)

    def _chunk(self, part: _StepPart) -> Chunk:
        work, sequence = part.work, part.work.sequence
        if part.is_last and work.end - work.begin == 1 and not (sequence.drafts or part.wants_prompt):
            token, part.count_of_rows = sequence.tokens[-1], 1  # most chunks: Python's time matters
            draws = () if self.deterministic else (self._draw(part, int(token < 0)),)
            return Chunk((token,), work.begin, sequence.blocks, (0,), sequence.adapter, draws)
        return self._long_chunk(part)

    def _long_chunk(self, part: _StepPart) -> Chunk:
        """Tokens of a prompt, or of a text that is computed again, or with drafts."""
        work = part.work
        tokens, drafts = work.sequence.tokens[work.begin : work.end], work.sequence.drafts if part.is_last else []
        first = 0 if part.wants_prompt else len(tokens) - part.is_last
        wanted = range(first, len(tokens) + len(drafts))
        part.count_of_rows = len(wanted)
        draws: list[Draw | None] = []
        if part.is_last and not self.deterministic:  # rows of a run are there until the next one
            of_prompt = [None] * (len(tokens) - 1 - first)
            awaited = work.sequence.tokens[-1] < 0
            draws = [*of_prompt, *(self._draw(part, awaited + ahead) for ahead in range(len(drafts) + 1))]
        return Chunk([*tokens, *drafts], work.begin, work.sequence.blocks, wanted, work.sequence.adapter, draws)

    def _draw(self, part: _StepPart, ahead: int) -> Draw | None:
        """How the token `ahead` places after the next one may be chosen with its logits alone."""
        least = part.request.parameters.min_tokens
        is_early = least and len(part.result.completion.tokens) + ahead < least
        draw = None if is_early and part.request.ends else part.result.sampler.draw(ahead)
        # Drafts are checked together: the tokens before a row's are not counted yet.
        return None if draw is not None and draw.history is not None and self._runner is None else draw

    def _take_prompt(self, item: ScheduledTokens, request: _Request, logits: Rows) -> int:
        """The logprobs of a prompt's tokens; gives how many rows there are before those of the next token."""
        wanted = request.parameters.prompt_logprobs or 0
        places = range(item.begin + 1, min(item.end, len(request.prompt) - 1) + 1)
        for row, place in enumerate(places):
            request.found[place] = logprobs_of(logits[row], request.prompt[place], wanted)
        return len(places)

    # -- Drafts -------------------------------------------------------------------------------------

    def _plan_drafts(self) -> None:
        if self.speculator is None:
            return
        waiting = []
        for sequence in self.scheduler.running:
            sequence.wanted, sequence.drafts = 0, []
            request = self._requests[sequence.name[0]]
            result = request.results[sequence.name[1]]
            if sequence.missing == 1 and result.drafting is not None:
                left = request.parameters.max_tokens - len(result.completion.tokens)
                room = min(left, self.scheduler.longest - len(sequence.tokens)) - 1
                waiting.append((sequence, result.drafting, room))
        self.speculator.plan(waiting)

    def _draft(self, parts: Sequence[_StepPart]) -> None:
        if self.speculator is not None:
            draftings = [part.result.drafting for part in parts if part.result.drafting is not None]
            samplers = [part.result.sampler for part in parts]
            self.speculator.fill([part.work for part in parts], samplers, draftings)

    def _observe(self, parts: Sequence[_StepPart], seconds: float) -> None:
        if self.speculator is not None and all(part.work.end - part.work.begin == 1 for part in parts):
            self.speculator.pace.observe(sum(1 + len(part.work.sequence.drafts) for part in parts), seconds)

    def _check_drafts(self, part: _StepPart, logits: Rows) -> None:
        """Choose the next token; and the one after it where it is the one that was drafted, and so on."""
        item, result = part.work, part.result
        drafts, drafting, accepted = item.sequence.drafts, result.drafting, 0
        for place in range(len(drafts) + 1):
            self._choose(part.request, result, logits[place], part.place)
            if result.is_finished or place == len(drafts) or result.completion.tokens[-1] != drafts[place]:
                break
            accepted += 1
            following = ScheduledTokens(item.sequence, item.end + place, item.end + place + 1)
            self.scheduler.begin(following)
            self.scheduler.advance(following)
        if drafting is None:
            return
        tokens = result.completion.tokens[-(accepted + 1) :]
        drafting.lookup.extend(tokens)
        guess = drafts[:1] or drafting.proposed[:1]
        if guess and not result.is_finished:
            drafting.observe(guess[0] == tokens[0])
        drafting.proposed = []
        if drafts:
            drafting.drafted, drafting.accepted = drafting.drafted + len(drafts), drafting.accepted + accepted
            self._statistics.drafts += 1
            self._statistics.drafted_tokens += len(drafts)
            self._statistics.accepted_tokens += accepted

    def _begin(self, request: _Request) -> None:
        """The prompt is computed: further results of the request find it in the cache."""
        if request.parameters.prompt_logprobs is not None:
            request.prompt_logprobs = [request.found[place] for place in range(1, len(request.prompt))]
            request.found.clear()
        request.has_begun = True
        self._statistics.prompt_tokens += len(request.prompt)
        self._statistics.cached_tokens += request.results[0].scheduled.cached
        for result in request.results[1:]:
            self.scheduler.add(result.scheduled)

    def _choose(self, request: _Request, result: _Result, logits: np.ndarray | int, place: int | None = None) -> None:
        """Choose the next token, which may have its place; whatever goes wrong ends this result only."""
        try:
            self._choose_next(request, result, logits, place)
        except (FloatingPointError, InputError) as error:
            request.error, request.is_refused = str(error), isinstance(error, InputError)
            self._finish(result, "error")
        except Exception as error:
            _log.exception("choosing a token failed")
            request.error, request.is_refused = f"choosing a token failed ({type(error).__name__})", False
            self._finish(result, "error", cut=True)  # its text may be what failed

    def _choose_next(self, request: _Request, result: _Result, logits: np.ndarray | int, place: int | None) -> None:
        parameters, completion = request.parameters, result.completion
        ends = request.ends
        is_early = len(completion.tokens) < parameters.min_tokens
        allowed = self._allowed(result, ends, is_early)
        if allowed is not None and not allowed.any():
            self._finish(result, "stop")  # the form is complete: nothing but an end may follow
            return
        chosen = result.sampler.choose(logits, sorted(ends) if is_early else (), allowed)
        self._append(result, chosen, place)
        longest = self.scheduler.longest
        if chosen.token in ends and not is_early:
            self._finish(result, "stop")
        elif self._grow(result, chosen.token):
            self._finish(result, "stop", cut=True)
        elif result.matcher is not None and result.matcher.is_complete:
            self._finish(result, "stop")
        elif len(completion.tokens) == parameters.max_tokens or _length(request, result) >= longest:
            self._finish(result, "length")

    def _allowed(self, result: _Result, ends: frozenset[int], is_early: bool) -> np.ndarray | None:
        """The tokens that the structured output allows, without end tokens where they are not wanted."""
        if result.matcher is None:
            return None
        allowed = result.matcher.allowed()
        if is_early or not self.end_tokens <= ends:
            allowed[sorted(self.end_tokens | (ends if is_early else set()))] = False
        return allowed

    def _append(self, result: _Result, chosen: TokenLogprobs, place: int | None) -> None:
        if result.matcher is not None:
            result.matcher.take(chosen.token)
        result.completion.tokens.append(chosen.token)
        if place is None:
            result.scheduled.tokens.append(chosen.token)
        else:
            result.scheduled.tokens[place] = chosen.token
        self._statistics.generated_tokens += 1
        if result.completion.logprobs is not None:
            result.completion.logprobs.append(chosen)

    def _grow(self, result: _Result, token: int) -> bool:
        """The text with one more token; True at a stop text."""
        if result.stream is None:
            return False
        stopped = result.stops.push(result.stream.push(token))
        result.completion.text = result.stops.text
        return stopped

    # -- Ends ---------------------------------------------------------------------------------------

    def _finish(self, result: _Result, reason: str, cut: bool = False) -> None:
        """A result has ended; with `cut` its text has, at a stop text."""
        if result.is_finished:
            return
        result.completion.finish_reason = reason
        if result.stream is not None and not cut:
            result.stops.push(result.stream.rest())
            result.stops.finish()
        result.completion.text = result.stops.text
        self.scheduler.remove(result.scheduled)
        self._statistics.finished[reason] = self._statistics.finished.get(reason, 0) + 1

    def _end(self, request: _Request, reason: str) -> None:
        request.found.clear()
        for result in request.results:
            self._finish(result, reason)

    def _expire(self) -> list[_Request]:
        """Requests that were aborted since the last step, and those whose time is over."""
        now = self.clock()
        for request in self._requests.values():
            if request.deadline is not None and now >= request.deadline:
                self._end(request, "deadline")
        return [request for request in self._requests.values() if all(one.is_finished for one in request.results)]


def _is_drawn(chunk: Chunk) -> bool:
    """Whether nothing but draws is wanted of a chunk."""
    return len(chunk.draws) == len(chunk.wanted) and None not in chunk.draws


def _length(request: _Request, result: _Result) -> int:
    """The tokens of a result with its prompt."""
    return len(request.prompt) + len(result.completion.tokens)


def _await_tokens(parts: Sequence[_StepPart], longest: int) -> None:
    """Give the tokens that a step chooses their places in the sequences, as the rows that they come from."""
    row = 0
    for part in parts:
        if part.is_last:
            tokens = part.work.sequence.tokens
            part.place = len(tokens)
            tokens.append(-1 - row)
            count = len(tokens) - len(part.request.prompt)
            part.work.sequence.is_ending = count >= part.request.parameters.max_tokens or len(tokens) >= longest
            row += 1
