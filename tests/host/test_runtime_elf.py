"""Object files placed in memory without a linker: what is understood, and what is left to LLVM."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable

import pytest

from tilewright.runtime import elf
from tilewright.runtime.library import load_objects, system_address
from tilewright.targets.cpu.assemble import assemble
from tilewright.targets.cpu.target import CPUTarget

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="objects are placed only on Linux for x86-64"
)

TABLE = """
@table = internal unnamed_addr constant [4 x i64] [i64 3, i64 5, i64 7, i64 11]
define i64 @entry(i64 %index) nounwind {
  %place = getelementptr i64, ptr @table, i64 %index
  %value = load i64, ptr %place
  ret i64 %value
}
"""
CALLER = """
declare i64 @entry(i64) nounwind
declare ptr @memcpy(ptr, ptr, i64)
define i64 @twice(i64 %index, ptr %to, ptr %from, i64 %bytes) nounwind {
  %copied = call ptr @memcpy(ptr %to, ptr %from, i64 %bytes)
  %value = call i64 @entry(i64 %index)
  %result = mul i64 %value, 2
  ret i64 %result
}
"""
COUNTER = """
@count = internal global i64 0
define i64 @next() nounwind {
  %old = load i64, ptr @count
  %new = add i64 %old, 1
  store i64 %new, ptr @count
  ret i64 %new
}
"""


def image(text: str) -> bytes:
    return assemble(text, CPUTarget.host()).image


def callable_at(address: int, *arguments: type) -> Callable[..., int]:
    return ctypes.CFUNCTYPE(ctypes.c_int64, *arguments)(address)


def test_constants_calls_between_objects_and_system_functions() -> None:
    memory = elf.link([image(CALLER), image(TABLE)], system_address)
    assert memory is not None
    entry = callable_at(memory.symbols["entry"], ctypes.c_int64)
    assert [entry(index) for index in range(4)] == [3, 5, 7, 11]
    twice = callable_at(memory.symbols["twice"], ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    source, target = ctypes.c_int64(1234), ctypes.c_int64(0)
    assert twice(3, ctypes.addressof(target), ctypes.addressof(source), 8) == 22
    assert target.value == 1234


def test_unknown_functions_and_writable_data_are_left_to_the_linker() -> None:
    with pytest.raises(elf.ObjectError, match="calls 'entry'"):
        elf.link([image(CALLER)], lambda name: None)
    with pytest.raises(elf.ObjectError, match="written to"):
        elf.link([image(COUNTER)], system_address)
    library = load_objects([image(COUNTER)], ["next"])
    assert [callable_at(library.address("next"))() for _ in range(2)] == [1, 2]


def test_nothing_of_a_file_is_left_to_the_linker() -> None:
    for objects, symbol in (([COUNTER], "next"), ([CALLER], "twice"), ([TABLE], "missing"), ([TABLE, TABLE], "entry")):
        with pytest.raises(RuntimeError, match="object file: "):
            load_objects(list(map(image, objects)), [symbol], strict=True)
    assert load_objects([image(CALLER), image(TABLE)], ["twice"], strict=True).address("twice")


def test_damaged_objects_are_left_to_the_linker() -> None:
    whole = image(TABLE)
    for damaged in (b"", b"\x7fELF", *(whole[:length] for length in range(64, len(whole), 61))):
        with pytest.raises(elf.ObjectError):
            elf.link([damaged], system_address)
    with pytest.raises(RuntimeError):
        load_objects([whole[: len(whole) // 2]], ["entry"])
    with pytest.raises(RuntimeError):
        load_objects([whole], ["missing"])
