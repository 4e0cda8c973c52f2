"""The library's Hopper kernels compile for sm_90a: no spill, no serialised product, the products they are made of."""

from __future__ import annotations

import re

import pytest

import tilewright
import tilewright.language as tl
from tests.host.hopper_support import traced_attention, traced_grouped, traced_matmul, unit_rows
from tilewright.errors import LaunchError, MissingDependencyError
from tilewright.library.attention.hopper.config import AttentionForm
from tilewright.library.hopper import SHARED_BYTES
from tilewright.library.matmul.hopper.config import MatmulForm
from tilewright.targets.gpu.transfer import reshapes_bits
from tilewright.targets.nvidia.assemble import Assembly, AssemblyOptions
from tilewright.targets.nvidia.compile import assemble_kernel
from tilewright.targets.nvidia.inspect import sass
from tilewright.targets.nvidia.lowered import LoweredKernel
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import NvidiaTarget

TARGET = NvidiaTarget.named("sm_90a")


def compiled_matmul(form: MatmulForm) -> tuple[LoweredKernel, Assembly]:
    lowered = lower(traced_matmul(form), TARGET, NvidiaOptions())
    return lowered, assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True))


FORMS = {
    "bf16": MatmulForm(),
    "224 columns": MatmulForm(BN=224),
    "b shared": MatmulForm(SHARE_B=2),
    "s8": MatmulForm(INPUT=tl.int8, BK=128, SUM=tl.int32),
    "e4m3": MatmulForm(INPUT=tl.float8e4nv, BK=128),
    "tf32": MatmulForm(INPUT=tl.float32, OUTPUT=tl.float32, BK=32, STAGES=3),
    "256 rows": MatmulForm(BM=256, BN=128),
    "three consumers": MatmulForm(BM=192, CONSUMERS=3, BN=192, STAGES=3),
    "depth split": MatmulForm(BN=64, SPLIT=2, STAGES=6),
    "few rows": MatmulForm(BM=64, CONSUMERS=1, BN=112, A_ROWS=8, STAGES=10, EVICT_B="evict_first", DEPENDENT=True),
    "few rows, loaded apart": MatmulForm(
        BM=64, CONSUMERS=1, BN=224, A_ROWS=8, STAGES=7, SINGLE=True, EVICT_B="evict_first", DEPENDENT=True, FLIGHT=2
    ),
    "depth split, loaded apart": MatmulForm(
        BM=64, CONSUMERS=1, BN=64, BK=128, A_ROWS=8, SPLIT=2, STAGES=12, DEPENDENT=True, FLIGHT=3
    ),
    "few rows, normed": MatmulForm(
        BM=64, CONSUMERS=1, BN=224, A_ROWS=8, STAGES=7, SINGLE=True, DEPENDENT=True, FLIGHT=2, NORM=unit_rows
    ),
    "depth split, normed": MatmulForm(
        BM=64, CONSUMERS=1, BN=96, BK=128, A_ROWS=8, SPLIT=2, STAGES=8, DEPENDENT=True, FLIGHT=3, NORM=unit_rows
    ),
    "depth split by four": MatmulForm(BN=144, SPLIT=4, STAGES=6),
    "transposed": MatmulForm(A_TRANSPOSED=True, B_TRANSPOSED=True, BN=128),
    "batched": MatmulForm(BATCHED=True, BN=128),
    "apart": MatmulForm(LAG=3),
    "odd depth split": MatmulForm(BM=64, CONSUMERS=1, BN=40, SPLIT=2, STAGES=8),
    "odder depth split": MatmulForm(BM=64, CONSUMERS=1, BN=88, A_ROWS=8, SPLIT=2, STAGES=16, DEPENDENT=True),
    "sums where B was": MatmulForm(BN=224, SPLIT=2, STAGES=4),
    "depth split, B shared": MatmulForm(BM=64, CONSUMERS=1, BN=144, SHARE_B=2, SPLIT=2, STAGES=8),
    "one tile": MatmulForm(BN=112, STAGES=7, SINGLE=True, DEPENDENT=True, EVICT_B="evict_first"),
    "in turns": MatmulForm(BN=208, TURNS=True),
    "in turns, stored by half rows": MatmulForm(BN=208, TURNS=True, STORED=64),
    "in turns, b shared": MatmulForm(BM=64, SHARE_B=2, TURNS=True),
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
    "name", ["bf16", "224 columns", "256 rows", "few rows", "few rows, loaded apart", "transposed", "in turns"]
)
def test_main_loops_use_uniform_registers(name: str) -> None:
    """Of products and of loads: nothing goes from vector to uniform registers, and the loop is as by hand."""
    _, assembly = compiled_matmul(FORMS[name])
    (products,) = machine_loops(assembly, "HGMMA")
    assert "R2UR" not in products and products.count("HGMMA") == FORMS[name].rows // 64 * FORMS[name].BK // 16
    assert len(products) <= 46 + 4 * products.count("HGMMA")
    assert all("R2UR" not in loop for loop in machine_loops(assembly, "UTMALDG"))


@pytest.mark.slow(but_every=3)
@pytest.mark.parametrize("name", FORMS)
def test_matmul(name: str) -> None:
    form = FORMS[name]
    lowered, assembly = compiled_matmul(form)
    assert lowered.shared_bytes == form.shared_bytes <= SHARED_BYTES
    assert not assembly.remarks and lowered.dependent_launch == form.DEPENDENT
    steps = form.BK * form.INPUT.itemsize // 32
    products = form.rows // 64 * (1 if form.NORM is None else 2)  # of A's rows with each other, too
    assert assembly.ptx.count("wgmma.mma_async") == products * steps
    if form.OUTPUT.itemsize == 2 and form.BN % 16 == 0 and form.SPLIT == 1 and form.STORED == 128:
        assert assembly.ptx.count("stmatrix.sync.aligned.m8n8.x4") == form.rows // 16 * form.BN // 64


@tilewright.jit
def stored_too(value, row, column, mask, extra):  # type: ignore[no-untyped-def]
    tl.store(extra[0] + row * 512 + column, value, mask=mask)
    return value


@pytest.mark.parametrize(
    "name", ["few rows, loaded apart", "depth split, loaded apart", "odder depth split", "one tile"]
)
def test_an_epilogue_stores_from_the_threads_that_have_the_sums(name: str) -> None:
    """The tiles leave no memory to exchange them in."""
    form = FORMS[name]._replace(EPILOGUE=stored_too)
    assert lower(traced_matmul(form, ("*f32",)), TARGET, NvidiaOptions()).shared_bytes == form.shared_bytes


@pytest.mark.parametrize("columns", [200, 208])
def test_products_too_wide_for_their_registers_are_refused(columns: int) -> None:
    """Before ptxas does: an instruction needs its sums and some more in the registers that a thread has at entry."""
    form = MatmulForm(BM=192, BN=columns, CONSUMERS=3, STAGES=2)
    if columns == 200:
        compiled_matmul(form)
    else:
        with pytest.raises(LaunchError, match="ptxas wants more than 128 registers"):
            form.check()


@pytest.mark.parametrize("form", [MatmulForm(), MatmulForm(BM=64, CONSUMERS=1, BN=128), MatmulForm(BM=256, BN=128)])
def test_grouped_products(form: MatmulForm) -> None:
    """Rows that are left out are stored through the staging tile, without memory of their own."""
    lowered = lower(traced_grouped(form), TARGET, NvidiaOptions())
    assembly = assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True))
    assert not assembly.resources.stack and lowered.shared_bytes <= form.shared_bytes + 1024


@tilewright.jit
def bias_and_residual(value, row, column, mask, extra):
    bias, residual, columns = extra
    return value + tl.load(bias + column, mask=column < columns) + tl.load(residual + row * columns + column, mask=mask)


def test_an_epilogue_reads_where_the_sums_are() -> None:
    """There is no memory left to bring what it reads into another layout."""
    lowered = lower(
        traced_matmul(MatmulForm(EPILOGUE=bias_and_residual), ("*k f32", "*k bf16", "i32")), TARGET, NvidiaOptions()
    )
    assembly = assemble_kernel(lowered, TARGET, AssemblyOptions(strict=True))
    assert lowered.shared_bytes <= MatmulForm().shared_bytes + 1024 and "ld.shared" not in assembly.ptx


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool) -> None:
    """192 queries by 80 keys: 40 + 64 + 20 registers for scores, results and exponentials fit the 160 of a thread."""
    lowered = lower(traced_attention(AttentionForm(CAUSAL=causal)), TARGET, NvidiaOptions())
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
    form = AttentionForm(D=128, BN=128, CONSUMERS=1, FLAT=False, TURNS=False, LSE=True, SPLITS=16, DEPENDENT=True)
    lowered = lower(traced_attention(form), TARGET, NvidiaOptions())
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
