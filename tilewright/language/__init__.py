"""The tile language, imported as `tl`.

import tilewright
import tilewright.language as tl

@tilewright.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask) + tl.load(y + offsets, mask), mask)
"""

# ruff: noqa: F401
from builtins import slice, tuple
from sys import modules as _modules
from typing import TYPE_CHECKING as _TYPE_CHECKING

from tilewright.language import core, extra, math, random, standard, target_info
from tilewright.language.aggregate import aggregate_replace
from tilewright.language.atomics import atomic_load, atomic_poll, atomic_store
from tilewright.language.core import (
    PropagateNan,
    add,
    arange,
    associative_scan,
    assume,
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xchg,
    atomic_xor,
    broadcast,
    broadcast_to,
    cast,
    cat,
    clamp,
    condition,
    debug_barrier,
    device_assert,
    device_print,
    div_rn,
    dot,
    expand_dims,
    expect_zero,
    fdiv,
    flip,
    full,
    gather,
    inline_asm_elementwise,
    item,
    join,
    load,
    map_elementwise,
    max_constancy,
    max_contiguous,
    maximum,
    minimum,
    mul,
    multiple_of,
    num_programs,
    permute,
    program_id,
    range,
    ravel,
    reduce,
    reshape,
    split,
    squeeze,
    static_assert,
    static_print,
    static_range,
    store,
    sub,
    to_tensor,
    trans,
    unsqueeze,
    view,
    where,
)
from tilewright.language.function import const, must_use_result
from tilewright.language.math import (
    abs,
    ceil,
    cos,
    erf,
    exp,
    exp2,
    floor,
    fma,
    log,
    log2,
    rsqrt,
    sin,
    sqrt,
    sqrt_rn,
    tanh,
    umulhi,
)
from tilewright.language.other_names import add_names as _add_names
from tilewright.language.random import (
    pair_uniform_to_normal,
    philox,
    philox_impl,
    rand,
    rand4x,
    randint,
    randint4x,
    randn,
    randn4x,
    uint_to_uniform_float,
)
from tilewright.language.removed import REMOVED as _REMOVED
from tilewright.language.scaled import dot_scaled
from tilewright.language.sorting import argsort, bitonic_merge, histogram, sort, topk
from tilewright.language.standard import (
    argmax,
    argmin,
    cdiv,
    cumprod,
    cumsum,
    interleave,
    max,
    min,
    reduce_or,
    sigmoid,
    softmax,
    sum,
    swizzle2d,
    xor_sum,
    zeros,
    zeros_like,
)
from tilewright.language.tensor import tensor
from tilewright.language.tiles import (
    _experimental_descriptor_load,
    _experimental_descriptor_store,
    _experimental_make_tensor_descriptor,
    advance,
    load_tensor_descriptor,
    make_block_ptr,
    make_tensor_descriptor,
    store_tensor_descriptor,
    tensor_descriptor,
)
from tilewright.language.types import (
    bfloat16,
    block_type,
    constexpr,
    constexpr_function,
    constexpr_type,
    dtype,
    float8e4b8,
    float8e4b15,
    float8e4nv,
    float8e5,
    float8e5b16,
    float16,
    float32,
    float64,
    int1,
    int8,
    int16,
    int32,
    int64,
    pi32_t,
    pointer_type,
    str_to_ty,
    tuple_type,
    uint1,
    uint8,
    uint16,
    uint32,
    uint64,
    void,
)

libdevice = extra.libdevice  # the old place of the library
TRITON_MAX_TENSOR_NUMEL = 1 << 20  # elements of a block
__all__ = [name for name in dir() if not name.startswith("_")]
_add_names(_modules[__name__])

if not _TYPE_CHECKING:  # a type checker would take every name for one that there is

    def __getattr__(name: str) -> object:
        advice = f": {_REMOVED[name]}" if name in _REMOVED else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")
