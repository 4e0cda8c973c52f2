"""The table of Tile IR operations: the one place that defines what exists and what it means.

A row is an `OpInfo`: opcode, one-line summary, number of operands, attributes, type rule (`ir.inference`),
effects, NumPy meaning (`ir.semantics`), whether it works element by element, and at what cost.
Rows whose `evaluate` is None need more than their operands
(memory, control flow, the grid) and are executed by `ir.interpreter`, which with this table is the
definition of meaning that every target is tested against.

Conventions of the whole table
    * No implicit broadcasting or promotion: elementwise ops take operands of equal type.
    * Integers wrap.  Division by zero and shifts by the width or more give an unspecified value, but
      never trap.  Casts of floats to integers saturate, and NaN becomes 0.
    * Floats are rounded to nearest even; results of `exp` and the other transcendental functions are
      meant to be the exact value rounded (targets are within the error bound that they state).
    * i1 is a truth value, not a number: arithmetic is not defined on it, logic is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.dtypes import DType
from tilewright.errors import InvalidIRError
from tilewright.ir import explicit, inference, semantics
from tilewright.ir.core import Attribute, Operation, Region
from tilewright.ir.inference import Rule, require, same
from tilewright.ir.table import ATOMIC, FACT, OBSERVE, READ, REQUIRED, SYNCHRONIZE, WRITE, AttributeInfo, OpInfo
from tilewright.ir.table import Effect as Effect
from tilewright.ir.types import PointerType, TensorType


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


ATTRIBUTE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "bool": lambda value: isinstance(value, bool),
    "int": _integer,
    "number": lambda value: isinstance(value, (bool, int, float)),
    "str": lambda value: isinstance(value, str),
    "dtype": lambda value: isinstance(value, DType),
    "element": lambda value: isinstance(value, (DType, PointerType)),
    "ints": lambda value: isinstance(value, tuple) and all(map(_integer, value)),
    "dtypes": lambda value: isinstance(value, tuple) and all(isinstance(entry, DType) for entry in value),
}

_BOOL_FALSE = AttributeInfo("bool", False)
_AXIS = {"axis": AttributeInfo("int")}
_SHAPE = {"shape": AttributeInfo("ints")}
_BROADCASTS = {"rearranges": True, "broadcasts": True}
_CACHE_LOAD = AttributeInfo("str", "", ("", "ca", "cg", "cs", "cv"))
_CACHE_STORE = AttributeInfo("str", "", ("", "wb", "cg", "cs", "wt"))
_EVICTION = AttributeInfo("str", "", ("", "evict_normal", "evict_first", "evict_last"))
_ORDER = {
    "semantics": AttributeInfo("str", "acq_rel", ("relaxed", "acquire", "release", "acq_rel")),
    "scope": AttributeInfo("str", "gpu", ("cta", "gpu", "sys")),
}
_RMW = AttributeInfo("str", REQUIRED, ("add", "max", "min", "and", "or", "xor", "exchange"))
PAIRS_FIT = "int16"  # of 8-bit integers: the products of two neighbours, the first of an even number, have 16-bit sums
_PRECISION = AttributeInfo("str", "ieee", ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6", PAIRS_FIT))
_HINTS = {name: AttributeInfo("ints", ()) for name in ("divisibility", "contiguity", "constancy")}
_LOOP_HINTS = ("flatten", "warp_specialize", "disallow_acc_multi_buffer", "disable_licm")
_HEAVY = 8  # cost of what takes several instructions, or one that few are done of at a time
PREDICATES = ("eq", "ne", "lt", "le", "gt", "ge")


def _nullary(opcode: str, summary: str, infer: Rule, **row: Any) -> OpInfo:
    return OpInfo(opcode, summary, (0, 0), infer, **row)


def _unary(opcode: str, kind: str, summary: str, cost: int = 1) -> OpInfo:
    return OpInfo(opcode, summary, (1, 1), same(kind), _meaning(opcode), elementwise=True, cost=cost)


def _binary(opcode: str, kind: str, summary: str, **row: Any) -> OpInfo:
    return OpInfo(opcode, summary, (2, 2), same(kind), _meaning(opcode), elementwise=True, **row)


def _extremum(opcode: str) -> OpInfo:
    summary = "of two NaN-free numbers; with one NaN: the other operand, or NaN if propagate_nan"
    return _binary(opcode, "ordered", summary, commutative=True, attributes={"propagate_nan": _BOOL_FALSE})


def _meaning(opcode: str) -> Callable[..., Any]:
    return getattr(semantics, opcode if hasattr(semantics, opcode) else f"{opcode}_")


def _shape(opcode: str, summary: str, **row: Any) -> OpInfo:
    row.setdefault("operands", (1, 1))
    return OpInfo(opcode, summary, infer=getattr(inference, opcode), evaluate=_meaning(opcode), **row)


# fmt: off
_SECTIONS: dict[str, tuple[OpInfo, ...]] = {
    "constants and indices": (
        _nullary("constant", "a block of `shape` full of one number", inference.constant, evaluate=semantics.constant,
                 attributes={"value": AttributeInfo("number"), "dtype": AttributeInfo("dtype"),
                             "shape": AttributeInfo("ints", ())}),
        _nullary("arange", "the i32 numbers start, start + 1, …, end - 1", inference.arange, evaluate=semantics.arange,
                 attributes={"start": AttributeInfo("int"), "end": AttributeInfo("int")}),
        # The grid has three axes; x (0) varies fastest in the linear order of instances.
        _nullary("program_id", "index of this program instance along a grid axis", inference.grid_index,
                 attributes=_AXIS),
        _nullary("num_programs", "extent of the grid along an axis", inference.grid_index, attributes=_AXIS),
    ),
    "arithmetic": (
        _binary("add", "number", "x + y", commutative=True),
        _binary("subtract", "number", "x - y"),
        _binary("multiply", "number", "x * y", commutative=True),
        _binary("divide", "number", "x / y; integers: truncated toward zero", cost=_HEAVY),
        _binary("remainder", "number", "x - y * truncate(x / y), with the sign of x (C's % and fmod)",
                cost=_HEAVY),
        _extremum("minimum"),
        _extremum("maximum"),
        _binary("power", "float", "x to the power y", cost=_HEAVY),
        _binary("multiply_high", "integer", "the upper half of the product in twice the width", commutative=True,
                cost=_HEAVY),
        OpInfo("fma", "x * y + z, rounded once", (3, 3), same("float"), semantics.fma, elementwise=True),
        _unary("negate", "number", "-x; floats: the sign flipped"),
        _unary("absolute", "number", "x without its sign; the least integer stays"),
    ),
    "bits": (
        _binary("and", "bits", "bitwise and", commutative=True),
        _binary("or", "bits", "bitwise or", commutative=True),
        _binary("xor", "bits", "bitwise exclusive or", commutative=True),
        _unary("not", "bits", "bitwise complement; i1: logical not"),
        _binary("shift_left", "integer", "x << y"),
        _binary("shift_right", "integer", "x >> y; signed: the sign is repeated"),
    ),
    "math": (
        _unary("exp", "float", "e to the power x", _HEAVY),
        _unary("exp2", "float", "2 to the power x", _HEAVY),
        _unary("log", "float", "natural logarithm", _HEAVY),
        _unary("log2", "float", "logarithm to base 2", _HEAVY),
        _unary("sin", "float", "sine of x radians", _HEAVY),
        _unary("cos", "float", "cosine of x radians", _HEAVY),
        _unary("tanh", "float", "hyperbolic tangent", _HEAVY),
        _unary("erf", "float", "error function", _HEAVY),
        _unary("sqrt", "float", "square root", _HEAVY),
        _unary("rsqrt", "float", "1 / square root", _HEAVY),
        _unary("floor", "float", "greatest whole number not above x"),
        _unary("ceil", "float", "least whole number not below x"),
        _unary("round", "float", "nearest whole number, halves to even"),
        _unary("truncate", "float", "nearest whole number toward zero"),
    ),
    "choice and conversion": (
        # Floats compare ordered: with a NaN all are false, except ne. Pointers compare by address.
        OpInfo("compare", "i1: x predicate y", (2, 2), inference.compare, semantics.compare,
               attributes={"predicate": AttributeInfo("str", REQUIRED, PREDICATES)}, elementwise=True),
        OpInfo("select", "x where the condition holds, y elsewhere", (3, 3), inference.select, semantics.select,
               elementwise=True),
        # To i1: x != 0. To an integer: truncated, saturated, NaN gives 0. To fp8: the greatest finite number at most.
        OpInfo("cast", "the number as another element type", (1, 1), inference.cast, semantics.cast,
               attributes={"dtype": AttributeInfo("dtype"), "rounding": AttributeInfo("str", "rtne", ("rtne", "rtz"))},
               elementwise=True),
        OpInfo("bitcast", "the same bits as another element type; pointers and 64-bit integers too", (1, 1),
               inference.bitcast, semantics.bitcast, attributes={"element": AttributeInfo("element")},
               elementwise=True),
        OpInfo("offset", "pointer moved by a number of elements", (2, 2), inference.offset, elementwise=True),
    ),
    "shape": (
        _shape("splat", "a scalar in every element of a block", attributes=_SHAPE, **_BROADCASTS),
        _shape("expand_dims", "a new axis of extent 1 at `axis`", attributes=_AXIS, **_BROADCASTS),
        _shape("broadcast", "axes of extent 1 repeated to `shape`; the rank stays", attributes=_SHAPE, **_BROADCASTS),
        _shape("reshape", "the same elements in row-major order as another shape", attributes=_SHAPE, rearranges=True),
        _shape("permute", "result axis i is operand axis order[i]", attributes={"order": AttributeInfo("ints")},
               rearranges=True),
        _shape("join", "two blocks stacked on a new last axis of extent 2", operands=(2, 2)),
        _shape("split", "the two halves of a last axis of extent 2"),
        _shape("cat", "blocks one after the other along `axis`", operands=(2, None), attributes=_AXIS),
        _shape("gather", "source[…, index, …] along `axis`; indices are in range", operands=(2, 2), attributes=_AXIS,
               speculatable=False),
    ),
    "memory": (
        # Masked-off lanes touch no memory: a load gives `other` there, or zero without one.
        OpInfo("load", "load(pointer[, mask[, other]])", (1, 3), inference.load, effects=READ,
               attributes={"cache": _CACHE_LOAD, "eviction": _EVICTION, "volatile": _BOOL_FALSE}),
        # With several lanes of one address, one of the values is stored.
        OpInfo("store", "store(pointer, value[, mask])", (2, 3), inference.store, effects=WRITE,
               attributes={"cache": _CACHE_STORE, "eviction": _EVICTION}),
        # Each lane on its own, in no stated order; the result is the value before, zero in masked-off lanes.
        OpInfo("atomic_rmw", "atomic_rmw(pointer, value[, mask]): kind applied to memory", (2, 3),
               inference.atomic_rmw, effects=ATOMIC, attributes={"kind": _RMW, **_ORDER}),
        OpInfo("atomic_cas", "atomic_cas(pointer, expected, value[, mask]): value stored where memory is bitwise that",
               (3, 4), inference.atomic_cas, effects=ATOMIC, attributes=_ORDER),
    ),
    "contraction, reduction": (
        # a [M,K], b [K,N], accumulator [M,N], or all three with one leading batch axis. Products and sums are
        # at least as precise as f32 (integers: exact, wrapped); input_precision permits rounding f32 inputs,
        # or promises something of integers.
        OpInfo("dot", "dot(a, b, accumulator) = a @ b + accumulator", (3, 3), inference.dot, semantics.dot,
               attributes={"input_precision": _PRECISION}),
        # The region takes the left group's scalars, then the right group's, and yields the combination.
        # It must be associative; reduce may combine in any order, so commutative too.
        OpInfo("reduce", "combine all elements along `axis`, which disappears", (1, None), inference.reduce,
               attributes=_AXIS, regions=1),
        OpInfo("scan", "inclusive prefix combination along `axis` (from its end if reverse)", (1, None),
               inference.scan, attributes={**_AXIS, "reverse": _BOOL_FALSE}, regions=1),
        # The region takes one scalar of each operand and yields one of each result; it has no effects, and may branch.
        OpInfo("map", "a function of scalars applied to each element of blocks of one shape", (1, None),
               inference.map_elements, regions=1, speculatable=False),
    ),
    "control flow": (
        # The index runs lower, lower + step, … below upper; step is positive. Results: last carried values.
        OpInfo("for", "for(lower, upper, step, initial…) {(index, carried…) … yield carried…}", (3, None),
               inference.for_loop, regions=1, speculatable=False,
               attributes={"num_stages": AttributeInfo("int", 0), "unroll": AttributeInfo("int", 0),
                           **{name: _BOOL_FALSE for name in _LOOP_HINTS}}),
        OpInfo("while", "while(initial…) {before: … condition(c, values…)} {(values…) … yield next…}", (0, None),
               inference.while_loop, regions=2, speculatable=False),
        OpInfo("if", "if(condition) {… yield values…} {… yield values…}", (1, 1), inference.if_branch, regions=2),
        OpInfo("yield", "ends a region with its values", (0, None), inference.no_result, terminator=True),
        OpInfo("condition", "ends a while's before region: continue?, values", (1, None), inference.condition,
               terminator=True),
        OpInfo("return", "ends a kernel", (0, 0), inference.no_result, terminator=True),
    ),
    "facts and effects": (
        OpInfo("assume", "the condition holds in every element; the compiler may rely on it", (1, 1),
               inference.predicate, effects=FACT),
        # Further operands are integers, scalars or of the condition's shape, that a target may tell of a failure.
        OpInfo("assert", "stop with a message unless the condition holds in every element", (1, None),
               inference.predicate, effects=OBSERVE, attributes={"message": AttributeInfo("str", "")}),
        OpInfo("print", "print the operands", (0, None), inference.no_result, effects=OBSERVE,
               attributes={"prefix": AttributeInfo("str", ""), "hex": _BOOL_FALSE}),
        OpInfo("barrier", "memory accesses before are done before those after", (0, 0), inference.no_result,
               effects=OBSERVE),
        # The target's own instructions on `pack` elements at a time; values of less than 32 bits are packed into words.
        # Operands have one shape (scalars when there are none), results that shape and the `results` dtypes; all
        # elements of the first result come first. Without `pure` it stays, and stays in order.
        OpInfo("inline_asm", "machine text with LLVM's constraints, element by element", (0, None),
               inference.inline_asm, speculatable=False,
               attributes={"asm": AttributeInfo("str"), "constraints": AttributeInfo("str"),
                           "results": AttributeInfo("dtypes"), "pack": AttributeInfo("int", 1),
                           "pure": AttributeInfo("bool", True)}),
        # One number for each axis (one for a scalar), or () when nothing is said. Blocks along an axis:
        # `contiguity` runs of consecutive numbers, whose first is divisible by `divisibility` (pointers: in
        # elements' bytes); `constancy` runs of equal numbers.
        OpInfo("hint", "the operand, with a promise about its values", (1, 1), inference.hint, semantics.hint,
               attributes=_HINTS, elementwise=True),
    ),
}
# fmt: on

OPS: dict[str, OpInfo] = {
    info.opcode: OpInfo(**{**vars(info), "section": section})
    for section, rows in {**_SECTIONS, **explicit.EXPLICIT_SECTIONS}.items()
    for info in rows
}
ELEMENTWISE = frozenset(opcode for opcode, info in OPS.items() if info.elementwise)
REARRANGING = frozenset(opcode for opcode, info in OPS.items() if info.rearranges)
BROADCASTING = frozenset(opcode for opcode, info in OPS.items() if info.broadcasts)
# What takes handles (`ir.types.Handle`): the explicit operations, and what passes values on.
_TAKES_HANDLES = explicit.OPCODES | {info.opcode for info in _SECTIONS["control flow"]}


def info_of(opcode: str) -> OpInfo:
    """The row of an opcode; raises `InvalidIRError` for an unknown one."""
    require(opcode in OPS, lambda: f"unknown opcode '{opcode}'")
    return OPS[opcode]


def effects_of(operation: Operation) -> frozenset[Effect]:
    """Effects of an operation with everything in its regions; a volatile load counts as a write too."""
    effects = OPS[operation.opcode].effects
    if operation.attributes.get("volatile"):
        effects = ATOMIC
    if operation.attributes.get("pure") is False:  # machine text that does more than compute
        effects = SYNCHRONIZE
    for region in operation.regions:
        for inner in region.operations:
            effects = effects | effects_of(inner)
    return effects


def is_pure(operation: Operation) -> bool:
    """True when only the results matter, so that it may be removed, repeated or merged."""
    return not effects_of(operation) and not OPS[operation.opcode].terminator


def is_speculatable(operation: Operation) -> bool:
    """True for a pure operation that may also run where the program would not have reached it.

    Loops may not, because they might not end there; nor `gather`, whose indices might be out of range.
    """
    return is_pure(operation) and all(OPS[inner.opcode].speculatable for inner in operation.walk())


def complete_attributes(opcode: str, given: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """`given` with defaults filled in, in the table's order, and a constant's number brought to its type.

    Names with a dot (``cpu.packed``) belong to one target's passes and are kept as they are.
    Raises `InvalidIRError` for unknown, missing or ill-typed attributes.
    """
    info = info_of(opcode)
    complete: dict[str, Attribute] = {}
    for name, row in info.attributes.items():
        value = given.get(name, row.default)
        if value is REQUIRED:
            raise InvalidIRError(f"attribute '{name}' is missing")
        if row.kind == "ints" and isinstance(value, list):
            value = tuple(value)
        if not ATTRIBUTE_CHECKS[row.kind](value):
            raise InvalidIRError(f"attribute '{name}' = {value!r} is not of kind '{row.kind}'")
        if row.choices and value not in row.choices:
            choices = ", ".join(map(repr, row.choices))
            raise InvalidIRError(f"{name}={value!r} is not one of {choices}", advice="choose one of them")
        complete[name] = value
    for name, value in given.items():
        if name not in info.attributes and "." not in name:
            raise InvalidIRError(f"unknown attribute '{name}'")
        complete.setdefault(name, value)
    if opcode == "constant":
        complete["value"] = constant_value(complete["value"], complete["dtype"])
    return complete


def constant_value(value: Any, dtype: Any) -> bool | int | float:
    """A Python number as the value that `dtype` can hold: floats are rounded, integers must fit."""
    if dtype.is_float:
        return semantics.round_float(float(value), dtype)
    if dtype.is_bool:
        require(value in (0, 1), lambda: f"{value!r} is not a truth value")
        return bool(value)
    whole = not isinstance(value, float) or (math.isfinite(value) and value.is_integer())
    require(whole, lambda: f"{value!r} is not a whole number")
    low = -(2 ** (dtype.bits - 1)) if dtype.is_signed else 0
    require(low <= value < low + 2**dtype.bits, lambda: f"{value} does not fit {dtype}")
    return int(value)


def infer_types(
    opcode: str, operands: Sequence[TensorType], attributes: Mapping[str, Attribute], regions: Sequence[Region]
) -> list[TensorType]:
    """Result types by the table; raises `InvalidIRError` when the operation is not well formed."""
    info = info_of(opcode)
    least, greatest = info.operands
    count = len(operands)
    if count < least or (greatest is not None and count > greatest):
        expected = str(least) if least == greatest else f"{least} to {greatest if greatest is not None else 'any'}"
        raise InvalidIRError(f"takes {expected} operands, not {count}")
    require(info.regions in (None, len(regions)), lambda: f"takes {info.regions} regions, not {len(regions)}")
    for operand in operands:
        if operand.is_handle and opcode not in _TAKES_HANDLES:
            raise InvalidIRError(f"takes numbers or pointers, not {operand}")
    return info.infer(operands, attributes, regions)


def attribute_key(value: Attribute) -> Any:
    """A hashable key equal for identical attributes only (1, 1.0 and True differ, NaN equals itself)."""
    if isinstance(value, tuple):
        return tuple(attribute_key(part) for part in value)
    return (type(value).__name__, repr(value) if isinstance(value, float) else value)
