"""Damaged engine files: thousands of mutations, each refused with an `EngineError` or exactly right."""

import io
import json
import random
import struct
import zipfile
import zlib
from collections import Counter

import numpy as np
import pytest

from tests.host.handmade import COLUMNS, expected, make_package
from tilewright import Engine
from tilewright.engine import file
from tilewright.errors import EngineError

MUTATIONS = 2500
INPUT = np.linspace(-3, 3, 7 * COLUMNS, dtype=np.float32).reshape(7, COLUMNS)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "tiny.engine"
    Engine(make_package()).save(path)
    return path.read_bytes()


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
    return data[: draw.randrange(len(data))]


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


def change_value(root, draw: random.Random) -> None:
    places = []

    def walk(node) -> None:
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


def contains(value, node) -> bool:
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


def outcome(path) -> str:
    """What loading and running the file comes to; fails on a wrong answer or a foreign error."""
    try:
        engine = Engine.load(path)
        y, cache = engine(INPUT, np.zeros(4, np.int64), **{})
        engine.plan  # noqa: B018 - the steps are read when asked for
    except EngineError as error:
        assert str(path) in str(error) and len(str(error)) < 2000
        return type(error).__name__
    np.testing.assert_array_equal(y, expected(INPUT))
    np.testing.assert_array_equal(cache, 1)
    return "right"


KINDS = [flip_bits, overwrite, truncate, splice, damage_directory, exchange_members, edit_member, edit_json]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_mutation_crashes_or_gives_a_wrong_answer(original, tmp_path, kind):
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    path = tmp_path / "mutant.engine"
    outcomes: Counter[str] = Counter()
    for _ in range(MUTATIONS // len(KINDS) + 1):
        path.write_bytes(kind(original, draw))
        outcomes[outcome(path)] += 1
    print(dict(outcomes))
    assert outcomes["EngineDamagedError"] > 0


def test_the_original_and_a_rewritten_zip_are_right(original, tmp_path):
    path = tmp_path / "tiny.engine"
    path.write_bytes(original)
    assert outcome(path) == "right"
    path.write_bytes(write_members(read_members(original)))
    assert outcome(path) == "right"


def test_a_changed_member_with_the_right_zip_checksum_is_seen(original, tmp_path):
    members = read_members(original)
    name = "weights.safetensors"
    members[name] = members[name][:-1] + bytes([members[name][-1] ^ 1])
    data = write_members(members)
    assert struct.pack("<I", zlib.crc32(members[name])) in data
    path = tmp_path / "mutant.engine"
    path.write_bytes(data)
    with pytest.raises(EngineError, match=r"weights\.safetensors has changed"):
        Engine.load(path)
