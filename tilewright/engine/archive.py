"""Reads the zip archive of an engine file: only the plain form in which engines are written is accepted.

Readers of zip files disagree about archives that contradict themselves: members that overlap or are listed twice,
directories that differ from the headers in front of the data, bytes between members, comments that look like
directories.  Here every byte of the file must be accounted for exactly once, and what is written twice must be equal.

The file's format is described in PKWARE's APPNOTE.TXT; sizes beyond 4 GiB are in its zip64 records.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import EngineDamagedError, EngineError

MOST_MEMBERS = 65_535
LONGEST_NAME = 255  # bytes
PAGE_ALIGNMENT = 4096  # of the file's first byte in memory
PADDING_EXTRA = 0xD935  # the extra field that alignment tools use

_ADVICE = "Build the engine again, or copy the file again from where it came"
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_LOCATOR64 = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_EXTRA = struct.Struct("<HH")
_ZIP64_EXTRA = 1
_UTF8 = 0x800
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF  # "see the zip64 record"
_DIRECTORY = 0x10  # MS-DOS attribute


class _Wrong(Exception):
    """What is wrong with an archive."""


@dataclass(frozen=True)
class _ArchiveEntry:
    """A member as the central directory describes it."""

    name: str
    raw_name: bytes
    flags: int
    checksum: int
    size: int
    start: int  # of its local header


class EngineArchive:
    """The members of a zip file in memory; views of them stay valid for as long as they exist.

    The file is copied, so that what was verified is what is used whatever becomes of the file; `mapped` shares it with
    other processes instead, and then it must not be changed while it is in use.  Raises `EngineDamagedError`, and
    `EngineError` for what cannot be read or is not a regular file.
    """

    def __init__(self, path: Path, mapped: bool = False) -> None:
        self.path = Path(path)
        self.members: dict[str, memoryview] = {}
        self.checksums: dict[str, int] = {}
        try:
            self.content = _map(self.path) if mapped else _copy(self.path)
        except OSError as error:
            raise EngineError(f"cannot read the engine {path}: {error.strerror or error}") from error
        except ValueError as error:
            raise EngineError(f"cannot read the engine {path}: {error}") from error
        except _Wrong as error:
            raise self.damaged(str(error)) from error
        try:
            for entry, data in _read(self.content):
                self.members[entry.name] = data
                self.checksums[entry.name] = entry.checksum
        except _Wrong as error:
            if bytes(self.content[:2]) != b"PK":
                raise EngineDamagedError(
                    f"{self.path} is no engine: no complete zip archive. Models become engines by "
                    "`tilewright build MODEL -o NEW.engine`, or `tilewright.compile` in Python."
                ) from error
            raise self.damaged(str(error)) from error

    def damaged(self, reason: str) -> EngineDamagedError:
        """The error for this file."""
        return EngineDamagedError(f"the engine {self.path} is damaged: {reason}. {_ADVICE}.")


def _copy(path: Path) -> memoryview:
    """The file's bytes in memory of this process."""
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        memory = np.empty(size + PAGE_ALIGNMENT, np.uint8)
        first = -memory.ctypes.data % PAGE_ALIGNMENT
        content = memory[first : first + size]
        position = 0
        while position < size:
            count = file.readinto(content[position:])
            if not count:
                raise _Wrong("the file became shorter while it was read")
            position += count
    content.flags.writeable = False
    return content.data


def _map(path: Path) -> memoryview:
    with _open(path) as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _open(path: Path) -> Any:
    """A regular file that is not empty: opening a pipe would wait, and a device may have no end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("it is not a regular file")
    file = open(path, "rb", buffering=0)
    if os.fstat(file.fileno()).st_size == 0:
        file.close()
        raise _Wrong("the file is empty")
    return file


# -- The archive's structure ----------------------------------------------------------------------


def _read(content: memoryview) -> list[tuple[_ArchiveEntry, memoryview]]:
    """The members with their data; raises `_Wrong`."""
    start, end, count = _directory_place(content)
    entries = _directory(content[start:end], count)
    if len({entry.name for entry in entries}) < len(entries):
        raise _Wrong("the zip archive lists a member twice")
    places: dict[str, memoryview] = {}
    position = 0
    for entry in sorted(entries, key=lambda entry: entry.start):
        if entry.start != position:
            raise _Wrong(f"the zip archive's members overlap, or there are bytes between them, at {entry.name!r}")
        begin = _data_start(content, entry, start)
        position = begin + entry.size
        if position > start:
            raise _Wrong(f"the zip archive's member {entry.name!r} runs into the directory")
        places[entry.name] = content[begin:position]
    if position != start:
        raise _Wrong("there are bytes between the zip archive's members and its directory")
    return [(entry, places[entry.name]) for entry in entries]


def _directory_place(content: memoryview) -> tuple[int, int, int]:
    """Where the central directory begins and ends, and how many members it lists."""
    last = len(content) - _END.size
    if last < 0 or bytes(content[last : last + 4]) != b"PK\5\6":
        raise _Wrong("no complete zip archive")
    _, *disks, here, count, size, start, comment = _END.unpack_from(content, last)
    end = last
    place64 = last - _LOCATOR64.size
    if place64 >= 0 and bytes(content[place64 : place64 + 4]) == b"PK\6\7":
        end = place64 - _END64.size
        count64, size64, start64 = _large_end(content, place64, end)
        fields = ((count, count64, _FULL16), (size, size64, _FULL32), (start, start64, _FULL32))
        if any(short != min(true, full) for short, true, full in fields):
            raise _Wrong("the two ends of the zip archive's directory differ")
        here, count, size, start = min(here, _FULL16), count64, size64, start64
        if here not in (count, _FULL16):
            raise _Wrong("the zip archive is one part of several")
    elif here != count:
        raise _Wrong("the zip archive is one part of several")
    if any(disks) or comment:
        raise _Wrong("the zip archive has a comment or is one part of several")
    if count > MOST_MEMBERS:
        raise _Wrong(f"the zip archive has {count} members; an engine has at most {MOST_MEMBERS}")
    if start + size != end:
        raise _Wrong("the zip archive's directory is not where its end says")
    return start, end, count


def _large_end(content: memoryview, place: int, expected: int) -> tuple[int, int, int]:
    """Members, bytes and start of the directory by the zip64 records."""
    _, disk, start, disks = _LOCATOR64.unpack_from(content, place)
    if disk or disks != 1 or start != expected or expected < 0:
        raise _Wrong("the zip archive's zip64 locator is wrong")
    signature, length, _, _, number, first, here, count, size, begin = _END64.unpack_from(content, expected)
    if signature != b"PK\6\6" or length != _END64.size - 12 or number or first or here != count:
        raise _Wrong("the zip archive's zip64 record is wrong")
    return count, size, begin


def _directory(content: memoryview, count: int) -> list[_ArchiveEntry]:
    """The members that the central directory lists, which must fill it."""
    entries = []
    position = 0
    for _ in range(count):
        if position + _CENTRAL.size > len(content):
            raise _Wrong("the zip archive's directory is cut off")
        fields = _CENTRAL.unpack_from(content, position)
        signature, _, _, flags, method, _, _, checksum, packed, size, name_length, extra_length = fields[:12]
        comment, disk, _, attributes, start = fields[12:]
        position += _CENTRAL.size
        raw = bytes(content[position : position + name_length])
        extra = _extra(content[position + name_length : position + name_length + extra_length], extra_length)
        position += name_length + extra_length
        name = _name(raw, flags)
        if signature != b"PK\1\2" or position > len(content) or comment or disk or method or flags & ~_UTF8:
            raise _Wrong(f"the zip archive's entry of {name!r} is wrong")
        if attributes >> 16 and not stat.S_ISREG(attributes >> 16) and stat.S_IFMT(attributes >> 16):
            raise _Wrong(f"the zip archive's member {name!r} is a link or another special file")
        if attributes & _DIRECTORY:
            raise _Wrong(f"the zip archive's member {name!r} is a folder")
        size, packed, start = _large_fields(name, extra, size, packed, start)
        if packed != size:
            raise _Wrong(f"the zip archive's member {name!r} is compressed")
        entries.append(_ArchiveEntry(name, raw, flags, checksum, size, start))
    if position != len(content):
        raise _Wrong("the zip archive's directory holds more than its members")
    return entries


def _data_start(content: memoryview, entry: _ArchiveEntry, limit: int) -> int:
    """Where a member's data begins: after its local header, which must say what the directory says."""
    wrong = _Wrong(f"the zip archive's entry of {entry.name!r} is wrong: its header and the directory differ")
    if entry.start + _LOCAL.size > limit:
        raise wrong
    fields = _LOCAL.unpack_from(content, entry.start)
    signature, _, flags, method, _, _, checksum, packed, size, name_length, extra_length = fields
    begin = entry.start + _LOCAL.size + name_length + extra_length
    name_end = entry.start + _LOCAL.size + name_length
    if begin > limit or signature != b"PK\3\4" or bytes(content[name_end - name_length : name_end]) != entry.raw_name:
        raise wrong
    extra = _extra(content[name_end:begin], extra_length)
    size, packed, _ = _large_fields(entry.name, extra, size, packed, 0)
    if (flags, method, checksum, size, packed) != (entry.flags, 0, entry.checksum, entry.size, entry.size):
        raise wrong
    return begin


def _extra(content: memoryview, length: int) -> memoryview | None:
    """The zip64 field among a header's extra fields; no others are known but that of alignment."""
    found: memoryview | None = None
    position = 0
    while position < length:
        if position + _EXTRA.size > len(content):
            raise _Wrong("the zip archive has an extra field that is cut off")
        kind, size = _EXTRA.unpack_from(content, position)
        position += _EXTRA.size + size
        if position > len(content) or kind not in (_ZIP64_EXTRA, PADDING_EXTRA):
            raise _Wrong("the zip archive has an extra field that engines do not have")
        if kind == _ZIP64_EXTRA:
            if found is not None:
                raise _Wrong("the zip archive has a zip64 field twice")
            found = content[position - size : position]
    return found


def _large_fields(name: str, extra: memoryview | None, size: int, packed: int, start: int) -> tuple[int, int, int]:
    """Size, packed size and start, from the zip64 field where the short field is full, and only there."""
    values = [size, packed, start]
    missing = [number for number, value in enumerate(values) if value == _FULL32]
    if len(missing) * 8 != (0 if extra is None else len(extra)):
        raise _Wrong(f"the zip archive's zip64 field of {name!r} is wrong")
    for place, number in enumerate(missing):
        assert extra is not None
        (values[number],) = struct.unpack_from("<Q", extra, place * 8)
    return values[0], values[1], values[2]


def _name(raw: bytes, flags: int) -> str:
    """A member's name: a plain relative path."""
    try:
        name = raw.decode("utf-8" if flags & _UTF8 else "ascii")
    except UnicodeDecodeError:
        raise _Wrong("the zip archive has a member whose name is malformed") from None
    parts = name.split("/")
    if not 0 < len(raw) <= LONGEST_NAME or "\\" in name or ":" in name or not name.isprintable():
        raise _Wrong(f"the zip archive has a member whose name is malformed: {name[:80]!r}")
    if any(part in ("", ".", "..") for part in parts):
        raise _Wrong(f"the zip archive's member {name!r} is no plain path")
    return name
