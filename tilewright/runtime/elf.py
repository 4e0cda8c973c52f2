"""Kernels' object files in ELF, as LLVM emits it: reading them with care, and placing those for x86-64 in this process.

Such an object has code and constants, no data of its own, and calls few functions: its sections are placed side by side
in one mapping, relative references are filled in, and the mapping is made executable and read-only.  That takes a fifth
of a millisecond, where starting LLVM's linker takes one and a half, which is most of finding a cached kernel.

`read` checks every offset, size, name and reference: a file may come from anywhere, and LLVM's linker ends the process
on some malformed ones.  What it does not understand is an `ObjectError`; for kernels that were compiled by this process
`library.load_objects` then asks LLVM.

Format and relocations: System V Application Binary Interface, AMD64 Architecture Processor Supplement, chapter 4, and
ELF for the Arm 64-bit Architecture, chapter 5.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import platform
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAGIC = b"\x7fELF\2\1"  # 64 bits, little endian
X86_64, AARCH64 = 62, 183  # machines
LINKS = sys.platform == "linux" and platform.machine() == "x86_64"  # whether `link` works here

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_RELOCATABLE = 1
_NULL, _PROGRAM_DATA, _SYMBOLS, _STRINGS, _RELOCATIONS, _NO_DATA = 0, 1, 2, 3, 4, 8  # types of sections
_WRITABLE, _ALLOCATED, _THREAD_LOCAL = 1, 2, 0x400  # flags of sections
_UNDEFINED, _ABSOLUTE = 0, 0xFFF1  # numbers of sections that are none
_LOCAL, _GLOBAL, _WEAK = 0, 1, 2  # bindings of symbols
_NOTYPE, _OBJECT, _FUNCTION, _SECTION_NAME, _FILE_SYMBOL = 0, 1, 2, 3, 4  # types of symbols
_LARGEST_ALIGNMENT = 4096
_PLACED = (".text", ".rodata")  # beginnings of the names of sections that kernels have in memory
_RELATIVE, _CALL = 2, 4  # R_X86_64_PC32, R_X86_64_PLT32
_BY_ADDRESS = (9, 41, 42)  # R_X86_64_GOTPCREL, GOTPCRELX, REX_GOTPCRELX: the place of an address
# The relocations that kernels have: type -> bytes that it changes.
_KNOWN = {
    X86_64: dict.fromkeys((_RELATIVE, _CALL, *_BY_ADDRESS), 4),
    # PREL64, PREL32; ADR_PREL_PG_HI21, ADD_ABS_LO12_NC, LDST8, JUMP26, CALL26, LDST16, LDST32, LDST64, LDST128;
    # ADR_GOT_PAGE, LD64_GOT_LO12_NC
    AARCH64: {260: 8, 261: 4, **dict.fromkeys((275, 277, 278, 282, 283, 284, 285, 286, 299, 311, 312), 4)},
}
_STUB = struct.Struct("<6sQ2x")  # jmp *0(%rip), and the address after it: system functions lie too far for a call
_ADDRESS = struct.Struct("<Q")
_JUMP = b"\xff\x25\0\0\0\0"


class ObjectError(ValueError):
    """An object file that is malformed, or of a kind that kernels' objects are not."""


class Section(NamedTuple):
    """A section's header."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class ElfSymbol(NamedTuple):
    """A symbol, with its name."""

    name: str
    binding: int
    kind: int
    section: int
    value: int


class Relocation(NamedTuple):
    """A place in a section, the number of the symbol that it refers to, how, and a number to add."""

    section: int
    place: int
    symbol: int
    kind: int
    addend: int


@dataclass
class ObjectFile:
    """An object file whose parts fit together."""

    image: bytes
    sections: list[Section]
    symbols: list[ElfSymbol]
    relocations: list[Relocation]

    @property
    def placed(self) -> list[int]:
        """The sections that are in memory when the code runs."""
        return [number for number, section in enumerate(self.sections) if section.flags & _ALLOCATED]


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


def link(images: Sequence[bytes], find: Callable[[str], int | None]) -> LinkedMemory | None:
    """Link object files for x86-64 under Linux; `find` gives the address of a function that none of them defines.

    Raises `ObjectError` for objects of another kind; None where the system does not allow memory to be made executable.
    """
    objects = [read(image, X86_64) for image in images]
    places, end = _places(objects)
    outside = {symbol.name for entry in objects for symbol in entry.symbols[1:] if symbol.section == _UNDEFINED}
    addresses = sum(reference.kind in _BY_ADDRESS for entry in objects for reference in entry.relocations)
    table = end + _STUB.size * len(outside)
    try:
        memory = LinkedMemory(max(1, table + _ADDRESS.size * addresses))
    except (OSError, OverflowError, MemoryError) as error:
        raise ObjectError(f"its sections do not fit in memory ({error})") from error
    _place(objects, places, memory)
    linked = _Linked(memory, _write_stubs(memory, sorted(outside), end, find), table)
    for entry, starts in zip(objects, places, strict=True):
        _relocate(entry, starts, linked)
    return memory if memory.seal() else None


# -- Reading --------------------------------------------------------------------------------------


def read(image: bytes, machine: int) -> ObjectFile:
    """The parts of an object file; raises `ObjectError` unless all of it is as kernels' objects are."""
    sections, names = _sections(image, machine)
    tables = [section for section in sections if section.kind == _SYMBOLS]
    if len(tables) != 1:
        raise ObjectError(f"it has {len(tables)} tables of symbols")
    entry = ObjectFile(image, sections, [], [])
    for section in sections[1:]:
        _check_section(image, section, names)
    entry.symbols = _symbols(entry, tables[0])
    entry.relocations = _relocations(entry, sections.index(tables[0]), machine)
    return entry


def _sections(image: bytes, machine: int) -> tuple[list[Section], bytes]:
    """The sections' headers and the text that their names are in."""
    if len(image) < _HEADER.size or not image.startswith(MAGIC):
        raise ObjectError("it is no ELF file of 64 bits")
    fields = _HEADER.unpack_from(image)
    kind, found, _, _, programs, start, _, size, _, program_count, entry_size, count, name_section = fields[1:]
    if (kind, found, size, entry_size) != (_RELOCATABLE, machine, _HEADER.size, _SECTION.size):
        raise ObjectError("it is no object file for this machine")
    if programs or program_count or not 0 < count or start + count * _SECTION.size > len(image):
        raise ObjectError("its table of sections is not inside it")
    sections = [Section(*_SECTION.unpack_from(image, start + number * _SECTION.size)) for number in range(count)]
    spans = [(start, start + count * _SECTION.size), (0, _HEADER.size)]
    spans += [
        (section.offset, section.offset + section.size)
        for section in sections
        if section.size and section.kind != _NO_DATA
    ]
    if any(end > begin for (_, end), (begin, _) in itertools.pairwise(sorted(spans))):
        raise ObjectError("its sections overlap")
    if max(end for _, end in spans) > len(image) or sections[0].kind != _NULL or sections[0].size:
        raise ObjectError("its sections are not inside it")
    if name_section >= count or sections[name_section].kind != _STRINGS:
        raise ObjectError("its sections have no names")
    return sections, _strings(image, sections[name_section])


def _strings(image: bytes, section: Section) -> bytes:
    """A table of names, each ended by a zero byte."""
    table = image[section.offset : section.offset + section.size]
    if not table.endswith(b"\0"):
        raise ObjectError("its names do not end")
    return table


def _name(table: bytes, start: int) -> str:
    if start >= len(table):
        raise ObjectError("a name is not inside its table")
    return table[start : table.index(b"\0", start)].decode("latin-1")


def _check_section(image: bytes, section: Section, names: bytes) -> None:
    """Whether a section is one that kernels have; those in memory have code and constants."""
    name = _name(names, section.name)
    if section.flags & (_WRITABLE | _THREAD_LOCAL):
        raise ObjectError(f"its section {name[:80]!r} is data that is written to")
    if section.kind not in (_PROGRAM_DATA, _SYMBOLS, _STRINGS, _RELOCATIONS) or section.address:
        raise ObjectError(f"its section {name[:80]!r} is of an unknown kind")
    if section.alignment & (section.alignment - 1) or section.alignment > _LARGEST_ALIGNMENT:
        raise ObjectError(f"its section {name[:80]!r} has the alignment {section.alignment}")
    if section.flags & _ALLOCATED and not (section.kind == _PROGRAM_DATA and name.startswith(_PLACED)):
        raise ObjectError(f"its section {name[:80]!r} is neither code nor constants")


def _symbols(entry: ObjectFile, table: Section) -> list[ElfSymbol]:
    sections = entry.sections
    if table.entry_size != _SYMBOL.size or table.size % _SYMBOL.size or not table.size:
        raise ObjectError("its table of symbols is malformed")
    if table.link >= len(sections) or sections[table.link].kind != _STRINGS:
        raise ObjectError("its symbols have no names")
    if table.info > table.size // _SYMBOL.size:
        raise ObjectError("its table of symbols is malformed")
    names = _strings(entry.image, sections[table.link])
    placed = set(entry.placed)
    symbols = []
    data = entry.image[table.offset : table.offset + table.size]
    for number, (name, info, other, section, value, size) in enumerate(_SYMBOL.iter_unpack(data)):
        symbol = ElfSymbol(_name(names, name), info >> 4, info & 15, section, value)
        if symbol.binding not in (_LOCAL, _GLOBAL, _WEAK) or symbol.kind > _FILE_SYMBOL or other & ~3:
            raise ObjectError(f"its symbol {symbol.name[:80]!r} is of an unknown kind")
        if (symbol.binding == _LOCAL) != (number < table.info):
            raise ObjectError("its symbols are not in order")
        if section in placed:
            if value + size > sections[section].size:
                raise ObjectError(f"its symbol {symbol.name[:80]!r} is not inside its section")
        elif section == _ABSOLUTE and symbol.kind == _FILE_SYMBOL and symbol.binding == _LOCAL:
            pass  # the name of the source
        elif section != _UNDEFINED or value or size or (number > 0 and symbol.binding != _GLOBAL):
            raise ObjectError(f"its symbol {symbol.name[:80]!r} is nowhere")
        symbols.append(symbol)
    if symbols[0].name or symbols[0].section != _UNDEFINED:
        raise ObjectError("its table of symbols is malformed")
    return symbols


def _relocations(entry: ObjectFile, table: int, machine: int) -> list[Relocation]:
    known = _KNOWN[machine]
    placed = set(entry.placed)
    found = []
    for section in entry.sections:
        if section.kind != _RELOCATIONS:
            continue
        if section.entry_size != _RELOCATION.size or section.size % _RELOCATION.size:
            raise ObjectError("a table of references is malformed")
        if section.link != table or section.info not in placed:
            raise ObjectError("a table of references is for a section that is not in memory")
        data = entry.image[section.offset : section.offset + section.size]
        for place, info, addend in _RELOCATION.iter_unpack(data):
            symbol, kind = info >> 32, info & 0xFFFFFFFF
            if kind not in known or place + known[kind] > entry.sections[section.info].size:
                raise ObjectError(f"a reference of kind {kind} is unknown or not inside its section")
            if not 0 < symbol < len(entry.symbols) or abs(addend) > len(entry.image):
                raise ObjectError("a reference is to nothing")
            if entry.symbols[symbol].section == _ABSOLUTE:
                raise ObjectError("a reference is to the name of a source")
            found.append(Relocation(section.info, place, symbol, kind, addend))
    return found


# -- Linking --------------------------------------------------------------------------------------


def _places(objects: Sequence[ObjectFile]) -> tuple[list[dict[int, int]], int]:
    """For each object, where each of its sections goes in memory; and the end of all."""
    places: list[dict[int, int]] = []
    end = 0
    for entry in objects:
        starts = {}
        for number in entry.placed:
            alignment = max(1, entry.sections[number].alignment)
            starts[number] = -(-end // alignment) * alignment
            end = starts[number] + entry.sections[number].size
        end = -(-end // 16) * 16
        places.append(starts)
    return places, end


def _place(objects: Sequence[ObjectFile], places: Sequence[Mapping[int, int]], memory: LinkedMemory) -> None:
    """Copy the sections, and tell where the global symbols are."""
    for entry, starts in zip(objects, places, strict=True):
        for number, start in starts.items():
            section = entry.sections[number]
            memory.bytes[start : start + section.size] = entry.image[section.offset : section.offset + section.size]
        for symbol in entry.symbols:
            if symbol.binding != _LOCAL and symbol.section in starts:
                if symbol.name in memory.symbols:
                    raise ObjectError(f"{symbol.name[:80]!r} is defined twice")
                memory.symbols[symbol.name] = memory.address + starts[symbol.section] + symbol.value


def _write_stubs(
    memory: LinkedMemory, names: Sequence[str], start: int, find: Callable[[str], int | None]
) -> Mapping[str, int]:
    """A jump to each function that is defined elsewhere."""
    stubs: dict[str, int] = {}
    for number, name in enumerate(names):
        if name in memory.symbols:
            stubs[name] = memory.symbols[name]
            continue
        target = find(name)
        if target is None:
            raise ObjectError(f"it calls {name[:80]!r}, which is not a function that kernels call")
        place = start + number * _STUB.size
        _STUB.pack_into(memory.bytes, place, _JUMP, target)
        stubs[name] = memory.address + place
    return stubs


@dataclass
class _Linked:
    """Memory that is filled: the stubs of functions elsewhere, and where the next entry of addresses goes."""

    memory: LinkedMemory
    stubs: Mapping[str, int]
    table: int

    def address_of(self, target: int) -> int:
        """The address of a new entry of the table that holds the address `target`."""
        place = self.table
        _ADDRESS.pack_into(self.memory.bytes, place, target)
        self.table += _ADDRESS.size
        return self.memory.address + place


def _relocate(entry: ObjectFile, starts: Mapping[int, int], linked: _Linked) -> None:
    """Fill in the references of one object."""
    memory = linked.memory
    for reference in entry.relocations:
        symbol = entry.symbols[reference.symbol]
        if symbol.section in starts:
            target = memory.address + starts[symbol.section] + symbol.value
        elif reference.kind == _RELATIVE:
            raise ObjectError(f"it reads {symbol.name[:80]!r}, which is defined elsewhere")
        else:
            target = linked.stubs[symbol.name]
        if reference.kind in _BY_ADDRESS:
            target = linked.address_of(target)
        place = starts[reference.section] + reference.place
        try:
            struct.pack_into("<i", memory.bytes, place, target + reference.addend - (memory.address + place))
        except struct.error as error:
            raise ObjectError("a reference is too far") from error
