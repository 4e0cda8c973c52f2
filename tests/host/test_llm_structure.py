"""Structured output: whatever a model's weights are, its text is of the form that was asked for."""

from __future__ import annotations

import contextlib
import json
import random
import re
import time

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("llguidance")

from tests.host.llm_support import text_checkpoint
from tilewright.errors import InputError
from tilewright.llm import LLM, SamplingParameters, StructuredOutput

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return LLM(
        text_checkpoint(tmp_path_factory.mktemp("structure") / "bytes", max_position_embeddings=1024),
        memory=8 << 20,
        sequences=16,
    )


def texts(llm, count=8, **form):
    wanted = [
        SamplingParameters(structured_output=StructuredOutput(**form), seed=seed, max_tokens=400,
                           temperature=seed % 3 * 0.7, top_k=seed % 2 * 5, min_tokens=seed % 4)
        for seed in range(count)
    ]  # fmt: skip
    done = [output.completions[0] for output in llm.generate_all(["Give me: "] * count, wanted)]
    assert all(one.finish_reason == "stop" for one in done)
    return [one.text for one in done]


def is_of_schema(value):
    return (
        isinstance(value, dict) and set(value) == {"name", "age", "tags"}
        and isinstance(value["name"], str) and len(value["name"]) <= 8
        and type(value["age"]) is int and 0 <= value["age"] <= 150
        and len(value["tags"]) <= 2 and set(value["tags"]) <= {"red", "green"}
    )  # fmt: skip


def test_json_of_a_schema(llm):
    assert all(is_of_schema(json.loads(text)) for text in texts(llm, 24, json=SCHEMA))


def drawn_schema(rng, depth=0):
    """(schema, whether a value is of it)"""
    kind = rng.choice(["integer", "boolean", "null", "enum", "string", "array", "object"][: 5 if depth > 1 else 7])
    if kind == "enum":
        values = [rng.choice([1, "a", "b c", None, True, 2.5, "é"]) for _ in range(3)]
        return {"enum": values}, lambda value: any(value == one and type(value) is type(one) for one in values)
    if kind == "integer":
        low, high = sorted(rng.sample(range(-50, 200), 2))
        within = {"type": "integer", "minimum": low, "maximum": high}
        return within, lambda value: type(value) is int and low <= value <= high
    if kind == "string":
        return {
            "type": "string",
            "pattern": "^[a-c]{1,4}$",
        }, lambda value: re.fullmatch("[a-c]{1,4}", value) is not None
    if kind == "array":
        item, check = drawn_schema(rng, depth + 1)
        return {"type": "array", "items": item, "minItems": 1, "maxItems": 3}, (
            lambda value: isinstance(value, list) and 1 <= len(value) <= 3 and all(map(check, value))
        )
    if kind == "object":
        parts = {name: drawn_schema(rng, depth + 1) for name in rng.sample(["a", "b", "key", "ü"], rng.randint(1, 3))}
        schema = {"type": "object", "properties": {name: part[0] for name, part in parts.items()},
                  "required": list(parts), "additionalProperties": False}  # fmt: skip
        return schema, lambda value: set(value) == set(parts) and all(parts[name][1](value[name]) for name in parts)
    types = {"boolean": bool, "null": type(None)}
    return {"type": kind}, lambda value: isinstance(value, types[kind])


@pytest.mark.parametrize("seed", range(12))
def test_schemas_nobody_wrote_down(llm, seed):
    schema, check = drawn_schema(random.Random(seed))
    for text in texts(llm, 4, json=json.dumps(schema) if seed % 2 else schema):
        assert check(json.loads(text)), (schema, text)


def test_patterns_choices_and_grammars(llm):
    pattern = "[0-9]{3}-[a-z]{2,4}(x|yy)?"
    assert all(re.fullmatch(pattern, text) for text in texts(llm, regex=pattern))
    choices = ["yes", "yes, but", 'no "thanks"', "ünentschieden"]
    assert set(texts(llm, choice=choices)) <= set(choices)
    sums = re.compile(r"[0-9](\+[0-9]){0,3}")
    lark = 'start: digit ("+" digit){0,3}\ndigit: /[0-9]/'
    assert all(sums.fullmatch(text) for text in texts(llm, grammar=lark))
    gbnf = 'root ::= digit ("+" digit)? \ndigit ::= [0-9]'
    assert all(sums.fullmatch(text) for text in texts(llm, grammar=gbnf))


def test_results_of_one_request_and_no_end_tokens(llm):
    form = StructuredOutput(regex="(ab|cd){2}e?")
    wanted = SamplingParameters(structured_output=form, n=4, seed=3, max_tokens=20, ignore_eos=True, logprobs=2)
    for one in llm.generate("x", wanted).completions:
        assert re.fullmatch("(ab|cd){2}e?", one.text) and one.finish_reason == "stop"
        assert len(one.logprobs) == len(one.tokens)


def test_more_requests_than_forms_that_are_kept(llm):
    for number in range(40):
        wanted = SamplingParameters(structured_output=StructuredOutput(choice=[f"n{number}"]), max_tokens=8)
        assert llm.generate("x", wanted).completions[0].text == f"n{number}"


@pytest.mark.parametrize(
    "form",
    [
        {}, {"regex": "a", "choice": ["b"]}, {"regex": ""}, {"regex": 5}, {"json": 5}, {"json": "{"},
        {"choice": []}, {"choice": "text"}, {"choice": [""]}, {"choice": ["a"] * 1025}, {"grammar": "x" * (1 << 17)},
        {"json": {"enum": list(range(1025))}}, {"json_object": "yes"}, {"regex": "a{1000000}"},
        {"regex": "x(a{1000}){1000}"}, {"json": {"type": "string", "pattern": "(a{200}){200}"}},
        {"json": {"patternProperties": {"(a{200}){200}": {}}}}, {"regex": "a\ud800"},
        {"grammar": "start: A{200}\nA: B{200}\nB: /a/"}, {"grammar": "start: a ~ 200\na: /b/ ~ 1 .. 200"},
        {"grammar": 'root ::= "a" { 2 , 100000 }'}, {"regex": "(?x)(a{200}) { 200 }"},
        {"regex": "(?x)(a{200}) # b\n {200}"}, {"grammar": 'root ::= ("a"{200}) # "b\n {200}'},
        {"grammar": 'start: "//" (A{200}) // b\n ~ 200\nA: /a"/ # c\n'},
        {"json": {"type": "string", "maxLength": 1000000}}, {"json": {"type": "array", "minItems": 10001}},
        {"json": {"pattern": "(" * (6 << 20)}}, {"json": {"type": "object", "x": object()}},
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_forms_that_are_refused_unread(form):
    began = time.process_time()
    with pytest.raises(InputError):
        StructuredOutput(**form)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "form",
    [
        {"regex": "a{" + " " * 60_000}, {"regex": "a{" + "1" * 60_000}, {"regex": "a{1" + " " * 30_000 + "2" * 30_000},
        {"grammar": "\n" * 60_000}, {"grammar": "\n" * 60_000 + 'start: "a"'}, {"grammar": "start" + " " * 60_000},
    ],
    ids=lambda value: repr(value)[:24],
)  # fmt: skip
def test_long_forms_are_read_in_linear_time(llm, form):
    began = time.process_time()
    with contextlib.suppress(InputError):
        llm.engine.matcher(SamplingParameters(structured_output=StructuredOutput(**form)))
    assert time.process_time() - began < 2


def test_many_definitions_are_counted_once_each():
    names = range(300)
    lines = [f'x{number}: "a"{{2}} ' + " ".join(f"x{other}" for other in names[number + 1 :][:9]) for number in names]
    text = "\n".join([*reversed(lines), "start: " + " ".join(f"x{number}{{3}}" for number in names[250:])])
    assert StructuredOutput(grammar=text).form == ("grammar", text)


def test_depths_that_are_refused():
    schema = {"type": "integer"}
    for _ in range(70):
        schema = {"type": "array", "items": schema}
    with pytest.raises(InputError, match="deeper"):
        StructuredOutput(json=schema)
    with pytest.raises(InputError):
        StructuredOutput(json="[" * 60000)


@pytest.mark.parametrize(
    "form",
    [
        {"regex": "("}, {"regex": "(?<=a)b"}, {"json": {"type": "nothing"}}, {"json": {"$ref": "http://127.0.0.1/x"}},
        {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
        {"grammar": "root ::= " + "(" * 20000}, {"json": {"type": "integer", "minimum": 5, "maximum": 3}},
        {"grammar": "start: @other"}, {"grammar": "no definition"},
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_forms_that_cannot_be_compiled(llm, form):
    with pytest.raises(InputError) as error:
        llm.generate("x", SamplingParameters(structured_output=StructuredOutput(**form)))
    assert "\n" not in str(error.value)
    assert not llm.engine.has_work
