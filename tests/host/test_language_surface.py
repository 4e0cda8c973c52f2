"""Names and options that older or unusual kernels use: debug builds, loop hints, old spellings, external functions."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tests.host.language_support import compile_error, launch
from tilewright.errors import ExecutionError
from tilewright.language.core import extern, extern_elementwise
from tilewright.passes.loop_invariants import hoist_loop_invariants
from tilewright.settings import settings

EXPORTED = """
PropagateNan TRITON_MAX_TENSOR_NUMEL load_tensor_descriptor store_tensor_descriptor make_tensor_descriptor
tensor_descriptor abs add arange argmax argmin associative_scan assume atomic_add atomic_and atomic_cas
atomic_max atomic_min atomic_or atomic_poll atomic_xchg atomic_xor bfloat16 bitonic_merge block_type broadcast
broadcast_to cat cast cdiv ceil clamp condition const constexpr constexpr_type cos cumprod cumsum
debug_barrier device_assert device_print div_rn dot dot_scaled dtype erf exp exp2 expand_dims extra fdiv flip
float16 float32 float64 float8e4b15 float8e4nv float8e4b8 float8e5 float8e5b16 floor fma full gather histogram
inline_asm_elementwise interleave int1 int16 int32 int64 int8 join load log log2 make_block_ptr
map_elementwise math max max_constancy max_contiguous maximum min minimum mul multiple_of num_programs
pair_uniform_to_normal permute philox philox_impl pi32_t pointer_type program_id rand rand4x randint randint4x
randn randn4x range ravel reduce reduce_or reshape rsqrt slice sigmoid sin softmax sort split sqrt sqrt_rn
squeeze static_assert static_print static_range store sub sum swizzle2d target_info tensor topk to_tensor
trans tuple uint16 uint32 uint64 uint8 expect_zero uint_to_uniform_float umulhi unsqueeze view void where
xor_sum zeros zeros_like aggregate_replace constexpr_function advance atomic_load atomic_store item argsort
libdevice
"""


@pytest.mark.parametrize("place", ["language", "core"])
def test_every_exported_name(place: str) -> None:
    module = tl if place == "language" else tl.core
    assert [name for name in EXPORTED.split() if not hasattr(module, name)] == []
    with pytest.raises(AttributeError):
        _ = tl.core.no_such_name


def test_the_whole_library() -> None:
    assert len(set(tl.extra.libdevice.__all__)) >= 198
    assert tl.math.log1p is tl.extra.libdevice.log1p is tl.libdevice.log1p
    with pytest.raises(AttributeError):
        _ = tl.math.no_such_function


@tilewright.jit
def products(x, out, n, WRAP: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    total = tl.mul(value, n, sanitize_overflow=not WRAP)
    tl.store(out + i, total)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int16"])
def test_debug_builds_stop_at_overflow(dtype: str) -> None:
    x, out = np.full(8, 1 << 12, dtype), np.zeros(8, np.int64)
    factor = np.asarray(8, dtype)[()]
    with settings.scope(interpret=True):
        products[(1,)](x[:8] // 4, out, factor // 2, WRAP=False, N=8, debug=True)
        large = np.full(8, np.iinfo(dtype).max // 2, dtype)
        with pytest.raises(ExecutionError, match=f"{dtype} overflow detected for operation multiply"):
            products[(1,)](large, out, factor, WRAP=False, N=8, debug=True)
        products[(1,)](large, out, factor, WRAP=True, N=8, debug=True)
        products[(1,)](large, out, factor, WRAP=False, N=8)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(out, (large * factor).astype(np.int64))


@tilewright.jit
def hinted(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.zeros((N,), tl.float32)
    for step in tl.range(
        0, n, num_stages=3, loop_unroll_factor=2, flatten=True, warp_specialize=True, disallow_acc_multi_buffer=True,
        disable_licm=True,
    ):  # fmt: skip
        total += tl.load(x + i) * (n * 3) + step
    while tl.condition(n > 100, disable_licm=True):
        n = n // 2
    tl.store(out + i, total + n)


def test_loop_options_are_kept_and_change_nothing(rng: np.random.Generator) -> None:
    x, out = rng.normal(size=8).astype(np.float32), np.zeros(8, np.float32)
    launch(hinted, (1,), x, out, 4, N=8)
    np.testing.assert_allclose(out, x * 48 + 6 + 4, rtol=1e-5, atol=2e-5)
    function = hinted.trace({"x": "*f32", "out": "*f32", "n": "i32"}, {"N": 8})
    text = str(function)
    for option in ("num_stages = 3", "unroll = 2", "flatten = true", "warp_specialize = true", "disable_licm = true"):
        assert option in text
    (loop,) = [operation for operation in function.walk() if operation.opcode == "for"]
    inside = len(loop.regions[0].operations)
    (kept,) = [operation for operation in hoist_loop_invariants(function).walk() if operation.opcode == "for"]
    assert len(kept.regions[0].operations) == inside


def bad_option(x, out, n):
    for _ in tl.range(0, n, num_stages=n):
        tl.store(out, n)


def no_step(x, out, n):
    for _ in tl.static_range(0, 4, 0):
        tl.store(out, n)


def wide_unrolling(x, out, n):
    for _ in tl.static_range(1 << 40):
        tl.store(out, n)


def huge_number(x, out, n):
    tl.store(out, 2 ** (10**30))


def read_only(x: tl.const, out, n):
    tl.store(x, 1.0)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (bad_option, "an option of tl.range must be a compile-time integer"),
        (no_step, "must not be zero"),
        (wide_unrolling, "1099511627776 entries"),
        (huge_number, "thousands of digits"),
        (read_only, "store through a const pointer"),
    ],
)
def test_mistakes(mistake, message: str) -> None:
    kind = "*k f32" if mistake is read_only else "*f32"
    assert message in compile_error(tilewright.jit(mistake), {"x": kind, "out": "*i32", "n": "i32"})


@extern
def my_exp(value, _semantic=None):
    table = {(tl.float32,): ("__nv_expf", tl.float32), (tl.float64,): ("__nv_exp", tl.float64)}
    return extern_elementwise("libdevice", "", [value], table, is_pure=True, _semantic=_semantic)


@tilewright.jit
def externally(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, my_exp(tl.load(x + i)))


def test_external_functions_by_symbol(rng: np.random.Generator) -> None:
    x, out = rng.normal(size=8).astype(np.float32), np.zeros(8, np.float32)
    launch(externally, (1,), x, out, N=8)
    np.testing.assert_allclose(out, np.exp(x), rtol=1e-6)
    assert "no function for (int32)" in compile_error(externally, {"x": "*i32", "out": "*f32"}, N=8)


@tilewright.jit
def half_functions(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(out + i, tl.exp(value) + tl.math.pow(value, value))


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_functions_of_narrow_floats_warn(kind: str) -> None:
    kernel = half_functions.compile({"x": f"*{kind}", "out": f"*{kind}"}, {"N": 16})
    warned = [remark.message for remark in kernel.remarks if remark.severity == "warning"]
    name = {"f16": "fp16", "bf16": "bf16"}[kind]
    assert f"exp on {name} is computed in fp32 and rounded back" in warned
    assert f"pow on {name} is computed in fp32 and rounded back" in warned


@tilewright.jit
def product_and_sum(x, y, z, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) * tl.load(y + i) + tl.load(z + i))


def test_products_are_rounded_when_fusion_is_off(rng: np.random.Generator) -> None:
    x, y = (rng.normal(size=256).astype(np.float32) for _ in range(2))
    rounded = x * y
    z, out = -rounded, np.ones(256, np.float32)
    product_and_sum[(1,)](x, y, z, out, N=256, enable_fp_fusion=False)
    assert not out.any()
    fused = x.astype(np.float64) * y.astype(np.float64) - rounded
    product_and_sum[(1,)](x, y, z, out, N=256)
    assert np.all((out == 0) | (out == fused.astype(np.float32)))


@tilewright.jit
def by_method(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    (out + i).store(i)
    (out + i).atomic_add(2, mask=i < 4)
    (out + i).atomic_max(3)
    before = (out + i).atomic_cas(3, -3)
    (x + i).store((out + i).atomic_load() + before)
    shape = (1, 2) * 2 + (3,)
    tl.static_assert(shape[1:3] == (2, 1) and shape != (1, 2))
    tl.static_assert(i.type.nbytes == 4 * N and i.type.with_element_ty(tl.int8).get_block_shapes() == (N,))
    tl.static_assert(tl.int8.get_int_max_value() == 127 and tl.uint8.get_int_min_value() == 0)
    tl.static_assert(tl.float16.kind() == tl.dtype.KIND.FLOATING)
    tl.static_assert(not x.dtype.is_const())


def test_methods_of_pointers_and_types() -> None:
    x, out = np.zeros(8, np.int32), np.zeros(8, np.int32)
    launch(by_method, (1,), x, out, N=8)
    assert tl.dtype.is_dtype("bf16") and not tl.dtype.is_dtype("fp7")
    assert out.tolist() == [-3, -3, 4, 5, 4, 5, 6, 7]
    assert x.tolist() == [0, 0, 8, 10, 8, 10, 12, 14]


@tl.core.must_use_result("It changes nothing in place.")
@tilewright.jit
def doubled(value):
    return 2 * value


@tilewright.jit
def uses(out):
    tl.store(out, doubled(3))


@tilewright.jit
def drops(out):
    doubled(tl.load(out))


def test_results_that_must_be_used() -> None:
    uses.trace({"out": "*i32"}, {})
    text = compile_error(drops, {"out": "*i32"})
    assert "The result of doubled is not being used. It changes nothing in place." in text and "^^^^" in text
