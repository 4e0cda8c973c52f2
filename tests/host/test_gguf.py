"""GGUF files: blocks against the package's own dequantizer, a whole Llama with its tokenizer, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.host.llm_support import CASES
from tests.host.test_quantized_checkpoints import LIMITS, small_llama, write
from tilewright.errors import ImportModelError
from tilewright.importers.gguf_files import _UNPACKED, open_checkpoint
from tilewright.llm import LLM, SamplingParameters
from tilewright.llm.model import Chunk, Model, step_graph
from tilewright.llm.tokenizer import Tokenizer
from tilewright.targets.registry import get_target

gguf = pytest.importorskip("gguf", reason="GGUF files are read by the package gguf")
KINDS = {kind: gguf.GGMLQuantizationType[kind] for kind in _UNPACKED}


def blocks(rng: np.random.Generator, kind: str, rows: int, columns: int) -> np.ndarray:
    """Bytes of random blocks, whose float16 numbers are ordinary ones."""
    each, size = gguf.GGML_QUANT_SIZES[KINDS[kind]]
    data = rng.integers(0, 256, (rows, columns // each, size)).astype(np.uint8)
    places = (208,) if kind == "Q6_K" else (0, 2) if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else (0,)
    for place in places:
        numbers = rng.uniform(0.0002, 0.002, data.shape[:2]).astype(np.float16)
        data[..., place : place + 2] = numbers[..., None].view(np.uint8)
    return data.reshape(rows, -1)


@pytest.mark.parametrize("kind", _UNPACKED)
def test_blocks_are_those_of_the_package(kind: str, rng: np.random.Generator) -> None:
    data = blocks(rng, kind, 6, 512)
    expected = gguf.dequantize(data, KINDS[kind])
    found = _UNPACKED[kind](data).numbers()
    if not kind.endswith("_K"):
        assert np.array_equal(found, expected)
    else:  # the package rounds between the two factors
        np.testing.assert_allclose(found, expected, rtol=2e-7, atol=1e-7)


def write_llama(path: Path, rng: np.random.Generator, kinds: tuple[str, ...], **changes: Any) -> dict[str, np.ndarray]:
    """A Llama of one block; the floats of its linear layers as a Hugging Face checkpoint has them."""
    writer = gguf.GGUFWriter(str(path), changes.pop("architecture", "llama"))
    settings, shapes, rest = small_llama(rng)
    settings = {**settings, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(256)
    writer.add_feed_forward_length(256)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    damage = changes.pop("damage", {})  # entries by the method of the writer that takes their place
    letters = [chr(code) for code in range(ord("!"), ord("!") + 93)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    entries = {
        "add_token_list": ["<s>", "</s>", *letters, "ab"],
        "add_token_types": [3, 3, *[1] * 94],
        "add_token_merges": ["a b"],
        "add_bos_token_id": 0,
    }
    for method, value in {**entries, **damage}.items():
        if isinstance(value, tuple):
            writer.kv_data[0].pop(value[0], None)
        getattr(writer, method)(*value if isinstance(value, tuple) else (value,))
    writer.add_eos_token_id(1)
    writer.add_add_bos_token(True)
    names = {"attn_q": (256, "self_attn.q_proj"), "attn_k": (128, "self_attn.k_proj"),
             "attn_v": (128, "self_attn.v_proj"), "attn_output": (256, "self_attn.o_proj"),
             "ffn_gate": (256, "mlp.gate_proj"), "ffn_up": (256, "mlp.up_proj"),
             "ffn_down": (256, "mlp.down_proj")}  # fmt: skip
    floats: dict[str, np.ndarray] = {}
    for number, (name, (rows, path_of)) in enumerate(names.items()):
        kind = kinds[number % len(kinds)]
        data = blocks(rng, kind, rows, 256)
        writer.add_tensor(f"blk.0.{name}.weight", data, raw_dtype=KINDS[kind])
        numbers = gguf.dequantize(data, KINDS[kind])
        if name in ("attn_q", "attn_k"):  # pairs next to each other -> the halves of a head
            numbers = numbers.reshape(rows // 64, 32, 2, 256).swapaxes(1, 2).reshape(rows, 256)
        floats[f"model.layers.0.{path_of}.weight"] = numbers
    table = blocks(rng, "Q8_0", 96, 256)
    norms = {"blk.0.attn_norm": "layers.0.input_layernorm", "blk.0.ffn_norm": "layers.0.post_attention_layernorm",
             "output_norm": "norm"}  # fmt: skip
    for name, other in norms.items():
        floats[f"model.{other}.weight"] = rng.uniform(0.5, 1.5, 256).astype(np.float32)
        writer.add_tensor(f"{name}.weight", floats[f"model.{other}.weight"])
    writer.add_tensor("token_embd.weight", table, raw_dtype=KINDS["Q8_0"])
    floats |= {"model.embed_tokens.weight": gguf.dequantize(table, KINDS["Q8_0"])}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"settings": {**CASES["llama"], **settings, "tie_word_embeddings": True, "rms_norm_eps": 1e-5}, **floats}


@pytest.mark.parametrize("kinds", [("Q4_0", "Q8_0", "Q4_K", "Q6_K"), ("Q4_1", "Q5_1", "Q5_K", "IQ4_NL")], ids=str)
def test_a_llama_in_one_file(kinds: tuple[str, ...], tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "small.gguf"
    floats = write_llama(path, rng, kinds)
    settings = floats.pop("settings")
    folder = write(tmp_path / "plain", floats, **settings)
    tokens = rng.integers(0, 96, 12).tolist()
    llm = LLM(path, length=64)
    logits = [model.run([Chunk(tokens, 0, range(2), range(12))])
              for model in (llm.model, Model.open(folder, 4, LIMITS))]  # fmt: skip
    assert np.abs(logits[0] - logits[1]).max() < 2e-5 * np.abs(logits[1]).max()
    nodes = [node.op for node in step_graph(path, LIMITS).nodes]
    assert nodes.count("dequantize") == 8  # the table of tokens is that of the logits, in blocks too
    for dtype, count in (("float16", 8), ("float32", 7)):  # floats there: the table that tokens are looked up in
        graph = step_graph(path, LIMITS, dtype, target=get_target("cuda:sm_90a"))
        assert [node.op for node in graph.nodes].count("dequantize") == count
    assert llm.tokens("abc") == [0, 95, 68] and llm.text_tokenizer.decode([95, 68]) == "abc"
    assert llm.engine.end_tokens == {1}
    assert len(llm.generate("abc", SamplingParameters(max_tokens=3, temperature=0.0)).completions[0].tokens) == 3


def test_files_that_cannot_be_read(tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "other.gguf"
    write_llama(path, rng, ("Q4_0",), architecture="mamba")
    with pytest.raises(ImportModelError, match="general.architecture is 'mamba'; files of llama"):
        open_checkpoint(path)
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(9))
    with pytest.raises(ImportModelError, match="cannot be read as GGUF"):
        step_graph(damaged, LIMITS)
    with pytest.raises(ImportModelError, match="there is no such file"):
        step_graph(tmp_path / "none.gguf", LIMITS)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"add_bos_token_id": 96}, "bos_token_id is 96, and there are 96 tokens"),
        ({"add_token_types": [1] * 95}, "token_type is 95, for 96 tokens"),
        ({"add_token_scores": [1.0]}, "scores is 1, for 96 tokens"),
        ({"add_token_list": ["a" * 5000] + ["b"] * 95}, "a token of 5000 letters"),
        ({"add_token_merges": ["a unknown"]}, "its tokenizer cannot be used"),
        ({"add_token_merges": ["alone"]}, "its tokenizer cannot be used"),
        ({"add_string": ("llama.rope.freq_base", "often")}, "its settings cannot be used"),
        ({"add_array": ("general.architecture", ["llama"])}, r"general.architecture is .*\['llama'\]"),
        ({"add_array": ("general.name", [b"\xff\xfe"])}, "its metadata cannot be used"),
    ],
    ids=str,
)
def test_damaged_metadata(damage: dict[str, Any], message: str, tmp_path: Path, rng: np.random.Generator) -> None:
    path = tmp_path / "damaged.gguf"
    write_llama(path, rng, ("Q4_0",), damage=damage)
    with pytest.raises(ImportModelError, match=message):
        open_checkpoint(path)
        Tokenizer(path)


def test_tensors_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tensor("output.weight", np.zeros((0, 34), np.uint8), raw_dtype=KINDS["Q8_0"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ImportModelError, match="empty.gguf"):
        open_checkpoint(path)
