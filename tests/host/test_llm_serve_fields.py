"""Fields of requests and routes that programs written for OpenAI's API and for vLLM expect."""

from __future__ import annotations

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("llguidance")

from tests.host.llm_support import CHAT, text_checkpoint
from tests.host.test_llm_serve import GREEDY, ask, events
from tilewright.errors import InputError
from tilewright.llm.asynchronous import AsyncLLM
from tilewright.llm.requests import Completion, Output
from tilewright.llm.serve import protocol
from tilewright.llm.serve.application import Application
from tilewright.llm.serve.results import About, ChatForm
from tilewright.llm.tokenizer import TemplateOptions, Tokenizer
from tilewright.llm.tools import Tools

pytestmark = pytest.mark.usefixtures("quick_engines")


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    llm = AsyncLLM(text_checkpoint(tmp_path_factory.mktemp("fields") / "bytes"), memory=1 << 20, tokens=64, sequences=8)
    yield llm
    llm.close()


def test_what_other_servers_take(llm):
    """Fields that say what is done anyway, or change what they say."""
    application, letters = Application(llm, "bytes"), {"guided_regex": "[a-z]{6}"}

    def complete(**fields):
        status, content = ask(application, "POST", "/v1/completions", {"prompt": "Once", **GREEDY, **letters, **fields})
        assert status == 200, content
        return content["choices"][0], content["usage"]

    plain, usage = complete()
    same = {"top_k": -1, "detokenize": True, "skip_special_tokens": True, "use_beam_search": False, "priority": 0,
            "length_penalty": 1, "service_tier": "auto", "safety_identifier": "me", "prompt_cache_key": "k",
            "add_special_tokens": False, "truncate_prompt_tokens": -1, "cache_salt": "s"}  # fmt: skip
    assert complete(**same)[0] == plain
    assert complete(prompt="xOnce", truncate_prompt_tokens=4)[0] == plain
    stop = plain["text"][2]
    assert complete(stop=stop)[0]["text"] == plain["text"][: plain["text"].index(stop)]
    kept = complete(stop=stop, include_stop_str_in_output=True)[0]
    assert kept["text"] == plain["text"][: plain["text"].index(stop) + 1] and kept["finish_reason"] == "stop"
    numbered = complete(logprobs=1, return_tokens_as_token_ids=True)[0]["logprobs"]["tokens"]
    assert all(token.startswith("token_id:") for token in numbered)
    complete(prompt=list(range(32)), cache_salt="one")
    assert complete(prompt=list(range(32)), cache_salt="other")[1]["prompt_tokens_details"]["cached_tokens"] == 0
    assert complete(prompt=list(range(32)), cache_salt="other")[1]["prompt_tokens_details"]["cached_tokens"] > 0
    shown = complete(prompt="Hi Once", truncate_prompt_tokens=4, echo=True, logprobs=1)[0]
    assert shown["text"] == f"Once{plain['text']}" and shown["logprobs"]["text_offset"] == list(
        range(len(shown["text"]))
    )
    complete(cache_salt="\ud800")
    status, content = ask(application, "POST", "/v1/completions", {"prompt": "x" * 5000})
    assert content["error"]["code"] == "context_length_exceeded"


def test_only_the_first_delta_has_the_role():
    """OpenAI's client joins the texts of deltas field by field."""
    wanted = protocol.read_chat({"messages": [{"role": "user", "content": "Hi"}], "n": 2}, 8)
    form, deltas = ChatForm(About("bytes", None), wanted), {0: [], 1: []}
    for text in ("a", "ab", "abc"):
        output = Output("name", [1], [Completion(index, [2], text) for index in range(2)])
        for (choice,) in (event["choices"] for event in form.events(output)):
            deltas[choice["index"]].append(choice["delta"])
    parts = [{"role": "assistant", "content": "a"}, {"content": "b"}, {"content": "c"}]
    assert deltas == {0: parts, 1: parts}


@pytest.mark.parametrize("chat", [False, True])
def test_tokens_by_their_numbers(llm, chat):
    """In one piece and in pieces; those of the prompt once."""
    application = Application(llm, "bytes")
    path = "/v1/chat/completions" if chat else "/v1/completions"
    given = {"messages": [{"role": "user", "content": "Hi"}]} if chat else {"prompt": ["Once", "Twice"]}
    body = {**given, "max_tokens": 9, "seed": 2, "n": 2, "return_token_ids": True, "ignore_eos": True}
    whole = ask(application, "POST", path, body)[1]
    found = events(ask(application, "POST", path, body | {"stream": True})[1])
    for choice in whole["choices"]:
        mine = [event for event in found if event["choices"][0]["index"] == choice["index"]]
        assert len(choice["token_ids"]) == 9
        assert sum((event["choices"][0]["token_ids"] for event in mine), []) == choice["token_ids"]
        prompts = [(event if chat else event["choices"][0]).get("prompt_token_ids") for event in mine]
        assert [one for one in prompts if one] == [(whole if chat else choice)["prompt_token_ids"]]
    assert "token_ids" not in ask(application, "POST", path, {**given, "max_tokens": 2})[1]["choices"][0]


def test_tokens_of_texts_and_chats(llm):
    application = Application(llm, "bytes")
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I am"}]

    def tokens(**fields):
        status, content = ask(application, "POST", "/tokenize", fields)
        assert status == 200 and content["count"] == len(content["tokens"]), content
        return content["tokens"]

    text = llm.llm.text_tokenizer
    assert tokens(prompt="Once") == text.encode("Once")
    assert ask(application, "POST", "/tokenize", {"prompt": "On", "return_token_strs": True})[1]["token_strs"] == [
        "O",
        "n",
    ]
    assert ask(application, "POST", "/detokenize", {"tokens": text.encode("Once")}) == (200, {"prompt": "Once"})
    whole = tokens(messages=messages, add_generation_prompt=False)
    assert tokens(messages=messages) == [*whole, text.token("<|assistant|>")]
    assert tokens(messages=messages, continue_final_message=True) == whole[:-1]  # without </s>
    body = {"messages": messages, "continue_final_message": True, "max_tokens": 1}
    assert ask(application, "POST", "/v1/chat/completions", body)[1]["usage"]["prompt_tokens"] == len(whole) - 1
    for path, fields, field in (
        ("/tokenize", {}, "prompt"), ("/tokenize", {"prompt": "x", "messages": messages}, "prompt"),
        ("/tokenize", {"prompt": [1]}, "prompt"), ("/detokenize", {"tokens": [9999]}, "tokens"),
        ("/tokenize", {"prompt": "x", "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {"messages": messages, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": "x"}, "messages"), ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/v1/chat/completions", body | {"add_generation_prompt": True}, "continue_final_message"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": None}]}, "messages"),
    ):  # fmt: skip
        status, content = ask(application, "POST", path, fields)
        assert (status, content["error"]["param"]) == (400, field)


def test_variables_of_a_chat_template(tmp_path):
    """Those of requests reach the template; its own are not theirs to set."""
    template = "{% if enable_thinking is defined and not enable_thinking %}no{% endif %}{{ reasoning_effort }}" + CHAT
    text = Tokenizer(text_checkpoint(tmp_path / "bytes", template))
    messages = [{"role": "user", "content": "Hi"}]
    given = {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"}
    plain = text.render(messages)
    assert text.render(messages, options=protocol.read_template(given)) == f"nolow{plain}"
    for values in ({"messages": "x"}, {"bos_token": "x"}, {"a": [1]}, {"a": 2.5}, {"a": "x" * 1025}, {"a b": 1}, [],
                   {"a": 2**21}, {f"a{number}": 1 for number in range(17)}):  # fmt: skip
        with pytest.raises(protocol.Refused) as refused:
            protocol.read_template({"chat_template_kwargs": values})
        assert refused.value.field == "chat_template_kwargs"
    with pytest.raises(protocol.Refused) as refused:
        protocol.read_template({"reasoning_effort": 3})
    assert refused.value.field == "reasoning_effort"


@pytest.mark.parametrize("field", ["stop_token_ids", "best_of", "truncate_prompt_tokens"])
@pytest.mark.parametrize("value", [True, False, "", {}, 2**31])
def test_values_of_other_types_are_refused(field, value):
    """Also those that count as nothing, or as 1."""
    with pytest.raises(protocol.Refused) as refused:
        protocol.read_completion({"prompt": "x", field: value})
    assert refused.value.field == field


@pytest.mark.parametrize("content", ["s", "</s", " I am ", "a\ue000", ""])
@pytest.mark.parametrize("trims", [False, True])
def test_last_messages_are_continued_where_they_end(tmp_path, content, trims):
    """Not where the template writes the same text once more, as here in the token after each message."""
    template = CHAT.replace("message.content", "message.content | trim") if trims else CHAT
    text = Tokenizer(text_checkpoint(tmp_path / "bytes", template))
    messages = [{"role": "user", "content": "s"}, {"role": "assistant", "content": content}]
    options = TemplateOptions(reply=False, continues=True)
    expected = f"<|user|>s</s><|assistant|>{content.strip() if trims else content}"
    assert text.render(messages, options=options) == expected
    hidden = Tokenizer(text_checkpoint(tmp_path / "hidden", "{{ messages[0].content }}"))
    with pytest.raises(InputError, match="does not show"):
        hidden.render(messages, options=options)


@pytest.mark.parametrize("continues", [False, True])
def test_calls_that_must_come_begin_after_any_prompt(tmp_path, continues):
    """Also where no message of the assistant is opened."""
    text = Tokenizer(text_checkpoint(tmp_path / "bytes", CHAT + "{# <tool_call> #}"))
    assert text.call_format.opening
    offered = Tools(({"name": "call", "parameters": {"type": "object"}},), "required")
    prompt = text.render([{"role": "user", "content": "Hi"}], offered, TemplateOptions(False, continues))
    assert prompt == f"<|user|>Hi{'' if continues else '</s>'}{text.call_format.opening}"
