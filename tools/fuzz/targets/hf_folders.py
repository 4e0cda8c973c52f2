"""Hugging Face folders: config.json, the index of shards and safetensors headers of any kind."""

from __future__ import annotations

import json
import os
import random
import struct
from pathlib import Path
from typing import Any

from tilewright.importers import import_model
from tools.fuzz.target import Base

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
SHAPES = {"query": (8, 8), "key": (8, 8), "value": (8, 8)}


class Folders(Base):
    def prepare(self, folder: Path) -> None:
        self.folder = folder / "model"
        self.folder.mkdir(exist_ok=True)

    def run(self, seed: int) -> str:
        draw = random.Random(seed)
        for path in self.folder.iterdir():
            path.unlink()
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


TARGET = Folders()
