"""Checkpoints with quantized weights: each format unpacked bit by bit against its description, and run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.host.llm_support import CASES, tokens_of
from tilewright.dtypes import float32
from tilewright.errors import ImportModelError, InputError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.reference import run_graph
from tilewright.importers.emitter import Emitter
from tilewright.importers.huggingface import Checkpoint
from tilewright.importers.quantized_checkpoints import reader_of
from tilewright.importers.quantized_weights import QuantizedMatrix, in_runs, multiply, place_not_finite
from tilewright.llm.model import Chunk, Model, step_graph
from tilewright.llm.step_graph import Limits
from tilewright.targets.registry import get_target

ROWS, COLUMNS, GROUP = 48, 96, 32
EIGHTS = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu)
LIMITS = Limits(page=8, tokens=16, sequences=2, length=32)


def words(codes: np.ndarray, bits: int = 4, order: tuple[int, ...] | None = None) -> np.ndarray:
    """int32 words of the last dimension, the first code in the low bits."""
    each = 32 // bits
    parts = codes.reshape(*codes.shape[:-1], -1, each).astype(np.uint32)
    found = np.zeros(parts.shape[:-1], np.uint32)
    for place in range(each):
        found |= parts[..., (order or range(each))[place]] << np.uint32(place * bits)
    return found.view(np.int32)


def compressed(kind: str, **weights: Any) -> dict[str, Any]:
    activations = weights.pop("activations", None)
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group}}


# Of each format: the settings, and for a layer its tensors by name and the numbers that they stand for.


def gptq(rng: np.random.Generator, rows: int, columns: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Act order: every input tells its group."""
    groups = columns // GROUP
    codes = rng.integers(0, 16, (columns, rows))
    zeros, scales = rng.integers(1, 17, (groups, rows)), rng.uniform(0.004, 0.01, (groups, rows)).astype(np.float16)
    places = rng.permutation(np.repeat(np.arange(groups), GROUP)).astype(np.int32)
    tensors = {"qweight": words(codes.T).T, "qzeros": words((zeros - 1) & 15), "scales": scales, "g_idx": places}
    return tensors, (((codes - zeros[places] % 16) * scales[places].astype(np.float64)).T)


def awq(rng: np.random.Generator, rows: int, columns: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    groups, order = columns // GROUP, (0, 2, 4, 6, 1, 3, 5, 7)
    codes, zeros = rng.integers(0, 16, (columns, rows)), rng.integers(0, 16, (groups, rows))
    scales = rng.uniform(0.004, 0.01, (groups, rows)).astype(np.float16)
    tensors = {"qweight": words(codes, 4, order), "qzeros": words(zeros, 4, order), "scales": scales}
    each = np.repeat(np.arange(groups), GROUP)
    return tensors, ((codes - zeros[each]) * scales[each].astype(np.float64)).T


def packed(rng: np.random.Generator, rows: int, columns: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    groups = columns // GROUP
    codes, zeros = rng.integers(-8, 8, (rows, columns)), rng.integers(-8, 8, (rows, groups))
    scales = rng.uniform(0.004, 0.01, (rows, groups)).astype(ml_dtypes.bfloat16)
    tensors = {
        "weight_packed": words(codes + 8), "weight_scale": scales, "weight_zero_point": words((zeros + 8).T).T,
        "weight_shape": np.array([rows, columns]),
    }  # fmt: skip
    each = np.repeat(np.arange(groups), GROUP)
    return tensors, (codes - zeros[:, each]) * scales.astype(np.float64)[:, each]


def eights(rng: np.random.Generator, rows: int, columns: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    codes = rng.integers(-128, 128, (rows, columns)).astype(np.int8)
    scales = rng.uniform(0.0004, 0.001, (rows, 1)).astype(np.float32)
    return {"weight": codes, "weight_scale": scales}, codes * scales.astype(np.float64)


def float8(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return rng.standard_normal((rows, columns)).astype(ml_dtypes.float8_e4m3fn)


def blocks(rng: np.random.Generator, rows: int, columns: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Blocks of 32 x 64, of which the last are smaller."""
    codes = float8(rng, rows, columns)
    scales = rng.uniform(0.02, 0.2, (-(-rows // 32), -(-columns // 64))).astype(np.float32)
    each = np.repeat(np.repeat(scales, 32, axis=0)[:rows], 64, axis=1)[:, :columns]
    return {"weight": codes, "weight_scale_inv": scales}, codes.astype(np.float64) * each


def floats(rng: np.random.Generator, rows: int, columns: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    codes, scale = float8(rng, rows, columns), np.array([0.125], np.float32)
    tensors = {"weight": codes, "weight_scale": scale, "input_scale": np.ones(1, np.float32)}
    return tensors, codes.astype(np.float64) * 0.125


def nvfp4(rng: np.random.Generator, rows: int, columns: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    codes = rng.integers(0, 16, (rows, columns)).astype(np.uint8)
    scales = rng.uniform(1, 400, (rows, columns // 16)).astype(ml_dtypes.float8_e4m3fn)
    numbers = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    tensors = {
        "weight_packed": codes[:, ::2] | (codes[:, 1::2] << 4), "weight_scale": scales,
        "weight_global_scale": np.array([512.0], np.float32),
    }  # fmt: skip
    return tensors, numbers * np.repeat(scales.astype(np.float64), 16, axis=1) / 512


INT4 = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": GROUP}
TOKENS = {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token", "symmetric": True}
FORMATS: dict[str, tuple[Any, dict[str, Any]]] = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}),
    "w4a16": (packed, compressed("pack-quantized", **INT4)),
    "w8a8": (eights, compressed("int-quantized", num_bits=8, type="int", strategy="channel", activations=TOKENS)),
    "w8a8-fp8": (floats, compressed("float-quantized", num_bits=8, type="float", strategy="tensor")),
    "block-fp8": (blocks, {"quant_method": "fp8", "weight_block_size": [32, 64]}),
    "nvfp4": (nvfp4, compressed("nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group",
                                group_size=16)),
}  # fmt: skip


def write(folder: Path, tensors: dict[str, np.ndarray], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: np.ascontiguousarray(data) for name, data in tensors.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", FORMATS)
def test_numbers_of_each_format(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    make, settings = FORMATS[name]
    tensors, expected = make(rng, ROWS, COLUMNS)
    written = {f"layer.{key}": data for key, data in tensors.items()} | {"other.weight": np.zeros((2, 2), np.float32)}
    checkpoint = Checkpoint(write(tmp_path, written, quantization_config=settings))
    read = reader_of(checkpoint)
    assert read is not None and read("other", 2, 2) is None
    found = read("layer", ROWS, COLUMNS)
    assert found is not None and found.rows_in_8_bits == (name == "w8a8")
    assert np.array_equal(found.matrix.numbers(), expected.astype(np.float32))
    checkpoint.take("other.weight", (2, 2))
    checkpoint.finish()  # nothing is left over


def small_llama(
    rng: np.random.Generator,
) -> tuple[dict[str, Any], dict[str, tuple[int, int]], dict[str, np.ndarray]]:
    """Settings, the shapes of the linear layers by path, and the other weights."""
    settings = {**CASES["llama"], "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1}
    heads = {"q_proj": (128, 128), "k_proj": (64, 128), "v_proj": (64, 128), "o_proj": (128, 128)}
    shapes = {f"model.layers.0.self_attn.{key}": shape for key, shape in heads.items()}
    shapes |= {f"model.layers.0.mlp.{key}": (256, 128) for key in ("gate_proj", "up_proj")}
    shapes |= {"model.layers.0.mlp.down_proj": (128, 256)}
    norms = ("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm")
    rest = {f"{key}.weight": np.ones(128, np.float32) for key in norms}
    rest |= {key: rng.standard_normal((96, 128)).astype(np.float32) for key in ("model.embed_tokens.weight",
                                                                               "lm_head.weight")}  # fmt: skip
    return settings, shapes, rest


@pytest.mark.parametrize("name", ["awq", "w8a8"])
def test_language_models_with_quantized_layers(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """Logits of a quantized checkpoint, and of one with the numbers that it stands for."""
    settings, shapes, rest = small_llama(rng)
    quantized, plain = dict(rest), dict(rest)
    for path, shape in shapes.items():
        tensors, numbers = FORMATS[name][0](rng, *shape)
        quantized |= {f"{path}.{key}": data for key, data in tensors.items()}
        plain[f"{path}.weight"] = numbers.astype(np.float32)
    first = write(tmp_path / "quantized", quantized, **settings, quantization_config=FORMATS[name][1])
    second = write(tmp_path / "plain", plain, **settings)
    tokens, chunk = tokens_of("llama")[:12], range(12)
    logits = [Model.open(folder, 4, LIMITS).run([Chunk(tokens, 0, range(2), chunk)]) for folder in (first, second)]
    error = np.abs(logits[0] - logits[1]).max() / np.abs(logits[1]).max()
    assert error < (0.05 if name == "w8a8" else 1e-5), error
    ops = {node.op for node in step_graph(first, LIMITS).nodes}
    assert ("quantize" in ops) == (name == "w8a8") and "dequantize" in ops


def test_rounding_weights_when_they_are_read(tmp_path: Path, rng: np.random.Generator) -> None:
    settings, shapes, rest = small_llama(rng)
    linear = {f"{path}.weight": rng.standard_normal(shape).astype(np.float32) for path, shape in shapes.items()}
    folder = write(tmp_path / "m", {**rest, **linear}, **settings)
    plain, rounded = (step_graph(folder, LIMITS, weights=weights) for weights in ("auto", "int8"))
    assert "dequantize" in {node.op for node in rounded.nodes} and not any(n.op == "dequantize" for n in plain.nodes)
    with pytest.raises(InputError, match="weights is 'int3'; known are auto, int8, int4"):
        step_graph(folder, LIMITS, weights="int3")


def test_tables_of_tokens_are_rounded_as_last_layers(tmp_path: Path, rng: np.random.Generator) -> None:
    """Logits are those of a last layer with the table's numbers; tokens are looked up as they were."""
    settings, shapes, rest = small_llama(rng)
    settings["vocab_size"] = 256
    table = rng.standard_normal((256, 128)).astype(np.float32)
    weights = {key: data for key, data in rest.items() if "lm_head" not in key}
    weights |= {f"{path}.weight": rng.standard_normal(shape).astype(np.float32) for path, shape in shapes.items()}
    weights["model.embed_tokens.weight"] = table
    own = write(tmp_path / "own", {**weights, "lm_head.weight": table}, **settings, tie_word_embeddings=False)
    tied = write(tmp_path / "tied", weights, **settings, tie_word_embeddings=True)
    tokens = tokens_of("llama")[:12]
    for kind in ("int8", "int4"):
        models = [Model.open(folder, 4, LIMITS, weights=kind) for folder in (own, tied)]
        logits = [model.run([Chunk(tokens, 0, range(2), range(12))]) for model in models]
        np.testing.assert_allclose(logits[1], logits[0], rtol=1e-5, atol=1e-5 * np.abs(logits[0]).max())
        *_, last = [node for node in step_graph(tied, LIMITS, weights=kind).nodes if node.op == "dequantize"]
        codes = last.inputs[0]
        assert codes is not None and codes.shape == (256, 1, 128)


@pytest.mark.parametrize(("target", "dtype", "shared"), [
    ("cuda:sm_90a", "float32", True), ("cuda:sm_90a", "float16", False), ("cuda:sm_80", "float16", True),
    ("cpu", "float32", False),
])  # fmt: skip
def test_tables_of_tokens_stay_one_where_codes_become_floats(
    target: str, dtype: str, shared: bool, tmp_path: Path, rng: np.random.Generator
) -> None:
    """A rounded table that a target has no kernel for would be a second table of floats."""
    settings, shapes, rest = small_llama(rng)
    settings["vocab_size"] = 256
    weights = {key: data for key, data in rest.items() if "lm_head" not in key}
    weights |= {f"{path}.weight": rng.standard_normal(shape).astype(np.float32) for path, shape in shapes.items()}
    weights["model.embed_tokens.weight"] = rng.standard_normal((256, 128)).astype(np.float32)
    folder = write(tmp_path, weights, **settings, tie_word_embeddings=True)
    graph = step_graph(folder, LIMITS, dtype, "int8", target=get_target(target))
    *_, last = [node for node in graph.nodes if node.op == "matmul"]
    assert (last.inputs[1] in graph.constants) == shared
    tables = [data for data in graph.constants.values() if data.size == 256 * 128 and data.dtype.kind in "fV"]
    assert len(tables) == 1


def test_memory_follows_the_file(tmp_path: Path, rng: np.random.Generator) -> None:
    """Sizes of config.json that ask for 8 TiB, with a file of some bytes: an error that names tensor and setting."""
    huge = 1 << 21
    tensors, _ = awq(rng, ROWS, COLUMNS)
    read = reader_of(Checkpoint(write(tmp_path / "q", {f"l.{key}": data for key, data in tensors.items()},
                                      quantization_config=FORMATS["awq"][1])))  # fmt: skip
    assert read is not None
    with pytest.raises(ImportModelError, match=r"l.qweight is \[96, 6\].*quantization_config: bits 4"):
        read("l", huge, huge)
    blocks_of = {**FORMATS["block-fp8"][1], "weight_block_size": [1 << 40, 1 << 40]}
    stored = {"l.weight": float8(rng, ROWS, COLUMNS), "l.weight_scale_inv": np.ones((1, 1), np.float32)}
    read = reader_of(Checkpoint(write(tmp_path / "b", stored, quantization_config=blocks_of)))
    assert read is not None and read("l", ROWS, COLUMNS).matrix.scales.shape == (ROWS, 1)
    settings, shapes, rest = small_llama(rng)
    linear = {f"{path}.weight": np.ones(shape, np.float32) for path, shape in shapes.items()}
    folder = write(tmp_path / "m", {**rest, **linear}, **{**settings, "intermediate_size": 1 << 30})
    with pytest.raises(ImportModelError, match=r"wrong shape: layers.0.mlp.gate_proj.weight"):
        step_graph(folder, LIMITS, weights="int4")


def test_what_does_not_fit_names_tensor_and_key(tmp_path: Path, rng: np.random.Generator) -> None:
    def refusal(tensors: dict[str, np.ndarray], settings: Any, columns: int = COLUMNS) -> str:
        checkpoint = Checkpoint(write(tmp_path, {f"l.{key}": data for key, data in tensors.items()},
                                      quantization_config=settings))  # fmt: skip
        with pytest.raises(ImportModelError) as caught:
            read = reader_of(checkpoint)
            assert read is not None
            read("l", ROWS, columns)
            checkpoint.finish()
        return str(caught.value)

    tensors, _ = awq(rng, ROWS, COLUMNS)
    settings = FORMATS["awq"][1]
    text = refusal({**tensors, "scales": tensors["scales"][:2]}, settings)
    assert "wrong shape: l.scales is [2, 48]" in text and "(quantization_config: bits 4, group_size 32)" in text
    assert "'group_size' is 50, which does not divide" in refusal(tensors, {**settings, "group_size": 50})
    assert "'bits' is 3; known are 4" in refusal(tensors, {**settings, "bits": 3})
    assert "'version' is 'gemv'" in refusal(tensors, {**settings, "version": "GEMV"})
    assert "'quant_method' is 'bitsandbytes'" in refusal(tensors, {"quant_method": "bitsandbytes"})
    assert "missing: l.qzeros" in refusal({k: v for k, v in tensors.items() if k != "qzeros"}, settings)
    bad, _ = gptq(rng, ROWS, COLUMNS)
    bad["g_idx"] = np.zeros(COLUMNS, np.int32)
    assert "l.g_idx does not put 96 inputs into 3 equal groups" in refusal(bad, FORMATS["gptq"][1])


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("gptq", "scales"), ("awq", "scales"), ("w4a16", "weight_scale"), ("w8a8", "weight_scale"),
     ("nvfp4", "weight_scale"), ("block-fp8", "weight_scale_inv"), ("block-fp8", "weight"),
     ("w8a8-fp8", "weight_scale")],
)  # fmt: skip
def test_numbers_that_are_not_finite(name: str, tensor: str, tmp_path: Path, rng: np.random.Generator) -> None:
    make, settings = FORMATS[name]
    for value in (np.nan, np.inf):
        tensors, _ = make(rng, ROWS, COLUMNS)
        bad = tensors[tensor].copy()
        place = tuple(int(rng.integers(size)) for size in bad.shape)
        bad[place] = value  # e4m3 has no infinity: NaN
        written = {f"l.{key}": data for key, data in {**tensors, tensor: bad}.items()}
        read = reader_of(Checkpoint(write(tmp_path, written, quantization_config=settings)))
        assert read is not None
        with pytest.raises(ImportModelError, match=rf"l\.{tensor} is (nan|inf) at \[{', '.join(map(str, place))}\]"):
            read("l", ROWS, COLUMNS)


@pytest.mark.parametrize("name", ["block-fp8", "w8a8-fp8"])
def test_scales_that_are_powers_of_two(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    make, settings = FORMATS[name]
    tensors, _ = make(rng, ROWS, COLUMNS)
    key = "weight_scale_inv" if name == "block-fp8" else "weight_scale"
    exponents = rng.integers(-20, 20, tensors[key].shape)
    numbers = []
    for dtype in (np.float32, ml_dtypes.float8_e8m0fnu):
        stored = np.exp2(exponents).astype(dtype)
        written = {f"l.{part}": data for part, data in {**tensors, key: stored}.items()}
        read = reader_of(Checkpoint(write(tmp_path, written, quantization_config=settings)))
        assert read is not None
        found = read("l", ROWS, COLUMNS)
        assert found is not None and found.matrix.scales.dtype == np.float32
        numbers.append(found.matrix.numbers())
    assert np.array_equal(numbers[0], numbers[1])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, *EIGHTS])
def test_place_of_what_is_not_finite(dtype: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.importers.quantized_weights._AT_ONCE", 7)
    for shape in ((), (0, 3), (5,), (4, 9), (3, 2, 5)):
        data = np.asarray(np.exp2(rng.integers(-2, 3, shape)), dtype)
        assert place_not_finite(data) is None
        if data.size:
            place = np.unravel_index(int(rng.integers(data.size)), shape)
            data[place] = np.nan
            assert place_not_finite(data) == place
            assert place_not_finite(data.T) == place[::-1]
    assert place_not_finite(np.ones(3, np.int8)) is None


@pytest.mark.parametrize("seed", range(24))
def test_groups_of_any_sizes(seed: int) -> None:
    """Element k of the depth has the scale of group places[k]."""
    rng = np.random.default_rng(seed)
    depth, size, rows = int(rng.choice([1, 7, 32, 70, 96, 130])), int(rng.choice([16, 32])), int(rng.choice([1, 5]))
    groups = -(-depth // size)
    places = (
        np.arange(depth) // size, rng.permutation(np.arange(groups * size) // size)[:depth],
        rng.integers(0, groups, depth), np.zeros(depth, np.int64),
    )[seed % 4]  # fmt: skip
    codes = rng.integers(0, 16, (rows, groups * size)).astype(np.uint8)
    scales, zeros = rng.uniform(0.01, 0.1, (rows, groups)), rng.integers(0, 16, (rows, groups)).astype(np.uint8)
    found = in_runs(QuantizedMatrix(codes, scales.astype(np.float32), zeros, depth=depth), places, size)
    wanted = (codes[:, :depth] - zeros[:, places].astype(np.float64)) * scales.astype(np.float32)[:, places]
    assert np.array_equal(found.numbers(), wanted.astype(np.float32))
    assert found.codes.shape[1] <= depth + groups * size
    builder = GraphBuilder("product")
    x = builder.input("x", float32, (3, depth))
    builder.output(multiply(Emitter(builder), x, found, "w"), "y")
    data = rng.standard_normal((3, depth)).astype(np.float32)
    (result,) = run_graph(builder.finish(), [data], {}).values()
    np.testing.assert_allclose(result, data @ wanted.T.astype(np.float32), rtol=1e-5, atol=1e-5)
