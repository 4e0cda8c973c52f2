"""Embeddings: the pooled states of the graph as it was imported, in any batch, and through the server."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest

pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

from tests.host.llm_support import text_checkpoint
from tests.host.test_import_huggingface import weights, write
from tests.host.test_llm_serve import ask
from tilewright.errors import ImportModelError, InputError
from tilewright.graph import reference
from tilewright.importers import import_model
from tilewright.llm.asynchronous import AsyncLLM
from tilewright.llm.encoder import TextEncoder
from tilewright.llm.serve.application import Application, Bounds

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnop"]


def checkpoint(folder, pooling=None):
    """A small BERT whose words are letters."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    write(folder, weights(np.random.default_rng(3)))
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def expected(folder, tokens, first=False):
    inputs = {"input_ids": np.array([tokens]), "attention_mask": np.ones((1, len(tokens)), np.int64),
              "token_type_ids": np.zeros((1, len(tokens)), np.int64)}  # fmt: skip
    hidden = reference.run(import_model(folder), inputs)["last_hidden_state"][0]
    vector = hidden[0] if first else hidden.mean(axis=0)
    return vector / np.linalg.norm(vector)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("encoder") / "letters")


@pytest.fixture(scope="module")
def encoder(folder):
    return TextEncoder(folder)


def test_vectors_are_pooled_states_in_any_batch(folder, encoder, rng):
    prompts = [rng.integers(0, 20, rng.integers(1, 11)).tolist() for _ in range(40)]
    together = encoder.encode(prompts)
    for prompt, vector in zip(prompts[:10], together, strict=False):
        np.testing.assert_allclose(vector, expected(folder, prompt), atol=2e-5)
    np.testing.assert_allclose(together, np.concatenate([encoder.encode([prompt]) for prompt in prompts]), atol=2e-5)
    np.testing.assert_allclose(encoder.encode(["a c"])[0], encoder.encode([[2, 4, 6, 3]])[0], atol=1e-6)
    first = checkpoint(folder.parent / "first", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    np.testing.assert_allclose(
        TextEncoder(first).encode([prompts[0]])[0], expected(folder, prompts[0], True), atol=2e-5
    )


@pytest.mark.parametrize("text", ["a " * 20, [99], [], "a\ud800"])
def test_texts_that_are_refused(encoder, text):
    with pytest.raises(InputError):
        encoder.encode([text])


def test_checkpoints_that_are_refused(tmp_path):
    with pytest.raises(ImportModelError, match="1_Pooling"):
        TextEncoder(checkpoint(tmp_path / "max", {"pooling_mode_max_tokens": True}))
    with pytest.raises(ImportModelError, match="bert"):
        TextEncoder(text_checkpoint(tmp_path / "bytes"))


def test_the_route(encoder, tmp_path):
    llm = AsyncLLM(text_checkpoint(tmp_path / "bytes"), memory=1 << 20)
    application = Application(llm, "bytes", encoder=encoder, bounds=Bounds(tokens=40))
    path = "/v1/embeddings"
    assert [model["id"] for model in ask(application, "GET", "/v1/models")[1]["data"]] == ["bytes", "letters"]
    status, content = ask(application, "POST", path, {"model": "letters", "input": ["a b", "c"]})
    assert status == 200 and content["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    wanted = encoder.encode(["a b", "c"])
    np.testing.assert_allclose([one["embedding"] for one in content["data"]], wanted, atol=1e-6)
    packed = ask(application, "POST", path, {"input": "c", "encoding_format": "base64"})[1]["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(packed), "<f4"), wanted[1], atol=1e-6)
    for body, status, field in (
        ({"input": []}, 400, "input"), ({"input": "a " * 20}, 400, "input"), ({"input": [5, "a"]}, 400, "input"),
        ({"input": "a", "encoding_format": "int8"}, 400, "encoding_format"),
        ({"input": "a", "model": "bytes"}, 404, "model"),
        ({"input": "a", "dimensions": 4}, 400, "dimensions"), ({"input": ["a b c d"] * 9}, 400, None),
        ({"input": "a\ud800"}, 400, "input"),
    ):  # fmt: skip
        found, content = ask(application, "POST", path, body)
        assert found == status and content["error"]["param"] == field, body
    assert ask(Application(llm, "bytes"), "POST", path, {"input": "a"})[0] == 404
    hurried = Application(llm, "bytes", encoder=encoder, bounds=Bounds(seconds=0.0))
    assert ask(hurried, "POST", path, {"input": "a"})[0] == 503
    assert application.requests == application.tokens == hurried.requests == 0
    llm.close()
