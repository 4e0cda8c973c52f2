"""Hugging Face folders: config.json, the index of shards and safetensors headers of any kind; and whole models.

A whole model of drawn sizes is imported from one or more shards, sometimes with one thing about it changed.  The
numbers of the graph are compared with those of transformers, where that is installed; every eighth is built and
compared with the graph.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.build.builder import build
from tilewright.graph import reference
from tilewright.graph.core import Graph
from tilewright.importers import import_model
from tools.fuzz.target import Base, Failed

CONFIG = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 16,
    "vocab_size": 10,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "position_embedding_type": "absolute",
}
HOSTILE: tuple[Any, ...] = (
    0,
    -1,
    1,
    2,
    7,
    10**9,
    2**31,
    2**63,
    10**400,
    True,
    None,
    "8",
    "",
    "\ud800",
    "../x",
    "..",
    [],
    [1],
    {},
    {"a": 1},
    1.5,
    float("nan"),
    float("inf"),
    -0.0,
    "x" * 1000,
    [[[[]]]],
)
FORMATS = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
Arrays = dict[str, np.ndarray]


class Folders(Base):
    seconds = 40.0  # for those that are built

    def prepare(self, folder: Path) -> None:
        self.folder = folder / "model"
        self.folder.mkdir(exist_ok=True)

    def run(self, seed: int) -> str:
        draw = random.Random(seed)
        for path in self.folder.iterdir():
            path.unlink()
        if draw.random() < 0.3:
            return self._whole(draw)
        (self.folder / "config.json").write_text(self._text(draw, self._changed(draw, dict(CONFIG))))
        header = self._header(draw)
        text = self._text(draw, header).encode(errors="surrogatepass")
        length = draw.choice((len(text),) * 8 + (0, 2**63, len(text) + 1))
        data = struct.pack("<Q", length) + text + bytes(draw.choice((0, 256, 4096)))
        shard = draw.choice(("model.safetensors", "a.safetensors"))
        (self.folder / shard).write_bytes(data)
        if shard != "model.safetensors":
            names = {name: draw.choice((shard, shard, *HOSTILE)) for name in header} if isinstance(header, dict) else {}
            index = draw.choice(({"weight_map": names}, {"weight_map": draw.choice(HOSTILE)}, draw.choice(HOSTILE)))
            (self.folder / "model.safetensors.index.json").write_text(self._text(draw, index))
        if draw.random() < 0.02:
            os.mkfifo(self.folder / draw.choice(("model.safetensors.x", "b.safetensors")))
        import_model(self.folder)
        return "imported"

    def _whole(self, draw: random.Random) -> str:
        """A model with all of its weights."""
        config, weights, name = _model(draw)
        is_changed = draw.random() < 0.3
        if is_changed and draw.random() < 0.5:
            config = self._changed(draw, config)
        elif is_changed:
            lost = draw.choice(list(weights))
            found = weights.pop(lost)
            if draw.random() < 0.5:
                weights[lost] = draw.choice((found[:0], found[None], found[..., :-1], found.astype(np.float64)))
        (self.folder / "config.json").write_text(json.dumps(config))
        count = draw.choice((1, 1, 2, 3))
        names = list(weights)
        shards = {f"{place}.safetensors": names[place::count] for place in range(count)}
        if count == 1:
            shards = {"model.safetensors": names}
        else:
            index = {weight: shard for shard, members in shards.items() for weight in members}
            (self.folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
        for shard, members in shards.items():
            (self.folder / shard).write_bytes(_safetensors({weight: weights[weight] for weight in members}))
        graph = import_model(self.folder)
        return "imported, changed" if is_changed else _compared(graph, config, weights, name, draw)

    def _changed(self, draw: random.Random, values: dict[str, Any]) -> dict[str, Any]:
        for _ in range(draw.choice((0, 1, 1, 2))):
            key = draw.choice(list(values))
            if draw.random() < 0.2:
                del values[key]
            else:
                values[key] = draw.choice(HOSTILE)
        return values

    def _header(self, draw: random.Random) -> Any:
        entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        for number in range(draw.randrange(4)):
            name = draw.choice((f"encoder.layer.{number}.output.dense.bias", "pooler.dense.weight", "", "\ud800"))
            count = draw.randrange(65)
            entry = {"dtype": draw.choice(("F32", "BF16", "I64")), "shape": [count], "data_offsets": [0, 4 * count]}
            entries[name] = self._changed(draw, entry) if draw.random() < 0.6 else entry
        return draw.choice((entries, entries, entries, entries, draw.choice(HOSTILE)))

    def _text(self, draw: random.Random, value: Any) -> str:
        text = json.dumps(value)
        kind = draw.random()
        if kind < 0.04:
            return text[: draw.randrange(len(text) + 1)]
        if kind < 0.06:
            return draw.choice(("[" * 20_000, '{"a":' * 20_000, "", "\0"))
        return text


def _model(draw: random.Random) -> tuple[dict[str, Any], Arrays, str]:
    """The settings and weights of a model of random sizes, and its element type."""
    heads, layers = draw.choice((1, 2, 3)), draw.choice((0, 1, 1, 2))
    hidden, inner = heads * draw.choice((1, 3, 4, 8)), draw.choice((1, 7, 16))
    config = CONFIG | {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": inner,
        "max_position_embeddings": draw.choice((2, 5, 16)), "vocab_size": draw.choice((1, 10, 33)),
        "type_vocab_size": draw.choice((1, 2)), "hidden_act": draw.choice(("gelu", "gelu_new", "relu", "silu")),
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {
        f"embeddings.{kind}_embeddings.weight": (config[size], hidden)
        for kind, size in (
            ("word", "vocab_size"), ("position", "max_position_embeddings"), ("token_type", "type_vocab_size")
        )
    }  # fmt: skip
    linears = {"pooler.dense": (hidden, hidden)} if draw.random() < 0.7 else {}
    norms = ["embeddings.LayerNorm"]
    for layer in (f"encoder.layer.{number}" for number in range(layers)):
        linears |= {f"{layer}.attention.self.{which}": (hidden, hidden) for which in ("query", "key", "value")}
        linears |= {f"{layer}.attention.output.dense": (hidden, hidden)}
        linears |= {f"{layer}.intermediate.dense": (inner, hidden), f"{layer}.output.dense": (hidden, inner)}
        norms += [f"{layer}.attention.output.LayerNorm", f"{layer}.output.LayerNorm"]
    for name, shape in [*linears.items(), *((name, (hidden,)) for name in norms)]:
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    kind, prefix = draw.choice(("F32", "F32", "F16", "BF16")), draw.choice(("", "", "bert."))
    generator = np.random.default_rng(draw.randrange(2**32))
    weights = {prefix + name: generator.standard_normal(shape).astype(FORMATS[kind]) for name, shape in shapes.items()}
    return config, weights, kind


def _safetensors(weights: Arrays) -> bytes:
    """A file with these weights."""
    kinds = {np.dtype(dtype): name for name, dtype in FORMATS.items()} | {np.dtype(np.float64): "F64"}
    header, data = {}, b""
    for name, array in weights.items():
        place = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kinds[array.dtype], "shape": array.shape, "data_offsets": place}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def _compared(graph: Graph, config: dict[str, Any], weights: Arrays, kind: str, draw: random.Random) -> str:
    """The numbers of a graph against those of transformers and of an engine."""
    length = draw.randrange(1, config["max_position_embeddings"] + 1)
    given = {
        "input_ids": np.array([[draw.randrange(config["vocab_size"]) for _ in range(length)] for _ in range(2)]),
        "attention_mask": np.ones((2, length), np.int64),
        "token_type_ids": np.array([[draw.randrange(config["type_vocab_size"]) for _ in range(length)]] * 2),
    }
    found = reference.run(graph, given)
    if not all(np.isfinite(array).all() for array in found.values()):
        raise Failed("wrong", "a result is not finite")
    if kind == "F32" and importlib.util.find_spec("transformers") is not None:
        _check("transformers", found, _transformers(config, weights, given), 1e-6)
    if draw.random() < 0.125:
        _check("the engine", build(graph, "cpu").run(given), found, {"F32": 1e-4, "F16": 0.05, "BF16": 0.3}[kind])
        return "built"
    return "right"


def _transformers(config: dict[str, Any], weights: Arrays, given: Arrays) -> Arrays:
    """What transformers computes in float64."""
    import torch
    from transformers import BertConfig, BertModel

    plain = {name.removeprefix("bert."): torch.from_numpy(array) for name, array in weights.items()}
    model = BertModel(BertConfig(**config), add_pooling_layer="pooler.dense.weight" in plain).double().eval()
    model.load_state_dict(plain, strict=False)
    with torch.no_grad():
        found = model(**{name: torch.from_numpy(array) for name, array in given.items()})
    return {name: found[name].numpy() for name in ("last_hidden_state", "pooler_output") if found[name] is not None}


def _check(subject: str, found: Arrays, wanted: Arrays, tolerance: float) -> None:
    for name, array in wanted.items():
        scale = max(1.0, float(np.abs(array).max()))
        difference = float(np.abs(found[name].astype(np.float64) - array).max()) / scale
        if not difference <= tolerance:
            raise Failed("wrong", f"{name} differs from {subject} by {difference:.2g}", f"{subject}: {name}")


TARGET = Folders()
