"""Zip archives that contradict themselves: overlaps, doubled names, lies of sizes, links, comments, odd names.

Whatever is accepted must have exactly the members that were written.
"""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from tests.host.handmade import make_package
from tilewright import Engine
from tilewright.engine.archive import EngineArchive
from tools.fuzz.engine_files import read_members
from tools.fuzz.target import Base, Failed

NAMES = [
    "../escape", "/etc/passwd", "kernels/../../x", "C:\\x", "a\\b", "kernels/", "", ".", "..", "a\0b", "a\x1b[2Jb",
    "\u202egnp.o", "manifest.json/", "MANIFEST.JSON", "kernels/" + "x" * 300, "kernels//x.o", "\ud7ff", "nul", "con.o",
]  # fmt: skip
NUMBERS = [0, 1, 20, 45, 0xFFFE, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF]


@dataclass(frozen=True)
class Member:
    """A member as it is written: in the local header and in the directory."""

    name: bytes
    data: bytes
    local_name: bytes | None = None
    method: int = 0
    flags: int = 0
    checksum: int | None = None
    size: int | None = None  # that the directory tells
    local_size: int | None = None
    attributes: int = 0o100644 << 16
    extra: bytes = b""
    local_extra: bytes = b""
    comment: bytes = b""
    start: int | None = None  # that the directory tells


def write(members: list[Member], draw: random.Random) -> bytes:
    """The archive, sometimes with more around it."""
    out = bytearray(draw.choice([b"", b"", b"", b"", b"#!/bin/sh\n", b"PK\3\4", bytes(100)]))
    directory = bytearray()
    for member in members:
        start = len(out)
        packed = _packed(member)
        checksum = zlib.crc32(member.data) if member.checksum is None else member.checksum
        size = len(member.data) if member.size is None else member.size
        local_size = len(member.data) if member.local_size is None else member.local_size
        local_name = member.name if member.local_name is None else member.local_name
        packed_size = len(packed) if member.method else size
        out += struct.pack("<4s5H3I2H", b"PK\3\4", 20, member.flags, member.method, 0, 33, checksum,
                           len(packed) if member.method else local_size, local_size, len(local_name),
                           len(member.local_extra))  # fmt: skip
        out += local_name + member.local_extra + packed
        directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", 0x314, 20, member.flags, member.method, 0, 33, checksum,
                                 packed_size, size, len(member.name), len(member.extra), len(member.comment), 0, 0,
                                 member.attributes, start if member.start is None else member.start)  # fmt: skip
        directory += member.name + member.extra + member.comment
    out += draw.choice([b"", b"", b"", b"", b"between"])
    place, count = len(out), len(members)
    out += directory
    if draw.random() < 0.15:
        out += _zip64(draw, place, len(directory), count, len(out))
    fields = [0, 0, count, count, len(directory), place, 0]
    if draw.random() < 0.2:
        fields[draw.randrange(7)] = draw.choice(NUMBERS)
    out += struct.pack("<4s4H2IH", b"PK\5\6", *(number & (0xFFFFFFFF if at in (4, 5) else 0xFFFF)
                                               for at, number in enumerate(fields)))  # fmt: skip
    return bytes(out + draw.choice([b"", b"", b"", b"", b"\0", b"comment", bytes(out[-22:]), bytes(out)]))


def _packed(member: Member) -> bytes:
    if member.method != 8:
        return member.data
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(member.data) + packer.flush()


def _zip64(draw: random.Random, place: int, size: int, count: int, end: int) -> bytes:
    """The zip64 records, often with lies."""
    numbers = [44, 45, 45, 0, 0, count, count, size, place]
    locator = [0, end, 1]
    for fields in (numbers, locator):
        if draw.random() < 0.4:
            fields[draw.randrange(len(fields))] = draw.choice([*NUMBERS, 2**63, 2**64 - 1]) & 0xFFFF
    return struct.pack("<4sQ2H2I4Q", b"PK\6\6", *numbers) + struct.pack("<4sIQI", b"PK\6\7", *locator)


def attack(members: list[Member], draw: random.Random) -> list[Member]:
    """One thing that is wrong."""
    number = draw.randrange(len(members))
    chosen, other = members[number], draw.choice(members)
    name = draw.choice(NAMES).encode("utf-8", "surrogatepass")
    wrong = draw.choice([*NUMBERS, len(chosen.data) + 1, max(0, len(chosen.data) - 1)])
    zip64 = struct.pack("<HH", 1, 16) + struct.pack("<2Q", draw.choice([wrong, 2**63, len(chosen.data)]), wrong)
    changes = [
        {"name": name}, {"name": name, "flags": 0x800}, {"local_name": name}, {"local_name": other.name},
        {"method": 8}, {"method": draw.choice([1, 12, 14, 93, 99])},
        {"flags": draw.choice([1, 8, 0x40, 0x800, 0x2000])},
        {"checksum": draw.getrandbits(32)}, {"size": wrong}, {"local_size": wrong},
        {"size": wrong, "local_size": wrong},
        {"attributes": draw.choice([0o120777, 0o040755, 0o020666, 0o010644, 0o060666]) << 16}, {"attributes": 0x10},
        {"extra": zip64, "size": 0xFFFFFFFF}, {"local_extra": zip64, "local_size": 0xFFFFFFFF}, {"extra": zip64},
        {"local_extra": struct.pack("<HH", 0x7075, 9) + b"\1\0\0\0\0other"}, {"extra": b"\1"},
        {"local_extra": bytes(3)},
        {"comment": b"PK\5\6" + bytes(18)}, {"comment": b"x"}, {"start": draw.choice([*NUMBERS, len(chosen.data)])},
        {"data": b"PK\3\4" + chosen.data}, {"data": chosen.data * 3}, {"data": b""},
    ]  # fmt: skip
    kind = draw.random()
    if kind < 0.7:
        members[number] = replace(chosen, **draw.choice(changes))
    elif kind < 0.8:
        members.insert(draw.randrange(len(members) + 1), draw.choice([chosen, replace(chosen, data=other.data)]))
    elif kind < 0.9:  # quoted overlap: the data of one member is the header and data of the next
        following = members[(number + 1) % len(members)]
        length = 30 + len(following.name) + len(following.data)
        members[number] = replace(chosen, size=length, local_size=length, data=b"")
    elif kind < 0.95:
        members += [Member(b"kernels/%d.o" % index, b"", start=0) for index in range(draw.choice([1, 300, 3000]))]
    else:
        draw.shuffle(members)
    return members


class Target(Base):
    megabytes = 500

    def prepare(self, folder: Path) -> None:
        self.path = folder / "attack.engine"
        Engine(make_package()).save(self.path)
        self.members = read_members(self.path.read_bytes())

    def run(self, seed: int) -> str:
        draw = random.Random(seed)
        members = [Member(name.encode(), data) for name, data in self.members.items()]
        for _ in range(draw.choice([0, 1, 1, 1, 2, 3])):
            members = attack(members, draw)
        self.path.write_bytes(write(members, draw))
        archive = EngineArchive(self.path)
        if {name: bytes(data) for name, data in archive.members.items()} == self.members:
            Engine.load(self.path)
            return "loaded"
        for name in archive.members:
            parts = name.split("/")
            if name.startswith("/") or ".." in parts or "\\" in name or not name.isprintable():
                raise Failed("wrong", f"the name {name!r} is accepted", "name")
        if len(archive.members) != len({name.encode() for name in archive.members}):
            raise Failed("wrong", "doubled names", "doubled")
        sizes = sum(map(len, archive.members.values()))
        if sizes > self.path.stat().st_size:
            raise Failed("wrong", "members overlap", "overlap")
        Engine.load(self.path)
        raise Failed("wrong", "an engine of other members loads", "other members")


TARGET = Target()
