"""The door: a checkpoint folder with a tokenizer, texts and chats, in Python and on the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from tests.host.cli_support import tilewright
from tests.host.llm_reference import Reference
from tests.host.llm_support import checkpoint_of, text_checkpoint
from tilewright.errors import ImportModelError, InputError
from tilewright.llm import LLM, SamplingParameters
from tilewright.llm.step_graph import CACHE_FORMATS
from tilewright.llm.text import StopTexts, TextStream
from tilewright.llm.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("quick_engines")

GREEDY = SamplingParameters(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return text_checkpoint(tmp_path_factory.mktemp("llm") / "bytes")


@pytest.fixture(scope="module")
def model(folder):
    return LLM(folder, tokens=24, sequences=3, page=8, memory=1 << 19)


def reference_tokens(folder, prompt, count):
    """The most probable tokens by NumPy, and how far the second is at least."""
    reference = Reference(json.loads((folder / "config.json").read_text()))
    tokens, margin = list(prompt), np.inf
    for _ in range(count):
        last = reference.logits(tokens)[-1]
        second, first = np.sort(last)[-2:]
        margin = min(margin, first - second)
        tokens.append(int(np.argmax(last)))
    return tokens[len(prompt) :], margin


def test_greedy_texts_are_those_of_the_reference(model, folder, rng):
    prompts = ["Once upon a time", "x", "été " * 9, "1 2 3 4 5 6 7 8 9 10 11"]
    outputs = model.generate_all(prompts, GREEDY)
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens, margin = reference_tokens(folder, model.tokens(prompt), 12)
        assert margin < 1e-4 or output.completions[0].tokens == tokens  # unless rounding may decide
        assert output.completions[0].text == model.text_tokenizer.decode(output.completions[0].tokens)
    assert model.engine.statistics.used_pages == 0


def test_together_alone_and_streamed_are_the_same(model):
    wanted = SamplingParameters(seed=5, max_tokens=15, n=2, logprobs=2, top_p=0.9)
    together = model.generate_all(["a few words", "others", "a few more"], wanted)
    alone = model.generate("others", wanted)
    assert [one.tokens for one in alone.completions] == [one.tokens for one in together[1].completions]
    texts = [[one.text for one in output.completions] for output in model.stream("others", wanted)]
    assert texts[-1] == [one.text for one in alone.completions]
    assert all(later[0].startswith(sooner[0]) for sooner, later in zip(texts, texts[1:], strict=False))
    assert len(alone.completions[0].logprobs) == 15 and len(alone.completions[0].logprobs[0].top) == 2


def test_a_stream_that_is_closed_gives_its_memory_back(model):
    stream = model.stream("words", SamplingParameters(max_tokens=50))
    next(stream)
    stream.close()
    assert not model.engine.has_work and model.engine.statistics.used_pages == 0


def test_a_stop_text_is_no_part_of_the_result(model):
    plain = model.generate("Once upon a time", GREEDY).completions[0]
    stop = plain.text[5:7]
    stopped = model.generate("Once upon a time", SamplingParameters(temperature=0.0, max_tokens=12, stop=[stop]))
    assert stopped.completions[0].text == plain.text[: plain.text.index(stop)]
    assert stopped.completions[0].finish_reason == "stop"


def test_chats_are_prompts_by_the_template(model):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    prompt = model.text_tokenizer.render(messages)
    assert prompt == "<|system|>Be brief.</s><|user|>Hi</s><|assistant|>"
    output = model.chat(messages, GREEDY)
    assert output.prompt_tokens == model.text_tokenizer.encode(prompt, special=False)
    assert output.prompt_tokens[0] == 258 and len(output.completions[0].tokens) == 12


@pytest.mark.parametrize(
    ("messages", "message"),
    [([], "at least one"), ([{"content": "x"}], "role"), ([{"role": "user", "content": 5}], "content"),
     ([{"role": "user", "content": [{"type": "image_url"}]}], "texts"), (["text"], "role")],
)  # fmt: skip
def test_messages_that_are_refused(model, messages, message):
    with pytest.raises(InputError, match=message):
        model.chat(messages)


@pytest.mark.parametrize(
    ("template", "error", "message"),
    [
        (None, ImportModelError, "no chat template"),
        ("{% for x in %}", ImportModelError, "is wrong"),
        ("{{ raise_exception('roles must take turns') }}", InputError, "roles must take turns"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", InputError, "unsafe"),
        ("{{ messages.append(1) }}", InputError, "unsafe|not safely|refuses"),
        ("{% for i in range(10000000) %}x{% endfor %}", ImportModelError, "failed"),
        ("{{ messages[0].content / 2 }}", ImportModelError, "failed"),
    ],
)
def test_templates_run_in_a_sandbox(tmp_path, folder, template, error, message):
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    settings = {} if template is None else {"chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(error, match=message):
        Tokenizer(tmp_path).render([{"role": "user", "content": "x"}])


def test_a_folder_without_a_tokenizer_takes_tokens(tmp_path):
    model = LLM(checkpoint_of("gpt2", tmp_path), memory=1 << 22)
    assert len(model.generate([1, 2, 3], GREEDY).completions[0].tokens) == 12
    with pytest.raises(ImportModelError, match=r"tokenizer\.json"):
        model.generate("text")


def test_memory_and_lengths_are_checked(folder):
    with pytest.raises(InputError, match="memory"):
        LLM(folder, length=128, memory=4096)
    with pytest.raises(InputError, match="length"):
        LLM(folder, length=0)
    with pytest.raises(InputError, match="tokens"):
        LLM(folder, tokens=0)
    small = LLM(folder, memory=2 * 2 * 24 * 4 * 16 * 3)  # three pages of 16 tokens
    assert small.engine.scheduler.longest == 48
    with pytest.raises(InputError, match="at most 48"):
        small.generate([1] * 48)


class Bytes:
    """Tokens are bytes of UTF-8."""

    def decode(self, tokens):
        return bytes(tokens).decode(errors="replace")


def test_texts_grow_by_whole_characters(rng):
    for text in ("plain", "naïve é", "日本語", "👩‍👩‍👧 family", "\ufffd"):
        stream, grown = TextStream(Bytes()), ""
        for byte in text.encode():
            grown += stream.push(byte)
            assert text.startswith(grown)
        assert grown + stream.rest() == text
    stream = TextStream(Bytes())
    assert stream.push(0xE6) == "" and stream.rest() == "\ufffd"


@pytest.mark.parametrize("token", [0xFF, 300])  # no character, and none at all
def test_tokens_without_text_are_not_decoded_again_and_again(token):
    lengths = []

    class Counted(Bytes):
        def decode(self, tokens):
            lengths.append(len(tokens))
            return super().decode([token for token in tokens if token < 256])

    stream = TextStream(Counted())
    grown = "".join(stream.push(one) for one in [*b"a ", *[token] * 500, *b"b"]) + stream.rest()
    assert max(lengths) < 40
    assert grown == ("a b" if token == 300 else f"a {chr(0xFFFD) * 500}b")


def test_stop_texts_are_found_wherever_they_are_cut(rng):
    for _ in range(200):
        text = "".join(rng.choice(list("ab"), 30))
        stops = ["".join(rng.choice(list("ab"), rng.integers(1, 6))) for _ in range(rng.integers(0, 4))]
        found = StopTexts(stops)
        stopped, at = False, 0
        while at < len(text) and not stopped:
            size = int(rng.integers(1, 5))
            stopped = found.push(text[at : at + size])
            at += size
        ends = [text[:at].find(stop) for stop in stops if stop in text[:at]]
        if not stopped:
            found.finish()
        assert stopped == bool(ends)
        assert found.text == (text[: min(ends)] if ends else text)


def test_the_command_line(folder, monkeypatch):
    """Once in a process of its own, then in this one."""

    def run(*arguments, text=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return tilewright(*arguments)

    options = ("--max-tokens", "6", "--seed", "3", "--memory", "1")
    command = [sys.executable, "-m", "tilewright", "generate", str(folder), "-", *options]
    first = subprocess.run(command, input="Once", capture_output=True, text=True, timeout=300)
    again = run("generate", str(folder), "Once", *options)
    assert first.returncode == 0 and first.stdout == again.stdout and "tokens" in first.stderr
    assert run("generate", str(folder), "-", *options, text="Once").stdout == first.stdout
    chat = run("chat", str(folder), "--max-tokens", "4", "--memory", "1", text="Hello\nAnd you?\n")
    assert chat.returncode == 0 and chat.stdout
    missing = run("generate", str(folder / "nothing"), "Once")
    assert missing.returncode == 1 and "no such folder" in missing.stderr and "Traceback" not in missing.stderr
    assert "not downloaded: hf download Org/Model" in run("generate", "Org/Model", "Once").stderr


ODD = [
    None,
    "x",
    -1,
    10**30,
    float("nan"),
    float("inf"),
    True,
    [],
    {},
    (1, 2),
    [None],
    ["a", ""],
    {1: float("nan")},
    b"x",
]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(SamplingParameters)])
def test_parameters_of_other_types_are_refused_or_work(model, field):
    for value in ODD:
        with contextlib.suppress(InputError):
            model.generate([1, 2], SamplingParameters(**{"max_tokens": 2, field: value}))
    assert model.engine.statistics.used_pages == 0


@pytest.mark.parametrize("field", ["prompt", "messages", "seconds", "adapter"])
def test_arguments_of_other_types_are_refused_or_work(model, field):
    short = SamplingParameters(max_tokens=2)
    for value in ODD:
        with contextlib.suppress(InputError, ImportModelError):
            if field == "messages":
                model.chat(value, short)
            else:
                model.generate(**{"prompt": [1, 2], "parameters": short, field: value})
    with pytest.raises(InputError, match="expected a number"):
        model.generate([1], short, seconds=float("nan"))  # which would be no bound
    with pytest.raises(InputError, match="not bytes"):
        model.generate(b"x", short)


@pytest.mark.parametrize("field", ["dtype", "weights", "target", "adapters", "tokens", "draft"])
def test_settings_of_other_types_are_refused(folder, field):
    for value in ([1], {1: 2}, -1, b"x", (1, 2), float("nan")):
        with pytest.raises((InputError, ImportModelError)):
            LLM(folder, **{"memory": 1 << 19, field: value})


def test_keys_and_values_in_8_bits_take_less_memory(tmp_path) -> None:
    """The same memory has room for more tokens, and texts are made as ever."""
    folder = checkpoint_of("llama", tmp_path)
    models = {
        kind: LLM(folder, dtype="float32", kv_cache_dtype=kind, memory=1 << 16, length=32) for kind in CACHE_FORMATS
    }
    pages = {kind: model.model.pages for kind, model in models.items()}
    assert pages["fp8"] >= 4 * pages["auto"] and 2 * pages["auto"] < pages["int8"] < pages["fp8"]
    wanted = SamplingParameters(max_tokens=5, temperature=0.0, ignore_eos=True)
    assert all(len(model.generate([1, 2, 3], wanted).completions[0].tokens) == 5 for model in models.values())
