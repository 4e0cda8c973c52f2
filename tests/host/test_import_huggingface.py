"""Hugging Face checkpoints: the BERT family, shards, element types, and what is wrong with a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save, save_file

from tilewright import dtypes
from tilewright.errors import ImportModelError
from tilewright.graph import reference
from tilewright.importers import import_model
from tilewright.importers.huggingface import read_safetensors

CONFIG: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 10,
    "vocab_size": 20,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}


def weights(rng: np.random.Generator, pooler: bool = True) -> dict[str, np.ndarray]:
    """Random weights under Hugging Face's names."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (20, 8),
        "embeddings.position_embeddings.weight": (10, 8),
        "embeddings.token_type_embeddings.weight": (2, 8),
    }
    linears = {
        "encoder.layer.0.attention.self.query": (8, 8),
        "encoder.layer.0.attention.self.key": (8, 8),
        "encoder.layer.0.attention.self.value": (8, 8),
        "encoder.layer.0.attention.output.dense": (8, 8),
        "encoder.layer.0.intermediate.dense": (12, 8),
        "encoder.layer.0.output.dense": (8, 12),
    }
    if pooler:
        linears["pooler.dense"] = (8, 8)
    for name, shape in linears.items():
        shapes.update({f"{name}.weight": shape, f"{name}.bias": shape[:1]})
    for name in ("embeddings", "encoder.layer.0.attention.output", "encoder.layer.0.output"):
        shapes.update({f"{name}.LayerNorm.weight": (8,), f"{name}.LayerNorm.bias": (8,)})
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write(folder: Path, tensors: dict[str, np.ndarray], **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    save_file(tensors, folder / "model.safetensors")
    return folder


def inputs(rng: np.random.Generator, batch: int = 2, sequence: int = 5) -> dict[str, np.ndarray]:
    return {
        "input_ids": rng.integers(0, 20, (batch, sequence)),
        "attention_mask": np.ones((batch, sequence), np.int64),
        "token_type_ids": rng.integers(0, 2, (batch, sequence)),
    }


def test_needs_neither_torch_nor_onnx(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = write(tmp_path / "model", weights(rng))
    code = (
        "import sys; from tilewright.importers import import_model; "
        f"graph = import_model({str(folder)!r}); "
        "assert not {'torch', 'onnx', 'transformers', 'safetensors'} & set(sys.modules); print(len(graph.nodes))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_same_as_a_plain_encoder(tmp_path: Path, rng: np.random.Generator) -> None:
    """Against PyTorch's own modules, padding included (the trained model is in test_import_models)."""
    torch = pytest.importorskip("torch")
    from tests.models.bert import Bert, BertSize

    tensors = weights(rng)
    graph = import_model(write(tmp_path / "model", tensors))
    module = Bert(BertSize(8, 1, 2, 12, 20, 10, 2)).eval()
    module.load_state_dict({name: torch.from_numpy(data) for name, data in tensors.items()})
    given = inputs(rng)
    given["attention_mask"][1, 3:] = 0
    found = reference.run(graph, given)
    with torch.no_grad():
        expected = module.double()(*(torch.from_numpy(item) for item in given.values()))
    for name, want in zip(("last_hidden_state", "pooler_output"), expected, strict=True):
        np.testing.assert_allclose(found[name], want.numpy(), rtol=1e-9, atol=1e-9)


def test_weights_are_views_of_the_file(tmp_path: Path, rng: np.random.Generator) -> None:
    graph = import_model(write(tmp_path / "model", weights(rng)))
    for value, data in graph.constants.items():
        if value.rank:
            assert not data.flags.owndata and not data.flags.writeable, value


def test_dynamic_shapes_name_fix_and_limit(tmp_path: Path, rng: np.random.Generator) -> None:
    folder = write(tmp_path / "model", weights(rng))
    graph = import_model(folder)
    assert {symbol.name: symbol.high for symbol in graph.symbols.values()}["sequence"] == 10
    graph = import_model(folder, dynamic_shapes={"input_ids": {0: 3, 1: ("length", 2, 400)}})
    (symbol,) = graph.symbols.values()
    assert (symbol.name, symbol.low, symbol.high) == ("length", 2, 10)
    assert graph.inputs[1].shape[0] == 3


def test_shards_prefix_and_no_pooler(tmp_path: Path, rng: np.random.Generator) -> None:
    """A sharded task model: names under "bert.", a head that is not needed, no pooler."""
    tensors = {f"bert.{name}": data for name, data in weights(rng, pooler=False).items()}
    tensors["classifier.weight"] = np.zeros((2, 8), np.float32)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / shard)
    mapping = {name: shard for shard, members in shards.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": mapping}))
    graph = import_model(folder)
    assert graph.output_names == ["last_hidden_state"]
    single = import_model(write(tmp_path / "single", tensors))
    given = inputs(rng)
    for name, data in reference.run(graph, given).items():
        np.testing.assert_array_equal(data, reference.run(single, given)[name])


def test_bfloat16(tmp_path: Path, rng: np.random.Generator) -> None:
    tensors = {name: data.astype(ml_dtypes.bfloat16) for name, data in weights(rng).items()}
    graph = import_model(write(tmp_path / "model", tensors))
    assert graph.outputs[0].dtype == dtypes.bfloat16
    plain = import_model(write(tmp_path / "plain", {name: data.astype(np.float32) for name, data in tensors.items()}))
    given = inputs(rng)
    found, want = reference.run(graph, given), reference.run(plain, given)
    np.testing.assert_allclose(found["last_hidden_state"], want["last_hidden_state"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("activation", ["relu", "gelu_new", "silu"])
def test_activations(activation: str, tmp_path: Path, rng: np.random.Generator) -> None:
    graph = import_model(write(tmp_path / "model", weights(rng), hidden_act=activation))
    assert {"relu": "relu", "gelu_new": "gelu", "silu": "silu"}[activation] in {node.op for node in graph.nodes}


def test_every_unfitting_tensor_is_listed(
    tmp_path: Path, rng: np.random.Generator, golden: Callable[..., None]
) -> None:
    tensors = weights(rng)
    del tensors["encoder.layer.0.output.dense.bias"]
    tensors["pooler.dense.weight"] = np.zeros((8, 9), np.float32)
    tensors["encoder.layer.1.output.dense.bias"] = np.zeros(8, np.float32)
    folder = write(tmp_path / "model", tensors)
    with pytest.raises(ImportModelError) as error:
        import_model(folder)
    golden(str(error.value).replace(str(folder), "FOLDER") + "\n")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "novel"}, "model_type 'novel' has no importer yet; known: bert"),
        ({"hidden_size": "8"}, "'hidden_size' is '8', expected int"),
        ({"hidden_act": "novel"}, "hidden_act 'novel'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ({"num_attention_heads": 3}, "heads that divide the hidden size"),
    ],
)
def test_unknown_settings(changes: dict[str, Any], message: str, tmp_path: Path, rng: np.random.Generator) -> None:
    with pytest.raises(ImportModelError, match=message):
        import_model(write(tmp_path / "model", weights(rng), **changes))


def test_incomplete_folders(tmp_path: Path) -> None:
    with pytest.raises(ImportModelError, match=r"config.json: missing"):
        import_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ImportModelError, match="cannot be read as JSON"):
        import_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ImportModelError, match=r"no model.safetensors"):
        import_model(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ImportModelError, match="convert the PyTorch weights"):
        import_model(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../../secret.safetensors"}}))
    with pytest.raises(ImportModelError, match="leaves the folder"):
        import_model(tmp_path)
    index.write_text(json.dumps({"weight_map": {"x": "gone.safetensors"}}))
    with pytest.raises(ImportModelError, match="cannot be mapped"):
        import_model(tmp_path)


def test_damaged_safetensors_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    """Any damage to the header is an `ImportModelError` or leaves every tensor inside the file."""
    good = save({"a": rng.standard_normal((3, 4)).astype(np.float32), "b": np.arange(5)})
    header = 8 + int.from_bytes(good[:8], "little")
    path = tmp_path / "x.safetensors"
    refused = 0
    for _ in range(300):
        damaged = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            damaged[rng.integers(0, header)] = rng.integers(0, 256)
        damaged = damaged[: rng.integers(0, len(damaged) + 1)] if rng.random() < 0.3 else damaged
        path.write_bytes(bytes(damaged))
        try:
            for data in read_safetensors(path).values():
                data.sum(dtype=np.float64 if data.dtype.kind not in "biu" else None)
        except ImportModelError:
            refused += 1
    assert refused > 100


def _file(path: Path, dtype: str, size: int) -> Path:
    header = json.dumps({"a.weight": {"dtype": dtype, "shape": [2, 4], "data_offsets": [0, size]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(range(48, 48 + size)))
    return path


def test_every_element_type_of_the_format_is_read_or_refused_by_name(tmp_path: Path) -> None:
    bits = {"BOOL": 8, "BF16": 16, **{f"{kind}{size}": size for kind in "IU" for size in (8, 16, 32, 64)}}
    bits |= {"F16": 16, "F32": 32, "F64": 64}
    bits |= dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8)
    for dtype, size in bits.items():
        (data,) = read_safetensors(_file(tmp_path / "x.safetensors", dtype, size)).values()
        assert data.shape == (2, 4) and data.nbytes == size
    scales = read_safetensors(_file(tmp_path / "x.safetensors", "F8_E8M0", 8))["a.weight"]
    assert np.array_equal(scales.astype(np.float64).ravel(), np.exp2(np.arange(48, 56) - 127.0))
    for dtype, advice in (("F4", "U8"), ("F6_E2M3", "F8_E4M3"), ("F6_E3M2", "F8_E5M2"), ("C64", "F32"), ("X", "BOOL")):
        with pytest.raises(ImportModelError, match=f"a.weight has elements of '{dtype}', which.*{advice}"):
            read_safetensors(_file(tmp_path / "x.safetensors", dtype, 8))


@pytest.mark.parametrize(
    "key",
    "hidden_size num_hidden_layers num_attention_heads intermediate_size max_position_embeddings vocab_size "
    "type_vocab_size layer_norm_eps".split(),
)
def test_settings_of_any_kind_are_refused(key: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """At once, and without memory for what they say."""
    for value in (-1, 10**9, 2**63, 10**400, True, None, "8", [1], {}, float("nan"), float("inf")):
        with pytest.raises(ImportModelError) as error:
            import_model(write(tmp_path / "model", weights(rng), **{key: value}))
        assert len(str(error.value)) < 20_000


@pytest.mark.parametrize("text", ["[" * 10**6, '{"a":' * 5000 + "1" + "}" * 5000, '{"model_type": []}', "[]", "\0"])
def test_damaged_configurations(text: str, tmp_path: Path, rng: np.random.Generator) -> None:
    folder = write(tmp_path / "model", weights(rng))
    (folder / "config.json").write_text(text)
    with pytest.raises(ImportModelError):
        import_model(folder)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")
def test_only_files_of_the_folder_are_read(tmp_path: Path, rng: np.random.Generator) -> None:
    """Nor links that lead elsewhere, but for those of a Hugging Face cache."""
    folder = write(tmp_path / "model", weights(rng))
    kept = (folder / "model.safetensors").rename(tmp_path / "weights")
    (folder / "model.safetensors").symlink_to(kept)
    with pytest.raises(ImportModelError, match="leads out of the folder"):
        import_model(folder)
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")
    with pytest.raises(ImportModelError, match="no regular file"):
        import_model(folder)
    (tmp_path / "hub/blobs").mkdir(parents=True)
    (tmp_path / "hub/snapshots").mkdir()
    snapshot = write(tmp_path / "hub/snapshots/abc", weights(rng))
    (snapshot / "model.safetensors").rename(tmp_path / "hub/blobs/123")
    (snapshot / "model.safetensors").symlink_to("../../blobs/123")
    assert import_model(snapshot).inputs


@pytest.mark.parametrize("name", ["../x", "..", "", "/etc/passwd", "a\0", "\ud800", "a/b", "..\\x", ["a"], None])
def test_shards_stay_in_the_folder(name: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    folder = write(tmp_path / "model", weights(rng))
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ImportModelError):
        import_model(folder)
