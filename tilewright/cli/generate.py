"""`tilewright generate` and `tilewright chat`: text from a language model in a checkpoint folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tilewright.cli.console import terminal, wrong_usage
from tilewright.cli.llm_options import (
    LoraOption,
    ModelOptions,
    PathArgument,
    SamplingOptions,
    StopOption,
    adapters_of,
    with_records,
)
from tilewright.errors import InputError, printable

if TYPE_CHECKING:
    from tilewright.llm import Output, StructuredOutput

TokensOption = Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens to generate.")]


@with_records
def generate(
    path: PathArgument,
    prompt: Annotated[str, typer.Argument(help="The start of the text; - reads standard input.")],
    *,
    max_tokens: TokensOption = 128,
    sampling: SamplingOptions,
    stop: StopOption = None,
    regex: Annotated[str | None, typer.Option(help="Generate text that matches this whole pattern.")] = None,
    json_schema: Annotated[
        Path | None, typer.Option(help="Generate JSON that follows the schema in this file.")
    ] = None,
    options: ModelOptions,
    lora: LoraOption = None,
) -> None:
    """Continue a text with a language model, token by token."""
    adapter = _only(lora)
    form = _form(regex, json_schema)
    model = options.open(path, lora)
    wanted = sampling.parameters(max_tokens=max_tokens, stop=stop or (), structured_output=form)
    text = sys.stdin.read() if prompt == "-" else prompt
    started = time.perf_counter()
    output = _show(model.stream(text, wanted, adapter=adapter))
    _summary(output, time.perf_counter() - started)


@with_records
def chat(
    path: PathArgument,
    *,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: TokensOption = 512,
    sampling: SamplingOptions,
    options: ModelOptions,
    lora: LoraOption = None,
) -> None:
    """Chat with a language model: each line is a message; an empty line or the end of the input ends the chat."""
    adapter = _only(lora)
    model = options.open(path, lora)
    wanted = sampling.parameters(max_tokens=max_tokens)
    messages = [] if system is None else [{"role": "system", "content": system}]
    model.text_tokenizer.check_chats()
    for line in _lines():
        messages.append({"role": "user", "content": line})
        tokens, longest = model.text_tokenizer.chat(messages), model.engine.scheduler.longest
        if len(tokens) >= longest:
            raise InputError(f"the chat has {len(tokens)} tokens, of {longest} that fit with an answer; begin another")
        output = _show(model.stream(tokens, wanted, adapter=adapter))
        messages.append({"role": "assistant", "content": output.completions[0].text})


def _lines() -> Iterator[str]:
    while True:
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        line = sys.stdin.readline().strip()
        if not line:
            return
        yield line


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


def _show(outputs: Iterator[Output]) -> Output:
    """Print a text while it grows; control characters that a terminal would obey are shown."""
    printed = 0
    for output in outputs:
        text = output.completions[0].text
        piece, printed = text[printed:], len(text)
        print(printable(piece), end="", flush=True)
    print()
    return output


def _summary(output: Output, seconds: float) -> None:
    count = len(output.completions[0].tokens)
    text = f"{len(output.prompt_tokens)} + {count} tokens in {seconds:.2f} s, {count / seconds:.1f} a second"
    terminal(stderr=True).print(Text(f"{text}; ended by: {output.completions[0].finish_reason}", "dim"))
