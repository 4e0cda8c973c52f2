"""Result types of Tile IR operations, one small function per rule; `ir.ops` says which op uses which.

Every rule has the form ``rule(operands, attributes, regions) -> [TensorType]``: it checks the operand
types and returns the result types, or raises `InvalidIRError` with the reason (the builder and the
verifier add the opcode and the source location).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.dtypes import DType, int1, int32, int64, uint64
from tilewright.errors import InvalidIRError
from tilewright.ir.core import Region, SSAValue
from tilewright.ir.types import PointerType, TensorType, scalar

Types = Sequence[TensorType]
Attributes = Mapping[str, Any]
Regions = Sequence[Region]
Rule = Callable[[Types, Attributes, Regions], list[TensorType]]

KINDS: dict[str, Callable[[TensorType], bool]] = {
    "number": lambda t: isinstance(t.element, DType) and not t.dtype.is_bool,
    "float": lambda t: isinstance(t.element, DType) and t.dtype.is_float,
    "integer": lambda t: isinstance(t.element, DType) and t.dtype.kind in ("int", "uint"),
    "bits": lambda t: isinstance(t.element, DType) and t.dtype.is_integer,
    "ordered": lambda t: isinstance(t.element, DType),
    "any": lambda t: True,
}


def require(condition: bool, message: str | Callable[[], str], advice: str = "") -> None:
    """Raise `InvalidIRError(message)`, with advice for authors of kernels, unless `condition` holds.

    Messages that name types or values are functions: only a failure pays for their text.
    """
    if not condition:
        raise InvalidIRError(message if isinstance(message, str) else message(), advice=advice)


def _require_equal(types: Types) -> None:
    require(len(set(types)) == 1, lambda: f"operand types differ: {', '.join(map(str, types))}")


def _require_kind(type_: TensorType, kind: str) -> None:
    require(KINDS[kind](type_), lambda: f"operand of type {type_} is not of kind '{kind}'")


def _axis(type_: TensorType, axis: int) -> int:
    require(0 <= axis < type_.rank, lambda: f"axis {axis} is outside {type_}")
    return axis


def _drop_axis(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _types(values: Sequence[SSAValue]) -> list[TensorType]:
    return [value.type for value in values]


def check_shape(shape: tuple[int, ...]) -> None:
    """A block's extents are positive."""
    require(all(extent > 0 for extent in shape), lambda: f"shape {shape} has an extent that is not positive")


# Constants and indices ---------------------------------------------------------------------------


def constant(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    check_shape(attributes["shape"])
    require(attributes["dtype"].kind != "void", "a constant has a value")
    return [TensorType(attributes["shape"], attributes["dtype"])]


def arange(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    start, end = attributes["start"], attributes["end"]
    require(start < end, lambda: f"empty range [{start}, {end})")
    require(-(2**31) <= start and end <= 2**31, lambda: f"range [{start}, {end}) leaves i32")
    return [TensorType((end - start,), int32)]


def grid_index(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    require(attributes["axis"] in (0, 1, 2), lambda: f"axis {attributes['axis']} is not 0, 1 or 2")
    return [scalar(int32)]


# Elementwise -------------------------------------------------------------------------------------


def same(kind: str) -> Rule:
    """All operands and the result have one type, of the named kind of `KINDS`."""

    def rule(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
        _require_equal(operands)
        _require_kind(operands[0], kind)
        return [operands[0]]

    return rule


def compare(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    _require_equal(operands)
    return [operands[0].with_element(int1)]


def select(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    condition, *values = operands
    _require_equal(values)
    require(condition == values[0].with_element(int1), lambda: f"condition {condition} does not fit {values[0]}")
    return [values[0]]


def cast(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    (source,) = operands
    dtype: DType = attributes["dtype"]
    require(not source.is_pointer, "pointers are converted by bitcast")
    require(dtype.kind != "void", "nothing casts to void")
    if attributes["rounding"] == "rtz":
        narrowing = source.dtype.is_float and dtype.is_float and dtype.bits < source.dtype.bits
        require(narrowing, lambda: f"rounding rtz is for float narrowing, not {source.dtype} to {dtype}")
    return [source.with_element(dtype)]


def bitcast(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    (source,) = operands
    element = attributes["element"]
    require(source.element.bits == element.bits, lambda: f"{source.element} and {element} differ in width")
    for old, new in ((source.element, element), (element, source.element)):
        if isinstance(old, PointerType):
            fits = isinstance(new, PointerType) or new in (int64, uint64)
            require(fits, f"a pointer is bitcast to a pointer, i64 or u64, not {new}")
    return [source.with_element(element)]


def offset(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    pointer, integer = operands
    require(pointer.is_pointer, lambda: f"{pointer} is not a pointer")
    _require_kind(integer, "integer")
    require(pointer.shape == integer.shape, lambda: f"shapes differ: {pointer} and {integer}")
    return [pointer]


# Shape -------------------------------------------------------------------------------------------


def splat(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    require(operands[0].is_scalar, lambda: f"splat takes a scalar, not {operands[0]}")
    check_shape(attributes["shape"])
    return [operands[0].with_shape(attributes["shape"])]


def expand_dims(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    (source,), axis = operands, attributes["axis"]
    require(0 <= axis <= source.rank, lambda: f"axis {axis} is outside rank {source.rank + 1}")
    return [source.with_shape((*source.shape[:axis], 1, *source.shape[axis:]))]


def broadcast(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    (source,), shape = operands, attributes["shape"]
    check_shape(shape)
    require(len(shape) == source.rank, lambda: f"rank of {source} and {shape} differ: use expand_dims or splat")
    fits = all(old in (1, new) for old, new in zip(source.shape, shape, strict=True))
    require(fits, lambda: f"{source} does not broadcast to {shape}")
    return [source.with_shape(shape)]


def reshape(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    check_shape(attributes["shape"])
    result = operands[0].with_shape(attributes["shape"])
    require(result.size == operands[0].size, lambda: f"{operands[0]} and {result} differ in size")
    return [result]


def permute(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    (source,), order = operands, attributes["order"]
    require(sorted(order) == list(range(source.rank)), lambda: f"{order} is not a permutation of {source.rank} axes")
    return [source.with_shape(tuple(source.shape[axis] for axis in order))]


def join(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    _require_equal(operands)
    return [operands[0].with_shape((*operands[0].shape, 2))]


def split(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    (source,) = operands
    require(source.rank > 0 and source.shape[-1] == 2, lambda: f"the last extent of {source} is not 2")
    return [source.with_shape(source.shape[:-1])] * 2


def cat(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    axis = _axis(operands[0], attributes["axis"])
    require(len({t.element for t in operands}) == 1, "element types differ")
    require(len({t.rank for t in operands}) == 1, "ranks differ")
    require(len({_drop_axis(t.shape, axis) for t in operands}) == 1, "shapes differ in other axes than the one joined")
    extent = sum(t.shape[axis] for t in operands)
    shape = operands[0].shape
    return [operands[0].with_shape((*shape[:axis], extent, *shape[axis + 1 :]))]


def gather(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    source, index = operands
    axis = _axis(source, attributes["axis"])
    _require_kind(index, "integer")
    require(source.rank == index.rank, lambda: f"ranks of {source} and {index} differ")
    same_elsewhere = _drop_axis(source.shape, axis) == _drop_axis(index.shape, axis)
    require(same_elsewhere, lambda: f"shapes of {source} and {index} differ in other axes than {axis}")
    return [index.with_element(source.element)]


# Memory ------------------------------------------------------------------------------------------


def _pointee(pointer: TensorType) -> TensorType:
    require(pointer.is_pointer, lambda: f"{pointer} is not a pointer")
    assert isinstance(pointer.element, PointerType)
    require(pointer.element.element.kind != "void", "a void pointer cannot be accessed")
    return pointer.with_element(pointer.element.element)


def _check_mask(pointer: TensorType, mask: TensorType) -> None:
    require(mask == pointer.with_element(int1), lambda: f"mask {mask} does not fit {pointer}")


def _check_writable(pointer: TensorType) -> None:
    assert isinstance(pointer.element, PointerType)
    require(not pointer.element.const, lambda: f"{pointer} is read-only")


def load(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    pointer = operands[0]
    result = _pointee(pointer)
    if len(operands) > 1:
        _check_mask(pointer, operands[1])
    if len(operands) > 2:
        require(operands[2] == result, lambda: f"other {operands[2]} is not {result}")
    return [result]


def store(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    pointer, value = operands[:2]
    require(value == _pointee(pointer), lambda: f"a {value} cannot be stored through {pointer}")
    _check_writable(pointer)
    if len(operands) > 2:
        _check_mask(pointer, operands[2])
    return []


def atomic_rmw(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    store(operands, attributes, regions)
    value, kind = operands[1], attributes["kind"]
    if kind in ("and", "or", "xor"):
        _require_kind(value, "bits")
    elif kind != "exchange":
        _require_kind(value, "number")
    return [value]


def atomic_cas(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    pointer, expected, value, *mask = operands
    require(expected == value, lambda: f"types differ: {expected} and {value}")
    store([pointer, value, *mask], attributes, regions)
    return [value]


# Contraction, reduction --------------------------------------------------------------------------


def dot(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    a, b, accumulator = operands
    for type_ in operands:
        _require_kind(type_, "number")
    require(a.rank == b.rank == accumulator.rank and a.rank in (2, 3), "dot takes three blocks of rank 2 or of rank 3")
    small_floats = a.dtype.is_float and b.dtype.is_float and a.dtype.bits == b.dtype.bits == 8
    small_integers = a.dtype.is_integer and b.dtype.is_integer and a.dtype.bits == b.dtype.bits == 8
    require(a.dtype == b.dtype or small_floats or small_integers, lambda: f"element types differ: {a} and {b}")
    require(a.dtype.is_float == accumulator.dtype.is_float, lambda: f"{a} does not accumulate in {accumulator}")
    require(accumulator.dtype.bits >= a.dtype.bits, lambda: f"accumulator {accumulator} is narrower than {a}")
    (rows, depth), (other_depth, columns) = a.shape[-2:], b.shape[-2:]
    require(depth == other_depth, lambda: f"inner extents differ: {a} and {b}")
    require(a.shape[:-2] == b.shape[:-2], lambda: f"batch extents differ: {a} and {b}")
    expected = (*a.shape[:-2], rows, columns)
    require(accumulator.shape == expected, lambda: f"accumulator {accumulator} is not of shape {expected}")
    return [accumulator]


def _check_combine(operands: Types, regions: Regions) -> None:
    elements = [scalar(type_.element) for type_ in operands]
    require(len({type_.shape for type_ in operands}) == 1, "operands differ in shape")
    arguments = _types(regions[0].arguments)
    require(arguments == elements * 2, lambda: f"combine region takes {_text(arguments)}, not {_text(elements * 2)}")
    check_yield(regions[0], elements, "combine region")


def reduce(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    axis = _axis(operands[0], attributes["axis"])
    _check_combine(operands, regions)
    return [type_.with_shape(_drop_axis(type_.shape, axis)) for type_ in operands]


def scan(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    _axis(operands[0], attributes["axis"])
    _check_combine(operands, regions)
    return list(operands)


def map_elements(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    (region,) = regions
    require(len({type_.shape for type_ in operands}) == 1, "operands differ in shape")
    expected, arguments = [scalar(type_.element) for type_ in operands], _types(region.arguments)
    require(arguments == expected, lambda: f"the region takes {_text(arguments)}, not {_text(expected)}")
    require(bool(region.operations) and region.terminator.opcode == "yield", "the region does not end in yield")
    results = _types(region.terminator.operands)
    require(all(type_.is_scalar for type_ in results), lambda: f"the region yields {_text(results)}, not scalars")
    return [type_.with_shape(operands[0].shape) for type_ in results]


# Control flow ------------------------------------------------------------------------------------


def _text(types: Types) -> str:
    return f"({', '.join(map(str, types))})"


def check_yield(region: Region, expected: Types, subject: str) -> None:
    """A region ends in a yield of values of these types."""
    require(bool(region.operations), lambda: f"{subject} is empty")
    require(region.terminator.opcode == "yield", lambda: f"{subject} does not end in yield")
    found = _types(region.terminator.operands)
    require(found == list(expected), lambda: f"{subject} yields {_text(found)}, not {_text(expected)}")


def for_loop(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    bounds, initial = operands[:3], list(operands[3:])
    _require_equal(bounds)
    _require_kind(bounds[0], "integer")
    require(bounds[0].is_scalar, lambda: f"loop bounds are scalars, not {bounds[0]}")
    expected = [bounds[0], *initial]
    arguments = _types(regions[0].arguments)
    require(arguments == expected, lambda: f"loop body takes {_text(arguments)}, not {_text(expected)}")
    check_yield(regions[0], initial, "loop body")
    return initial


def while_loop(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    before, after = regions
    arguments = _types(before.arguments)
    require(arguments == list(operands), lambda: f"before region takes {_text(arguments)}, not {_text(operands)}")
    ends_well = bool(before.operations) and before.terminator.opcode == "condition"
    require(ends_well, "before region does not end in condition")
    forwarded = _types(before.terminator.operands[1:])
    arguments = _types(after.arguments)
    require(arguments == forwarded, lambda: f"after region takes {_text(arguments)}, not {_text(forwarded)}")
    check_yield(after, operands, "after region")
    return forwarded


def if_branch(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    require(operands[0] == scalar(int1), lambda: f"condition is {operands[0]}, not i1")
    then, otherwise = regions
    require(not then.arguments and not otherwise.arguments, "the regions of if take no arguments")
    require(bool(then.operations), "then region is empty")
    results = _types(then.terminator.operands)
    check_yield(then, results, "then region")
    check_yield(otherwise, results, "else region")
    return results


def condition(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    require(operands[0] == scalar(int1), lambda: f"condition is {operands[0]}, not i1")
    return []


# Facts and effects -------------------------------------------------------------------------------


def no_result(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    return []


def predicate(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    require(operands[0].element == int1, lambda: f"{operands[0]} is not a block of i1")
    return []


def inline_asm(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    shapes = {type_.shape for type_ in operands} or {()}
    require(len(shapes) == 1, "operands differ in shape")
    (shape,) = shapes
    require(attributes["pack"] >= 1, lambda: f"pack {attributes['pack']} is not positive")
    require(bool(attributes["results"]), "machine text has a result")
    return [TensorType(shape, dtype) for dtype in attributes["results"]]


def hint(operands: Types, attributes: Attributes, regions: Regions) -> list[TensorType]:
    for name in ("divisibility", "contiguity", "constancy"):
        values = attributes[name]
        fits = not values or len(values) == max(1, operands[0].rank)
        require(fits, f"{name} {values} needs one number for each axis of {operands[0]}")
        require(all(value > 0 for value in values), f"{name} {values} is not positive")
    _require_hintable(operands[0])
    return [operands[0]]


def _require_hintable(type_: TensorType) -> None:
    require(type_.is_pointer or KINDS["integer"](type_), lambda: f"hint is for integers and pointers, not {type_}")
