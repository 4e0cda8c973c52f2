"""Engine files to start from, and ways to change them: for the fuzzing targets of engines and for tests/host."""

from __future__ import annotations

import hashlib
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.build.builder import build
from tilewright.dtypes import float32, int1, int64, optional_of, sequence_of, string
from tilewright.engine import file
from tilewright.engine.cpu_program import plan_symbol
from tilewright.engine.engine import Engine, staged_symbol
from tilewright.engine.weights import Weights
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph

PLAN_OBJECT = "kernels/plan.o"

Mutation = Callable[[bytes, random.Random], bytes]


def flip_bits(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 1, 2, 8])):
        changed[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def overwrite(data: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(data))
    piece = draw.choice([bytes(8), b"\xff" * 8, draw.randbytes(draw.randrange(1, 64))])
    return data[:start] + piece + data[start + len(piece) :]


def truncate(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(max(1, len(data)))]


def splice(data: bytes, draw: random.Random) -> bytes:
    """Remove, repeat, insert or move a piece."""
    a, b = sorted(draw.sample(range(len(data)), 2))
    b = min(b, a + draw.choice([1, 16, 4096, len(data)]))
    to = draw.randrange(len(data))
    return draw.choice([data[:a] + data[b:], data[:b] + data[a:], data[:to] + data[a:b] + data[to:], data + data[a:b]])


def damage_directory(data: bytes, draw: random.Random) -> bytes:
    """Change a field in the zip's own structures: local headers, the directory, its end."""
    places = []
    for signature, length in ((b"PK\3\4", 30), (b"PK\1\2", 46), (b"PK\5\6", 22)):
        start = data.find(signature)
        while start >= 0:
            places.append((start, length))
            start = data.find(signature, start + 1)
    start, length = draw.choice(places)
    changed = bytearray(data)
    width = draw.choice([1, 2, 4])
    field = start + draw.randrange(length - width)
    changed[field : field + width] = draw.choice(
        [bytes(width), b"\xff" * width, draw.randbytes(width), struct.pack("<I", len(data))[:width]]
    )
    return bytes(changed)


def exchange_members(data: bytes, draw: random.Random) -> bytes:
    """A valid zip in which members are missing, doubled, renamed, compressed, or have another's contents."""
    members = read_members(data)
    names = list(members)
    kind = draw.choice(["drop", "swap", "rename", "compress", "add", "empty"])
    first, second = draw.sample(names, 2)
    if kind == "drop":
        del members[first]
    elif kind == "swap":
        members[first], members[second] = members[second], members[first]
    elif kind == "rename":
        members[second + draw.choice(["", ".", "\0", "/"])] = members.pop(first)
    elif kind == "add":
        members[draw.choice(["extra", "kernels/extra.o", "../escape", "/etc/absolute"])] = draw.randbytes(50)
    elif kind == "empty":
        members[first] = b""
    return write_members(members, zipfile.ZIP_DEFLATED if kind == "compress" else zipfile.ZIP_STORED)


def edit_member(data: bytes, draw: random.Random) -> bytes:
    """A valid zip in which one member's bytes have changed."""
    members = read_members(data)
    name = draw.choice(list(members))
    members[name] = draw.choice([flip_bits, overwrite, truncate])(members[name], draw)
    return write_members(members)


def edit_json(data: bytes, draw: random.Random) -> bytes:
    """Another value somewhere in the manifest; sometimes with a guard that fits, so that it is looked at."""
    members = read_members(data)
    manifest = json.loads(members[file.MANIFEST])
    change_value(manifest, draw)
    text = json.dumps(manifest).encode()
    members[file.MANIFEST] = text
    if draw.random() < 0.8:
        members[file.GUARD] = f"{file.digest(text)}  {file.MANIFEST}\n".encode()
    return write_members(members)


def change_value(root: Any, draw: random.Random) -> None:
    """Put another value somewhere into a JSON value, or take one away."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in entries:
            places.append((node, key))
            walk(value)

    walk(root)
    node, key = draw.choice(places)
    others = [0, 1, -1, 2**31, 2**63, 10**30, 0.5, True, None, "", "batch", "x", [], {}, [[]], {"terms": []}, node]
    value = draw.choice([*others[:-1], draw.choice(places)[0]])
    if draw.random() < 0.2 and isinstance(node, dict):
        del node[key]
    elif not contains(value, node):
        node[key] = value


def contains(value: Any, node: Any) -> bool:
    if value is node:
        return True
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(contains(child, node) for child in children)


def read_members(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_members(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def small_graph() -> Graph:
    """A model of a few kinds of operations with a dynamic batch and constants, one of them packed."""
    draw = np.random.default_rng(3)
    b = GraphBuilder("small")
    batch = b.symbol("batch", 1, 64)
    x = b.input("x", float32, (batch, 8))
    picked = b.input("picked", int64, (batch,))
    weight = b.constant(draw.standard_normal((8, 16)).astype(np.float32), "weight")
    table = b.constant(draw.standard_normal((10, 16)).astype(np.float32), "table")
    hidden = b.op("relu", [b.op("matmul", [x, weight], source="first")])
    total = b.op("add", [hidden, b.op("gather", [table, picked], axis=0)], source="<script>alert(1)</script>")
    split = b.op("reshape", [total], shape=(batch, 4, 4))
    b.output(b.op("softmax", [total], axis=-1), "y")
    b.output(b.op("reduce_sum", [b.op("permute", [split], order=(0, 2, 1))], axes=(2,), keepdims=False), "sums")
    return b.finish()


def staged_graph() -> Graph:
    """A model in parts: a shape that is an input, places that depend on data, a loop whose value grows."""
    b = GraphBuilder("staged")
    rows = b.symbol("rows", 1, 64)
    x, shape, count = b.input("x", float32, (rows, 4)), b.input("shape", int64, (2,)), b.input("count", int64, ())
    extents = b.op("reshape", [b.op("dimension", expression=rows)], shape=(1,))
    extents = b.op("concat", [extents, b.constant([4])], axis=0)
    target = b.op("resolved_shape", [shape, extents], count=2, what="the shape")
    sizes = [b.run_time_symbol("size") for _ in range(2)]
    for number, size in enumerate(sizes):
        b.op("extent", [target], element=number, size=size)
    y = b.op("reshape", [b.op("exp", [x])], shape=sizes)
    places = b.op("nonzero", [b.op("greater", [y, 1.0])], shape=(2, b.run_time_symbol("found")))
    types = ((float32, (b.run_time_symbol("final"),)), (float32, (b.run_time_symbol("trips"),)))
    first = b.op("reduce_sum", [y], axes=(0,))
    node = b.node("loop", [count, None, first], body=_round(b), carried=1, types=types)
    b.output(b.op("add", [places, places]), "places")
    b.output(node.outputs[0], "last")
    b.output(b.op("add", [node.outputs[1], 1.0]), "sums")
    return b.finish()


def text_graph() -> Graph:
    """A model of text, a sequence and an optional, with a compiled part."""
    b = GraphBuilder("texts")
    rows = b.symbol("rows", 1, 64)
    length, present = b.symbol("length", 0, 64), b.symbol("held", 0, 1)
    words, x = b.input("words", string, (rows,)), b.input("x", float32, (rows, 4))
    tensors, maybe = (
        b.input("tensors", sequence_of(float32), (length,)),
        b.input("maybe", optional_of(int64), (present,)),
    )
    place = b.op("text_position", [words], keys=("a", "bc", "d"))
    table = b.constant(np.array(["A", "B", "D", ""], object), "table")
    named = b.op("gather", [table, place], axis=0)
    b.output(b.op("text_concat", [b.op("text_normalize", [named], case="LOWER", count=b.run_time_symbol("left")),
                                  b.constant(np.array(["!"], object))]), "named")  # fmt: skip
    b.output(b.op("text_split", [words], delimiter=",", gives="counts"), "counts")
    b.output(b.op("text_matches", [words], pattern="(a|b)*c?"), "matched")
    longer = b.op(
        "sequence_insert",
        [
            tensors,
            b.op("multiply", [b.op("exp", [x]), b.constant(np.arange(4, dtype=np.float32))]),
            b.constant(np.array(0)),
        ],
    )
    b.output(longer, "longer")
    b.output(b.op("list_item", [longer], shape=(b.run_time_symbol("height"), 4)), "last")
    b.output(b.op("sequence_join", [longer], shape=(b.run_time_symbol("total"), 4), along=0), "joined")
    b.output(maybe, "same")
    b.output(b.op("random", shape=(3,), seed=1), "drawn")
    return b.finish()


def _round(outer: GraphBuilder) -> Graph:
    """One round of the loop: a value and a one behind it, and its sum."""
    b = GraphBuilder("round", outer)
    b.input("iteration", int64, ())
    going = b.input("going", int1, ())
    value = b.input("value", float32, (b.run_time_symbol("length"),))
    longer = b.op("concat", [b.op("tanh", [value]), b.constant(np.ones(1, np.float32), "one")], axis=0)
    b.output(b.op("copy", [going]), "going_on")
    b.output(longer, "longer")
    b.output(b.op("reduce_sum", [longer], axes=(0,)), "sum")
    return b.finish()


def small_engine() -> Engine:
    """`small_graph`, compiled."""
    return build(small_graph(), "cpu")


BYTES: tuple[Mutation, ...] = (
    flip_bits, overwrite, truncate, splice, damage_directory, exchange_members, edit_member, edit_json,
)  # fmt: skip


def sealed(members: dict[str, bytes]) -> bytes:
    """An engine file of these members whose digests are right, as a forger makes it.

    The manifest's listing and its guard are made anew where the manifest can be parsed.
    """
    members = dict(members)
    try:
        manifest = json.loads(members[file.MANIFEST])
    except (KeyError, ValueError, RecursionError):
        manifest = None
    if isinstance(manifest, dict):
        others = members.keys() - {file.MANIFEST, file.GUARD, file.SIGNATURES}
        manifest["members"] = {
            name: {"bytes": len(members[name]), "sha256": file.digest(members[name])} for name in others
        }
        members[file.MANIFEST] = json.dumps(manifest).encode()
    if file.MANIFEST in members:
        members[file.GUARD] = f"{hashlib.sha256(members[file.MANIFEST]).hexdigest()}  {file.MANIFEST}\n".encode()
    return write_members(members)


def fit_symbol(members: dict[str, bytes], manifest: dict[str, Any]) -> None:
    """Let the machine code belong to the forged plan: its symbol is renamed."""
    try:
        (program,) = manifest["programs"]
        weights = Weights.parse(np.frombuffer(members[file.WEIGHTS], np.uint8))
        for number, part in enumerate(program.get("parts", [program])):
            name = f"kernels/plan-0-{number}.o" if "parts" in program else PLAN_OBJECT
            old, part["symbol"] = part["symbol"], plan_symbol(part["plan"], weights.offsets)
            members[name] = members[name].replace(old.encode(), part["symbol"].encode())
        if "parts" in program:
            symbols = [part["symbol"] for part in program["parts"]]
            program["symbol"] = staged_symbol(program["plan"], symbols, members[file.GRAPH])
    except (KeyError, ValueError, TypeError, AttributeError):
        pass  # it is refused for something else
