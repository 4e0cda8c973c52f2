"""Forged graphs inside engine files: each is refused with an error of ours, or built and run.

Of an engine in parts the graph is also forged beside machine code that fits: the host then runs what the graph says.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.host.random_graphs import RandomGraph
from tilewright import Engine, load
from tilewright.build.builder import build
from tilewright.cli.tensors import random_input
from tilewright.dtypes import ANY_BY_NAME, ANY_BY_TEXT, HOST_ONLY, element_of, string
from tilewright.engine import file
from tilewright.graph.core import Value
from tilewright.graph.ops import OPS, infer_types
from tilewright.runtime.plan import TensorSpec
from tilewright.symbolic import Symbol, evaluate, from_json, to_json
from tools.fuzz.engine_files import (
    change_value,
    fit_symbol,
    flip_bits,
    overwrite,
    read_members,
    sealed,
    small_graph,
    splice,
    staged_graph,
    text_graph,
    truncate,
)  # fmt: skip
from tools.fuzz.target import Base

LARGEST_INPUT = 1 << 20  # elements


class Target(Base):
    seconds = 20.0  # a build takes a good part of one
    megabytes = 1500

    def prepare(self, folder: Path) -> None:
        self.path = folder / "forged.engine"
        graphs = [
            small_graph(),
            staged_graph(),
            staged_graph(),
            text_graph(),
            text_graph(),
            *(RandomGraph(seed, 6).graph for seed in range(8)),
        ]
        self.bases = []
        for graph in graphs:
            build(graph, "cpu").save(self.path)
            self.bases.append(read_members(self.path.read_bytes()))

    def run(self, seed: int) -> str:
        draw = random.Random(seed)
        members = dict(draw.choice(self.bases))
        change = draw.choice([_change_bytes, _change_values, _change_numbers, _change_nodes, _change_nodes])
        members[file.GRAPH] = change(members[file.GRAPH], draw)
        manifest = json.loads(members[file.MANIFEST])
        rebuild = "parts" not in manifest["programs"][0] or draw.random() < 0.5
        fit_symbol(members, manifest)
        members[file.MANIFEST] = json.dumps(manifest).encode()
        self.path.write_bytes(sealed(members))
        engine = load(self.path, rebuild="always" if rebuild else False, target="cpu")
        return _run(engine, draw)


def _change_bytes(text: bytes, draw: random.Random) -> bytes:
    return draw.choice([flip_bits, overwrite, splice, truncate])(text, draw)


def _change_values(text: bytes, draw: random.Random) -> bytes:
    """Other JSON values anywhere."""
    data = json.loads(text)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        change_value(data, draw)
    return json.dumps(data).encode()


def _change_numbers(text: bytes, draw: random.Random) -> bytes:
    """One number for another wherever it stands, so that shapes may still fit."""
    old = draw.choice(re.findall(rb"\b\d+\b", text))
    new = draw.choice([0, 1, 2, 3, 5, 64, 1000, 2**20, 2**31, 2**40, 2**62, 2**70])
    return re.sub(rb"\b%s\b" % old, str(new).encode(), text)


def _change_nodes(text: bytes, draw: random.Random) -> bytes:
    """Other operations, inputs and attributes, with the types that these have."""
    graph = json.loads(text)
    entry = draw.choice([graph, *graph.get("parts", ())])
    nodes = entry["graph"]["nodes"]
    for _ in range(draw.choice([1, 2, 4])):
        node, other = draw.choice(nodes), draw.choice(nodes)
        kind = draw.randrange(5)
        if kind == 0:
            node["op"] = draw.choice(sorted(OPS))
        elif kind == 1 and node["inputs"]:
            node["inputs"][draw.randrange(len(node["inputs"]))] = draw.choice([other["outputs"][0][0], None])
        elif kind == 2 and node["attributes"]:
            change_value(node["attributes"], draw)
        elif kind == 3:
            node["attributes"] = other["attributes"]
        else:
            node["op"], node["attributes"] = other["op"], other["attributes"]
    with contextlib.suppress(Exception):  # where there are no such types, the old ones are left
        _retype(entry["graph"])
    return json.dumps(graph).encode()


def _retype(data: dict[str, Any]) -> None:
    """Record the inferred types of every node's outputs."""
    symbols = {name: Symbol(name, low, high) for name, low, high in data["symbols"]}
    values: dict[str, Value] = {}

    def define(name: str, dtype: str, shape: list[Any]) -> Value:
        return values.setdefault(
            name, Value(name, ANY_BY_TEXT[dtype], tuple(from_json(size, symbols) for size in shape))
        )

    for entry in (*data["inputs"], *data["constants"]):
        define(*entry)
    for node in data["nodes"]:
        inputs = [None if name is None else values[name] for name in node["inputs"]]
        attributes = {key: _attribute(item, symbols) for key, item in node["attributes"].items()}
        types = infer_types(node["op"], inputs, attributes)
        names = [name for name, _, _ in node["outputs"]]
        node["outputs"] = [
            [name, dtype.text, [to_json(size) for size in shape]]
            for name, (dtype, shape) in zip(names, types, strict=True)
        ]
        for output in node["outputs"]:
            define(*output)


def _attribute(item: Any, symbols: dict[str, Symbol]) -> Any:
    if isinstance(item, list):
        return tuple(_attribute(part, symbols) for part in item)
    if isinstance(item, dict):
        ((kind, content),) = item.items()
        readers = {"dtype": ANY_BY_TEXT.__getitem__, "float": float, "size": lambda size: from_json(size, symbols)}
        return readers[kind](content)
    return item


def _run(engine: Engine, draw: random.Random) -> str:
    """Run the engine where its inputs are small; what is refused then is refused."""
    sizes = {symbol.name: min(symbol.high, max(symbol.low, 3)) for symbol in engine.plan.symbols.values()}
    for spec in (*engine.inputs, *engine.outputs):
        if math.prod(evaluate(size, sizes) for size in spec.shape) > LARGEST_INPUT:
            return "built"
    if evaluate(engine.plan.arena_bytes, sizes) > 100 * LARGEST_INPUT:
        return "built"
    generator = np.random.default_rng(draw.randrange(2**32))
    engine.run({spec.name: _input(spec, sizes, generator) for spec in engine.inputs})
    return "run"


def _input(spec: TensorSpec, sizes: dict[str, int], generator: np.random.Generator) -> Any:
    """Values of an input: numbers, texts, lists of tensors."""
    dtype, shape = ANY_BY_NAME[spec.dtype], tuple(evaluate(size, sizes) for size in spec.shape)
    if dtype not in HOST_ONLY:
        return random_input(spec, sizes, generator)
    if dtype == string:
        return generator.choice(np.array(["a", "bc", "", "x,y", "é"], object), shape)
    element = element_of(dtype)
    if element in HOST_ONLY:
        return None
    tensor = np.ones((2, 4), element.numpy)
    return [tensor] * math.prod(shape) if dtype.kind == "sequence" else tensor


TARGET = Target()
