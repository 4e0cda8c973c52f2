"""Types of the language: dtypes, pointers, blocks, and compile-time values.

These are thin faces over `tilewright.dtypes` and `tilewright.ir.types` that answer the questions
kernels ask (``x.dtype.is_floating()``, ``ptr.dtype.element_ty``, ``x.type.scalar``).
"""

from __future__ import annotations

import enum
import functools
import operator
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, Union

import numpy as np

from tilewright import dtypes as foundation
from tilewright.dtypes import DType
from tilewright.errors import brief
from tilewright.ir.types import HANDLES, PointerType, TensorType
from tilewright.language.context import LanguageError

_SHORT_NAMES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "float8e5": "fp8e5",
    "float8e4nv": "fp8e4nv",
    "float8e5b16": "fp8e5b16",
    "float8e4b8": "fp8e4b8",
    "float8e4b15": "fp8e4b15",
}
_MANTISSA_BITS = {"float8e5": 2, "float8e4nv": 3, "float8e5b16": 2, "float8e4b8": 3, "float8e4b15": 3,
                  "float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}  # fmt: skip

_EXPONENT_BIAS = {"float8e5": 15, "float8e4nv": 7, "float8e5b16": 16, "float8e4b8": 8, "float8e4b15": 15,
                  "float16": 15, "bfloat16": 127, "float32": 127, "float64": 1023}  # fmt: skip


class dtype:
    """An element type such as `tl.float32`; ``tl.dtype("fp32")`` names one. Compare with ``==``."""

    # Short names by kind, as Triton lists them.
    SINT_TYPES = ["int8", "int16", "int32", "int64"]
    UINT_TYPES = ["int1", "uint8", "uint16", "uint32", "uint64"]
    FP_TYPES = ["fp8e4b15", "fp8e4nv", "fp8e4b8", "fp8e5", "fp8e5b16", "fp16", "bf16", "fp32", "fp64"]
    STANDARD_FP_TYPES = ["fp16", "bf16", "fp32", "fp64"]
    OTHER_TYPES = ["void"]

    def __init__(self, element: DType | PointerType | str) -> None:
        if isinstance(element, str):
            if element != "void" and element not in NAMES:
                raise LanguageError(f"there is no dtype named {brief(element)}", f"one of {', '.join(NAMES)}")
            element = foundation.void if element == "void" else NAMES[element].element
        elif not isinstance(element, (DType, PointerType)):
            raise LanguageError(f"a dtype is made from its name, got {brief(element)}", 'tl.dtype("fp32")')
        self.element: DType | PointerType = element

    @property
    def name(self) -> str:
        """Short name: ``int32``, ``fp32``, ``bf16``."""
        assert isinstance(self.element, DType)
        return _SHORT_NAMES.get(self.element.name, self.element.name)

    @property
    def primitive_bitwidth(self) -> int:
        return self.element.bits

    @property
    def itemsize(self) -> int:
        return self.element.itemsize

    @property
    def scalar(self) -> dtype:
        return self

    @property
    def fp_mantissa_width(self) -> int:
        """Explicit mantissa bits of a float type."""
        return _MANTISSA_BITS[self._number.name]

    @property
    def exponent_bias(self) -> int:
        """What is added to the exponent of a float type where it is stored."""
        return _EXPONENT_BIAS[self._number.name]

    @property
    def _number(self) -> DType:
        if isinstance(self.element, PointerType):
            raise LanguageError(
                f"{self} is a pointer type, a number type is needed here", "its elements have one: ptr.dtype.element_ty"
            )
        return self.element

    @property
    def int_bitwidth(self) -> int:
        return self.element.bits

    class KIND(enum.Enum):
        """The order of kinds in promotion."""

        BOOLEAN = 0
        INTEGRAL = 1
        FLOATING = 2

    def kind(self) -> dtype.KIND:
        """Whether these are truth values, integers or floats."""
        number = self._number
        return (
            dtype.KIND.BOOLEAN if number.is_bool else dtype.KIND.INTEGRAL if number.is_integer else dtype.KIND.FLOATING
        )

    def get_int_max_value(self) -> int:
        """The greatest integer of the type."""
        return (1 << (self.int_bitwidth - int(self.is_int_signed()))) - 1

    def get_int_min_value(self) -> int:
        """The least integer of the type."""
        return -(1 << (self.int_bitwidth - 1)) if self.is_int_signed() else 0

    @staticmethod
    def is_dtype(type_str: str) -> bool:
        """Whether a text is the short name of a type."""
        return type_str in NAMES or type_str == "void"

    def with_element_ty(self, element_ty: dtype) -> dtype:
        """The type of the same shape, a scalar, with other elements."""
        return element_ty

    def is_const(self) -> bool:
        """Whether this is a pointer that cannot be stored through."""
        return isinstance(self.element, PointerType) and self.element.const

    def is_ptr(self) -> bool:
        return isinstance(self.element, PointerType)

    def is_block(self) -> bool:
        return False

    def is_void(self) -> bool:
        return self.element == foundation.void

    def is_floating(self) -> bool:
        return isinstance(self.element, DType) and self.element.is_float

    def is_standard_floating(self) -> bool:
        """True for fp16, bf16, fp32, fp64."""
        return self.is_floating() and self.element.bits >= 16

    def is_int(self) -> bool:
        """True for signed and unsigned integers and int1."""
        return isinstance(self.element, DType) and self.element.is_integer

    def is_int_signed(self) -> bool:
        return isinstance(self.element, DType) and self.element.is_signed

    def is_int_unsigned(self) -> bool:
        return self.is_int() and not self.is_int_signed()

    def is_bool(self) -> bool:
        return self.is_int1()

    def is_int1(self) -> bool:
        return self.element == foundation.int1

    def is_int8(self) -> bool:
        return self.element == foundation.int8

    def is_int16(self) -> bool:
        return self.element == foundation.int16

    def is_int32(self) -> bool:
        return self.element == foundation.int32

    def is_int64(self) -> bool:
        return self.element == foundation.int64

    def is_uint8(self) -> bool:
        return self.element == foundation.uint8

    def is_uint16(self) -> bool:
        return self.element == foundation.uint16

    def is_uint32(self) -> bool:
        return self.element == foundation.uint32

    def is_uint64(self) -> bool:
        return self.element == foundation.uint64

    def is_fp8(self) -> bool:
        return self.is_floating() and self.element.bits == 8

    def is_fp8e5(self) -> bool:
        return self.element == foundation.float8e5

    def is_fp8e4nv(self) -> bool:
        return self.element == foundation.float8e4nv

    def is_fp8e5b16(self) -> bool:
        return self.element == foundation.float8e5b16

    def is_fp8e4b8(self) -> bool:
        return self.element == foundation.float8e4b8

    def is_fp8e4b15(self) -> bool:
        return self.element == foundation.float8e4b15

    def is_fp16(self) -> bool:
        return self.element == foundation.float16

    def is_bf16(self) -> bool:
        return self.element == foundation.bfloat16

    def is_fp32(self) -> bool:
        return self.element == foundation.float32

    def is_fp64(self) -> bool:
        return self.element == foundation.float64

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dtype) and self.element == other.element

    def __hash__(self) -> int:
        return hash(self.element)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"tl.{self}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (wrap, (self.element,))


class pointer_type(dtype):
    """The type of a pointer to `element_ty`; `const` pointers cannot be stored through."""

    def __init__(self, element_ty: dtype, address_space: int = 1, const: bool = False) -> None:
        if not isinstance(element_ty, dtype) or element_ty.is_ptr():
            raise LanguageError(
                f"pointer_type needs a number type, got {brief(element_ty)}", "pass a dtype such as tl.float32"
            )
        super().__init__(PointerType(element_ty._number, const))
        self.element_ty = element_ty
        self.address_space = address_space
        self.const = const

    @property
    def name(self) -> str:
        return f"pointer<{'const ' if self.const else ''}{self.element_ty}>"


class handle_type(dtype):
    """The type of what only explicit kernels have, such as a tile in shared memory."""

    def __init__(self, element: Any) -> None:
        self.element = element

    @property
    def name(self) -> str:
        return str(self.element)


class block_type:
    """The type of a block: element type and shape."""

    def __init__(self, element_ty: dtype, shape: tuple[int, ...] | list[int]) -> None:
        self.element_ty = element_ty
        self.shape = tuple_of_ints(shape)

    @property
    def scalar(self) -> dtype:
        return self.element_ty

    @property
    def name(self) -> str:
        return str(self)

    @property
    def numel(self) -> int:
        return TensorType(self.shape, self.element_ty.element).size

    def is_block(self) -> bool:
        return True

    def is_ptr(self) -> bool:
        return False

    @property
    def nbytes(self) -> int:
        """Bytes of the whole block."""
        return self.numel * self.element_ty.itemsize

    def get_block_shapes(self) -> tuple[int, ...]:
        """The shape."""
        return self.shape

    def with_element_ty(self, scalar_ty: dtype) -> block_type:
        """A block of the same shape with other elements."""
        return block_type(scalar_ty, self.shape)

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("is_", "primitive_", "itemsize")):
            return getattr(self.element_ty, name)
        raise AttributeError(name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, block_type) and (self.element_ty, self.shape) == (other.element_ty, other.shape)

    def __hash__(self) -> int:
        return hash((self.element_ty, self.shape))

    def __str__(self) -> str:
        return f"<{list(self.shape)}, {self.element_ty}>"

    __repr__ = __str__


int1, int8, int16, int32, int64 = (dtype(foundation.BY_NAME[f"int{bits}"]) for bits in (1, 8, 16, 32, 64))
uint1 = int1  # it counts as unsigned
uint8, uint16, uint32, uint64 = (dtype(foundation.BY_NAME[f"uint{bits}"]) for bits in (8, 16, 32, 64))
float8e5, float8e4nv = dtype(foundation.float8e5), dtype(foundation.float8e4nv)
float8e5b16, float8e4b8 = dtype(foundation.float8e5b16), dtype(foundation.float8e4b8)
float8e4b15 = dtype(foundation.float8e4b15)
float16, bfloat16 = dtype(foundation.float16), dtype(foundation.bfloat16)
float32, float64 = dtype(foundation.float32), dtype(foundation.float64)
void = dtype(foundation.void)
pi32_t = pointer_type(int32)

ALL_DTYPES = (int1, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
              float8e5, float8e4nv, float8e5b16, float8e4b8, float8e4b15,
              float16, bfloat16, float32, float64)  # fmt: skip
_INSTANCES: dict[DType, dtype] = {entry._number: entry for entry in (*ALL_DTYPES, void)}

# Names accepted in string annotations and signatures: "fp32", "float32", "f32", "i64", "u8".
NAMES: dict[str, dtype] = {}
for _entry in ALL_DTYPES:
    for _name in (_entry.name, _entry._number.name, _entry._number.text):
        NAMES[_name] = _entry
NAMES["u1"] = NAMES["uint1"] = NAMES["bool"] = int1


def wrap(element: DType | PointerType) -> dtype:
    """The language's type of an IR element type."""
    if isinstance(element, PointerType):
        return pointer_type(_INSTANCES[element.element], const=element.const)
    return handle_type(element) if isinstance(element, HANDLES) else _INSTANCES[element]


def get_int_dtype(bitwidth: int, signed: bool) -> dtype:
    """The integer dtype of a width and signedness."""
    return NAMES[f"{'int' if signed else 'uint'}{bitwidth}"] if bitwidth > 1 else int1


def tuple_of_ints(shape: Any) -> tuple[int, ...]:
    """A shape argument as a tuple of plain ints; raises `LanguageError` for anything else."""
    values = [unwrap(extent) for extent in (shape if isinstance(shape, (tuple, list)) else [shape])]
    for extent in values:
        if isinstance(extent, bool) or not isinstance(extent, int):
            raise LanguageError(
                f"a shape must be made of compile-time integers, got {brief(extent)}",
                "make the size a tl.constexpr parameter of the kernel",
            )
    return tuple(values)


class ConstexprFunction:
    """A plain Python function that kernels may call at compile time, on constants."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", "function")
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.function(*arguments, **keywords)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method of an aggregate it takes the instance first."""
        return self if instance is None else functools.partial(self, instance)


def constexpr_function(function: Callable[..., Any]) -> ConstexprFunction:
    """Decorator: let kernels call a Python function at compile time, on constants."""
    return ConstexprFunction(function)


class constexpr:
    """A compile-time value: ``x: tl.constexpr`` in a signature, ``N = tl.constexpr(4)`` as a global.

    As the decorator of a Python function it is `constexpr_function`.
    """

    def __init__(self, value: Any) -> None:
        self.value = unwrap(value)
        if isinstance(self.value, FunctionType):
            self.value = ConstexprFunction(self.value)

    def __repr__(self) -> str:
        return f"constexpr[{self.value!r}]"

    def __hash__(self) -> int:
        return hash(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return self.value.__index__()

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.value(*arguments, **keywords)

    def __getitem__(self, index: Any) -> Any:
        return self.value[unwrap(index)]

    def logical_and(self, other: Any) -> constexpr:
        """``and`` of truth values."""
        return constexpr(self.value and unwrap(other))

    def logical_or(self, other: Any) -> constexpr:
        """``or`` of truth values."""
        return constexpr(self.value or unwrap(other))


class constexpr_type:
    """The type of a compile-time value: the value itself."""

    def __init__(self, value: Any) -> None:
        self.value = unwrap(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, constexpr_type) and bool(self.value == other.value)

    def __hash__(self) -> int:
        return hash((constexpr_type, self.value))

    def __repr__(self) -> str:
        return f"constexpr_type[{self.value!r}]"


class tuple_type:
    """The type of a tuple: those of its entries, and the names of a NamedTuple's fields."""

    def __init__(self, types: Any, fields: Any = None) -> None:
        self.types = list(types)
        self.fields = None if fields is None else list(fields)

    def __getitem__(self, index: int) -> Any:
        return self.types[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.types)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple_type) and (self.types, self.fields) == (other.types, other.fields)

    def __hash__(self) -> int:
        return hash(tuple(self.types))

    def __repr__(self) -> str:
        return f"tuple_type[{', '.join(map(str, self.types))}]"


def str_to_ty(name: Any, c: Any = None) -> Any:
    """The type that the text of a signature names: ``fp32``, ``*i8``, ``*kfp16`` (that is only read).

    A tuple of texts names the type of a tuple, and ``constexpr`` that of the compile-time value `c`.  Raises
    `LanguageError` for any other text.
    """
    if isinstance(name, tuple):
        return tuple_type([str_to_ty(entry, c) for entry in name], getattr(type(name), "_fields", None))
    if name.startswith("constexpr"):
        return constexpr_type(c)
    if name.startswith("*"):
        const = name.startswith("*k")
        return pointer_type(str_to_ty(name[2 if const else 1 :]), const=const)
    return dtype(name)


def _add_operators() -> None:
    """Give `constexpr` the operators of the value that it holds."""

    def binary(name: str, function: Callable[[Any, Any], Any], swapped: bool = False) -> None:
        def method(self: constexpr, other: Any) -> constexpr:
            pair = (unwrap(other), self.value) if swapped else (self.value, unwrap(other))
            return constexpr(function(*pair))

        setattr(constexpr, f"__{name}__", method)

    def unary(name: str, function: Callable[[Any], Any]) -> None:
        setattr(constexpr, f"__{name}__", lambda self: constexpr(function(self.value)))

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and_", "or_", "xor"):
        binary(name.rstrip("_"), getattr(operator, name))
        binary(f"r{name.rstrip('_')}", getattr(operator, name), swapped=True)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        binary(name, getattr(operator, name))
    for name in ("neg", "pos", "invert", "abs"):
        unary(name, getattr(operator, name))


_add_operators()

Number = Union[bool, int, float]


def unwrap(value: Any) -> Any:
    """The Python value of a constexpr or a NumPy number; tuples and lists are unwrapped inside; others as they are."""
    if isinstance(value, constexpr):
        return value.value
    if isinstance(value, DType):
        return wrap(value)
    if type(value) in (tuple, list):
        return type(value)(unwrap(entry) for entry in value)
    return value.item() if isinstance(value, np.generic) else value
