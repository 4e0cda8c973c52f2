"""Machine code into this process: object files are linked, nothing is compiled.

Plain objects for x86-64 under Linux are placed by `runtime.elf`, all others are given to LLVM's JIT linker.

library = load_objects([image], ["my_kernel"])
launch(library.address("my_kernel"), …)
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import logging
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from tilewright import forks
from tilewright.host import llvm_host
from tilewright.runtime import elf, safe_files
from tilewright.runtime.objects import check_object
from tilewright.settings import settings

_log = logging.getLogger("tilewright")

# What compiled code may call: memory intrinsics, prints, scalar math, and the conversions that LLVM turns into
# calls where the CPU has no instruction for them.  A name that this system lacks is left out: linking
# then fails with its name, and only for the objects that need it.
_MATH = (
    "acos asin atan atan2 cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs floor fma fmax fmin fmod ldexp log "
    "log10 log1p log2 nearbyint pow rint round roundeven sin sinh sqrt tan tanh tgamma trunc"
).split()
_OTHER = (
    "memcpy memmove memset bcmp memcmp bzero printf fflush abort sincos sincosf __extendhfsf2 __truncsfhf2 "
    "__truncdfhf2 __truncsfbf2 __truncdfbf2 __gnu_h2f_ieee __gnu_f2h_ieee __divti3 __udivti3 __modti3 __umodti3 "
    "__multi3 __powisf2 __powidf2"
).split()
_SYSTEM = frozenset([*_MATH, *(f"{name}f" for name in _MATH), *_OTHER])
_LIBRARIES = {
    "linux": ("libm.so.6", "libc.so.6", "libgcc_s.so.1"),
    "darwin": ("libSystem.B.dylib",),
    "win32": ("ucrtbase", "vcruntime140", "kernel32"),
}

_lock = forks.lock()
_numbers = itertools.count()


class NativeLibrary:
    """Linked machine code. Its addresses are valid for as long as this object lives."""

    def __init__(self, owner: Any, addresses: Mapping[str, int], extent: tuple[int, int]) -> None:
        self._owner = owner  # of the memory
        self._addresses = addresses
        self.extent = extent  # where the code begins, and bytes in which all of it lies

    def address(self, symbol: str) -> int:
        """The address of an exported symbol; raises `KeyError` for one that was not asked for."""
        return self._addresses[symbol]


def load_objects(
    images: Iterable[bytes], symbols: Sequence[str], imports: Mapping[str, int] | None = None, strict: bool = False
) -> NativeLibrary:
    """Link object files into one library and find the addresses of `symbols`.

    The objects may refer to each other, to the C library's memory and math functions, and to `imports`
    (name to address).  Raises `RuntimeError` when an object is malformed or a symbol is missing; LLVM writes
    the name of a missing one to the standard error.

    With `strict`, for objects from a file, none is given to LLVM, which may end the process on a malformed one, before
    our own reader has understood all of it.
    """
    loaded = list(images)
    known = imports or {}
    try:
        if elf.LINKS:
            memory = elf.link(loaded, _finder(known))
            if memory is not None and all(symbol in memory.symbols for symbol in symbols):
                addresses = {symbol: memory.symbols[symbol] for symbol in symbols}
                return NativeLibrary(memory, addresses, (memory.address, len(memory.bytes)))
            if memory is not None and strict:
                raise elf.ObjectError(f"{', '.join(symbols)} is missing")
        elif strict:
            for image in loaded:
                check_object(image)
    except elf.ObjectError as error:
        if strict:
            raise RuntimeError(f"object file: {error}") from error
    return _load_with_llvm(loaded, symbols, known)


def _finder(imports: Mapping[str, int]) -> Callable[[str], int | None]:
    """The address of a function by its name: one of `imports`, or of those of the system that kernels may call."""
    return lambda name: imports.get(name) or (_known_address(name) if name in _SYSTEM else None)


def _load_with_llvm(loaded: Sequence[bytes], symbols: Sequence[str], imports: Mapping[str, int]) -> NativeLibrary:
    """The same by LLVM's JIT linker."""
    builder = llvm.JITLibraryBuilder()
    for image in loaded:
        builder.add_object_img(image)
    for name, address in {**_system_symbols(loaded), **imports}.items():
        builder.import_symbol(name, address)
    for symbol in symbols:
        builder.export_symbol(symbol)
    with _lock:
        tracker = builder.link(_linker(), f"tilewright.{next(_numbers)}")
    addresses = {symbol: tracker[symbol] for symbol in symbols}
    first = min(addresses.values(), default=0)
    return NativeLibrary(tracker, addresses, (first, sum(map(len, loaded))))


def system_address(name: str) -> int | None:
    """The address of a function of the C library or of anything else in the process, or None."""
    for place in (None, *_LIBRARIES.get(sys.platform, ())):
        library = _system_library(place)
        try:
            if library is not None:
                return ctypes.cast(library[name], ctypes.c_void_p).value
        except AttributeError:
            continue
    return None


@functools.cache
def host_machine() -> llvm.TargetMachine:
    """The target machine of this process, for linking and for the runtime's own few functions.

    Code is generated the fast way: three times sooner, and the functions are small.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm_host().name, features=llvm_host().features, opt=0, reloc="pic", jit=True
    )


@functools.cache
def _linker() -> Any:
    llvm.initialize_native_target()
    # JITLink places the sections of one object side by side, which keeps relative relocations in range;
    # its COFF support is younger than the older linker's.  The linker takes its machine over, of which it
    # needs to know no more than the triple: it generates no code.
    machine = llvm.Target.from_default_triple().create_target_machine(opt=0, reloc="pic", jit=True)
    return llvm.create_lljit_compiler(machine, use_jit_link=sys.platform != "win32")


@functools.cache
def _system_library(name: str | None) -> ctypes.CDLL | None:
    """A library of the system, or all that is in the process; None where there is no such thing."""
    try:
        return ctypes.CDLL(name)
    except (OSError, TypeError):  # TypeError: Windows has no handle of the whole process
        return None


def _system_symbols(images: Sequence[bytes]) -> dict[str, int]:
    """The system's functions that objects may call, by name."""
    names: set[str] = set()
    for image in images:
        mentioned = _elf_names(image)
        names |= _SYSTEM if mentioned is None else _SYSTEM & mentioned
    return {name: address for name in names if (address := _known_address(name)) is not None}


_STRING_TABLE = 3  # a section's type
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, …


def _elf_names(image: bytes) -> set[str] | None:
    """All names in the string tables of an object file; None for one of another format.

    Finding the address of every function that an object may call takes longer than linking a small one.
    """
    if not image.startswith(elf.MAGIC) or len(image) < 64:
        return None
    (sections,) = struct.unpack_from("<Q", image, 40)
    size, count = struct.unpack_from("<HH", image, 58)
    if len(image) < sections + size * count or size < _SECTION.size:
        return None  # damaged: the linker says so
    names: set[str] = set()
    for index in range(count):
        _, kind, _, _, offset, length, *_ = _SECTION.unpack_from(image, sections + index * size)
        if kind == _STRING_TABLE:
            names.update(image[offset : offset + length].decode("latin-1").split("\0"))
    return names


@functools.cache
def _known_address(name: str) -> int | None:
    return system_address(name)


def cached_object(text: str, name: str) -> bytes:
    """The object file of a module of the runtime for this process; `name` begins the name of its file.

    It is kept in the cache folder, with a checksum that covers its name: compiling it takes some milliseconds.
    """
    host = llvm_host()
    made_of = repr((text, llvmlite.__version__, host.triple, host.name, host.features)).encode()
    folder = safe_files.private_folder(settings.cache_directory)
    name = f"{name}-{hashlib.sha256(made_of).hexdigest()[:40]}.o"
    cached = safe_files.read(folder / name)
    if cached is not None and hashlib.sha256(name.encode() + cached[32:]).digest() == cached[:32]:
        return cached[32:]
    machine = host_machine()
    module = llvm.parse_assembly(text, context=llvm.create_context())  # the compiler may be busy in the global one
    module.triple = machine.triple
    module.verify()
    image: bytes = machine.emit_object(module)
    try:
        folder = safe_files.private_folder(settings.cache_directory, create=True)
        safe_files.write(folder / name, hashlib.sha256(name.encode() + image).digest() + image)
    except OSError as error:
        _log.debug("cannot keep the runtime's functions in %s: %s", folder, error)
    return image
