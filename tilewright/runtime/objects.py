"""Object files of other systems, checked before LLVM's linker sees them: Mach-O for macOS, COFF for Windows.

LLVM's linkers trust much of what an object file says of itself and end the process where it is wrong.  Every offset,
size, name and number is checked here, and only the kinds of sections and references are let through that LLVM emits for
kernels.  ELF is read by `runtime.elf`.

Formats: Apple's <mach-o/loader.h>, <mach-o/nlist.h> and <mach-o/reloc.h>; Microsoft's PE Format, "COFF object files".
"""

from __future__ import annotations

import platform
import struct
import sys
from typing import NamedTuple

from tilewright.runtime import elf
from tilewright.runtime.elf import ObjectError

_ARM = ("arm64", "aarch64")

# -- Mach-O
_MACH_MAGIC = 0xFEEDFACF
_MACH_HEADER = struct.Struct("<8I")
_MACH_COMMAND = struct.Struct("<2I")
_MACH_SEGMENT = struct.Struct("<2I16s4Q4I")
_MACH_SECTION = struct.Struct("<16s16s2Q8I")
_MACH_SYMTAB = struct.Struct("<6I")
_MACH_SYMBOL = struct.Struct("<IBBHQ")
_MACH_RELOCATION = struct.Struct("<iI")
_SEGMENT, _SYMTAB, _DYSYMTAB, _HINTS, _BUILD_VERSION, _VERSION_MIN = 0x19, 2, 0xB, 0x2E, 0x32, 0x24
_MACH_SECTIONS = ((b"__TEXT", b"__text"), (b"__TEXT", b"__const"), (b"__TEXT", b"__literal4"),
                  (b"__TEXT", b"__literal8"), (b"__TEXT", b"__literal16"), (b"__TEXT", b"__cstring"))  # fmt: skip
_LITERALS = {0: 1, 3: 4, 4: 8, 0xE: 16, 2: 1}  # types of sections -> what their sizes are multiples of
# ARM64_RELOC_UNSIGNED, SUBTRACTOR, BRANCH26, PAGE21, PAGEOFF12, GOT_LOAD_PAGE21, GOT_LOAD_PAGEOFF12, ADDEND without
# those of thread-local data; X86_64_RELOC_UNSIGNED, SIGNED, BRANCH, GOT_LOAD, GOT, SUBTRACTOR, SIGNED_1, _2, _4
_MACH_RELOCATIONS = {True: (0, 1, 2, 3, 4, 5, 6, 10), False: (0, 1, 2, 3, 4, 5, 6, 7, 8)}

# -- COFF
_COFF_HEADER = struct.Struct("<2H3I2H")
_COFF_SECTION = struct.Struct("<8s6I2HI")
_COFF_SYMBOL = struct.Struct("<8sIhH2B")
_COFF_RELOCATION = struct.Struct("<2IH")
_COFF_MACHINES = {True: 0xAA64, False: 0x8664}
# IMAGE_REL_AMD64_ADDR64, ADDR32NB, REL32 to REL32_5; IMAGE_REL_ARM64_ADDR32NB, BRANCH26, PAGEBASE_REL21,
# PAGEOFFSET_12A, PAGEOFFSET_12L, ADDR64, BRANCH19, BRANCH14, REL32
_COFF_RELOCATIONS = {False: (1, 3, *range(4, 10)), True: (2, 3, 4, 6, 7, 14, 15, 16, 17)}
_UNINITIALIZED, _MANY_RELOCATIONS = 0x80, 0x01000000  # characteristics of sections
_EXTERNAL, _STATIC, _LABEL, _FILE_CLASS = 2, 3, 6, 103  # classes of symbols


def check_object(image: bytes, system: str = sys.platform, machine: str = platform.machine()) -> None:
    """Raise `ObjectError` unless an object file is one that kernels have on a system (as `sys.platform` names it)."""
    arm = machine.lower() in _ARM
    try:
        if system == "darwin":
            _check_mach(image, arm)
        elif system == "win32":
            _check_coff(image, arm)
        else:
            elf.read(image, elf.AARCH64 if arm else elf.X86_64)
    except struct.error as error:
        raise ObjectError("it is cut off") from error


class _MachSection(NamedTuple):
    offset: int
    size: int
    relocations: int
    references: int  # how many relocations


def _inside(image: bytes, offset: int, size: int, part: str) -> None:
    if offset + size > len(image):
        raise ObjectError(f"{part} is not inside it")


def _text(table: bytes, start: int) -> bytes:
    """A name in a table of names that are ended by zero bytes."""
    end = table.find(b"\0", start)
    if start >= len(table) or end < 0:
        raise ObjectError("a name is not inside its table")
    return table[start:end]


def _check_mach(image: bytes, arm: bool) -> None:
    magic, cpu, _, kind, count, size, _, _ = _MACH_HEADER.unpack_from(image)
    if (magic, cpu, kind) != (_MACH_MAGIC, 0x0100000C if arm else 0x01000007, 1):
        raise ObjectError("it is no Mach-O object file for this machine")
    _inside(image, _MACH_HEADER.size, size, "its list of commands")
    position, end = _MACH_HEADER.size, _MACH_HEADER.size + size
    sections: list[_MachSection] = []
    symbols = 0
    seen: set[int] = set()
    for _ in range(count):
        command, length = _MACH_COMMAND.unpack_from(image, position)
        if length < _MACH_COMMAND.size or length % 8 or position + length > end or command in seen:
            raise ObjectError("its list of commands is malformed")
        seen.add(command)
        if command == _SEGMENT:
            sections = _mach_sections(image, position, length)
        elif command == _SYMTAB:
            symbols = _mach_symbols(image, position, length, max(1, len(sections)))
        elif command == _DYSYMTAB:
            if length != 80:
                raise ObjectError("its list of commands is malformed")
        elif command == _HINTS:
            place, bytes_ = struct.unpack_from("<2I", image, position + _MACH_COMMAND.size)
            _inside(image, place, bytes_, "its list of hints")
        elif command not in (_BUILD_VERSION, _VERSION_MIN):
            raise ObjectError(f"it has the command {command:#x}, which kernels do not have")
        position += length
    if position != end:
        raise ObjectError("its list of commands is malformed")
    for section in sections:
        _check_mach_relocations(image, section, symbols, len(sections), arm)


def _mach_sections(image: bytes, position: int, length: int) -> list[_MachSection]:
    *_, count, _ = _MACH_SEGMENT.unpack_from(image, position)
    _, _, _, address, memory, offset, size, *_ = _MACH_SEGMENT.unpack_from(image, position)
    if length != _MACH_SEGMENT.size + count * _MACH_SECTION.size or count > 255:
        raise ObjectError("its list of sections is malformed")
    _inside(image, offset, size, "its segment")
    found = []
    last = address
    for number in range(count):
        fields = _MACH_SECTION.unpack_from(image, position + _MACH_SEGMENT.size + number * _MACH_SECTION.size)
        name, segment, start, bytes_, place, alignment, relocations, references, flags, *_ = fields
        if (segment.rstrip(b"\0"), name.rstrip(b"\0")) not in _MACH_SECTIONS:
            raise ObjectError(f"its section {name!r} is neither code nor constants")
        if alignment > 12 or (flags & 0xFF) not in _LITERALS or bytes_ % _LITERALS[flags & 0xFF]:
            raise ObjectError(f"its section {name!r} is of an unknown kind")
        if start < last or start + bytes_ > address + memory or start % (1 << alignment):
            raise ObjectError("its sections overlap or are not inside its segment")
        last = start + bytes_
        _inside(image, place, bytes_, "a section")
        _inside(image, relocations, references * _MACH_RELOCATION.size, "a table of references")
        found.append(_MachSection(place, bytes_, relocations, references))
    return found


def _mach_symbols(image: bytes, position: int, length: int, sections: int) -> int:
    """Check the table of symbols; returns how many it has."""
    _, _, offset, count, strings, size = _MACH_SYMTAB.unpack_from(image, position)
    _inside(image, offset, count * _MACH_SYMBOL.size, "its table of symbols")
    _inside(image, strings, size, "its table of names")
    names = image[strings : strings + size]
    if length != _MACH_SYMTAB.size:
        raise ObjectError("its list of commands is malformed")
    for number in range(count):
        name, kind, section, _, _ = _MACH_SYMBOL.unpack_from(image, offset + number * _MACH_SYMBOL.size)
        _text(names, name)
        defined = kind & 0x0E == 0x0E
        if kind & 0xE0 or (kind & 0x0E and not defined) or (defined and not 0 < section <= sections):
            raise ObjectError("a symbol is of an unknown kind")
    return count


def _check_mach_relocations(image: bytes, section: _MachSection, symbols: int, sections: int, arm: bool) -> None:
    for number in range(section.references):
        place, word = _MACH_RELOCATION.unpack_from(image, section.relocations + number * _MACH_RELOCATION.size)
        target, length, external, kind = word & 0xFFFFFF, word >> 25 & 3, word >> 27 & 1, word >> 28
        if place < 0 or place + (1 << length) > section.size or kind not in _MACH_RELOCATIONS[arm]:
            raise ObjectError("a reference is of an unknown kind or not inside its section")
        if kind == 10 and arm:
            continue  # a number to add, not a symbol
        if target >= symbols if external else not 0 < target <= sections:
            raise ObjectError("a reference is to nothing")


def _check_coff(image: bytes, arm: bool) -> None:
    machine, sections, _, symbols, count, optional, _ = _COFF_HEADER.unpack_from(image)
    if machine != _COFF_MACHINES[arm] or optional:
        raise ObjectError("it is no COFF object file for this machine")
    _inside(image, _COFF_HEADER.size, sections * _COFF_SECTION.size, "its list of sections")
    _inside(image, symbols, count * _COFF_SYMBOL.size + 4, "its table of symbols")
    strings = symbols + count * _COFF_SYMBOL.size
    (size,) = struct.unpack_from("<I", image, strings)
    _inside(image, strings, size, "its table of names")
    names = image[strings : strings + size]
    sizes = _coff_sections(image, sections, names, count, arm)
    _check_coff_symbols(image, symbols, count, names, sizes)


def _coff_sections(image: bytes, count: int, names: bytes, symbols: int, arm: bool) -> list[int]:
    """Check the sections and their references; returns the sections' sizes."""
    sizes = []
    for number in range(count):
        fields = _COFF_SECTION.unpack_from(image, _COFF_HEADER.size + number * _COFF_SECTION.size)
        name, memory, address, size, place, relocations, lines, references, line_count, flags = fields
        if name.startswith(b"/"):
            digits = name[1:].rstrip(b"\0")
            if not digits.isdigit():
                raise ObjectError("the name of a section is malformed")
            _text(names, int(digits))
        if memory or address or lines or line_count or flags & _MANY_RELOCATIONS:
            raise ObjectError("a section is of an unknown kind")
        if flags & _UNINITIALIZED and size:
            raise ObjectError("a section is data that is written to")
        _inside(image, place, size, "a section")
        _inside(image, relocations, references * _COFF_RELOCATION.size, "a table of references")
        for index in range(references):
            target, symbol, kind = _COFF_RELOCATION.unpack_from(image, relocations + index * _COFF_RELOCATION.size)
            if kind not in _COFF_RELOCATIONS[arm] or target + (8 if kind == (14 if arm else 1) else 4) > size:
                raise ObjectError("a reference is of an unknown kind or not inside its section")
            if symbol >= symbols:
                raise ObjectError("a reference is to nothing")
        sizes.append(size)
    return sizes


def _check_coff_symbols(image: bytes, start: int, count: int, names: bytes, sizes: list[int]) -> None:
    number = 0
    while number < count:
        name, value, section, _, kind, more = _COFF_SYMBOL.unpack_from(image, start + number * _COFF_SYMBOL.size)
        if name[:4] == bytes(4):
            _text(names, struct.unpack_from("<I", name, 4)[0])
        if kind not in (_EXTERNAL, _STATIC, _LABEL, _FILE_CLASS) or section > len(sizes) or section < -2:
            raise ObjectError("a symbol is of an unknown kind")
        if section > 0 and value > sizes[section - 1]:
            raise ObjectError("a symbol is not inside its section")
        number += 1 + more
    if number != count:
        raise ObjectError("its table of symbols is malformed")
