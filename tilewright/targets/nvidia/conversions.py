"""Conversions between element types for which NVIDIA GPUs have instructions."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.targets.gpu.conversions import RegisterConverter
from tilewright.targets.llvm.builder import LLVMBuilder, LLVMValue
from tilewright.targets.nvidia.target import NvidiaTarget

_PAIRS = {"float16": ("ff2f16x2", "<2 x half>"), "bfloat16": ("ff2bf16x2", "<2 x bfloat>")}
_FLOAT8_PAIRS = {"float8e4nv": "e4m3x2", "float8e5": "e5m2x2"}


class NvidiaConverter(RegisterConverter):
    """Conversions of scalars, and of lists of registers, two and two together where an instruction makes pairs."""

    def __init__(self, builder: LLVMBuilder, target: NvidiaTarget) -> None:
        super().__init__(builder)
        self.target = target

    def cast_all(
        self, values: Sequence[LLVMValue], source: DType, target: DType, rounding: str = "rtne"
    ) -> list[LLVMValue]:
        """`cast` of several registers; two and two together where an instruction makes pairs."""
        if source == target:
            return list(values)
        if target.bits == 8 and target.is_integer and source == dtypes.float32:
            return self._bytes(values, target.is_signed)
        hardware_pairs = target.name in _PAIRS or (target.name in _FLOAT8_PAIRS and self.target.fp8)
        if source.name in _FLOAT8_PAIRS and self.target.fp8 and target in (dtypes.float16, dtypes.float32):
            halves = self._widened_pairs(values, source)
            return halves if target == dtypes.float16 else [self.widen(each, dtypes.float16) for each in halves]
        if rounding != "rtne" or not hardware_pairs or not source.is_float or source.bits > 32:
            return [self.cast(value, source, target, rounding) for value in values]
        if source.name in _FLOAT8_PAIRS and self.target.fp8:
            wide = [self.widen(each, dtypes.float16) for each in self._widened_pairs(values, source)]
        else:
            wide = [self.widen(value, source) for value in values]
        results: list[LLVMValue] = []
        for position in range(0, len(wide) - 1, 2):
            results += self._pair(wide[position], wide[position + 1], target)
        if len(wide) % 2:
            results.append(self.narrow(wide[-1], target))
        return results

    def _widened_pairs(self, values: Sequence[LLVMValue], source: DType) -> list[LLVMValue]:
        """8-bit floats as float16, which holds all of them, two by one instruction."""
        builder, results = self.builder, []
        name = f"llvm.nvvm.{_FLOAT8_PAIRS[source.name]}.to.f16x2.rn"
        for position in range(0, len(values), 2):
            codes = [builder.cast("zext", value, "i16") for value in values[position : position + 2]]
            word = codes[0]
            if len(codes) == 2:
                word = builder.binary("or", word, builder.binary("shl", codes[1], LLVMValue("i16", "8")))
            pair = builder.call(name, "<2 x half>", [word])
            results += [builder.extract(pair, lane) for lane in range(len(codes))]
        return results

    def _float_to_integer(self, value: LLVMValue, source: DType, target: DType) -> LLVMValue:
        """As the portable one; the instruction saturates to 32 and 64 bits and makes 0 of a float32 that is NaN.

        NaN in or to 64 bits becomes the sign bit alone ("PTX ISA", cvt).
        """
        builder, signed = self.builder, target.is_signed
        wide = self.widen(value, source)
        if target.bits == 8 and wide.type == "float":
            return builder.cast("trunc", self._float_to_byte(wide, signed), "i8")
        kind = "i32" if target.bits <= 32 else "i64"
        letters = ("" if signed else "u") + ("i" if kind == "i32" else "ll")
        number = builder.call(f"llvm.nvvm.{'d' if source.bits == 64 else 'f'}2{letters}.rz", kind, [wide])
        if kind == "i64" or source.bits == 64:
            number = builder.select(builder.compare("uno", wide, wide), builder.zero(kind), number)
        if target.bits == 8 or target.bits == 16:
            bits = target.bits - signed
            number = builder.intrinsic("smin" if signed else "umin", [number, builder.constant(kind, 2**bits - 1)])
            if signed:
                number = builder.intrinsic("smax", [number, builder.constant(kind, -(2**bits))])
            number = builder.cast("trunc", number, f"i{target.bits}")
        return number

    def _float_to_byte(self, value: LLVMValue, signed: bool) -> LLVMValue:
        """A float32 as an integer of 8 bits in an i32, by one instruction, which also rounds to a whole number what
        was to be rounded so before."""
        whole = self.whole.get(value.text)
        mode = "rzi" if whole is None else "rni"
        text = f"cvt.{mode}.sat.{'s' if signed else 'u'}8.f32 $0, $1;"
        return self.builder.emit(f'call i32 asm "{text}", "=r,f"({whole or value})', "i32")

    def _bytes(self, values: Sequence[LLVMValue], signed: bool) -> list[LLVMValue]:
        """float32 as integers of 8 bits: of two that are rounded alike ptxas makes one instruction on sm_90 (F2IP)."""
        builder, kind = self.builder, "s8" if signed else "u8"
        results: list[LLVMValue] = []
        for position in range(0, len(values) - 1, 2):
            pair = values[position : position + 2]
            whole = [self.whole.get(value.text) for value in pair]
            if (whole[0] is None) != (whole[1] is None):
                results += [builder.cast("trunc", self._float_to_byte(value, signed), "i8") for value in pair]
                continue
            mode = "rzi" if whole[0] is None else "rni"
            low, high = (given or value for given, value in zip(whole, pair, strict=True))
            text = "{ .reg .b32 a, b, c; " + "".join(
                f"cvt.{mode}.s32.f32 {name}, ${number}; " for name, number in (("a", 1), ("b", 2))
            )
            text += f"cvt.pack.sat.{kind}.s32.b32 c, b, a, 0; cvt.u16.u32 $0, c; }}"
            results += self._halves(builder.emit(f'call i16 asm "{text}", "=h,f,f"({low}, {high})', "i16"))
        if len(values) % 2:
            results.append(builder.cast("trunc", self._float_to_byte(values[-1], signed), "i8"))
        return results

    def _halves(self, packed: LLVMValue) -> list[LLVMValue]:
        """The two bytes of an i16, in a form that LLVM makes one word of again where they are stored together."""
        shifted = self.builder.binary("lshr", packed, LLVMValue("i16", "8"))
        return [self.builder.cast("trunc", part, "i8") for part in (packed, shifted)]

    def _pair(self, low: LLVMValue, high: LLVMValue, target: DType) -> list[LLVMValue]:
        """Two float32 rounded to a type of 16 or 8 bits by one instruction."""
        builder = self.builder
        if target.name in _FLOAT8_PAIRS:
            packed = builder.call(f"llvm.nvvm.ff.to.{_FLOAT8_PAIRS[target.name]}.rn", "i16", [high, low])
            return self._halves(packed)
        name, pair = _PAIRS[target.name]
        packed = builder.call(f"llvm.nvvm.{name}.rn", pair, [high, low])
        if target == dtypes.float16:
            return [builder.extract(packed, lane) for lane in range(2)]
        word = builder.cast("bitcast", packed, "i32")
        parts = word, builder.binary("lshr", word, LLVMValue("i32", "16"))
        return [builder.cast("trunc", part, "i16") for part in parts]

    def _from_single(self, value: LLVMValue, target: DType) -> LLVMValue:
        if target == dtypes.bfloat16:
            rounded = self.builder.cast("fptrunc", value, "bfloat")
            return self.builder.cast("bitcast", rounded, "i16")
        if target.name in _FLOAT8_PAIRS and self.target.fp8:
            return self._pair(value, self.builder.constant("float", 0.0), target)[0]
        return super()._from_single(value, target)

    def _to_single(self, value: LLVMValue, source: DType) -> LLVMValue:
        if source.name in _FLOAT8_PAIRS and self.target.fp8:
            builder = self.builder
            code = builder.cast("zext", value, "i16")
            pair = builder.call(f"llvm.nvvm.{_FLOAT8_PAIRS[source.name]}.to.f16x2.rn", "<2 x half>", [code])
            return builder.cast("fpext", builder.extract(pair, 0), "float")
        return super()._to_single(value, source)
