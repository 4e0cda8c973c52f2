"""Object files that are checked before a linker sees them: kernels' pass on every system, damaged ones are told."""

from __future__ import annotations

import random
import struct
from collections import Counter

import llvmlite.binding as llvm
import pytest

from tests.host.handmade import KERNELS, make_plan
from tilewright.build import plan_codegen
from tilewright.runtime import elf
from tilewright.runtime.objects import check_object

SYSTEMS = {
    "linux x86_64": ("x86_64-unknown-linux-gnu", "linux", "x86_64"),
    "linux aarch64": ("aarch64-unknown-linux-gnu", "linux", "aarch64"),
    "macos arm64": ("arm64-apple-macosx", "darwin", "arm64"),
    "macos x86_64": ("x86_64-apple-macosx", "darwin", "x86_64"),
    "windows x86_64": ("x86_64-pc-windows-msvc", "win32", "AMD64"),
    "windows arm64": ("aarch64-pc-windows-msvc", "win32", "ARM64"),
}
CONSTANTS = """
@table = private unnamed_addr constant [4 x i64] [i64 3, i64 5, i64 7, i64 11]
declare float @sinf(float) nounwind
declare ptr @memcpy(ptr, ptr, i64) nounwind
define internal i64 @inner(i64 %i) nounwind noinline {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %i
  %v = load i64, ptr %p
  ret i64 %v
}
define double @outer(i64 %i, ptr %a, ptr %b) nounwind {
  %c = call ptr @memcpy(ptr %a, ptr %b, i64 4096)
  %v = call i64 @inner(i64 %i)
  %s = call float @sinf(float 2.5)
  %d = fpext float %s to double
  %f = uitofp i64 %v to double
  %m = fmul double %f, 0x3FF199999999999A
  %r = fadd double %m, %d
  ret double %r
}
"""


def emit(triple: str) -> list[bytes]:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=2, reloc="pic", codemodel="small")
    plan = plan_codegen.generate(make_plan(), "tilewright_plan_0", {name: name for name in KERNELS}, {"bias": 64})
    images = []
    for text in (*KERNELS.values(), plan, CONSTANTS):
        module = llvm.parse_assembly(text, context=llvm.create_context())
        module.triple = triple
        images.append(machine.emit_object(module))
    return images


@pytest.fixture(params=SYSTEMS, scope="module")
def objects(request: pytest.FixtureRequest) -> tuple[list[bytes], str, str]:
    triple, system, machine = SYSTEMS[request.param]
    return emit(triple), system, machine


def test_kernels_pass(objects: tuple[list[bytes], str, str]) -> None:
    images, system, machine = objects
    for image in images:
        check_object(image, system, machine)
    for other_system, other_machine in (("linux", "aarch64"), ("darwin", "x86_64"), ("win32", "AMD64")):
        if (other_system, other_machine) != (system, machine):
            with pytest.raises(elf.ObjectError):
                check_object(images[-1], other_system, other_machine)


def test_no_damage_is_an_error_of_another_kind(objects: tuple[list[bytes], str, str]) -> None:
    images, system, machine = objects
    draw = random.Random(17)
    outcomes: Counter[str] = Counter()
    for _ in range(1500):
        image = bytearray(draw.choice(images))
        for _ in range(draw.choice([1, 1, 2, 5])):
            width = draw.choice([1, 2, 4, 8])
            place = draw.randrange(len(image) - width)
            number = draw.choice([0, 1, 0xFF, 2**31, 2**32 - 1, 2**63, 2**64 - 1, len(image), draw.getrandbits(64)])
            image[place : place + width] = number.to_bytes(8, "little")[:width]
        if draw.random() < 0.2:
            del image[draw.randrange(len(image)) :]
        try:
            check_object(bytes(image), system, machine)
            outcomes["passed"] += 1  # code, constants and names may be any bytes
        except elf.ObjectError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 100


def _header(image: bytes) -> tuple[int, int]:
    (start,) = struct.unpack_from("<Q", image, 40)
    return start, struct.unpack_from("<H", image, 60)[0]


def _sections(image: bytes, kind: int) -> list[int]:
    """Where the headers of the sections of a kind are."""
    start, count = _header(image)
    places = [start + 64 * number for number in range(count)]
    return [place for place in places if struct.unpack_from("<I", image, place + 4)[0] == kind]


def _code(image: bytes) -> int:
    return next(place for place in _sections(image, 1) if struct.unpack_from("<Q", image, place + 8)[0] == 6)


def _first(image: bytes, kind: int) -> tuple[int, int]:
    """The header of the first section of a kind, and where its contents are."""
    place = _sections(image, kind)[0]
    return place, struct.unpack_from("<Q", image, place + 24)[0]


# What is changed in an object that is otherwise right: place, format, value.
CHANGES = {
    "more sections than there are": lambda image: (60, "<H", 0xFFFE),
    "sections beyond the end": lambda image: (40, "<Q", len(image) - 8),
    "sections at a place that wraps around": lambda image: (40, "<Q", 2**64 - 64),
    "names of sections elsewhere": lambda image: (62, "<H", 0xFF00),
    "program headers": lambda image: (56, "<H", 1),
    "another machine": lambda image: (18, "<H", 3),
    "an executable": lambda image: (16, "<H", 2),
    "code beyond the end": lambda image: (_code(image) + 32, "<Q", len(image)),
    "code of a length that wraps around": lambda image: (_code(image) + 32, "<Q", 2**64 - 16),
    "code in the header": lambda image: (_code(image) + 24, "<Q", 0),
    "code over other sections": lambda image: (_code(image) + 24, "<Q", _first(image, 2)[1]),
    "an alignment of 2**40": lambda image: (_code(image) + 48, "<Q", 2**40),
    "an alignment of 3": lambda image: (_code(image) + 48, "<Q", 3),
    "writable code": lambda image: (_code(image) + 8, "<Q", 7),
    "thread-local data": lambda image: (_code(image) + 8, "<Q", 0x402),
    "an unknown type": lambda image: (_code(image) + 4, "<I", 14),
    "a name of a section that is not there": lambda image: (_code(image), "<I", 2**31),
    "symbols of another size": lambda image: (_first(image, 2)[0] + 56, "<Q", 1),
    "names of symbols in no section": lambda image: (_first(image, 2)[0] + 40, "<I", 0xFFFF),
    "more local symbols than symbols": lambda image: (_first(image, 2)[0] + 44, "<I", 0xFFFF),
    "a symbol whose name is not there": lambda image: (_first(image, 2)[1] + 24, "<I", 2**32 - 1),
    "a symbol in no section": lambda image: (_first(image, 2)[1] + 24 + 6, "<H", 0x1234),
    "a common symbol": lambda image: (_first(image, 2)[1] + 48 + 6, "<H", 0xFFF2),
    "a symbol beyond its section": lambda image: (_first(image, 2)[1] + 48 + 8, "<Q", 2**40),
    "a symbol of an indirect function": lambda image: (_first(image, 2)[1] + 48 + 4, "<B", 0x1A),
    "references of another size": lambda image: (_first(image, 4)[0] + 56, "<Q", 16),
    "references to symbols of no table": lambda image: (_first(image, 4)[0] + 40, "<I", 1),
    "references in no section": lambda image: (_first(image, 4)[0] + 44, "<I", 0xFFFF),
    "references in the header": lambda image: (_first(image, 4)[0] + 44, "<I", 0),
    "a reference beyond its section": lambda image: (_first(image, 4)[1], "<Q", 2**40),
    "a reference at the last byte": lambda image: (
        _first(image, 4)[1], "<Q", struct.unpack_from("<Q", image, _code(image) + 32)[0] - 1,
    ),
    "a reference of an unknown kind": lambda image: (_first(image, 4)[1] + 8, "<I", 0x7F),
    "a reference to no symbol": lambda image: (_first(image, 4)[1] + 12, "<I", 2**31),
    "a reference to symbol 0": lambda image: (_first(image, 4)[1] + 12, "<I", 0),
    "a reference far away": lambda image: (_first(image, 4)[1] + 16, "<q", 2**62),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_does_not_fit_together_is_refused(name: str) -> None:
    image = bytearray(emit(SYSTEMS["linux x86_64"][0])[-1])
    elf.read(bytes(image), elf.X86_64)
    place, form, value = CHANGES[name](bytes(image))
    struct.pack_into(form, image, place, value)
    with pytest.raises(elf.ObjectError):
        elf.read(bytes(image), elf.X86_64)
