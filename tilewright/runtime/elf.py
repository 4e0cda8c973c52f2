"""Kernels' object files into this process without a linker: ELF for x86-64, as LLVM emits it for kernels.

Such an object has code and constants, no data of its own, and calls few functions: its sections are placed side by side
in one mapping, relative references are filled in, and the mapping is made executable and read-only.  That takes a fifth
of a millisecond, where starting LLVM's linker takes one and a half, which is most of finding a cached kernel.
`link` gives up (None) wherever it meets anything else; `library.load_objects` then asks LLVM.

Format and relocations: System V Application Binary Interface, AMD64 Architecture Processor Supplement, chapter 4.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

MAGIC = b"\x7fELF\2\1"  # 64 bits, little endian
_X86_64, _RELOCATABLE = 62, 1
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_RELOCATION = struct.Struct("<QQq")  # offset, symbol and type, addend
_PROGRAM_DATA, _SYMBOLS, _RELOCATIONS = 1, 2, 4  # types of sections
_WRITABLE, _ALLOCATED, _THREAD_LOCAL = 1, 2, 0x400  # flags of sections
_UNDEFINED, _RESERVED = 0, 0xFF00  # numbers of sections that are none
_LOCAL = 0  # binding of a symbol
_RELATIVE, _CALL = 2, 4  # R_X86_64_PC32, R_X86_64_PLT32
_STUB = struct.Struct("<6sQ2x")  # jmp *0(%rip), and the address behind it: system functions lie too far for a call
_JUMP = b"\xff\x25\0\0\0\0"


class LinkedMemory:
    """Code and constants in executable memory, and the addresses of the global symbols in it."""

    def __init__(self, size: int) -> None:
        self.bytes = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
        self._start = ctypes.c_char.from_buffer(self.bytes)
        self.address = ctypes.addressof(self._start)
        self.symbols: dict[str, int] = {}

    def seal(self) -> bool:
        """Make the memory executable and read-only; whether the system allows it."""
        protect = ctypes.CDLL(None).mprotect
        size = ctypes.c_size_t(len(self.bytes))
        return int(protect(ctypes.c_void_p(self.address), size, mmap.PROT_READ | mmap.PROT_EXEC)) == 0


@dataclass
class _Object:
    """One object file: its sections, its symbols, and where each allocated section goes."""

    image: bytes
    sections: list[tuple[int, ...]]
    symbols: list[tuple[int, ...]]
    names: int  # where the names of the symbols begin in the image
    places: dict[int, int]  # section -> offset in memory

    def name(self, symbol: tuple[int, ...]) -> str:
        start = self.names + symbol[0]
        return self.image[start : self.image.index(b"\0", start)].decode("latin-1")


def link(images: Sequence[bytes], find: Callable[[str], int | None]) -> LinkedMemory | None:
    """Link object files; `find` gives the address of a function that none of them defines.

    None where this system, an object or a reference is not of the kinds that are known here.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    objects: list[_Object] = []
    end = 0
    try:
        for image in images:
            found = _read(image, end)
            if found is None:
                return None
            objects.append(found[0])
            end = found[1]
        outside = {entry.name(symbol) for entry in objects for symbol in entry.symbols[1:] if symbol[3] == _UNDEFINED}
        memory = LinkedMemory(max(1, end + _STUB.size * len(outside)))
        _place(objects, memory)
        stubs = _write_stubs(memory, sorted(outside), end, find)
        complete = stubs is not None and all(_relocate(entry, memory, stubs) for entry in objects)
    except (struct.error, IndexError, ValueError, OverflowError, OSError):
        return None  # a damaged object: LLVM says what is wrong with it
    return memory if complete and memory.seal() else None


def _read(image: bytes, end: int) -> tuple[_Object, int] | None:
    """An object and the end of its sections when they are placed from `end`."""
    if not image.startswith(MAGIC) or struct.unpack_from("<HH", image, 16) != (_RELOCATABLE, _X86_64):
        return None
    (start,) = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    if size != _SECTION.size:
        return None
    sections = [_SECTION.unpack_from(image, start + index * size) for index in range(count)]
    places: dict[int, int] = {}
    symbols: list[tuple[int, ...]] = []
    names = 0
    for index, (_, kind, flags, _, offset, length, linked, *rest) in enumerate(sections):
        if kind == _SYMBOLS:
            symbols = list(_SYMBOL.iter_unpack(image[offset : offset + length]))
            names = sections[linked][4]
        if flags & _ALLOCATED:
            if kind != _PROGRAM_DATA or flags & (_WRITABLE | _THREAD_LOCAL) or len(image) < offset + length:
                return None
            places[index] = -(-end // max(1, rest[1])) * max(1, rest[1])
            end = places[index] + length
    return _Object(image, sections, symbols, names, places), -(-end // 16) * 16


def _place(objects: Sequence[_Object], memory: LinkedMemory) -> None:
    """Copy the sections, and tell where the global symbols are."""
    for entry in objects:
        for index, place in entry.places.items():
            _, _, _, _, offset, length, *_ = entry.sections[index]
            memory.bytes[place : place + length] = entry.image[offset : offset + length]
        for symbol in entry.symbols:
            if symbol[1] >> 4 != _LOCAL and symbol[3] in entry.places:
                memory.symbols[entry.name(symbol)] = memory.address + entry.places[symbol[3]] + symbol[4]


def _write_stubs(
    memory: LinkedMemory, names: Sequence[str], start: int, find: Callable[[str], int | None]
) -> Mapping[str, int] | None:
    """A jump to each function that is defined elsewhere; None if one of them is unknown."""
    stubs: dict[str, int] = {}
    for number, name in enumerate(names):
        if name in memory.symbols:
            stubs[name] = memory.symbols[name]
            continue
        target = find(name)
        if target is None:
            return None
        place = start + number * _STUB.size
        _STUB.pack_into(memory.bytes, place, _JUMP, target)
        stubs[name] = memory.address + place
    return stubs


def _relocate(entry: _Object, memory: LinkedMemory, stubs: Mapping[str, int]) -> bool:
    """Fill in the references of one object; whether all of them are of a known kind."""
    for _, kind, _, _, offset, length, _, section, *_ in entry.sections:
        if kind != _RELOCATIONS or section not in entry.places:
            continue
        base = entry.places[section]
        for place, info, addend in _RELOCATION.iter_unpack(entry.image[offset : offset + length]):
            symbol, relation = entry.symbols[info >> 32], info & 0xFFFFFFFF
            inside = symbol[3] in entry.places
            if relation not in (_RELATIVE, _CALL) or not (inside or (relation == _CALL and symbol[3] == _UNDEFINED)):
                return False
            if inside:
                target = memory.address + entry.places[symbol[3]] + symbol[4]
            else:
                target = stubs[entry.name(symbol)]
            struct.pack_into("<i", memory.bytes, base + place, target + addend - (memory.address + base + place))
    return True
