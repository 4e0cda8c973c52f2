"""`tilewright generate` and `tilewright chat`: text from a language model in a checkpoint folder."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tilewright.cli.console import terminal, wrong_usage
from tilewright.errors import InputError, printable
from tilewright.settings import MOST_THREADS, settings

if TYPE_CHECKING:
    from tilewright.llm import LLM, Output, SamplingParameters, StructuredOutput

PathArgument = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="A folder with config.json, safetensors and tokenizer.json, or a GGUF file."),
]
TokensOption = Annotated[int, typer.Option("--max-tokens", min=1, help="Tokens of the result at most.")]
TemperatureOption = Annotated[float, typer.Option(min=0, max=100, help="0 takes the most probable token.")]
TopKOption = Annotated[int, typer.Option(min=0, help="Choose among so many tokens; 0: all.")]
TopPOption = Annotated[float, typer.Option(help="Choose among the fewest tokens that hold this probability.")]
MinPOption = Annotated[float, typer.Option(help="No tokens below this part of the most probable one's probability.")]
RepetitionOption = Annotated[float, typer.Option(help="Above 1: tokens that were there before are less probable.")]
SeedOption = Annotated[int | None, typer.Option(min=0, help="The same tokens again.")]
StopOption = Annotated[list[str] | None, typer.Option(help="End the result before this text.")]
DtypeOption = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
WeightsOption = Annotated[
    str, typer.Option(help="How linear layers are stored: auto (as in the checkpoint), int8 or int4.")
]
LengthOption = Annotated[int | None, typer.Option(min=1, help="Tokens of the longest sequence.")]
MemoryOption = Annotated[int, typer.Option(min=1, help="MiB for keys and values.")]
SpeculateOption = Annotated[
    int, typer.Option(min=0, max=16, help="Check up to so many guessed tokens in a step, where that is quicker.")
]
DraftOption = Annotated[Path | None, typer.Option(help="A smaller model with the same tokens, which guesses them.")]
LoraOption = Annotated[list[str] | None, typer.Option(help="NAME=PATH of a LoRA adapter; `serve` takes several.")]
DeterministicOption = Annotated[
    bool, typer.Option("--deterministic", help="The same bits whatever else runs; each sequence is computed alone.")
]
ThreadsOption = Annotated[int | None, typer.Option(min=1, max=MOST_THREADS, help="CPU threads.")]


def generate(
    path: PathArgument,
    prompt: Annotated[str, typer.Argument(help="What the text begins with; - reads it from standard input.")],
    max_tokens: TokensOption = 128,
    temperature: TemperatureOption = 0.8,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.05,
    repetition_penalty: RepetitionOption = 1.0,
    seed: SeedOption = None,
    stop: StopOption = None,
    regex: Annotated[str | None, typer.Option(help="The text matches this pattern as a whole.")] = None,
    json_schema: Annotated[Path | None, typer.Option(help="The text is JSON of the schema in this file.")] = None,
    dtype: DtypeOption = "auto",
    weights: WeightsOption = "auto",
    length: LengthOption = None,
    memory: MemoryOption = 1024,
    speculate: SpeculateOption = 0,
    draft: DraftOption = None,
    lora: LoraOption = None,
    deterministic: DeterministicOption = False,
    threads: ThreadsOption = None,
) -> None:
    """Continue a text with a language model, token by token."""
    adapter = _only(lora)
    model = open_model(path, dtype, weights, length, memory, threads, speculate, draft, lora, deterministic)
    wanted = _parameters(max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, stop)
    wanted = dataclasses.replace(wanted, structured_output=_form(regex, json_schema))
    text = sys.stdin.read() if prompt == "-" else prompt
    started = time.perf_counter()
    output = _show(model.stream(text, wanted, adapter=adapter))
    _summary(output, time.perf_counter() - started)


def chat(
    path: PathArgument,
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    max_tokens: TokensOption = 512,
    temperature: TemperatureOption = 0.8,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.05,
    repetition_penalty: RepetitionOption = 1.0,
    seed: SeedOption = None,
    dtype: DtypeOption = "auto",
    weights: WeightsOption = "auto",
    length: LengthOption = None,
    memory: MemoryOption = 1024,
    speculate: SpeculateOption = 0,
    draft: DraftOption = None,
    lora: LoraOption = None,
    deterministic: DeterministicOption = False,
    threads: ThreadsOption = None,
) -> None:
    """Chat with a language model: a line is a message, an empty line or the end of the input ends the chat."""
    adapter = _only(lora)
    model = open_model(path, dtype, weights, length, memory, threads, speculate, draft, lora, deterministic)
    wanted = _parameters(max_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, None)
    messages = [] if system is None else [{"role": "system", "content": system}]
    for line in _lines():
        messages.append({"role": "user", "content": line})
        output = _show(model.stream(model.text_tokenizer.chat(messages), wanted, adapter=adapter))
        messages.append({"role": "assistant", "content": output.completions[0].text})


def _lines() -> Iterator[str]:
    while True:
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line


def open_model(
    path: Path, dtype: str, weights: str, length: int | None, memory: int, threads: int | None, speculate: int,
    draft: Path | None, lora: list[str] | None = None, deterministic: bool = False,
) -> LLM:  # fmt: skip
    """The model of a folder, as the options say."""
    from tilewright.llm import LLM

    if threads is not None:
        settings.threads = threads
    return LLM(path, dtype=dtype, weights=weights, length=length, memory=memory << 20, speculate=speculate, draft=draft,
               adapters=adapters_of(lora), deterministic=deterministic)  # fmt: skip


def adapters_of(given: list[str] | None) -> dict[str, Path]:
    """The adapters of --lora, by name."""
    found = {}
    for one in given or []:
        name, _, path = one.partition("=")
        if not name or not path:
            raise wrong_usage(f"--lora {one}: expected NAME=PATH")
        found[name] = Path(path)
    return found


def _only(given: list[str] | None) -> str | None:
    """The adapter that all texts are made with; raises `typer.BadParameter` for several."""
    if given is not None and len(given) > 1:
        raise wrong_usage(f"--lora is given {len(given)} times: all of the text is made with one adapter; name one")
    return next(iter(adapters_of(given)), None)


def _form(regex: str | None, json_schema: Path | None) -> StructuredOutput | None:
    from tilewright.llm import StructuredOutput

    if regex is None and json_schema is None:
        return None
    try:
        schema = None if json_schema is None else json_schema.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{json_schema}: cannot be read ({error})") from error
    return StructuredOutput(json=schema, regex=regex)


def _parameters(
    max_tokens: int, temperature: float, top_k: int, top_p: float, min_p: float, repetition_penalty: float,
    seed: int | None, stop: list[str] | None,
) -> SamplingParameters:  # fmt: skip
    from tilewright.llm import SamplingParameters

    return SamplingParameters(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, repetition_penalty=repetition_penalty,
        seed=seed, stop=stop or (), max_tokens=max_tokens,
    )  # fmt: skip


def _show(outputs: Iterator[Output]) -> Output:
    """Print a text while it grows; control characters that a terminal would obey are shown."""
    shown = 0
    for output in outputs:
        text = output.completions[0].text
        piece, shown = text[shown:], len(text)
        print(printable(piece), end="", flush=True)
    print()
    return output


def _summary(output: Output, seconds: float) -> None:
    count = len(output.completions[0].tokens)
    text = f"{len(output.prompt_tokens)} + {count} tokens in {seconds:.2f} s, {count / seconds:.1f} a second"
    terminal(stderr=True).print(Text(f"{text}; ended by: {output.completions[0].finish_reason}", "dim"))
