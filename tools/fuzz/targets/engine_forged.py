"""Forged engine files: manifest, plan, weights or machine code are changed and all digests made anew.

They are loaded, which links their machine code, and everything about them is asked, as `tilewright inspect` does.  They
are never run: a forged object is another program.
"""

from __future__ import annotations

import copy
import json
import random
import struct
from pathlib import Path
from typing import Any

from tilewright import Engine
from tilewright.build.builder import build
from tilewright.cli.console import terminal
from tilewright.cli.inspect import describe, show
from tilewright.engine import file
from tilewright.insight.page import page
from tilewright.insight.report import report
from tools.fuzz.engine_files import (
    change_value,
    fit_symbol,
    flip_bits,
    overwrite,
    read_members,
    sealed,
    small_engine,
    splice,
    staged_graph,
    text_graph,
    truncate,
)  # fmt: skip
from tools.fuzz.target import Base

NUMBERS = [0, 1, 2, 3, 7, 8, 0x7F, 0xFF, 0xFF00, 0xFFF1, 0xFFF2, 0xFFFF, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1]


class Target(Base):
    megabytes = 1000

    def prepare(self, folder: Path) -> None:
        self.path = folder / "forged.engine"
        self.bases = []
        for engine in (small_engine(), build(staged_graph(), "cpu"), build(text_graph(), "cpu")):
            engine.save(self.path)
            members = read_members(self.path.read_bytes())
            self.bases.append((members, json.loads(members[file.MANIFEST])))

    def run(self, seed: int) -> str:
        draw = random.Random(seed)
        base, parsed = draw.choice(self.bases)
        members, manifest = dict(base), copy.deepcopy(parsed)
        change = draw.choice([forge_manifest, forge_plan, forge_weights, forge_elf, forge_object, forge_texts])
        change(members, manifest, draw)
        if change is not forge_texts:
            fit_symbol(members, manifest)
            members[file.MANIFEST] = json.dumps(manifest).encode()
        self.path.write_bytes(sealed(members))
        engine = Engine.read(self.path) if draw.random() < 0.2 else Engine.load(self.path)
        ask(engine)
        return f"loaded after {change.__name__}"


def ask(engine: Engine) -> None:
    """Everything that can be known about an engine without running it."""
    sizes = {symbol.name: symbol.low for symbol in engine.plan.symbols.values()}
    repr(engine), engine.timings, engine.arena, engine.fusion, engine.source
    with engine.reading():  # as the command line does
        described, written = describe(engine, sizes), page(report(engine, sizes))
    show(terminal(stderr=True), described, evidence=True)
    assert "<script>alert" not in written
    engine.source_graph()


def forge_manifest(members: dict[str, bytes], manifest: dict[str, Any], draw: random.Random) -> None:
    """Other values anywhere in the manifest."""
    for _ in range(draw.choice([1, 1, 2, 4])):
        change_value(manifest, draw)


def forge_plan(members: dict[str, bytes], manifest: dict[str, Any], draw: random.Random) -> None:
    """Other values in the plan, or in one of a part."""
    (program,) = manifest["programs"]
    for _ in range(draw.choice([1, 1, 2, 4])):
        change_value(draw.choice([program, *program.get("parts", ())])["plan"], draw)


def forge_weights(members: dict[str, bytes], manifest: dict[str, Any], draw: random.Random) -> None:
    """Another header of the weights, or other bytes anywhere in them."""
    data = members[file.WEIGHTS]
    length = int.from_bytes(data[:8], "little")
    if draw.random() < 0.6:
        header = json.loads(data[8 : 8 + length])
        for _ in range(draw.choice([1, 1, 2])):
            change_value(header, draw)
        text = json.dumps(header).encode()
        members[file.WEIGHTS] = len(text).to_bytes(8, "little") + text + data[8 + length :]
    else:
        members[file.WEIGHTS] = draw.choice([flip_bits, overwrite, truncate, splice])(data, draw)


def forge_object(members: dict[str, bytes], manifest: dict[str, Any], draw: random.Random) -> None:
    """Other bytes in object files."""
    for _ in range(draw.choice([1, 1, 2])):
        name = draw.choice([name for name in members if name.endswith(".o")])
        members[name] = draw.choice([flip_bits, flip_bits, overwrite, truncate, splice])(members[name], draw)


def forge_elf(members: dict[str, bytes], manifest: dict[str, Any], draw: random.Random) -> None:
    """Other numbers in an object file's header, sections, symbols and references; or objects changed for others."""
    names = [name for name in members if name.endswith(".o")]
    name = draw.choice(names)
    if draw.random() < 0.1:
        members[name] = members[draw.choice(names)]
        return
    image = bytearray(members[name])
    for _ in range(draw.choice([1, 1, 2, 3])):
        place, width = draw.choice(_fields(bytes(members[name])))
        number = draw.choice([*NUMBERS, len(image), len(image) - 1, draw.getrandbits(64), draw.randrange(len(image))])
        image[place : place + width] = number.to_bytes(8, "little")[:width]
    members[name] = bytes(image)


def _fields(image: bytes) -> list[tuple[int, int]]:
    """Places and widths of the numbers in an object file's structures."""

    def structure(start: int, widths: list[int]) -> list[tuple[int, int]]:
        found = []
        for width in widths:
            found.append((start, width))
            start += width
        return found

    fields = structure(16, [2, 2, 4, 8, 8, 8, 4, 2, 2, 2, 2, 2, 2])
    (start,) = struct.unpack_from("<Q", image, 40)
    for number in range(struct.unpack_from("<H", image, 60)[0]):
        place = start + 64 * number
        fields += structure(place, [4, 4, 8, 8, 8, 8, 4, 4, 8, 8])
        kind, offset, size = (
            struct.unpack_from(form, image, place + at)[0] for form, at in (("<I", 4), ("<Q", 24), ("<Q", 32))
        )
        if kind == 2:
            fields += [field for at in range(offset, offset + size, 24) for field in structure(at, [4, 1, 1, 2, 8, 8])]
        elif kind == 4:
            fields += [field for at in range(offset, offset + size, 24) for field in structure(at, [8, 4, 4, 8])]
    return fields


TEXTS = [
    '{"terms": [[1, [[["max", %s, %s], 1]]]]}',
    '{"terms": [[1, [[["min", %s, 3], 8]]]]}',
    '{"terms": [[2, [["batch", 8]]], [1, [[["//", %s, %s], 1]]]]}',
    '{"terms": [[1, [[["%%", %s, %s], 2]]]]}',
    "[%s, %s]",
    '{"a": %s, "b": %s}',
]


def forge_texts(members: dict[str, bytes], manifest: dict[str, Any], draw: random.Random) -> None:
    """JSON that is deep, long, or of extreme numbers and texts, in the place of a number of the manifest."""
    text = draw.choice(['"batch"', "1", '{"terms": [[1, [["batch", 1]]]]}', "9" * draw.choice([20, 400, 5000]), "1e999",
                        "NaN", '"\\u001b[2J\\ud800"', '"' + "a" * 10000 + '"', "[" * 500 + "]" * 500])  # fmt: skip
    for _ in range(draw.choice([1, 3, 6, 9])):
        form = draw.choice(TEXTS)
        if len(text) < 100_000:
            text = form.replace("%s", text).replace("%%", "%")
    places = []
    plain = json.dumps(manifest)
    start = plain.find("64")
    while start >= 0:
        places.append(start)
        start = plain.find("64", start + 1)
    place = draw.choice(places)
    members[file.MANIFEST] = (plain[:place] + text + plain[place + 2 :]).encode()
    try:
        changed = json.loads(members[file.MANIFEST])
    except (ValueError, RecursionError):
        return
    fit_symbol(members, changed)
    members[file.MANIFEST] = json.dumps(changed).encode()


TARGET = Target()
