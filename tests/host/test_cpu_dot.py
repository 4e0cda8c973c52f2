"""The register-blocked product against NumPy: layouts, types, tails, limits, and memory it must not touch."""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.host.cpu_support import (
    FLOAT32,
    aligned,
    arrange_right,
    emit_product,
    guarded,
    load,
    product_code,
    random_block,
)
from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.host import host_cpu, missing_features
from tilewright.targets.cpu.assemble import assemble
from tilewright.targets.cpu.dot import DotShape, kernel_text, takes_groups
from tilewright.targets.cpu.target import CPUTarget
from tilewright.targets.llvm.optimize import FEW_PASSES

LAYOUTS = ("rows", "columns", "panels")
FLOAT64 = (dtypes.float64, dtypes.float64, dtypes.float64)
BFLOAT16 = (dtypes.bfloat16, dtypes.bfloat16, dtypes.float32)
FLOAT16 = (dtypes.float16, dtypes.float16, dtypes.float32)
INT8 = (dtypes.int8, dtypes.int8, dtypes.int32)
UINT8 = (dtypes.uint8, dtypes.int8, dtypes.int32)


@dataclass(frozen=True)
class Case:
    """One product; `limits` are run-time extents (0: none), `left` how the left operand lies in memory."""

    shape: DotShape
    layout: str
    types: tuple[DType, DType, DType] = FLOAT32
    limits: tuple[int, int, int] = (0, 0, 0)
    left: str = "rows"
    accumulate: bool = True
    narrow: bool = False


def run_case(
    case: Case, rng: np.random.Generator, target: CPUTarget | None = None, translate: Callable[[str], str] | None = None
) -> None:
    """Emit, run on random data and compare with a product in float64 (integers: in int64)."""
    target, shape = target or CPUTarget.host(), case.shape
    full = (shape.rows, shape.columns, shape.depth)
    rows, columns, depth = (limit or extent for limit, extent in zip(case.limits, full, strict=True))
    left, right = random_block(rng, (rows, depth), case.types[0]), random_block(rng, (depth, columns), case.types[1])
    if case.layout == "bounded":
        right, left[:, ::3] = np.where(right < 0, -64, 64).astype(right.dtype), 255
    memory, strides = arrange_left(left, case.left)
    known = {"rows": (None, 1), "known rows": (depth, 1), "columns": (1, None), "spread": (None, None)}[case.left]
    stored, right_stride = arrange_right(right, case.layout, target.microtile(case.types[2])[1], shape.depth)
    limited = tuple(bool(limit) for limit in case.limits)
    known_right = right_stride if case.left == "known rows" else None
    text, extents, scratch_size = emit_product(
        *(target, shape, case.layout, case.types, limited, *known, known_right),
        starts=case.accumulate if case.left == "known rows" else None,
        narrow=case.narrow,
    )
    arguments = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 6 + [ctypes.c_bool]
    text = text if translate is None else translate(text)
    product = load(assemble(text, CPUTarget.host()), "product", arguments)
    wide = np.float64 if case.types[2].is_float else np.int64
    accumulator = aligned(extents, case.types[2].numpy)
    accumulator[...] = random_block(rng, extents, case.types[2]) if case.types[2].is_float else 7
    expected = left.astype(wide) @ right.astype(wide)
    if case.accumulate:
        expected += accumulator[:rows, :columns].astype(wide)
    scratch = aligned((scratch_size + 64,), np.uint8, fill=0xFF)  # NaN in every float type
    memory, stored = guarded(memory), guarded(stored)
    pointers = [array.ctypes.data for array in (memory, stored, accumulator, scratch)]
    product(*pointers, *strides, right_stride, rows, columns, depth, case.accumulate)
    assert (scratch[scratch_size:] == 0xFF).all(), "wrote beyond its scratch"
    if not case.types[2].is_float:
        np.testing.assert_array_equal(accumulator[:rows, :columns], expected)
        return
    # each of `depth` products and sums is rounded once, relative to sums of standard normal numbers
    unit = np.finfo(case.types[2].numpy).eps / 2
    sizes = np.abs(left.astype(wide)) @ np.abs(right.astype(wide)) + 10
    assert (np.abs(accumulator[:rows, :columns] - expected) <= unit * (depth + 2) * sizes).all()


def arrange_left(left: np.ndarray, how: str) -> tuple[np.ndarray, tuple[int, int]]:
    """The left operand in memory, and its row and depth strides."""
    rows, depth = left.shape
    if how == "columns":
        return np.ascontiguousarray(left.T), (1, rows)
    if how == "spread":
        spread = np.zeros((rows, 3 * depth), left.dtype)
        spread[:, ::3] = left
        return spread, (3 * depth, 3)
    return left, (depth, 1)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "shape", [DotShape(1, 160, 70), DotShape(3, 48, 64), DotShape(7, 33, 65), DotShape(50, 100, 600)], ids=str
)
def test_blocks(layout: str, shape: DotShape, rng: np.random.Generator) -> None:
    run_case(Case(shape, layout), rng)
    run_case(Case(shape, layout, accumulate=False), rng)


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("limits", [(31, 70, 100), (20, 0, 0), (0, 33, 0), (0, 0, 1), (1, 1, 1)], ids=str)
def test_limits(layout: str, limits: tuple[int, int, int], rng: np.random.Generator) -> None:
    run_case(Case(DotShape(33, 80, 129), layout, limits=limits), rng)
    few = tuple(min(pair) for pair in zip(limits, (4, 150, 129), strict=True))
    run_case(Case(DotShape(4, 150, 129), layout, limits=few), rng)  # type: ignore[arg-type]


@pytest.mark.parametrize("columns", [1, 16, 33, 81, 95, 96])
def test_columns_that_end_in_one_vector_of_a_panel(columns: int, rng: np.random.Generator) -> None:
    run_case(Case(DotShape(29, 96, 70), "panels", limits=(0, columns, 0), narrow=True), rng)
    run_case(Case(DotShape(3, 192, 70), "panels", limits=(2, 96 + columns, 0), accumulate=False, narrow=True), rng)
    target, shape = CPUTarget.host(), DotShape(29, 96, 72)
    for layout, types, group in (("groups", UINT8, 4), ("pairs", INT8, 2)):
        if takes_groups(target, shape, *types[:2], group):
            run_case(Case(shape, layout, types, limits=(0, columns, 0), narrow=True), rng)
            vectors = "narrow" in emit_product(target, shape, layout, types, (False, True, False), narrow=True)[0]
            assert vectors or target.multiplies_in_tiles(*types[:2])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("left", ["known rows", "columns", "spread"])
def test_left_operand_in_any_memory(layout: str, left: str, rng: np.random.Generator) -> None:
    run_case(Case(DotShape(33, 64, 129), layout, left=left), rng)
    run_case(Case(DotShape(3, 64, 40), layout, left=left, limits=(2, 0, 33)), rng)


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 9, 67, 512, 1030])
def test_code_that_knows_strides_and_depth(depth: int, accumulate: bool, rng: np.random.Generator) -> None:
    for layout in LAYOUTS:
        run_case(Case(DotShape(29, 70, depth), layout, left="known rows", accumulate=accumulate), rng)
    few = Case(DotShape(3, 140, depth), "panels", limits=(2, 0, 0), left="known rows", accumulate=accumulate)
    run_case(few, rng)


def test_known_micro_kernels_are_left_as_they_are_written_and_stay_inside_the_object() -> None:
    target = CPUTarget.host()
    text, *_ = emit_product(
        target, DotShape(40, 64, 96), "panels", FLOAT32, row_stride=96, known_right_stride=3072, starts=True
    )
    tiles = [line for line in text.splitlines() if line.startswith("define internal") and "@tile." in line]
    assert tiles and all(FEW_PASSES in line for line in tiles)
    code = assemble(text, target, keep_texts=True)
    assert code.optimized is not None and "@product(" in code.optimized
    kept = [line for line in code.optimized.splitlines() if line.startswith("define ") and "@tile." in line]
    assert len(kept) == len(tiles) and all(line.startswith("define internal ") for line in kept)


def test_two_groups_of_rows_fetch_the_next_panel() -> None:
    """A block of many rows may have few of them: then few groups pass over a panel, and must fetch all of the next."""
    target = CPUTarget.named("sapphirerapids")
    text = emit_product(target, DotShape(96, 64, 96), "panels", FLOAT32, limits=(True, False, False), row_stride=96)[0]
    tiles = text.split("define internal ")[1:]
    fetched = [tile.count("i32 0, i32 2, i32 1)") for tile in tiles if "@tile." in tile.splitlines()[0]]
    width = target.microtile(dtypes.float32)[1]
    assert fetched and min(fetched) == width * 4 * 2 // 64 // 2  # of the lines of two steps, each group half


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("types", [FLOAT64, BFLOAT16, FLOAT16, INT8, UINT8], ids=lambda types: types[0].name)
def test_element_types(layout: str, types: tuple[DType, DType, DType], rng: np.random.Generator) -> None:
    run_case(Case(DotShape(20, 80, 65), layout, types), rng)
    run_case(Case(DotShape(3, 80, 65), layout, types, limits=(0, 77, 60)), rng)


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("types", [BFLOAT16, INT8, UINT8], ids=lambda types: types[0].name)
@pytest.mark.parametrize("shape", [DotShape(16, 32, 64), DotShape(50, 100, 300), DotShape(33, 17, 5)], ids=str)
def test_tiles(layout: str, types: tuple[DType, DType, DType], shape: DotShape, rng: np.random.Generator) -> None:
    """Enough rows for tile registers, where the CPU has them: whole and cut tiles, every limit and kind of memory."""
    for left in ("rows", "known rows", "columns", "spread"):
        run_case(Case(shape, layout, types, left=left, accumulate=left != "columns"), rng)
    for limits in ((shape.rows - 1, 0, 0), (0, shape.columns - 1, 0), (0, 0, 3)):
        run_case(Case(shape, layout, types, limits=limits), rng)


SIGNS = [(left, right, dtypes.int32) for left in (dtypes.uint8, dtypes.int8) for right in (dtypes.uint8, dtypes.int8)]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("types", SIGNS, ids=lambda types: "".join(dtype.name for dtype in types[:2]))
@pytest.mark.parametrize(
    "shape", [DotShape(1, 160, 70), DotShape(4, 70, 96), DotShape(16, 48, 64), DotShape(61, 100, 4100)], ids=str
)
def test_pairs_of_8_bits(types: tuple[DType, DType, DType], shape: DotShape, rng: np.random.Generator) -> None:
    """Exact for every sign, to the ends of the range, in any memory and with every limit."""
    if not takes_groups(CPUTarget.host(), shape, *types[:2], 2):
        pytest.skip("this CPU takes no pairs of these types")
    check_groups("pairs", shape, types, rng)


def levels_of_8_bits() -> list[CPUTarget]:
    """This CPU, and what it is without the instructions that it prefers for 8 bits."""
    host = CPUTarget.host()
    plain = frozenset(name for name in host.features if not name.startswith("amx") and "vnni" not in name)
    short = frozenset(name for name in plain if not name.startswith("avx512"))
    oldest = frozenset(name for name in short if not name.startswith(("avx", "fma", "f16c")))
    rest = (host.l1_bytes, host.l2_bytes)
    tables = [CPUTarget.from_features(host.triple, host.cpu, known, *rest) for known in (plain, short, oldest)]
    return list(dict.fromkeys([host.without_tiles(), *tables])) if host.is_x86 else [host]


@pytest.mark.slow(but_every=8)
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("types", SIGNS, ids=lambda types: "".join(dtype.name for dtype in types[:2]))
@pytest.mark.parametrize(
    "shape", [DotShape(5, 16, 3), DotShape(16, 40, 64), DotShape(33, 70, 130), DotShape(61, 100, 2051)], ids=str
)
def test_8_bits_that_the_product_packs(
    layout: str, types: tuple[DType, DType, DType], shape: DotShape, rng: np.random.Generator
) -> None:
    """Exact for every sign, to the ends of the range, in any memory and with every limit, at every level."""
    rows, columns, depth = shape.rows, shape.columns, shape.depth
    whole, some = (0, 0, 0), (rows - 2, columns - 3, depth - 2)
    for target in levels_of_8_bits():
        for left, limits in (
            *(("rows", whole), ("known rows", whole), ("known rows", (rows - 1, 0, depth - 1))),
            *(("columns", some), ("spread", (0, columns - 1, 1))),
        ):
            run_case(Case(shape, layout, types, limits, left, accumulate=left != "columns"), rng, target)


@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize(
    ("name", "wanted"), [("znver5", "vpdpbusd"), ("x86-64-v4", "vpmaddwd"), ("x86-64-v3", "vpmaddwd")]
)
def test_instructions_for_8_bits_that_the_product_packs(layout: str, name: str, wanted: str) -> None:
    target = CPUTarget.named(name)
    rows, columns = target.microtile(dtypes.int32)
    for types in SIGNS:
        shape = DotShape(2 * rows, 2 * columns, 96)
        code = product_code(target, shape, layout, types, keep_texts=True)
        assert code.assembly is not None and wanted in code.assembly and "vpmulld" not in code.assembly
        tiles = code.assembly.split("\ntile.")[1:]
        vector = [line for tile in tiles for line in tile.splitlines() if "ymm" in line or "zmm" in line]
        assert vector and not any("(%rsp)" in line for line in vector), "a vector register is spilled"
        assert "side by side" in kernel_text(target, shape, *types[:2], layout, types[2])


@pytest.mark.parametrize(
    "shape", [DotShape(1, 160, 72), DotShape(4, 70, 96), DotShape(16, 48, 64), DotShape(61, 100, 4100)], ids=str
)
def test_groups_whose_pairs_fit_16_bits(shape: DotShape, rng: np.random.Generator) -> None:
    """Weights of 7 bits by the largest uint8: the largest sums of two there may be, of both signs."""
    target = CPUTarget.host()
    if not takes_groups(target, shape, *UINT8[:2], 4, pairs_fit=True) or target.vnni:
        pytest.skip("this CPU has none of these instructions, or better ones")
    check_groups("bounded", shape, UINT8, rng)


def check_groups(
    layout: str,
    shape: DotShape,
    types: tuple[DType, DType, DType],
    rng: np.random.Generator,
) -> None:
    for left in ("rows", "known rows", "columns", "spread"):
        run_case(Case(shape, layout, types, left=left, accumulate=left != "columns"), rng)
    for limits in ((max(1, shape.rows - 1), 0, 0), (0, shape.columns - 1, 0), (1, 17, 0)):
        run_case(Case(shape, layout, types, limits=limits), rng)


def without_vnni(text: str) -> str:
    """LLVM text with each vpdpbusd as what its description says, for CPUs that lack it."""
    operands = ", ".join(rf"<\d+ x i{bits}> (\S+)" for bits in (32, 8, 8))
    call = rf"(%\w+) = call <(\d+) x i32> @llvm.x86.avx512.vpdpbusd.\d+\({operands}\)"

    def written_out(found: re.Match[str]) -> str:
        result, lanes, total, left, right = found[1], int(found[2]), *found.groups()[2:]
        sums, narrow, wide = f"<{lanes} x i32>", f"<{4 * lanes} x i8>", f"<{4 * lanes} x i32>"
        lines = [
            f"{result}.x = zext {narrow} {left} to {wide}",
            f"{result}.y = sext {narrow} {right} to {wide}",
            f"{result}.p = mul {wide} {result}.x, {result}.y",
        ]
        for within in range(4):
            mask = ", ".join(f"i32 {4 * lane + within}" for lane in range(lanes))
            part = f"shufflevector {wide} {result}.p, {wide} poison, <{lanes} x i32> <{mask}>"
            lines.append(f"{result}.p{within} = {part}")
            name = result if within == 3 else f"{result}.s{within}"
            lines.append(f"{name} = add {sums} {total}, {result}.p{within}")
            total = name
        return "\n".join(lines)

    changed, count = re.subn(call, written_out, text)
    assert count and "vpdpbusd" not in re.sub("declare.*", "", changed)
    return re.sub(r"declare .*vpdpbusd.*\n", "", changed)


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("features", [("avxvnni",), ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni")])
@pytest.mark.parametrize("shape", [DotShape(2, 33, 12), DotShape(7, 40, 4100)], ids=str)
def test_groups_of_vnni(features: tuple[str, ...], shape: DotShape, rng: np.random.Generator) -> None:
    """The code for CPUs with VNNI, with its instruction written out, so that this one runs it."""
    host = CPUTarget.host()
    if not host.is_x86 or host.vector_bits < 256:
        pytest.skip("this CPU has no vectors of 256 bits")
    known = frozenset(name for name in host.features if not name.startswith(("amx", "avx512", "avxvnni")))
    target = CPUTarget.from_features(host.triple, host.cpu, known | set(features), host.l1_bytes, host.l2_bytes)
    assert target.panel_group(dtypes.uint8, shape.rows, shape.depth) == 4
    for left in ("rows", "known rows"):
        run_case(Case(shape, "groups", UINT8, left=left), rng, target, without_vnni)
    run_case(Case(shape, "groups", UINT8, limits=(shape.rows - 1, 17, 0)), rng, target, without_vnni)


@pytest.mark.parametrize("name", ["znver4", "znver5", "sapphirerapids", "x86-64-v4", "x86-64-v3"])
def test_instructions_for_8_bits(name: str) -> None:
    target = CPUTarget.named(name)
    rows, columns = target.microtile(dtypes.int32)
    vnni = target.int8_dot
    forms = {"groups": "vpdpbusd"} if vnni else {"pairs": "vpmaddwd", "bounded": "vpmaddubsw"}
    for layout, wanted in forms.items():
        code = product_code(target, DotShape(rows, 4 * columns, 96), layout, UINT8, keep_texts=True)
        assert code.assembly is not None and wanted in code.assembly
        vector = [line for line in code.assembly.splitlines() if "ymm" in line or "zmm" in line]
        assert not any("(%rsp)" in line for line in vector), "a vector register is spilled"
    assert takes_groups(target, DotShape(2, 32, 66), dtypes.int8, dtypes.int8, 2)
    assert not takes_groups(target, DotShape(2, 32, 66), dtypes.int8, dtypes.int8, 4)


def without_pairs(text: str) -> str:
    """LLVM text with each vdpbf16ps as multiplications and additions of float32, for CPUs that lack it."""
    operands = r"<16 x float> (\S+), <32 x bfloat> (\S+), <32 x bfloat> (\S+)"
    call = rf"(%\w+) = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512\({operands}\)"

    def written_out(found: re.Match[str]) -> str:
        result, total, *sides = found.groups()
        lines = []
        for within in (1, 0):
            for side, operand in zip("xy", sides, strict=True):
                name, bits = f"{result}.{side}{within}", "<16 x i32>"
                high = f"and {bits} {name}.b, splat (i32 -65536)" if within else f"shl {bits} {name}.b, splat (i32 16)"
                lines += [
                    f"{name}.b = bitcast <32 x i16> {operand} to {bits}",
                    f"{name}.h = {high}",
                    f"{name} = bitcast {bits} {name}.h to <16 x float>",
                ]
            lines.append(f"{result}.p{within} = fmul <16 x float> {result}.x{within}, {result}.y{within}")
            name = result if within == 0 else f"{result}.s"
            lines.append(f"{name} = fadd <16 x float> {total}, {result}.p{within}")
            total = name
        return "\n".join(lines)

    changed, count = re.subn(call, written_out, text)
    assert count and "dpbf16ps" not in re.sub("declare.*", "", changed)
    # vectors of bits: to load wider ones of bfloat16 than a CPU has, LLVM calls a function, which may not exist
    return re.sub(r"declare .*dpbf16ps.*\n", "", changed).replace("<32 x bfloat>", "<32 x i16>")


def with_pairs(target: CPUTarget) -> CPUTarget:
    """The same CPU with AVX-512 and vdpbf16ps, without tile registers."""
    known = {name for name in target.features if not name.startswith("amx")}
    features = known | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16"}
    return CPUTarget.from_features(target.triple, target.cpu, frozenset(features), target.l1_bytes, target.l2_bytes)


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("columns", [7, 48, 1000])
@pytest.mark.parametrize(("rows", "depth"), [(1, 70), (3, 130), (17, 66), (65, 1030)])
def test_pairs_of_bfloat16(rows: int, columns: int, depth: int, rng: np.random.Generator) -> None:
    """The code for CPUs with vdpbf16ps, with the instruction written out, and as it is where this CPU has it."""
    host, shape = CPUTarget.host(), DotShape(rows, columns, depth)
    if not host.is_x86 or host.vector_bits < 256:
        pytest.skip("this CPU has no vectors of 256 bits")
    target = with_pairs(host)
    assert target.panel_group(dtypes.bfloat16, rows, depth) == 2
    native = host.bfloat16_dot and host.vector_bits == 512
    for left in ("rows", "known rows", "columns", "spread"):
        case = Case(shape, "groups", BFLOAT16, left=left, accumulate=left != "columns")
        run_case(case, rng, target, None if native and left != "known rows" else without_pairs)
    for limits in ((max(1, rows - 1), 0, 0), (0, columns - 1, 0), (1, min(columns, 17), 0)):
        run_case(Case(shape, "groups", BFLOAT16, limits=limits), rng, target, None if native else without_pairs)


def test_pairs_of_bfloat16_only_where_an_instruction_takes_them() -> None:
    plain, tiles = CPUTarget.named("x86-64-v4"), CPUTarget.named("sapphirerapids")
    pairs = with_pairs(plain)
    assert [target.panel_group(dtypes.bfloat16, 1, 48) for target in (plain, tiles, pairs)] == [1, 1, 2]
    assert pairs.panel_group(dtypes.bfloat16, 64, 47) == 1 and pairs.panel_group(dtypes.float16, 64, 48) == 1
    assert pairs.dot_rate(dtypes.bfloat16, 2) > pairs.dot_rate(dtypes.bfloat16) == plain.dot_rate(dtypes.bfloat16, 2)
    assert not takes_groups(pairs, DotShape(2, 32, 65), *BFLOAT16[:2], 2)
    forms = ("groups", "panels")
    texts = [kernel_text(pairs, DotShape(2, 32, 64), *BFLOAT16[:2], form, dtypes.float32) for form in forms]
    assert ["subnormal" in text for text in texts] == [True, False]
    for target in (pairs, CPUTarget.named("znver4")):
        rows, columns = target.microtile(dtypes.bfloat16)
        for count in (1, rows - 1, rows):
            shape = DotShape(count, 4 * columns, 96)
            assembly = product_code(target, shape, "groups", BFLOAT16, keep_texts=True).assembly
            assert assembly is not None
            vector = [line for line in assembly.splitlines() if "zmm" in line]
            assert any("vdpbf16ps" in line for line in vector) and not any("vfmadd" in line for line in vector)
            assert not any("(%rsp)" in line for line in vector), "a vector register is spilled"


def test_pairs_take_subnormal_numbers_as_zeros_and_keep_infinities() -> None:
    """What vdpbf16ps does on a CPU that has it (docs/internals/cpu-kernels.md)."""
    target = CPUTarget.host()
    if not takes_groups(target, DotShape(2, 32, 4), *BFLOAT16[:2], 2) or target.multiplies_in_tiles(*BFLOAT16[:2]):
        pytest.skip("this CPU takes no pairs of bfloat16")
    left = np.array([[1e-39, 2.0, 1.0, 0.0], [np.inf, 1.0, 0.0, 0.0]]).astype(dtypes.bfloat16.numpy)
    right = np.zeros((4, 32), dtypes.bfloat16.numpy)
    right[0], right[1] = 2.0**126, 3.0
    stored, stride = arrange_right(right, "groups", 32, 4)
    text, extents, size = emit_product(target, DotShape(2, 32, 4), "groups", BFLOAT16)
    product = load(assemble(text, target), "product", [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 6 + [ctypes.c_bool])
    accumulator, scratch = aligned(extents, np.float32), aligned((size,), np.uint8)
    product(*(array.ctypes.data for array in (left, stored, accumulator, scratch)), 4, 1, stride, 2, 32, 4, False)
    assert (accumulator[0, :32] == 6).all() and np.isposinf(accumulator[1, :32]).all()


@pytest.mark.parametrize("types", [BFLOAT16, INT8, UINT8], ids=lambda types: types[0].name)
@pytest.mark.parametrize("shape", [DotShape(16, 32, 64), DotShape(50, 100, 320), DotShape(64, 48, 1088)], ids=str)
def test_panels_in_groups(types: tuple[DType, DType, DType], shape: DotShape, rng: np.random.Generator) -> None:
    """Tile registers read grouped panels where they lie: the same results, limits of rows and columns included."""
    if not CPUTarget.host().multiplies_in_tiles(*types[:2]):
        pytest.skip("this CPU has no tile registers")
    check_groups("groups", shape, types, rng)


@pytest.mark.parametrize("aligned_to", [64, 1])
@pytest.mark.parametrize("shape", [DotShape(16, 32, 192), DotShape(50, 100, 384), DotShape(75, 48, 576)], ids=str)
def test_rows_of_lines(shape: DotShape, aligned_to: int, rng: np.random.Generator) -> None:
    """Tile registers read rows that overlap, each of three lines, where they lie; or a copy, off the cache's lines."""
    target, types = CPUTarget.host(), UINT8
    if not target.multiplies_in_tiles(*types[:2]):
        pytest.skip("this CPU has no tile registers")
    length, apart = shape.depth // 3, 64 * (shape.rows + 5)
    image = rng.integers(0, 256, 2 * apart + 64 * (shape.rows - 1) + length + 1).astype(np.uint8)
    memory = aligned((len(image) + 64,), np.uint8)
    start = 0 if aligned_to == 64 else 7
    memory[start : start + len(image)] = image
    rows = np.stack([np.concatenate([image[64 * row + line * apart :][:length] for line in range(3)])
                     for row in range(shape.rows)])  # fmt: skip
    right = random_block(rng, (shape.depth, shape.columns), dtypes.int8)
    stored, stride = arrange_right(right, "groups", target.microtile(types[2])[1], shape.depth)
    kinds = (dtypes.uint8, dtypes.int8, dtypes.int32)
    text, extents, size = emit_product(target, shape, "groups", kinds, row_stride=64, whole=True, lines=(length, apart))
    product = load(assemble(text, target), "product", [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 6 + [ctypes.c_bool])
    sums, scratch, panels = aligned(extents, np.int32), aligned((size,), np.uint8), aligned(stored.shape, np.int8)
    panels[...] = stored
    places = (memory.ctypes.data + start, panels.ctypes.data, sums.ctypes.data, scratch.ctypes.data)
    product(*places, 64, 1, stride, *(shape.rows, shape.columns, shape.depth), False)
    expected = rows.astype(np.int32) @ right.astype(np.int32)
    np.testing.assert_array_equal(sums[: shape.rows, : shape.columns], expected)


def test_groups_only_where_tiles_read_them() -> None:
    target, plain = CPUTarget.named("sapphirerapids"), CPUTarget.named("x86-64-v4")
    assert target.panel_group(dtypes.bfloat16, 16, 64) == 2 and target.panel_group(dtypes.int8, 16, 64) == 4
    assert target.panel_group(dtypes.bfloat16, 15, 64) == 1  # too few rows for tiles
    assert target.panel_group(dtypes.bfloat16, 16, 48) == 1  # no whole number of them
    assert target.panel_group(dtypes.float32, 16, 64) == 1 and plain.panel_group(dtypes.bfloat16, 16, 64) == 1
    assert target.panel_group(dtypes.uint8, 1, 36) == 4 and target.panel_group(dtypes.uint8, 1, 37) == 1  # VNNI
    assert target.panel_group(dtypes.int8, 1, 36) == 2 and plain.panel_group(dtypes.uint8, 1, 36) == 2
    assembly = product_code(target, DotShape(32, 64, 64), "groups", BFLOAT16, keep_texts=True).assembly
    assert assembly is not None and "tileloaddt1" in assembly and "vpermt2w" not in assembly


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 140),
    depth=st.integers(1, 140),
    layout=st.sampled_from(LAYOUTS),
    left=st.sampled_from(["rows", "known rows", "columns", "spread"]),
    cut=st.tuples(*[st.booleans()] * 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_shape(
    rows: int, columns: int, depth: int, layout: str, left: str, cut: tuple[bool, ...], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    extents = (rows, columns, depth)
    limits = tuple(
        int(rng.integers(1, extent + 1)) if limited else 0 for extent, limited in zip(extents, cut, strict=True)
    )
    run_case(Case(DotShape(*extents), layout, limits=limits, left=left, accumulate=bool(seed % 2)), rng)  # type: ignore[arg-type]


def test_whole_left_operand_in_place(rng: np.random.Generator) -> None:
    """A buffer of known strides is read where it lies even when rows are limited at run time."""
    target, shape = CPUTarget.host(), DotShape(20, 64, 48)
    text, extents, size = emit_product(target, shape, "rows", FLOAT32, (True, False, False), 48, 1, 64, True)
    arguments = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 6 + [ctypes.c_bool]
    product = load(assemble(text, target), "product", arguments)
    left, right = random_block(rng, (20, 48), dtypes.float32), random_block(rng, (48, 64), dtypes.float32)
    memory = guarded(left), guarded(right)
    for rows in range(1, 21):
        accumulator, scratch = aligned(extents, np.float32), aligned((size,), np.uint8)
        pointers = [array.ctypes.data for array in (*memory, accumulator, scratch)]
        product(*pointers, 48, 1, 64, rows, 64, 48, False)
        np.testing.assert_allclose(accumulator[:rows, :64], left[:rows].astype(np.float64) @ right, rtol=0, atol=1e-4)


def test_nothing_to_do_keeps_the_accumulator() -> None:
    target, shape = CPUTarget.host(), DotShape(20, 64, 64)
    text, extents, size = emit_product(target, shape, "rows", FLOAT32, (True, True, True))
    arguments = [ctypes.c_void_p] * 4 + [ctypes.c_int64] * 6 + [ctypes.c_bool]
    product = load(assemble(text, target), "product", arguments)
    accumulator, scratch = aligned(extents, np.float32), aligned((size,), np.uint8)
    accumulator[...] = 3
    operands = guarded(np.ones((20, 64), np.float32)), guarded(np.ones((64, 64), np.float32))
    pointers = [array.ctypes.data for array in (*operands, accumulator, scratch)]
    for limits in ((0, 64, 64), (20, 0, 64), (20, 64, 0)):
        product(*pointers, 64, 1, 64, *limits, True)
        assert (accumulator[:20, :64] == 3).all()


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("name", ["x86-64", "x86-64-v3"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_code_for_older_cpus_runs_here(name: str, layout: str, rng: np.random.Generator) -> None:
    target = dataclasses.replace(CPUTarget.named(name), triple=host_cpu().triple)
    if CPUTarget.host().architecture != CPUTarget.named(name).architecture or missing_features(target.features):
        pytest.skip(f"this CPU does not run code for {name}")
    for shape in (DotShape(1, 70, 33), DotShape(5, 48, 64), DotShape(20, 37, 50)):
        run_case(Case(shape, layout), rng, target)
        run_case(Case(shape, layout, limits=(1, 30, 20)), rng, target)
        run_case(Case(shape, layout, INT8), rng, target)


@pytest.mark.slow(but_every=4)
@pytest.mark.parametrize("name", ["x86-64", "x86-64-v3", "x86-64-v4", "aarch64", "apple-m1"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiles_for_other_cpus(name: str, layout: str) -> None:
    target = CPUTarget.named(name)
    columns = 2 * target.microtile(dtypes.float32)[1]
    assert product_code(target, DotShape(24, columns, 64), layout, FLOAT32, (True, True, True)).image


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4", "sapphirerapids", "znver5"])
def test_accumulators_stay_in_registers(name: str) -> None:
    target = CPUTarget.named(name)
    rows, columns = target.microtile(dtypes.float32)
    for count in (rows, rows - 1):
        code = product_code(target, DotShape(count, 4 * columns, 64), "panels", FLOAT32, keep_texts=True)
        assert code.assembly is not None
        vector = [line for line in code.assembly.splitlines() if "ymm" in line or "zmm" in line]
        assert any("vfmadd" in line for line in vector)
        assert not any("(%rsp)" in line for line in vector), "a vector register is spilled"
