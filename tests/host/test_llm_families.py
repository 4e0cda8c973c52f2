"""Every family of language models against NumPy (`llm_reference`), over pages, in chunks and token by token."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.host.llm_support import BFLOAT16, CASES, TOKENS, checkpoint_of, numbers, reference, tokens_of
from tilewright.errors import ImportModelError, InputError
from tilewright.llm.families import LLM_FAMILIES
from tilewright.llm.model import Chunk, Model, step_graph
from tilewright.llm.step_graph import Limits

pytestmark = pytest.mark.usefixtures("quick_engines")

LIMITS = Limits(page=8, tokens=48, sequences=4, length=128)


def walk(model, tokens, cuts, pages):
    """Logits of all tokens, given in chunks of these sizes."""
    rows, at = [], 0
    for count in cuts:
        needed = -(-(at + count) // model.limits.page)
        rows.append(model.run([Chunk(tokens[at : at + count], at, pages[:needed], range(count))]))
        at += count
    return np.concatenate(rows)


def bound(name, wanted):
    """float32 rounding through the layers of logits that are about this large."""
    layers = CASES[name].get("num_hidden_layers", 2)
    return 2.0**-24 * 64 * layers * max(1.0, np.abs(wanted).max())


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_reference(name, tmp_path, rng):
    length = 32 if name == "phi3-longrope" else 128  # beyond 32 its other factors hold
    count = min(TOKENS, length)
    wanted, tokens = reference(name)[1][:count], tokens_of(name)[:count]
    folder = checkpoint_of(name, tmp_path, shards=3 if name == "llama" else 1)
    model = Model.open(folder, 24, Limits(LIMITS.page, LIMITS.tokens, LIMITS.sequences, length))
    cuts = [19, 5, 1, 1, 1, 3, 1, 1] if count == 32 else [37, 9, 1, 1, 1, 3] + [1] * (TOKENS - 52)
    actual = walk(model, tokens, cuts, rng.permutation(24).tolist())
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=bound(name, wanted))


@pytest.mark.parametrize(("cache", "most"), [("fp8", 0.15), ("int8", 0.03)])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "gemma2"])
def test_keys_and_values_in_8_bits(name, cache, most, tmp_path, rng):
    """Logits are off as much as keys and values are: e4m3 by up to 1 / 16 of a number, int8 by 1 / 254 of a head's
    largest."""
    wanted, tokens = reference(name)[1][:TOKENS], tokens_of(name)[:TOKENS]
    folder = checkpoint_of(name, tmp_path)
    plain, narrow = (
        Model.open(folder, 24, replace(LIMITS, cache=kind), dtype="float32") for kind in ("auto", cache)
    )  # fmt: skip
    actual = walk(narrow, tokens, [37, 9, 1, 1, 1, 3] + [1] * (TOKENS - 52), rng.permutation(24).tolist())
    error = np.linalg.norm(actual - wanted) / np.linalg.norm(wanted)
    assert 1e-5 < error < most, error
    assert narrow.bytes_per_page < plain.bytes_per_page * (0.26 if cache == "fp8" else 0.4)  # widths of 12


def test_an_unknown_storage_of_keys_is_refused(tmp_path):
    with pytest.raises(InputError, match="kv_cache_dtype is 'int4'; known are auto, fp8, int8"):
        Model.open(checkpoint_of("llama", tmp_path), 4, replace(LIMITS, cache="int4"))


def test_all_families_have_a_reference():
    assert {settings["model_type"] for settings in CASES.values()} == set(LLM_FAMILIES)


def test_several_sequences_in_a_step_do_not_meet(tmp_path, rng):
    name = "qwen3"
    _, wanted = reference(name)
    model = Model.open(checkpoint_of(name, tmp_path), 40, LIMITS)
    order = rng.permutation(40).tolist()
    tables = [order[:10], order[10:20], order[20:30]]
    tokens = tokens_of(name)
    first = model.run([Chunk(tokens[:20], 0, tables[0], (19,)), Chunk(tokens[:5], 0, tables[1], (4, 0))])
    np.testing.assert_allclose(first, wanted[[19, 4, 0]], rtol=0, atol=bound(name, wanted))
    second = model.run([
        Chunk(tokens[20:21], 20, tables[0], (0,)),
        Chunk(tokens[5:30], 5, tables[1], (24,)),
        Chunk(tokens[:11], 0, tables[2]),
    ])  # fmt: skip
    np.testing.assert_allclose(second, wanted[[20, 29]], rtol=0, atol=bound(name, wanted))
    third = model.run([Chunk(tokens[11:12], 11, tables[2], (0,)), Chunk(tokens[21:22], 21, tables[0], (0,))])
    np.testing.assert_allclose(third, wanted[[11, 21]], rtol=0, atol=bound(name, wanted))


def test_bfloat16(tmp_path):
    name = "llama"
    _, wanted = reference(name)
    model = Model.open(checkpoint_of(name, tmp_path, dtype=BFLOAT16), 24, LIMITS)
    actual = walk(model, tokens_of(name), [40] + [1] * (TOKENS - 40), list(range(24)))
    assert np.abs(actual - wanted).max() < 2.0**-8 * 8 * np.abs(wanted).max()


def test_older_settings_are_read(tmp_path):
    """Checkpoints of earlier versions of transformers say the same with other keys."""
    name = "llama-3.1"
    folder = checkpoint_of(name, tmp_path)
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    rope = settings.pop("rope_parameters")
    settings |= {"rope_theta": rope.pop("rope_theta"), "torch_dtype": settings.pop("dtype")}
    settings["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    path.write_text(json.dumps(settings))
    _, wanted = reference(name)
    actual = walk(Model.open(folder, 24, LIMITS), tokens_of(name)[:40], [40], list(range(24)))
    np.testing.assert_allclose(actual, wanted[:40], rtol=0, atol=bound(name, wanted))


def test_weights_are_mapped_and_not_copied(tmp_path):
    graph = step_graph(checkpoint_of("llama", tmp_path, shards=2), LIMITS)
    stored = {value.name: data for value, data in graph.constants.items()}
    weight = stored["layers.0.mlp.up_proj.weight"]
    assert not weight.flags.writeable and not weight.flags.owndata
    np.testing.assert_array_equal(weight, numbers("model.layers.0.mlp.up_proj.weight", weight.shape))


REFUSED = [
    ("llama", {"model_type": "mamba"}, "model_type"),
    ("llama", {"hidden_act": "tanh"}, "hidden_act"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
    ("llama", {"num_attention_heads": 5, "head_dim": None}, "num_attention_heads"),
    ("llama", {"hidden_size": "48"}, "hidden_size"),
    ("llama", {"dtype": "int8"}, "dtype"),
    ("llama", {"quantization_config": {"quant_method": "awq"}}, "quantization_config"),
    ("llama", {"num_hidden_layers": 3}, "num_hidden_layers"),
    ("llama", {"rope_parameters": {"rope_type": "mrope"}}, "rope_parameters.rope_type"),
    ("llama", {"rope_parameters": {"rope_type": ["yarn"]}}, "rope_parameters.rope_type"),
    ("llama", {"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.factor"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 0}}, "rope_parameters.factor"),
    ("llama", {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": "x"}}, "rope_scaling.factor"),
    ("llama", {"rope_parameters": 5}, "rope_parameters"),
    ("llama", {"rope_parameters": {"rope_theta": -1}}, "rope_parameters.rope_theta"),
    ("llama", {"partial_rotary_factor": 0.01}, "partial_rotary_factor"),
    ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
    ("llama", {"vocab_size": 97}, "wrong shape: embed_tokens.weight"),
    ("llama", {"attention_bias": True}, "missing: layers.0.self_attn.q_proj.bias"),
    ("phi3-longrope", {"rope_parameters": {"type": "su", "long_factor": [1.0], "short_factor": [1.0]}}, "_factor"),
    ("qwen2", {"layer_types": ["full_attention"]}, "layer_types"),
    ("qwen2", {"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
    ("qwen3_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ("qwen2_moe", {"mlp_only_layers": "0"}, "mlp_only_layers"),
    ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers"),
    ("starcoder2", {"norm_type": "rms_norm"}, "norm_type"),
    ("starcoder2", {"mlp_type": "gated"}, "mlp_type"),
    ("granite", {"logits_scaling": 0}, "logits_scaling"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gpt2", {"n_head": 5}, "n_head"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
]


@pytest.mark.parametrize(("name", "change", "key"), REFUSED, ids=[str(change) for _, change, _ in REFUSED])
def test_refusals_name_the_key(name, change, key, tmp_path):
    folder = checkpoint_of(name, tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ImportModelError, match=key.replace(".", r"\.")):
        step_graph(folder, LIMITS)


def test_an_unknown_dtype_is_refused(tmp_path):
    with pytest.raises(InputError, match="float8"):
        step_graph(checkpoint_of("llama", tmp_path), LIMITS, "float8")
