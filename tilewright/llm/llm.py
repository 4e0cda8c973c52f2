"""`LLM`: a checkpoint folder, ready to generate.

llm = LLM("models/small")
print(llm.generate("Once upon a time", SamplingParameters(max_tokens=50)).completions[0].text)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.errors import ImportModelError, InputError, MissingDependencyError
from tilewright.importers.gguf_files import open_checkpoint
from tilewright.llm.adapters import Adapters
from tilewright.llm.engine import LLMEngine
from tilewright.llm.gpu_model import GPUModel
from tilewright.llm.model import Model, describe, open_family
from tilewright.llm.requests import Output, SamplingParameters
from tilewright.llm.speculation import MOST_DRAFTS, DraftModel, Speculator
from tilewright.llm.step_graph import Limits
from tilewright.llm.structure import FormCompiler
from tilewright.llm.tokenizer import Tokenizer, end_tokens
from tilewright.llm.tools import Tools, read_tools

MEMORY = 1 << 30  # bytes of keys and values, where nothing else is said
MODELS: dict[str, type[Model]] = {"cpu": Model, "cuda": GPUModel}
TOKENS = {"cpu": 256, "cuda": 2048}  # of a step, where nothing else is said
Prompt = str | Sequence[int]


class LLM:
    """A language model, ready to generate; for one thread at a time.

    `path` is a folder with config.json, safetensors and, for texts, tokenizer.json, or a GGUF file.  `target` is where
    it runs: ``cpu``, or ``cuda`` for the current GPU of NVIDIA.  `dtype` is the
    type of computation: ``auto`` (that of the checkpoint), ``float32``, ``bfloat16`` or ``float16``.  `weights` is the
    storage of linear layers: ``auto`` as in the checkpoint, which may be quantized, or ``int8`` or ``int4``, rounded
    to the nearest.  `kv_cache_dtype` is the storage of keys and values: ``auto`` in the type of computation, ``fp8``
    (e4m3, saturated at 448), or ``int8`` with a scale for each token and head: half of the memory of 16
    bits, or a little more.
    `length` is the longest sequence, by default the model's own limit, or what fits into `memory`
    (bytes of the KV cache).  A step takes up to `tokens` tokens (default 256, on GPUs 2048) of up to `sequences`
    sequences.  `progress` is called as for `tilewright.compile`.
    With `speculate` a step checks up to that many guessed tokens of a sequence, where that is faster.  Guesses are what
    followed the same tokens before, or come from the smaller model in the folder `draft`, with the same tokenizer.
    `adapters` maps names for requests to folders of LoRA adapters.  With `deterministic` a request's logits have the
    same bits whatever else runs, on one machine with one number of threads: each sequence is computed alone.

    Raises `ImportModelError`, which names the key or the weights, for unusable checkpoints.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        target: str = "cpu",
        dtype: str = "auto",
        weights: str = "auto",
        kv_cache_dtype: str = "auto",
        length: int | None = None,
        memory: int = MEMORY,
        tokens: int | None = None,
        sequences: int = 64,
        page: int = 16,
        share_prefixes: bool = True,
        speculate: int = 0,
        draft: str | Path | None = None,
        adapters: Mapping[str, str | Path] | None = None,
        deterministic: bool = False,
        progress: Callable[[str, str, float], None] | None = None,
    ) -> None:
        self.path = Path(path)
        if not isinstance(target, str) or target not in MODELS:
            raise InputError(f"target is {target!r}; known are {', '.join(MODELS)}")
        self._opened = MODELS[target]
        for name, text in (("dtype", dtype), ("weights", weights), ("kv_cache_dtype", kv_cache_dtype)):
            if not isinstance(text, str):
                raise InputError(f"{name} is {text!r}, expected a text")
        if adapters is not None and not _are_folders(adapters):
            raise InputError("adapters takes a mapping of names to folders")
        tokens = TOKENS[target] if tokens is None else tokens
        for name, value in (("memory", memory), ("tokens", tokens), ("sequences", sequences), ("page", page)):
            if type(value) is not int or value < 1:
                raise InputError(f"{name} is {value!r}, expected a whole number from 1")
        if type(speculate) is not int or not 0 <= speculate <= MOST_DRAFTS:
            raise InputError(f"speculate is {speculate!r}, expected a whole number from 0 to {MOST_DRAFTS}")
        if draft is not None and not speculate:
            raise InputError("a draft model needs speculate, the most tokens that it guesses")
        if deterministic and (speculate or tokens % page):
            raise InputError(
                "deterministic cannot be combined with speculate" if speculate
                else f"deterministic needs tokens, {tokens}, to be a multiple of page, {page}"
            )  # fmt: skip
        self.description = describe(open_checkpoint(self.path))
        longest = self.description.length if length is None else length
        self._adapters = Adapters(adapters or {})
        self._draft_path = None if draft is None else Path(draft)
        limits = Limits(page, tokens, sequences, longest, kv_cache_dtype)
        limits, pages = self._sizes(limits, dtype, length, memory, weights)
        self.tokenizer = self._tokenizer()
        self.model = self._opened.open(self.path, pages, limits, dtype, progress, weights, self._adapters)
        speculator = self._speculator(speculate, pages, limits, progress) if speculate else None
        self.engine = LLMEngine(
            self.model, self.description.vocabulary, self.tokenizer, end_tokens(self.path, self.tokenizer),
            share_prefixes, forms=None if self.tokenizer is None else self._forms, speculator=speculator,
            adapters=list(adapters or {}), deterministic=deterministic,
        )  # fmt: skip

    def _tokenizer(self) -> Tokenizer | None:
        """That of the folder; None where there is none, for the reason `_no_text`."""
        try:
            return Tokenizer(self.path)
        except (MissingDependencyError, ImportModelError) as reason:
            if (self.path / "tokenizer.json").exists() and not isinstance(reason, MissingDependencyError):
                raise
            self._no_text = reason
            return None

    def _speculator(
        self, most: int, pages: int, limits: Limits, progress: Callable[[str, str, float], None] | None
    ) -> Speculator:
        if self._draft_path is None:
            return Speculator(most)
        known = describe(open_checkpoint(self._draft_path))
        if known.vocabulary != self.description.vocabulary:
            own = None if self.tokenizer is None else self.tokenizer.words
            if own is None or own != Tokenizer(self._draft_path).words:
                raise InputError(
                    f"the draft model has {known.vocabulary} tokens and the model {self.description.vocabulary}: "
                    "a draft model has the same tokens"
                )
        if limits.length > known.length and known.family == "gpt2":
            raise InputError(f"the draft model has {known.length} positions; give length={known.length}")
        model = self._opened.open(self._draft_path, pages, limits, "auto", progress)
        return Speculator(most, DraftModel(model, min(known.vocabulary, self.description.vocabulary)))

    def _forms(self) -> FormCompiler:
        tokenizer = self.text_tokenizer
        return FormCompiler(tokenizer.text, self.description.vocabulary, sorted(self.engine.end_tokens))

    def _sizes(
        self, limits: Limits, dtype: str, length: int | None, memory: int, weights: str
    ) -> tuple[Limits, int]:  # fmt: skip
        """The limits, and how many pages there are."""
        if type(limits.length) is not int or limits.length < 1:
            raise InputError(f"length is {length!r}, expected a whole number from 1")
        family = open_family(self.path, limits, dtype, weights)
        step_bytes = family.bytes_per_token * limits.page
        if self._draft_path is not None:
            drafts = open_family(self._draft_path, limits)
            step_bytes += drafts.bytes_per_token * limits.page
        pages = memory // step_bytes
        if length is None:
            limits = dataclasses.replace(limits, length=min(limits.length, max(pages, 1) * limits.page))
        elif length > self.description.length and self.description.family == "gpt2":
            raise InputError(f"length is {length}, and the model has {self.description.length} positions")
        if pages < limits.columns:
            raise InputError(
                f"memory of {memory} bytes holds {pages * limits.page} tokens of {step_bytes // limits.page} bytes; "
                f"a sequence of {limits.length} needs {limits.columns * step_bytes}. "
                "Give more memory or a smaller length"
            )
        return limits, min(pages, limits.columns * limits.sequences)

    def generate(
        self,
        prompt: Prompt,
        parameters: SamplingParameters | None = None,
        *,
        seconds: float | None = None,
        adapter: str | None = None,
    ) -> Output:
        """The results of one prompt, a text or a list of tokens; `seconds` bounds the time.

        Raises `InputError` for an unusable prompt or an unknown adapter.
        """
        return self.generate_all([prompt], parameters, seconds=seconds, adapters=adapter)[0]

    def generate_all(
        self,
        prompts: Sequence[Prompt],
        parameters: SamplingParameters | Sequence[SamplingParameters] | None = None,
        *,
        seconds: float | None = None,
        adapters: str | Sequence[str | None] | None = None,
    ) -> list[Output]:
        """The results of prompts, batched, in their order; `parameters` and `adapters`: one, or a list."""
        several = isinstance(adapters, Sequence) and not isinstance(adapters, str)
        names_of: Any = adapters if several else [adapters] * len(prompts)
        each = parameters if isinstance(parameters, Sequence) else [parameters] * len(prompts)
        if len(each) != len(prompts) or len(names_of) != len(prompts):
            raise InputError(f"{len(each)} parameters and {len(names_of)} adapters for {len(prompts)} prompts")
        names: list[str] = []
        done: dict[str, Output] = {}
        try:
            for prompt, wanted, adapter in zip(prompts, each, names_of, strict=True):
                names.append(self.engine.add(self.tokens(prompt), wanted, seconds=seconds, adapter=adapter))
            while len(done) < len(names):
                done |= {output.request: output for output in self.engine.step() if output.is_finished}
        finally:
            for name in names:
                self.engine.abort(name)
            self.engine.clear_ended()
        return [done[name] for name in names]

    def stream(
        self,
        prompt: Prompt,
        parameters: SamplingParameters | None = None,
        *,
        seconds: float | None = None,
        adapter: str | None = None,
    ) -> Iterator[Output]:
        """The results of one prompt so far, after each token; closing the iterator ends the request."""
        name = self.engine.add(self.tokens(prompt), parameters, seconds=seconds, adapter=adapter)
        try:
            while True:
                for output in self.engine.step():
                    if output.request == name:
                        yield output
                        if output.is_finished:
                            return
        finally:
            self.engine.abort(name)
            self.engine.clear_ended()

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        parameters: SamplingParameters | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        seconds: float | None = None,
        adapter: str | None = None,
    ) -> Output:
        """The answer to a chat (a list of ``{"role": …, "content": …}``) by the checkpoint's template.

        `tools` have the form of OpenAI's API; `tilewright.llm.tools.CallReader` parses calls.
        """
        offered = None if tools is None else Tools(read_tools(list(tools)))
        prompt = self.text_tokenizer.chat(messages, tools=offered)
        return self.generate(prompt, parameters, seconds=seconds, adapter=adapter)

    def tokens(self, prompt: Prompt) -> list[int]:
        """The tokens of a prompt; raises `InputError` for what is neither a text nor a list."""
        if isinstance(prompt, str):
            return self.text_tokenizer.encode(prompt)
        if isinstance(prompt, (bytes, Mapping)) or not isinstance(prompt, Iterable):
            raise InputError(f"a prompt is a text or a list of tokens, not {type(prompt).__name__}")
        return list(prompt)

    @property
    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer; raises the reason where there is none."""
        if self.tokenizer is None:
            raise self._no_text
        return self.tokenizer


def _are_folders(adapters: object) -> bool:
    """Whether adapters have names, and paths."""
    if not isinstance(adapters, Mapping):
        return False
    return all(isinstance(name, str) and isinstance(path, (str, Path)) for name, path in adapters.items())
