"""The benchmarks of language models: their keys, and their definitions on timings whose results are known."""

from __future__ import annotations

import asyncio
import io
import json

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from typer.testing import CliRunner

from tests.host.cli_support import tilewright
from tests.host.llm_support import served, text_checkpoint
from tilewright.cli.bench_llm import commands
from tilewright.errors import InputError
from tilewright.llm import load
from tilewright.llm.asynchronous import AsyncLLM
from tilewright.llm.serve.application import Application


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return text_checkpoint(tmp_path_factory.mktemp("bench") / "bytes")


def test_metrics_are_their_definitions():
    timings = [
        load.RequestTiming(10, 5, start=0.0, ttft=0.1, gaps=[0.1] * 4, latency=0.5),
        load.RequestTiming(20, 1, start=0.2, ttft=0.3, latency=0.3),
        load.RequestTiming(5, error="status 429"),
    ]
    found = load.summary(timings, 2.0, [50], {"ttft": 200.0})
    assert (found["completed"], found["failed"], found["max_concurrent_requests"]) == (2, 1, 2)
    assert found["output_throughput"] == 3.0 and found["total_token_throughput"] == 18.0
    assert found["request_throughput"] == 1.0 and found["request_goodput"] == 0.5
    assert found["mean_ttft_ms"] == pytest.approx(200) and found["p50_tpot_ms"] == pytest.approx(100)
    assert found["median_itl_ms"] == pytest.approx(100) and found["mean_e2el_ms"] == pytest.approx(400)


def test_arrivals_and_prompts():
    times = np.diff(load.arrivals(20_000, 50.0, 1.0, 3))
    assert times.mean() == pytest.approx(0.02, rel=0.05) and times.std() == pytest.approx(0.02, rel=0.05)
    assert np.diff(load.arrivals(20_000, 50.0, 4.0, 3)).std() == pytest.approx(0.01, rel=0.05)
    assert load.arrivals(3, float("inf"), 1.0, 0) == [0.0] * 3
    prompts = load.random_prompts(50, 20, 0.5, 100, 1, shared=7)
    assert len({tuple(prompt[:7]) for prompt in prompts}) == 1
    assert {len(prompt) for prompt in prompts} <= set(range(17, 38)) and max(map(max, prompts)) < 100


def test_latency_and_throughput(folder, tmp_path):
    file = tmp_path / "out.json"
    options = ("--input-len", "9", "--output-len", "5", "--memory", "1", "--output-json", str(file))
    done = tilewright("bench", "llm", "latency", str(folder), "--batch-size", "2", "--num-iters", "2", *options)
    found = json.loads(file.read_text())
    assert done.returncode == 0 and len(found["latencies"]) == 2 and found["percentiles"]["50"] == found["avg_latency"]
    assert 0 < found["median_ttft_ms"] < found["avg_latency"] * 1e3
    done = tilewright("bench", "llm", "throughput", str(folder), "--num-prompts", "3", *options)
    found = json.loads(file.read_text())
    assert done.returncode == 0 and found["total_input_tokens"] == 27 and found["total_output_tokens"] == 15


def test_a_server_under_load(folder, tmp_path):
    pytest.importorskip("uvicorn")
    llm = AsyncLLM(folder, memory=1 << 20)
    with served(Application(llm, "bytes")) as address:
        file = tmp_path / "out.json"
        done = tilewright(
            "bench", "llm", "serve", "--base-url", address, "--num-prompts", "6", "--input-len", "8",
            "--output-len", "4", "--request-rate", "200", "--goodput", "ttft:60000", "--save-detailed",
            "--output-json", str(file),
        )  # fmt: skip
        found = json.loads(file.read_text())
        assert done.returncode == 0 and found["completed"] == 6 and found["failed"] == 0
        assert found["total_output_tokens"] == 24 and found["request_goodput"] == found["request_throughput"]
        assert found["output_lens"] == [4] * 6 and all(found["ttfts"])
        timings, _ = asyncio.run(load.run(address, "other", [[1]], 3, [0.0]))
        assert "404" in timings[0].error
    llm.close()
    timings, _ = asyncio.run(load.run(address, None, [[1]], 3, [0.0]))
    assert timings[0].error


def test_odd_answers_are_errors_of_their_request():
    """Events that are no objects, errors that are texts, usage without numbers, no token at all."""
    events = [b"5", b'{"error": "busy"}', b'{"usage": {"tokens": 1}}', b"[DONE]"]
    left = iter(events)

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\ndata: " + next(left) + b"\n\n")
        writer.close()

    async def both():
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await load.run(f"http://127.0.0.1:{port}", None, [[1]] * 4, 3, [0.0] * 4, concurrency=1)

    timings, _ = asyncio.run(both())
    assert all(one.error for one in timings) and load.summary(timings, 1.0)["completed"] == 0
    with pytest.raises(InputError, match="no address"):
        asyncio.run(load.run("http://127.0.0.1:99999", None, [[1]], 3, [0.0]))


@pytest.mark.parametrize("options", [["--metric-percentiles", "50,101"], ["--metric-percentiles", "nan"],
                                     ["--save-detailed"], ["--output-json", "no/such/folder/a.json"]])  # fmt: skip
def test_options_are_checked_before_the_run(options):
    failed = CliRunner().invoke(commands, ["llm", "serve", "--num-prompts", "1", *options])
    assert failed.exit_code == 2 and options[0] in failed.output and "No such" not in failed.output, failed.output


def test_wrong_usage(folder):
    with pytest.raises(InputError):
        asyncio.run(load.run("https://127.0.0.1", None, [[1]], 3, [0.0]))
    assert tilewright("bench", "llm", "serve", "--goodput", "speed:5").returncode == 2
    assert tilewright("bench", "llm").returncode in (0, 2)


def test_a_server_that_answers_nothing_has_no_times():
    result = CliRunner().invoke(commands, ["llm", "serve", "--base-url", "http://127.0.0.1:1", "--num-prompts", "2"])
    assert isinstance(result.exception, InputError) and "none of 2 requests was answered" in str(result.exception)
    assert "ttft" not in result.output


@pytest.mark.parametrize("command", ["latency", "throughput"])
def test_results_that_would_end_early_are_not_timed(folder, command):
    lengths = ["--input-len", "30", "--output-len", "35", "--length", "64"]
    result = CliRunner().invoke(commands, ["llm", command, str(folder), *lengths])
    assert isinstance(result.exception, InputError) and "64 together" in str(result.exception), result.exception


def test_a_chat_that_fills_the_model_says_so(folder, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    full = tilewright("chat", str(folder), "--length", "64", "--system", "a" * 80)
    assert full.returncode == 1 and "of 64 that fit with an answer; begin another" in full.stderr, full.stderr
