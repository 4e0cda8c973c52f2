"""The user's PTX, run for each element."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tilewright.dtypes import DType
from tilewright.ir.core import Operation
from tilewright.targets.gpu.conversions import register_type
from tilewright.targets.gpu.exchange import from_bits, pack, to_bits, unpack
from tilewright.targets.gpu.lowering import KernelLowering, Rule, unsupported
from tilewright.targets.llvm.builder import LLVMValue

_REGISTER_BITS = 32
_CONSTRAINT_TYPES = {"r": "i32", "f": "float", "l": "i64", "d": "double", "h": "i16"}


def _inline_assembly(lowering: KernelLowering, operation: Operation) -> None:
    """`pack` registers of every operand at a time; elements of less than 32 bits share words."""
    attributes = operation.attributes
    count, results = attributes["pack"], attributes["results"]
    assert isinstance(count, int) and isinstance(results, tuple)
    dtypes = [dtype for dtype in results if isinstance(dtype, DType)]
    columns = [lowering.registers(value) for value in operation.operands]
    size = len(columns[0]) if columns else 1
    produced: list[list[LLVMValue]] = [[] for _ in dtypes]
    for start in range(0, size, count):
        # A last group that is not full repeats its last element.
        chosen = [min(start + number, size - 1) for number in range(count)]
        parts = _call(lowering, operation, [[column[place] for place in chosen] for column in columns], dtypes)
        for column, part in zip(produced, parts, strict=True):
            column.extend(part[: size - start])
    for result, column in zip(operation.results, produced, strict=True):
        lowering.define(result, column)


def _per_word(bits: int, count: int) -> int:
    """Elements that travel in one register of the assembly."""
    return min(count, _REGISTER_BITS // bits) if bits < _REGISTER_BITS else 1


def _call(
    lowering: KernelLowering, operation: Operation, operands: Sequence[Sequence[LLVMValue]], dtypes: Sequence[DType]
) -> list[list[LLVMValue]]:
    """One call on `pack` elements of each operand; as many of each result."""
    builder, attributes = lowering.builder, operation.attributes
    constraints = [part.strip() for part in str(attributes["constraints"]).split(",") if part.strip()]
    outputs = [part for part in constraints if part.startswith("=")]
    count = attributes["pack"]
    assert isinstance(count, int)
    widths = [max(8, dtype.bits) for dtype in dtypes]
    words = [-(-count // _per_word(width, count)) for width in widths]
    if len(outputs) != sum(words):
        raise unsupported(
            lowering,
            operation,
            f"its constraints name {len(outputs)} results, and {sum(words)} registers come out of it",
        )
    inputs = [word for registers in operands for word in _words(lowering, registers)]
    letters = [part for part in constraints if not part.startswith(("=", "~"))]
    arguments = [_as_letter(lowering, word, letter) for word, letter in zip(inputs, letters, strict=False)]
    if len(letters) != len(inputs):
        raise unsupported(lowering, operation, f"its constraints name {len(letters)} operands of {len(inputs)}")
    types = [_CONSTRAINT_TYPES.get(part.lstrip("=&"), "i32") for part in outputs]
    whole = "void" if not types else types[0] if len(types) == 1 else "{" + ",".join(types) + "}"
    effect = "" if attributes["pure"] else "sideeffect "
    text = _llvm_text(str(attributes["asm"]))
    listed = ", ".join(map(str, arguments))
    call = f'call {whole} asm {effect}"{text}", "{",".join(constraints)}"({listed})'
    if not types:
        builder.line(call)
        return []
    value = builder.emit(call, whole)
    pieces = [value]
    if len(types) > 1:
        pieces = [builder.emit(f"extractvalue {whole} {value.text}, {n}", kind) for n, kind in enumerate(types)]
    return _elements(lowering, pieces, dtypes, words, count)


def _llvm_text(text: str) -> str:
    """Assembly as LLVM's string: quotes and backslashes escaped, line ends as characters."""
    return re.sub(r'["\\\n\t\r]', lambda found: f"\\{ord(found[0]):02X}", text)


def _words(lowering: KernelLowering, registers: Sequence[LLVMValue]) -> list[LLVMValue]:
    bits = [to_bits(lowering, register) for register in registers]
    width = int(bits[0].type[1:])
    per = _per_word(width, len(bits))
    if width >= _REGISTER_BITS:
        return bits
    return [pack(lowering, bits[start : start + per], _REGISTER_BITS) for start in range(0, len(bits), per)]


def _as_letter(lowering: KernelLowering, word: LLVMValue, letter: str) -> LLVMValue:
    """A word in the type that a constraint wants."""
    wanted = _CONSTRAINT_TYPES.get(letter, word.type)
    if wanted == "i16" and word.type == "i32":
        return lowering.builder.cast("trunc", word, "i16")
    return lowering.builder.cast("bitcast", word, wanted)


def _elements(
    lowering: KernelLowering, pieces: Sequence[LLVMValue], dtypes: Sequence[DType], words: Sequence[int], count: int
) -> list[list[LLVMValue]]:
    """The results' elements out of the registers of the assembly."""
    results, used = [], 0
    for dtype, number in zip(dtypes, words, strict=True):
        width = max(8, dtype.bits)
        elements: list[LLVMValue] = []
        for piece in pieces[used : used + number]:
            bits = to_bits(lowering, piece)
            own = int(bits.type[1:])
            per = min(_per_word(width, count), own // width)
            parts = unpack(lowering, bits, per, width) if own > width else [bits]
            elements += [from_bits(lowering, part, register_type(dtype)) for part in parts]
        used += number
        results.append(elements[:count])
    return results


RULES: dict[str, Rule] = {"inline_asm": _inline_assembly}
