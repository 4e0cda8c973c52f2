"""`tilewright bench llm`: latency and throughput of a language model in this process, and of a server under load."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.table import Table

from tilewright.cli.build import check_written
from tilewright.cli.console import terminal, wrong_usage
from tilewright.cli.llm_options import ModelOptions, PathArgument, with_records
from tilewright.errors import InputError
from tilewright.runtime.safe_files import replacing

if TYPE_CHECKING:
    from tilewright.llm import LLM

commands = typer.Typer(name="bench", help="Time language models.", no_args_is_help=True)
_llm = typer.Typer(name="llm", help="Time a language model.", no_args_is_help=True)
commands.add_typer(_llm)

InputOption = Annotated[int, typer.Option("--input-len", min=1, help="Tokens in a prompt.")]
OutputOption = Annotated[int, typer.Option("--output-len", min=1, help="Tokens in a result.")]
PromptsOption = Annotated[int, typer.Option("--num-prompts", min=1, help="Number of requests.")]
SpreadOption = Annotated[
    float, typer.Option("--range-ratio", min=0, max=1, help="Prompt lengths vary by up to this fraction.")
]
PrefixOption = Annotated[int, typer.Option("--prefix-len", min=0, help="Tokens that all prompts begin with.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of the random prompts.")]
JsonOption = Annotated[Path | None, typer.Option("--output-json", help="Write the results to this file.")]
PERCENTILES = (10, 25, 50, 75, 90, 99)


@_llm.command()
@with_records
def latency(
    path: PathArgument,
    *,
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts that run together.")] = 8,
    input_len: InputOption = 32,
    output_len: OutputOption = 128,
    num_iters_warmup: Annotated[int, typer.Option(min=0, help="Warm-up runs, not counted.")] = 2,
    num_iters: Annotated[int, typer.Option(min=1, help="Runs to time.")] = 5,
    seed: SeedOption = 0,
    output_json: JsonOption = None,
    options: ModelOptions,
) -> None:
    """Time one batch of random prompts from its start to its last token."""
    _check_file(output_json)
    model = options.open(path)
    times, firsts = [], []
    for number in range(num_iters_warmup + num_iters):
        prompts = _prompts(model, batch_size, input_len, 0.0, seed + number, 0)
        first, whole, _ = _batch(model, prompts, output_len)
        if number >= num_iters_warmup:
            times.append(whole)
            firsts.append(first)
    each = (np.array(times) - np.array(firsts)) / max(1, output_len - 1)
    _report(
        {
            "batch_size": batch_size, "input_len": input_len, "output_len": output_len,
            "avg_latency": float(np.mean(times)), "latencies": times,
            "percentiles": {str(one): float(np.percentile(times, one)) for one in PERCENTILES},
            "median_ttft_ms": float(np.median(firsts) * 1e3), "median_tpot_ms": float(np.median(each) * 1e3),
        }, output_json,
    )  # fmt: skip


@_llm.command()
@with_records
def throughput(
    path: PathArgument,
    *,
    num_prompts: PromptsOption = 64,
    input_len: InputOption = 128,
    output_len: OutputOption = 128,
    range_ratio: SpreadOption = 0.0,
    prefix_len: PrefixOption = 0,
    seed: SeedOption = 0,
    output_json: JsonOption = None,
    options: ModelOptions,
) -> None:
    """Time many random prompts, all submitted at the start."""
    _check_file(output_json)
    model = options.open(path)
    _batch(model, _prompts(model, 2, input_len, 0.0, seed + 1, 0), 2)  # warm
    prompts = _prompts(model, num_prompts, input_len, range_ratio, seed, prefix_len)
    _, seconds, outputs = _batch(model, prompts, output_len)
    inputs, generated = sum(map(len, prompts)), sum(len(one.completions[0].tokens) for one in outputs)
    _report(
        {
            "elapsed_time": seconds, "num_requests": num_prompts, "total_num_tokens": inputs + generated,
            "total_input_tokens": inputs, "total_output_tokens": generated,
            "requests_per_second": num_prompts / seconds, "tokens_per_second": (inputs + generated) / seconds,
            "output_tokens_per_second": generated / seconds,
            "cached_tokens": sum(output.cached_tokens for output in outputs),
            "spec_decode_num_draft_tokens": sum(output.drafted_tokens for output in outputs),
            "spec_decode_num_accepted_tokens": sum(output.accepted_tokens for output in outputs),
        }, output_json,
    )  # fmt: skip


@_llm.command()
def serve(
    base_url: Annotated[str, typer.Option(help="Address of the server.")] = "http://127.0.0.1:8000",
    model: Annotated[str | None, typer.Option(help="Name of the model, if the server needs one.")] = None,
    num_prompts: PromptsOption = 100,
    input_len: InputOption = 128,
    output_len: OutputOption = 128,
    range_ratio: SpreadOption = 0.0,
    prefix_len: PrefixOption = 0,
    vocabulary: Annotated[int, typer.Option(min=1, help="Prompts use token ids below this number.")] = 250,
    request_rate: Annotated[float, typer.Option(min=0.001, help="Requests per second; inf sends all at once.")] = (
        float("inf")
    ),
    burstiness: Annotated[
        float, typer.Option(min=0.01, help="1: Poisson arrivals; below 1: requests come in bursts.")
    ] = 1.0,
    max_concurrency: Annotated[int | None, typer.Option(min=1, help="Most requests in flight.")] = None,
    goodput: Annotated[
        list[str] | None,
        typer.Option(help="A bound in ms, such as ttft:500, tpot:50 or e2el:9000. May be repeated."),
    ] = None,
    metric_percentiles: Annotated[str, typer.Option(help="Percentiles to print, separated by commas.")] = "50,90,99",
    temperature: Annotated[float, typer.Option(min=0, help="Temperature of the requests.")] = 0.0,
    key_file: Annotated[Path | None, typer.Option(help="A file whose first line is a key.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Most seconds for a request.")] = 600.0,
    save_detailed: Annotated[
        bool, typer.Option("--save-detailed", help="Write the numbers of each request to the file.")
    ] = False,
    seed: SeedOption = 0,
    output_json: JsonOption = None,
) -> None:
    """Send random prompts to an OpenAI-compatible completions server, and time its answers."""
    from tilewright.llm import load

    bounds, percentiles = _bounds(goodput or []), _percentiles(metric_percentiles)
    if save_detailed and output_json is None:
        raise wrong_usage("--save-detailed needs --output-json, the file for the numbers")
    _check_file(output_json)
    key = None if key_file is None else key_file.read_text(encoding="utf-8").split("\n", 1)[0].strip()
    prompts = load.random_prompts(num_prompts, input_len, range_ratio, vocabulary, seed, prefix_len)
    starts = load.arrivals(num_prompts, request_rate, burstiness, seed)
    timings, seconds = asyncio.run(
        load.run(base_url, model, prompts, output_len, starts, concurrency=max_concurrency, key=key,
                 sampling={"temperature": temperature}, timeout=timeout)
    )  # fmt: skip
    found = load.summary(timings, seconds, percentiles, bounds)
    errors = sorted({one.error for one in timings if one.error is not None})
    _report(found, output_json, load.details(timings) if save_detailed else {}, found["completed"] > 0)
    for why in errors[:5]:
        terminal(stderr=True).print(f"requests failed: {why}", markup=False, highlight=False)
    if found["completed"] == 0:
        raise InputError(f"{base_url}: none of {len(timings)} requests was answered, so that nothing was timed")


def _prompts(model: LLM, count: int, length: int, spread: float, seed: int, shared: int) -> list[list[int]]:
    from tilewright.llm import load

    return load.random_prompts(count, length, spread, model.description.vocabulary, seed, shared)


def _batch(model: LLM, prompts: Sequence[Sequence[int]], most: int) -> tuple[float, float, list[Any]]:
    """Seconds until each prompt has a token, seconds of the whole, and the outputs."""
    from tilewright.llm import SamplingParameters

    longest, takes = max(map(len, prompts)), model.engine.scheduler.longest
    if longest + most > takes:  # results would end early, and their times stand for others
        raise InputError(
            f"a prompt of {longest} tokens and a result of {most} do not fit: the model takes {takes} together; "
            "choose a smaller --input-len, --prefix-len or --output-len"
        )
    wanted = SamplingParameters(temperature=0.0, max_tokens=most, ignore_eos=True)
    began, engine = time.perf_counter(), model.engine
    names = [engine.add(prompt, wanted) for prompt in prompts]
    started: set[str] = set()
    first = 0.0
    done: dict[str, Any] = {}
    while len(done) < len(names):
        for output in engine.step():
            started.add(output.request)
            if output.error is not None:
                raise InputError(f"a request ended with an error, so that nothing was timed: {output.error}")
            if output.is_finished:
                done[output.request] = output
        if not first and len(started) == len(names):
            first = time.perf_counter() - began
    return first, time.perf_counter() - began, [done[name] for name in names]


def _bounds(given: Sequence[str]) -> dict[str, float]:
    bounds = {}
    for one in given:
        name, _, value = one.partition(":")
        try:
            bounds[name] = float(value)
        except ValueError:
            name = ""
        if name not in ("ttft", "tpot", "e2el"):
            raise wrong_usage(f"--goodput {one}: expected ttft, tpot or e2el with milliseconds, such as ttft:500")
    return bounds


def _percentiles(text: str) -> list[float]:
    try:
        found = [float(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 <= one <= 100 for one in found):
        raise wrong_usage(f"--metric-percentiles {text}: expected numbers from 0 to 100, with commas")
    return found


def _check_file(path: Path | None) -> None:
    """Refuse, before the run, a file that could not be written after it."""
    if path is not None:
        check_written("--output-json", path)


def _report(
    found: dict[str, Any], path: Path | None, more: dict[str, Any] | None = None, is_shown: bool = True
) -> None:  # fmt: skip
    """A table, where it is to be shown, and the file."""
    table = Table(show_header=False, box=None)
    for name, value in found.items():
        if isinstance(value, (int, float)):
            table.add_row(name, f"{value:,.3f}" if isinstance(value, float) else f"{value:,}")
    if is_shown:
        terminal().print(table)
    if path is not None:
        try:
            with replacing(path) as file:
                file.write(json.dumps({**found, **(more or {})}, indent=1).encode() + b"\n")
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}") from error
