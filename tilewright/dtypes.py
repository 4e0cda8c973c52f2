"""Element types, shared by the Tile IR, the Graph IR, engines and the runtime."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class DType:
    """An element type.

    `name` is the language's name (``float32``), `text` the IR's (``f32``), `kind` one of ``bool``,
    ``int``, ``uint``, ``float``, ``void``; `bits` the width of the value (1 for bool, which takes
    one byte in memory).  Kinds ``text``, ``map``, ``sequence`` and ``optional`` are those of `HOST_ONLY`.
    """

    name: str
    text: str
    kind: str
    bits: int

    # Compared everywhere in a compiler, and nearly always with itself.
    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, DType) and self.name == other.name)

    def __hash__(self) -> int:
        return hash(self.name)

    @cached_property
    def itemsize(self) -> int:
        """Bytes of one element in memory, where those of less than a byte are not packed."""
        return max(1, self.bits // 8)

    def packed_bytes(self, count: int) -> int:
        """Bytes of so many elements in a file: those of 4 or 2 bits lie two or four to a byte, booleans do not."""
        bits = self.itemsize * 8 if self.is_bool else self.bits
        return -(-count * bits // 8)

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """True for signed and unsigned integers and for bool."""
        return self.kind in ("int", "uint", "bool")

    @property
    def is_signed(self) -> bool:
        return self.kind == "int"

    @property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    @property
    def numpy(self) -> np.dtype:
        """The NumPy (or ml_dtypes) dtype that holds this element type."""
        return _NUMPY[self.name]

    def __str__(self) -> str:
        return self.text


int1 = DType("int1", "i1", "bool", 1)
int8 = DType("int8", "i8", "int", 8)
int16 = DType("int16", "i16", "int", 16)
int32 = DType("int32", "i32", "int", 32)
int64 = DType("int64", "i64", "int", 64)
uint8 = DType("uint8", "u8", "uint", 8)
uint16 = DType("uint16", "u16", "uint", 16)
uint32 = DType("uint32", "u32", "uint", 32)
uint64 = DType("uint64", "u64", "uint", 64)
float8e5 = DType("float8e5", "f8e5", "float", 8)
float8e4nv = DType("float8e4nv", "f8e4nv", "float", 8)
float8e5b16 = DType("float8e5b16", "f8e5b16", "float", 8)  # no infinity, no -0; the code 0x80 is NaN
float8e4b8 = DType("float8e4b8", "f8e4b8", "float", 8)  # the same
float8e4b15 = DType("float8e4b15", "f8e4b15", "float", 8)  # neither infinity nor NaN
float16 = DType("float16", "f16", "float", 16)
bfloat16 = DType("bfloat16", "bf16", "float", 16)
float32 = DType("float32", "f32", "float", 32)
float64 = DType("float64", "f64", "float", 64)
void = DType("void", "void", "void", 0)

# One element in the low bits of a byte.  Only the graph knows these: kernels see their bytes, and formulas of the
# importers make numbers of them.  Engine files and kernels of quantized weights have several of them in a byte
# (`library.packing`).
int4 = DType("int4", "i4", "int", 4)
uint4 = DType("uint4", "u4", "uint", 4)
int2 = DType("int2", "i2", "int", 2)
uint2 = DType("uint2", "u2", "uint", 2)
float4e2 = DType("float4e2", "f4e2", "float", 4)  # no infinity and no NaN
float8e8 = DType("float8e8", "f8e8", "float", 8)  # powers of two, without sign and zero; the code 0xff is NaN
NARROW: tuple[DType, ...] = (int4, uint4, int2, uint2, float4e2, float8e8)

DTYPES: tuple[DType, ...] = (
    int1, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float8e5, float8e4nv, float8e5b16, float8e4b8, float16, bfloat16, float32, float64,
)  # fmt: skip
# float8e4b15 is storage: the IR moves it and reinterprets its bits, the language converts and computes in float16.
STORED: tuple[DType, ...] = (*DTYPES, float8e4b15, *NARROW)
BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in STORED}
BY_TEXT: dict[str, DType] = {dtype.text: dtype for dtype in STORED}

# Elements that are no numbers, which only the host works on, between the compiled parts of a graph.  A sequence or an
# optional is a list of one dimension; an optional has at most one element.  In NumPy all are Python objects.
string = DType("string", "str", "text", 0)


def _list_of(kind: str, element: DType) -> DType:
    return DType(f"{kind}({element.name})", f"{kind}_{element.text}", kind, 0)


# Dictionaries, which models give as items of sequences: keys are text or whole numbers.
MAPS: tuple[DType, ...] = tuple(
    DType(f"map({key.name},{item.name})", f"map_{key.text}_{item.text}", "map", 0)
    for key in (string, int64)
    for item in (float32,)
)
_ELEMENTS: dict[DType, DType] = {_list_of("sequence", element): element for element in (*STORED, string, *MAPS)}
_ELEMENTS |= {_list_of("optional", element): element for element in (*STORED, string, *_ELEMENTS)}
HOST_ONLY: frozenset[DType] = frozenset({string, *MAPS, *_ELEMENTS})
ANY_BY_NAME: dict[str, DType] = {**BY_NAME, **{dtype.name: dtype for dtype in HOST_ONLY}}
ANY_BY_TEXT: dict[str, DType] = {**BY_TEXT, **{dtype.text: dtype for dtype in HOST_ONLY}}


def element_of(dtype: DType) -> DType:
    """What a sequence or an optional holds; raises `KeyError` for other types."""
    return _ELEMENTS[dtype]


def sequence_of(element: DType) -> DType:
    """The type of sequences of tensors of an element type; raises `KeyError` where there are none."""
    return ANY_BY_NAME[f"sequence({element.name})"]


def optional_of(element: DType) -> DType:
    """The type of optionals that hold a tensor of an element type, or a sequence; raises `KeyError` as above."""
    return ANY_BY_NAME[f"optional({element.name})"]


_NUMPY: dict[str, np.dtype] = {
    "int1": np.dtype(np.bool_),
    "float8e5": np.dtype(ml_dtypes.float8_e5m2),
    "float8e4nv": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8e5b16": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "float8e4b8": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8e4b15": np.dtype(ml_dtypes.float8_e4m3b11fnuz),  # carries the bits; its numbers are other ones
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int4": np.dtype(ml_dtypes.int4),
    "uint4": np.dtype(ml_dtypes.uint4),
    "int2": np.dtype(ml_dtypes.int2),
    "uint2": np.dtype(ml_dtypes.uint2),
    "float4e2": np.dtype(ml_dtypes.float4_e2m1fn),
    "float8e8": np.dtype(ml_dtypes.float8_e8m0fnu),
}
_NUMPY.update({name: np.dtype(name) for name in BY_NAME if name not in _NUMPY})
_FROM_NUMPY: dict[np.dtype, DType] = {numpy_dtype: BY_NAME[name] for name, numpy_dtype in _NUMPY.items()}
_NUMPY.update({dtype.name: np.dtype(object) for dtype in HOST_ONLY})


def carrier(dtype: DType) -> DType:
    """The element type that kernels see: bytes in place of narrow types."""
    return uint8 if dtype in NARROW else dtype


def from_numpy(dtype: np.dtype | type) -> DType:
    """The element type that stores a NumPy dtype; raises `KeyError` when there is none."""
    return _FROM_NUMPY[np.dtype(dtype)]


def wrapped(number: float, dtype: DType) -> float:
    """A whole number in the range of an integer type, modulo its size, as C's conversion; other numbers as they are."""
    if dtype.kind not in ("int", "uint") or not isinstance(number, int):
        return number
    lowest = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    return (number - lowest) % (1 << dtype.bits) + lowest
