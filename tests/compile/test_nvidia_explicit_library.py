"""The library's Hopper kernels compile for sm_90a: no spill, no serialised product, the products they are made of."""

from __future__ import annotations

import re

import pytest

import tilewright
import tilewright.language as tl
from tests.host.hopper_support import traced_attention, traced_bf16x6, traced_grouped, traced_matmul, unit_rows
from tilewright.errors import LaunchError, MissingDependencyError
from tilewright.library.attention.hopper.config import AttentionConfig
from tilewright.library.hopper import SHARED_BYTES
from tilewright.library.matmul.hopper.config import MatmulConfig
from tilewright.targets.gpu.transfer import reshapes_bits
from tilewright.targets.nvidia.assemble import Assembly, AssemblyOptions
from tilewright.targets.nvidia.compile import assemble_kernel
from tilewright.targets.nvidia.inspect import sass
from tilewright.targets.nvidia.lowered import LoweredKernel
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import NvidiaTarget

TARGET = NvidiaTarget.named("sm_90a")


def compiled_matmul(config: MatmulConfig) -> tuple[LoweredKernel, Assembly]:
    lowered = lower(traced_matmul(config), TARGET, NvidiaOptions())
    return lowered, assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True))


CONFIGS = {
    "bf16": MatmulConfig(),
    "224 columns": MatmulConfig(BN=224),
    "b shared": MatmulConfig(SHARE_B=2),
    "s8": MatmulConfig(INPUT=tl.int8, BK=128, SUM=tl.int32),
    "e4m3": MatmulConfig(INPUT=tl.float8e4nv, BK=128),
    "tf32": MatmulConfig(INPUT=tl.float32, OUTPUT=tl.float32, BK=32, STAGES=3),
    "256 rows": MatmulConfig(BM=256, BN=128),
    "three consumers": MatmulConfig(BM=192, CONSUMERS=3, BN=192, STAGES=3),
    "depth split": MatmulConfig(BN=64, SPLIT=2, STAGES=6),
    "few rows": MatmulConfig(BM=64, CONSUMERS=1, BN=112, A_ROWS=8, STAGES=10, EVICT_B="evict_first", DEPENDENT=True),
    "few rows, loaded apart": MatmulConfig(
        BM=64, CONSUMERS=1, BN=224, A_ROWS=8, STAGES=7, SINGLE=True, EVICT_B="evict_first", DEPENDENT=True, FLIGHT=2
    ),
    "depth split, loaded apart": MatmulConfig(
        BM=64, CONSUMERS=1, BN=64, BK=128, A_ROWS=8, SPLIT=2, STAGES=12, DEPENDENT=True, FLIGHT=3
    ),
    "few rows, normed": MatmulConfig(
        BM=64, CONSUMERS=1, BN=224, A_ROWS=8, STAGES=7, SINGLE=True, DEPENDENT=True, FLIGHT=2, NORM=unit_rows
    ),
    "depth split, normed": MatmulConfig(
        BM=64, CONSUMERS=1, BN=96, BK=128, A_ROWS=8, SPLIT=2, STAGES=8, DEPENDENT=True, FLIGHT=3, NORM=unit_rows
    ),
    "depth split by four": MatmulConfig(BN=144, SPLIT=4, STAGES=6),
    "transposed": MatmulConfig(A_TRANSPOSED=True, B_TRANSPOSED=True, BN=128),
    "batched": MatmulConfig(BATCHED=True, BN=128),
    "apart": MatmulConfig(LAG=3),
    "odd depth split": MatmulConfig(BM=64, CONSUMERS=1, BN=40, SPLIT=2, STAGES=8),
    "odder depth split": MatmulConfig(BM=64, CONSUMERS=1, BN=88, A_ROWS=8, SPLIT=2, STAGES=16, DEPENDENT=True),
    "sums where B was": MatmulConfig(BN=224, SPLIT=2, STAGES=4),
    "depth split, B shared": MatmulConfig(BM=64, CONSUMERS=1, BN=144, SHARE_B=2, SPLIT=2, STAGES=8),
    "one tile": MatmulConfig(BN=112, STAGES=7, SINGLE=True, DEPENDENT=True, EVICT_B="evict_first"),
    "ping-pong": MatmulConfig(BN=208, PING_PONG=True),
    "ping-pong, stored by half rows": MatmulConfig(BN=208, PING_PONG=True, STORED=64),
    "ping-pong, b shared": MatmulConfig(BM=64, SHARE_B=2, PING_PONG=True),
}  # fmt: skip


def machine_loops(assembly: Assembly, opcode: str) -> list[list[str]]:
    """The opcodes of the innermost loops with an instruction such as HGMMA; skips without nvdisasm."""
    try:
        lines = sass(assembly.cubin).splitlines()
    except MissingDependencyError as error:
        pytest.skip(f"no disassembler: {error}")
    labels = {line[:-1]: number for number, line in enumerate(lines) if line.startswith(".L")}
    if not labels:
        pytest.skip("no nvdisasm: cuobjdump, which was found, does not show where branches go")
    ends = [(number, re.search(r"BRA.*`\((\.L\w+)\)", line)) for number, line in enumerate(lines)]
    spans = [(labels[match[1]], number) for number, match in ends if match and labels[match[1]] < number]
    wanted = [number for number, line in enumerate(lines) if f" {opcode}" in line]
    shortest: dict[frozenset[int], tuple[int, int]] = {}  # by the wanted instructions in it
    for start, end in sorted(spans, key=lambda span: span[0] - span[1]):
        if inside := frozenset(number for number in wanted if start <= number <= end):
            shortest[inside] = start, end
    innermost = [span for inside, span in shortest.items() if not any(other < inside for other in shortest)]
    bodies = ["\n".join(lines[start : end + 1]) for start, end in innermost]
    return [re.findall(r"\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)", body) for body in bodies]


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize(
    "name", ["bf16", "224 columns", "256 rows", "few rows", "few rows, loaded apart", "transposed", "ping-pong"]
)
def test_main_loops_use_uniform_registers(name: str) -> None:
    """Of products and of loads: nothing goes from vector to uniform registers, and the loop is as by hand."""
    _, assembly = compiled_matmul(CONFIGS[name])
    (products,) = machine_loops(assembly, "HGMMA")
    assert "R2UR" not in products and products.count("HGMMA") == CONFIGS[name].rows // 64 * CONFIGS[name].BK // 16
    assert len(products) <= 46 + 4 * products.count("HGMMA")
    assert all("R2UR" not in loop for loop in machine_loops(assembly, "UTMALDG"))


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("name", CONFIGS)
def test_matmul(name: str) -> None:
    config = CONFIGS[name]
    lowered, assembly = compiled_matmul(config)
    assert lowered.shared_bytes == config.shared_bytes <= SHARED_BYTES
    assert not assembly.remarks and lowered.dependent_launch == config.DEPENDENT
    steps = config.BK * config.INPUT.itemsize // 32
    products = config.rows // 64 * (1 if config.NORM is None else 2)  # of A's rows with each other, too
    assert assembly.ptx.count("wgmma.mma_async") == products * steps
    if config.OUTPUT.itemsize == 2 and config.BN % 16 == 0 and config.SPLIT == 1 and config.STORED == 128:
        assert assembly.ptx.count("stmatrix.sync.aligned.m8n8.x4") == config.rows // 16 * config.BN // 64


@tilewright.jit
def stored_too(value, row, column, mask, extra):  # type: ignore[no-untyped-def]
    tl.store(extra[0] + row * 512 + column, value, mask=mask)
    return value


@pytest.mark.parametrize(
    "name", ["few rows, loaded apart", "depth split, loaded apart", "odder depth split", "one tile"]
)
def test_an_epilogue_stores_from_the_threads_that_have_the_sums(name: str) -> None:
    """The tiles leave no memory to exchange them in."""
    config = CONFIGS[name]._replace(EPILOGUE=stored_too)
    assert lower(traced_matmul(config, ("*f32",)), TARGET, NvidiaOptions()).shared_bytes == config.shared_bytes


@pytest.mark.parametrize("columns", [200, 208])
def test_products_too_wide_for_their_registers_are_refused(columns: int) -> None:
    """Before ptxas does: an instruction needs its sums and some more in the registers that a thread has at entry."""
    config = MatmulConfig(BM=192, BN=columns, CONSUMERS=3, STAGES=2)
    if columns == 200:
        compiled_matmul(config)
    else:
        with pytest.raises(LaunchError, match="ptxas wants more than 128 registers"):
            config.check()


@pytest.mark.parametrize(
    "config", [MatmulConfig(), MatmulConfig(BM=64, CONSUMERS=1, BN=128), MatmulConfig(BM=256, BN=128)]
)
def test_grouped_products(config: MatmulConfig) -> None:
    """Rows that are left out are stored through the staging tile, without memory of their own."""
    lowered = lower(traced_grouped(config), TARGET, NvidiaOptions())
    assembly = assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True))
    assert not assembly.resources.stack and lowered.shared_bytes <= config.shared_bytes + 1024


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(128, 128), (128, 64), (64, 64), (64, 32)])
def test_float32_in_parts(rows: int, columns: int, turned: bool) -> None:
    """Six products of four instructions a stage, and nothing spilled."""
    if turned and columns % 64:
        pytest.skip("a transposed B comes in 64 columns")
    config = MatmulConfig(
        BM=rows, BN=columns, CONSUMERS=rows // 64, STAGES=2, PARTS=3, OUTPUT=tl.float32, A_TRANSPOSED=turned,
        B_TRANSPOSED=turned, DEPENDENT=True, BATCHED=turned,
    )  # fmt: skip
    assembly = assemble_kernel(
        lower(traced_bf16x6(config), TARGET, NvidiaOptions()), TARGET, AssemblyOptions(strict=True)
    )
    assert assembly.resources.spill_stores == 0
    loops = machine_loops(assembly, "HGMMA")
    assert any(sum("HGMMA" in opcode for opcode in loop) == 24 for loop in loops)


@tilewright.jit
def bias_and_residual(value, row, column, mask, extra):
    bias, residual, columns = extra
    return value + tl.load(bias + column, mask=column < columns) + tl.load(residual + row * columns + column, mask=mask)


def test_an_epilogue_reads_where_the_sums_are() -> None:
    """There is no memory left to bring what it reads into another layout."""
    lowered = lower(
        traced_matmul(MatmulConfig(EPILOGUE=bias_and_residual), ("*k f32", "*k bf16", "i32")), TARGET, NvidiaOptions()
    )
    assembly = assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True))
    assert lowered.shared_bytes <= MatmulConfig().shared_bytes + 1024 and "ld.shared" not in assembly.ptx


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    """192 queries by 80 keys: 40 + 64 + 20 registers for scores, results and exponentials fit the 160 of a thread."""
    lowered = lower(traced_attention(AttentionConfig(CAUSAL=causal)), TARGET, NvidiaOptions())
    assembly = assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True))
    assert lowered.warps == 16 and assembly.resources.registers == 128 and not assembly.remarks
    assert not [remark for remark in lowered.remarks if "changes its layout" in remark.message]
    block = next(part for part in re.split(r"\n(?=\$L)", assembly.ptx) if part.count("m64n128k16") == 5)
    assert block.count("ex2.approx.ftz.f32") <= 42 and "ld.shared" not in assembly.ptx
    loop = min(machine_loops(assembly, "HGMMA"), key=lambda names: (names.count("HGMMA") != 13, len(names)))
    assert loop.count("HGMMA") == 13 and "R2UR" not in loop and len(loop) <= 400
    assert loop.count("MUFU") == 42 and loop.count("F2FP") == 20


def test_attention_of_one_query_begins_early() -> None:
    """Before it waits it asks for keys and values, in two boxes each; a warp beside the warpgroup is all that loads."""
    config = AttentionConfig(
        D=128, BN=128, CONSUMERS=1, FLAT=False, PING_PONG=False, LSE=True, SPLITS=16, DEPENDENT=True
    )
    lowered = lower(traced_attention(config), TARGET, NvidiaOptions())
    assembly = assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True))
    assert lowered.warps == 5 and lowered.dependent_launch and not assembly.remarks
    assert assembly.ptx.count("cp.async.bulk.prefetch.tensor.4d.L2") == 4
    assert assembly.ptx.index("griddepcontrol.launch_dependents") < assembly.ptx.index("griddepcontrol.wait")


@pytest.mark.parametrize(
    ("before", "after", "holds"),
    [
        ((64, 80), (64, 10, 8), True), ((64, 80), (64, 8, 10), False), ((64, 128), (8, 8, 128), True),
        ((24,), (3, 8), True), ((24,), (8, 3), False), ((6, 4), (4, 6), False), ((5, 1), (1, 5), True),
        ((1,), (), True), ((2, 3, 4), (6, 4), False),
    ],
)  # fmt: skip
def test_reshapes_that_move_nothing(before: tuple[int, ...], after: tuple[int, ...], holds: bool) -> None:
    assert reshapes_bits(before, after) == holds
