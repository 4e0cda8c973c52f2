"""The documented names of the tile language: signatures and contracts.

Each function checks nothing itself: it hands over to `semantic`, which emits Tile IR.  Names and
meaning follow Triton's, so that its kernels compile unchanged.  A function marked *method* below
(decorated with `member`) is also a method: ``tl.sum(x, 0)`` is ``x.sum(0)``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tilewright.errors import brief
from tilewright.language import types
from tilewright.language.semantic import arithmetic, convert, hint, memory, product, reduction, scalar_code, tiled
from tilewright.language.semantic import shape as shapes
from tilewright.language.tensor import tensor
from tilewright.language.types import block_type, constexpr, constexpr_function, dtype, pointer_type, unwrap

F = TypeVar("F", bound=Callable[..., Any])
BUILTIN = "__tilewright_builtin__"


def builtin(function: F) -> F:
    """Mark a function that the front end may call while it traces a kernel."""
    setattr(function, BUILTIN, True)
    return function


def member(function: F) -> F:
    """A `builtin` that is also a method of `tensor`."""
    setattr(tensor, function.__name__, function)
    return builtin(function)


class PropagateNan(enum.Enum):
    """What minimum, maximum and clamp do with NaN: NONE gives the other operand, ALL gives NaN."""

    NONE = 0
    ALL = 0xFFFF


# Program instances -------------------------------------------------------------------------------


@builtin
def program_id(axis: int) -> tensor:
    """The index of this program instance along a grid axis (0, 1 or 2): an int32 scalar."""
    return hint.grid_value("program_id", axis)


@builtin
def num_programs(axis: int) -> tensor:
    """The extent of the grid along an axis (0, 1 or 2): an int32 scalar."""
    return hint.grid_value("num_programs", axis)


# Creation ----------------------------------------------------------------------------------------


@builtin
def arange(start: int, end: int) -> tensor:
    """The int32 numbers start, …, end - 1; both bounds are compile-time constants."""
    return shapes.arange(start, end)


@builtin
def full(shape: Sequence[int], value: Any, dtype: dtype) -> tensor:
    """A block (a scalar for shape ``()``) filled with a number or a scalar tensor."""
    element = unwrap(dtype)
    if not hasattr(element, "_number"):
        raise convert.LanguageError(
            f"full needs a dtype such as tl.float32, got {brief(element)}", "tl.full((16,), 0, tl.float32)"
        )
    return convert.full(shapes.static_shape(shape), value, element._number)


@builtin
def to_tensor(x: Any) -> tensor:
    """A number as a scalar tensor, typed on its own; tensors as they are."""
    return convert.to_tensor(x)


@member
def cast(input: Any, dtype: dtype, fp_downcast_rounding: str | None = None, bitcast: bool = False) -> tensor:
    """Convert to a dtype. *method*, also as ``x.to(dtype)``.

    Float to int truncates; anything to int1 is ``!= 0``; a narrowed float rounds to nearest even, or
    toward zero with ``fp_downcast_rounding="rtz"``; `bitcast` keeps the bits and needs equal widths.
    """
    return convert.convert(input, dtype, fp_downcast_rounding, bool(unwrap(bitcast)))


# Arithmetic --------------------------------------------------------------------------------------


@builtin
def add(x: Any, y: Any, sanitize_overflow: bool = True) -> tensor:
    """``x + y``; a pointer moves by elements."""
    return arithmetic.add(x, y, bool(unwrap(sanitize_overflow)))


@builtin
def sub(x: Any, y: Any, sanitize_overflow: bool = True) -> tensor:
    """``x - y``."""
    return arithmetic.subtract(x, y, bool(unwrap(sanitize_overflow)))


@builtin
def mul(x: Any, y: Any, sanitize_overflow: bool = True) -> tensor:
    """``x * y``."""
    return arithmetic.multiply(x, y, bool(unwrap(sanitize_overflow)))


@builtin
def fdiv(x: Any, y: Any, ieee_rounding: bool = False, approx: bool = False) -> tensor:
    """Float division in the common dtype; both flags only permit less exact results, which we do not use."""
    return arithmetic.divide_floats(x, y, "fdiv")


@builtin
def div_rn(x: Any, y: Any) -> tensor:
    """Float division, rounded to nearest."""
    return arithmetic.divide_floats(x, y, "div_rn")


@builtin
def minimum(x: Any, y: Any, propagate_nan: PropagateNan = PropagateNan.NONE) -> tensor:
    """The smaller of two values, elementwise."""
    return arithmetic.extremum("minimum", x, y, propagate_nan)


@builtin
def maximum(x: Any, y: Any, propagate_nan: PropagateNan = PropagateNan.NONE) -> tensor:
    """The larger of two values, elementwise."""
    return arithmetic.extremum("maximum", x, y, propagate_nan)


@builtin
def clamp(x: Any, min: Any, max: Any, propagate_nan: PropagateNan = PropagateNan.NONE) -> tensor:
    """``x`` limited to ``[min, max]``."""
    return arithmetic.clamp(x, min, max, propagate_nan)


@builtin
def where(condition: Any, x: Any, y: Any) -> tensor:
    """``x`` where the condition holds, ``y`` elsewhere; both are always evaluated. All three broadcast."""
    return arithmetic.where(condition, x, y)


# Memory ------------------------------------------------------------------------------------------


@builtin
def load(
    pointer: tensor,
    mask: Any = None,
    other: Any = None,
    boundary_check: Any = (),
    padding_option: str = "",
    cache_modifier: str = "",
    eviction_policy: str = "",
    volatile: bool = False,
) -> tensor:
    """The elements that a pointer, or a block of pointers, points to.

    Where `mask` is false no access happens and the result is `other`, or zero without it.
    `cache_modifier` (".ca", ".cg", ".cs", ".cv") and `eviction_policy` are hints.  A block pointer takes no mask:
    `boundary_check` names the axes to check, `padding_option` ("zero", "nan") what lies outside.
    """
    tile = unwrap(pointer)
    if isinstance(tile, tiled.block_pointer):
        hints = cache_modifier, eviction_policy, volatile
        return tiled.load_block(tile, mask, other, boundary_check, padding_option, *hints)
    if unwrap(boundary_check) or unwrap(padding_option):
        raise convert.LanguageError("boundary_check is for block pointers", "use mask= with a block of pointers")
    return memory.load(pointer, mask, other, cache_modifier, eviction_policy, volatile)


@member
def store(
    pointer: tensor,
    value: Any,
    mask: Any = None,
    boundary_check: Any = (),
    cache_modifier: str = "",
    eviction_policy: str = "",
) -> None:
    """Write a value, cast to the pointer's element type and broadcast to its shape, where `mask` holds.

    Through a block pointer the elements outside the tensor are left out, on the axes that `boundary_check` names.
    """
    tile = unwrap(pointer)
    if isinstance(tile, tiled.block_pointer):
        tiled.store_block(tile, value, mask, boundary_check, cache_modifier, eviction_policy)
        return
    if unwrap(boundary_check):
        raise convert.LanguageError("boundary_check is for block pointers", "use mask= with a block of pointers")
    memory.store(pointer, value, mask, cache_modifier, eviction_policy)


@member
def atomic_add(pointer: tensor, val: Any, mask: Any = None, sem: str | None = None, scope: str | None = None) -> tensor:
    """Add to memory as one step in each lane; gives the old values."""
    return memory.atomic_update("add", pointer, val, mask, sem, scope)


@member
def atomic_max(pointer: tensor, val: Any, mask: Any = None, sem: str | None = None, scope: str | None = None) -> tensor:
    """Raise memory to at least `val`; gives the old values."""
    return memory.atomic_update("max", pointer, val, mask, sem, scope)


@member
def atomic_min(pointer: tensor, val: Any, mask: Any = None, sem: str | None = None, scope: str | None = None) -> tensor:
    """Lower memory to at most `val`; gives the old values."""
    return memory.atomic_update("min", pointer, val, mask, sem, scope)


@member
def atomic_and(pointer: tensor, val: Any, mask: Any = None, sem: str | None = None, scope: str | None = None) -> tensor:
    """Bitwise and into memory; gives the old values."""
    return memory.atomic_update("and", pointer, val, mask, sem, scope)


@member
def atomic_or(pointer: tensor, val: Any, mask: Any = None, sem: str | None = None, scope: str | None = None) -> tensor:
    """Bitwise or into memory; gives the old values."""
    return memory.atomic_update("or", pointer, val, mask, sem, scope)


@member
def atomic_xor(pointer: tensor, val: Any, mask: Any = None, sem: str | None = None, scope: str | None = None) -> tensor:
    """Bitwise exclusive or into memory; gives the old values."""
    return memory.atomic_update("xor", pointer, val, mask, sem, scope)


@member
def atomic_xchg(
    pointer: tensor, val: Any, mask: Any = None, sem: str | None = None, scope: str | None = None
) -> tensor:
    """Replace memory; gives the old values."""
    return memory.atomic_update("exchange", pointer, val, mask, sem, scope)


@member
def atomic_cas(
    pointer: tensor, cmp: Any, val: Any, sem: str | None = None, scope: str | None = None, mask: Any = None
) -> tensor:
    """Store `val` where memory equals `cmp`, bit by bit; gives the old values. Masked-off lanes do nothing, give 0."""
    return memory.atomic_cas(pointer, cmp, val, sem, scope, mask)


# Shape -------------------------------------------------------------------------------------------


@member
def expand_dims(input: Any, axis: int | Sequence[int]) -> tensor:
    """Insert axes of extent 1. *method*"""
    return shapes.expand_dims(convert.to_tensor(input), axis)


@builtin
def broadcast(input: Any, other: Any) -> tuple[tensor, tensor]:
    """Both values stretched to their common shape."""
    first, second = convert.broadcast(convert.to_tensor(input), convert.to_tensor(other))
    return first, second


@member
def broadcast_to(input: Any, *shape: Any) -> tensor:
    """Stretch axes of extent 1 to `shape`. *method*"""
    value, extents = convert.to_tensor(input), shapes.shape_arguments(shape)
    convert.check_shape(extents)
    if value.shape and value.rank != len(extents):
        raise convert.LanguageError(
            f"broadcast_to keeps the rank: {list(value.shape)} to {list(extents)}", "insert axes with x[:, None] first"
        )
    return convert.broadcast_to(value, extents)


@member
def reshape(input: Any, *shape: Any, can_reorder: bool = False) -> tensor:
    """The same elements, in row-major order, in another shape; one extent may be -1. *method*"""
    return shapes.reshape(convert.to_tensor(input), shapes.shape_arguments(shape))


@member
def view(input: Any, *shape: Any) -> tensor:
    """The old name of `reshape`. *method*"""
    return shapes.reshape(convert.to_tensor(input), shapes.shape_arguments(shape))


@member
def ravel(x: Any, can_reorder: bool = False) -> tensor:
    """All elements as one axis. *method*"""
    value = convert.to_tensor(x)
    return shapes.reshape(value, (value.numel,))


@member
def trans(input: tensor, *dims: Any) -> tensor:
    """Permute the axes; without `dims` the last two are swapped. *method*, also as ``x.T``"""
    return shapes.transpose(convert.to_tensor(input), shapes.shape_arguments(dims) if dims else ())


@member
def permute(input: tensor, *dims: Any) -> tensor:
    """Permute the axes: axis i of the result is axis ``dims[i]`` of the input. *method*"""
    return shapes.permute(convert.to_tensor(input), shapes.shape_arguments(dims))


@builtin
def join(a: Any, b: Any) -> tensor:
    """Stack two values on a new last axis of extent 2."""
    return shapes.join(a, b)


@member
def split(a: tensor) -> tuple[tensor, tensor]:
    """The inverse of `join`: the two halves of a last axis of extent 2. *method*"""
    return shapes.split(convert.to_tensor(a))


@builtin
def cat(input: tensor, other: tensor, can_reorder: bool = False, dim: int = 0) -> tensor:
    """One block after the other along `dim`; the order is always kept."""
    return shapes.cat(convert.to_tensor(input), convert.to_tensor(other), dim)


@member
def gather(src: tensor, index: tensor, axis: int) -> tensor:
    """Elements of a block picked by a block of indices along an axis. *method*"""
    return shapes.gather(convert.to_tensor(src), convert.to_tensor(index), axis)


@member
def flip(x: tensor, dim: int | None = None) -> tensor:
    """The elements of an axis (the last one, when None) in reverse order. *method*"""
    return shapes.flip(convert.to_tensor(x), dim)


@member
def squeeze(x: tensor, dim: int) -> tensor:
    """Drop an axis of extent 1. *method*"""
    return shapes.squeeze(convert.to_tensor(x), dim)


@member
def unsqueeze(x: tensor, dim: int) -> tensor:
    """Insert an axis of extent 1. *method*"""
    return shapes.expand_dims(convert.to_tensor(x), dim)


@member
def item(x: tensor) -> tensor:
    """The only element of a block, as a scalar. *method*"""
    return shapes.item(convert.to_tensor(x))


# Products, reductions, scans ---------------------------------------------------------------------


@builtin
def dot(
    input: tensor,
    other: tensor,
    acc: tensor | None = None,
    input_precision: str | None = None,
    allow_tf32: bool | None = None,
    max_num_imprecise_acc: int | None = None,
    out_dtype: dtype | None = None,
) -> tensor:
    """The matrix product ``input @ other + acc`` of blocks [M, K] and [K, N], or batches of them.

    Both have one dtype, or are integers of 8 bits. These give int32; fp32 and bf16 give fp32; fp64 gives fp64; fp16
    and fp8 give `out_dtype` (fp32 by default, or the dtype of `acc`).  Any extents are accepted.  For 8-bit integers
    `input_precision` "int16" promises that the sum of the products of two neighbours along K, the first of an even
    number, is a number of 16 bits, which some CPUs multiply faster.
    """
    return product.dot(input, other, acc, input_precision, allow_tf32, out_dtype)


@member
def reduce(input: Any, axis: int | None, combine_fn: Callable[..., Any], keep_dims: bool = False) -> Any:
    """Combine the elements along an axis (all, when None) with a function of scalars. *method*

    `input` is a block or a tuple of blocks; `combine_fn` takes the left group's scalars, then the right
    group's, and returns as many.  It must be associative and commutative: the order is not fixed.
    """
    return reduction.reduce(input, axis, combine_fn, keep_dims)


@member
def associative_scan(input: Any, axis: int, combine_fn: Callable[..., Any], reverse: bool = False) -> Any:
    """Running combination along an axis, each element included; `combine_fn` as for `reduce`. *method*"""
    return reduction.scan(input, axis, combine_fn, reverse)


@builtin
def map_elementwise(scalar_fn: Callable[..., Any], *args: tensor, pack: int = 1) -> Any:
    """A function of scalars applied to each element of blocks, which broadcast; one block or a tuple of blocks.

    Its branches are real: only the side that is taken runs.  It computes and reads no memory.  With `pack`, it takes
    that many elements of each block (all of the first block, then of the next) and returns as many of each result.
    """
    return scalar_code.map_elements(scalar_fn, args, pack)


@builtin
def inline_asm_elementwise(
    asm: str, constraints: str, args: Sequence[Any], dtype: dtype | Sequence[dtype], is_pure: bool, pack: int
) -> Any:
    """Instructions of the target, for each `pack` elements of blocks, which broadcast.

    `constraints` are LLVM's.  Elements of less than 32 bits are packed into 32-bit registers; all elements of the
    first result come before those of the next.  One block for a dtype, a tuple of blocks for a tuple of dtypes.
    Targets that have no such instructions refuse the kernel with a `CompilationError`.
    """
    return scalar_code.inline_asm(asm, constraints, args, dtype, is_pure, pack)


extern = builtin  # decorator of functions that end in `extern_elementwise`


@builtin
def extern_elementwise(
    lib_name: str, lib_path: str, args: Sequence[Any], arg_type_symbol_dict: Any, is_pure: bool, _semantic: Any = None
) -> tensor:
    """A function of a vendor's mathematical library, chosen by the dtypes of its arguments.

    `arg_type_symbol_dict` maps tuples of dtypes to a symbol and a result dtype: ``{(tl.float32,): ("__nv_expf",
    tl.float32)}``.  No library is linked: the function of `tl.extra.libdevice` of that name takes its place.
    """
    return scalar_code.external(args, arg_type_symbol_dict, lib_name or "the library")


# Hints, assertions, printing ---------------------------------------------------------------------


@builtin
def multiple_of(input: Any, values: int | Sequence[int]) -> Any:
    """Promise that the first of each run of elements is divisible by a number (one for each axis)."""
    return hint.hint(input, "divisibility", values)


@builtin
def max_contiguous(input: Any, values: int | Sequence[int]) -> Any:
    """Promise that elements come in runs of this many consecutive numbers (one for each axis)."""
    return hint.hint(input, "contiguity", values)


@builtin
def max_constancy(input: Any, values: int | Sequence[int]) -> Any:
    """Promise that elements come in runs of this many equal numbers (one for each axis)."""
    return hint.hint(input, "constancy", values)


@builtin
def assume(cond: Any) -> None:
    """Promise that a condition holds; the compiler may rely on it."""
    hint.assume(cond)


@builtin
def expect_zero(x: tensor, mask: Any) -> tensor:
    """The value itself; promises that it is zero under the mask."""
    return hint.expect_zero(convert.to_tensor(x), mask)


@builtin
def debug_barrier() -> None:
    """Memory accesses before it are done before those after it."""
    hint.barrier()


@builtin
def device_print(prefix: str, *args: Any, hex: bool = False) -> None:
    """Print values at run time, after a literal ASCII prefix; with `hex` in base 16, floats as ``0x1.8p+0``.

    A line for each element, ``pid (0, 1, 0) idx (7) x: 0.500000``, the same on every target (`ir.print_lines`).
    """
    hint.device_print(prefix, args, hex)


@builtin
def device_assert(cond: Any, msg: str = "", mask: Any = None) -> None:
    """Stop with a message when a condition fails at run time. Only with the launch option `debug`."""
    hint.device_assert(cond, msg, mask)


@builtin
def static_print(*values: Any, sep: str = " ", end: str = "\n", file: Any = None, flush: bool = False) -> None:
    """Print while the kernel is being compiled."""
    print(*(unwrap(value) for value in values), sep=sep, end=end, file=file, flush=flush)


@builtin
def static_assert(cond: Any, msg: str = "") -> None:
    """Fail compilation with a message unless a compile-time condition holds."""
    condition = unwrap(cond)
    if isinstance(condition, tensor):
        if condition.constant is None:
            raise convert.LanguageError("static_assert needs a compile-time condition", "use tl.device_assert")
        condition = condition.constant
    if not condition:
        raise StaticAssertionError(str(unwrap(msg)))


class StaticAssertionError(convert.LanguageError):
    """A `static_assert` that does not hold."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"static assertion failed{': ' + message if message else ''}",
            "this is decided when the kernel is compiled: change the constants that it is given, or the assertion",
        )


# Loop iterators ----------------------------------------------------------------------------------


class range:
    """A run-time loop: ``for i in tl.range(start, end, step)``. The options are hints."""

    def __init__(
        self,
        arg1: Any,
        arg2: Any = None,
        step: Any = None,
        num_stages: int | None = None,
        loop_unroll_factor: int | None = None,
        disallow_acc_multi_buffer: bool = False,
        flatten: bool = False,
        warp_specialize: bool = False,
        disable_licm: bool = False,
    ) -> None:
        self.start: Any = 0 if arg2 is None else arg1
        self.end: Any = arg1 if arg2 is None else arg2
        self.step: Any = 1 if step is None else step
        self.num_stages, self.loop_unroll_factor = num_stages, loop_unroll_factor
        self.flatten, self.warp_specialize = flatten, warp_specialize
        self.disallow_acc_multi_buffer, self.disable_licm = disallow_acc_multi_buffer, disable_licm


class static_range:
    """A loop unrolled while tracing: bounds are compile-time constants, and so is the index."""

    def __init__(self, arg1: Any, arg2: Any = None, step: Any = None) -> None:
        start, end = (0, arg1) if arg2 is None else (arg1, arg2)
        self.start = shapes.static_int(start, "the start of static_range")
        self.end = shapes.static_int(end, "the end of static_range")
        self.step = shapes.static_int(1 if step is None else step, "the step of static_range")
        if self.step == 0:
            raise convert.LanguageError("the step of static_range must not be zero", "count up or down")


class condition:
    """``while tl.condition(cond, disable_licm=True)``: a condition with hints."""

    def __init__(self, arg1: Any, disable_licm: bool = False) -> None:
        self.condition, self.disable_licm = arg1, disable_licm


for _iterator in (range, static_range, condition):
    setattr(_iterator, BUILTIN, True)


# Tensor operators --------------------------------------------------------------------------------


def _method(name: str, function: Callable[..., Any]) -> None:
    setattr(tensor, name, builtin(function))


def _binary(name: str, function: Callable[[Any, Any], tensor]) -> None:
    _method(f"__{name}__", lambda self, other: function(self, other))
    _method(f"__r{name}__", lambda self, other: function(other, self))


_binary("add", arithmetic.add)
_binary("sub", arithmetic.subtract)
_binary("mul", arithmetic.multiply)
_binary("truediv", arithmetic.true_divide)
_binary("floordiv", arithmetic.floor_divide)
_binary("mod", arithmetic.remainder)
for _name in ("and", "or", "xor"):
    _binary(_name, lambda left, right, _name=_name: arithmetic.bitwise(_name, left, right))  # type: ignore[misc]
_binary("lshift", lambda left, right: arithmetic.shift("shift_left", left, right))
_binary("rshift", lambda left, right: arithmetic.shift("shift_right", left, right))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _method(f"__{_name}__", lambda self, other, _name=_name: arithmetic.compare(_name, self, other))
_method("__neg__", arithmetic.negate)
_method("__pos__", lambda self: self)
_method("__invert__", arithmetic.invert)
_method("__getitem__", shapes.index)
_method("__abs__", arithmetic.absolute)
_method("to", cast)
_method("logical_and", lambda self, other: arithmetic.logical("and", self, other))
_method("logical_or", lambda self, other: arithmetic.logical("or", self, other))
_method("__pow__", arithmetic.power)
tensor.T = property(lambda self: shapes.transpose(self, ()))  # type: ignore[attr-defined]

__all__ = [name for name, value in list(globals().items()) if getattr(value, BUILTIN, False)]
get_int_dtype = constexpr_function(types.get_int_dtype)
__all__ += ["PropagateNan", "block_type", "constexpr", "dtype", "get_int_dtype", "pointer_type", "tensor"]
