"""What went wrong in other servers of language models, by the kind of the advisory, and does not here.

Kinds with tests elsewhere: shared caches of prefixes and their hashes (`test_llm_blocks.py`, `test_llm_serve.py:
test_prefixes_are_shared_within_a_key_only`), forms without bounds (`test_llm_structure.py`), `n` and other counts,
embeddings of prompts, chat templates in requests (`test_llm_serve.py: test_bodies_that_are_refused`), addresses that
all can reach (`test_listening_for_others_needs_keys`), clients that go away, templates that reach for Python
(`test_llm.py`), and pickles anywhere in the sources (`tools/check_dangerous.py`).
"""

from __future__ import annotations

import hmac
import itertools
import json
import socket
import time

import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")
pytest.importorskip("llguidance")

from tests.host.llm_support import served, text_checkpoint
from tests.host.test_llm_serve import KEY, ask, idle
from tilewright.errors import ImportModelError
from tilewright.llm import LLM
from tilewright.llm.asynchronous import AsyncLLM
from tilewright.llm.serve.application import Application
from tilewright.llm.tools import FORMATS, CallReader

pytestmark = pytest.mark.usefixtures("quick_engines")

MARK = "raise SystemExit('code of a checkpoint has run')\n"


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    llm = AsyncLLM(text_checkpoint(tmp_path_factory.mktemp("advisories") / "bytes"), memory=1 << 20)
    yield llm
    llm.close()


def test_code_that_a_configuration_names_does_not_run(tmp_path):
    """CVE-2025-66448, CVE-2026-22807: `auto_map`."""
    folder = text_checkpoint(tmp_path / "bytes", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.M"})
    for name in ("own.py", "__init__.py", "modeling_llama.py"):
        (folder / name).write_text(MARK)
    assert LLM(folder, memory=1 << 20).generate("x").completions[0].tokens


def test_pickled_weights_are_not_read(tmp_path):
    """CVE-2025-24357, CVE-2025-32434: `torch.load` of what others wrote."""
    folder = text_checkpoint(tmp_path / "bytes")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ImportModelError, match="safetensors"):
        LLM(folder)
    (folder / "model.safetensors").write_bytes(b"\x80\x04cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(ImportModelError):
        LLM(folder)


@pytest.mark.parametrize(
    "path",
    ["/v1/models/", "//v1/models", "/v1//models", "/health/../v1/models", "/V1/models", "", "/v1/models\0", "/health/",
     "/load", "/update_weights", "/pause", "/invocations"],
)  # fmt: skip
def test_no_path_goes_around_the_key(llm, path):
    """CVE-2026-48746, CVE-2025-10164: middleware that some paths pass by, routes for administrators."""
    application = Application(llm, "bytes", [KEY])
    for method in ("GET", "POST", "HEAD", "OPTIONS", "PUT"):
        assert ask(application, method, path)[0] == 401
        assert ask(application, method, path, headers=[(b"authorization", b"Bearer " + KEY.encode())])[0] == 404


def test_keys_are_compared_in_constant_time(llm, monkeypatch):
    """CVE-2025-59425."""
    compared = []
    monkeypatch.setattr(hmac, "compare_digest", lambda one, other: compared.append((one, other)) or one == other)
    application = Application(llm, "bytes", [KEY, KEY[::-1], "x" * 40])
    for key in (KEY, "", "y" * 500):
        ask(application, "GET", "/v1/models", headers=[(b"authorization", b"Bearer " + key.encode())])
    assert len(compared) == 9 and {len(one) for pair in compared for one in pair} == {32}


def test_headers_without_an_end_are_refused(llm):
    """CVE-2025-48956: headers that fill the memory before anybody is asked for a key."""
    pytest.importorskip("uvicorn")
    with served(Application(llm, "bytes")) as address:
        port = int(address.rsplit(":", 1)[1])
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: ")
            with pytest.raises(OSError):
                for _ in range(64):
                    client.sendall(b"a" * (64 << 10))
                    time.sleep(0.01)
        assert ask(Application(llm, "bytes"), "GET", "/health")[0] == 200


class CountingReader(CallReader):
    """Counts the characters that its steps look at."""

    looked_at = 0

    def _advance(self, found):
        self.looked_at += len(self._text)
        return super()._advance(found)


@pytest.mark.parametrize("form", FORMATS.values(), ids=list(FORMATS))
def test_texts_of_models_are_parsed_in_linear_time_and_never_run(form):
    """CVE-2025-48887, CVE-2025-9141: patterns that take for ever, and arguments given to `eval`."""
    for piece in (
        form.begin,
        "<tool_call>",
        "[TOOL_CALLS]f",
        "{",
        '{"name": "f", "arguments": {"a": [',
        "\\",
        '"',
        " " * 9,
        " x ",
    ):
        looked_at = []
        for begin, count in itertools.product(("", form.begin), (200, 400)):
            reader = CountingReader(form, ["f"])
            reader.push(begin)
            for _ in range(count):
                reader.push(piece)
            reader.finish()
            looked_at.append(reader.looked_at)
        assert looked_at[1] < 2.2 * looked_at[0] and looked_at[3] < 2.2 * looked_at[2]
    reader = CallReader(form, ["f"])
    code = "__import__('os')._exit(3)"
    found = reader.push(f'{form.begin}{{"name": "f", "{form.arguments}": {{"a": "{code}"}}}}{form.end}')
    found = [found, reader.finish()]
    calls = [json.loads(call.arguments) for call in reader.calls]
    assert calls == [{"a": code}] or code in "".join(part.content for part in found)


@pytest.mark.parametrize("part", [
    {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}},
    {"type": "input_image", "image_url": "file:///etc/passwd"},
    {"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0lGODlhAQABAAAAACw="}},
    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    {"type": "file", "file": {"file_id": "http:\\\\a"}},
], ids=lambda part: part["type"])  # fmt: skip
def test_nothing_is_fetched_or_decoded(llm, part):
    """CVE-2025-6242, CVE-2026-24779, CVE-2026-22773, CVE-2026-22778: media by address, and their decoders."""
    messages = [{"role": "user", "content": [part]}]
    for path, body in (("/v1/chat/completions", {"messages": messages}), ("/v1/responses", {"input": messages})):
        status, content = ask(Application(llm, "bytes"), "POST", path, body)
        assert status == 400 and "0x" not in content["error"]["message"]


@pytest.mark.parametrize("fields", [
    {"n_discard": -5}, {"max_tokens": -(2**31)}, {"min_tokens": -1}, {"top_k": -5}, {"prompt": [-1]},
    {"prompt": [2**40]},
    {"stop_token_ids": [-5]}, {"logit_bias": {"-1": 1}}, {"logprobs": -1},
    {"chat_template_kwargs": {"a": "x" * 9}},
    {"lora_path": "/etc"},
], ids=str)  # fmt: skip
def test_numbers_below_zero_and_fields_of_others_are_refused(llm, fields):
    """CVE-2026-21869: an offset of a request that is used unread; CVE-2025-61620, -62426: settings of templates."""
    status, content = ask(Application(llm, "bytes"), "POST", "/v1/completions", {"prompt": "x", **fields})
    assert status == 400 and content["error"]["type"] == "invalid_request_error"
    idle(llm)
