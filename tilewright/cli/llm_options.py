"""Options shared by the commands for language models, each described once, in records."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tilewright.cli.console import wrong_usage
from tilewright.settings import MOST_THREADS, settings

if TYPE_CHECKING:
    from tilewright.llm import LLM, SamplingParameters

PathArgument = Annotated[
    Path,
    typer.Argument(metavar="PATH", help="A folder with config.json, safetensors and tokenizer.json, or a GGUF file."),
]
LoraOption = Annotated[
    list[str] | None, typer.Option(help="NAME=PATH of a LoRA adapter; may be repeated with `serve`.")
]
StopOption = Annotated[list[str] | None, typer.Option(help="End the result before this text.")]


@dataclass(frozen=True)
class ModelOptions:
    """How a model is opened."""

    target: Annotated[str, typer.Option(help="cpu, or cuda for an NVIDIA GPU.")] = "cpu"
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto"
    weights: Annotated[
        str, typer.Option(help="Storage of linear layers: auto (as in the checkpoint), int8 or int4.")
    ] = "auto"
    kv_cache_dtype: Annotated[
        str, typer.Option(help="Storage of keys and values: auto (as computed), fp8 or int8.")
    ] = "auto"
    length: Annotated[int | None, typer.Option(min=1, help="Most tokens in a sequence.")] = None
    memory: Annotated[int, typer.Option(min=1, help="MiB for the KV cache.")] = 1024
    speculate: Annotated[
        int, typer.Option(min=0, max=16, help="Check up to this many guessed tokens per step, where that is faster.")
    ] = 0
    draft: Annotated[
        Path | None, typer.Option(help="A smaller model with the same tokenizer that guesses tokens.")
    ] = None  # fmt: skip
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Give the same bits whatever else runs; computes each sequence alone."),
    ] = False
    threads: Annotated[int | None, typer.Option(min=1, max=MOST_THREADS, help="CPU threads.")] = None

    def arguments(self, lora: list[str] | None = None) -> dict[str, Any]:
        """What `LLM` takes; sets the number of threads."""
        if self.threads is not None:
            settings.threads = self.threads
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "threads"}
        return {**found, "memory": self.memory << 20, "adapters": adapters_of(lora)}

    def open(self, path: Path, lora: list[str] | None = None) -> LLM:
        """The model of a folder."""
        from tilewright.llm import LLM

        return LLM(path, **self.arguments(lora))


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen."""

    temperature: Annotated[float, typer.Option(min=0, max=100, help="0 chooses the most probable token.")] = 0.8
    top_k: Annotated[int, typer.Option(min=0, help="Choose among this many tokens; 0: all.")] = 0
    top_p: Annotated[float, typer.Option(help="Choose among the fewest tokens with this total probability.")] = 1.0
    min_p: Annotated[
        float, typer.Option(help="Exclude tokens below this fraction of the highest probability.")
    ] = 0.05  # fmt: skip
    repetition_penalty: Annotated[
        float, typer.Option(help="Above 1: tokens that occurred before become less probable.")
    ] = 1.0  # fmt: skip
    seed: Annotated[int | None, typer.Option(min=0, help="Seed; repeats the same tokens.")] = None

    def parameters(self, **more: Any) -> SamplingParameters:
        """What a request takes."""
        from tilewright.llm import SamplingParameters

        return SamplingParameters(**dataclasses.asdict(self), **more)


def with_records(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters that are records are options, one for each field."""
    parameters: list[inspect.Parameter] = []
    records: dict[str, Any] = {}  # classes, by the names of parameters
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if not dataclasses.is_dataclass(kind):
            parameters.append(parameter)
            continue
        records[parameter.name] = kind
        hints = typing.get_type_hints(kind, include_extras=True)
        parameters += [
            parameter.replace(name=field.name, default=field.default, annotation=hints[field.name])
            for field in dataclasses.fields(kind)
        ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in records.items()
        }
        command(**given, **made)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def adapters_of(given: list[str] | None) -> dict[str, Path]:
    """The adapters of --lora, by name."""
    found = {}
    for one in given or []:
        name, _, path = one.partition("=")
        if not name or not path:
            raise wrong_usage(f"--lora {one}: expected NAME=PATH")
        found[name] = Path(path)
    return found
