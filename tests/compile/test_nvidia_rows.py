"""Rows on GPUs: wide ones leave room for several CTAs, narrow ones need no exchange; results do not change by it."""

# mypy: ignore-errors

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright.ir.core import Parameter
from tilewright.ir.interpreter import run
from tilewright.ir.parser import parse_function
from tilewright.ir.verifier import verify
from tilewright.library.rows import simt_kernel as gpu_rows
from tilewright.library.rows.simt_config import row_config
from tilewright.passes.pipeline import simplify
from tilewright.targets.gpu.layouts import assign
from tilewright.targets.gpu.memory_order import undisturbed_loads
from tilewright.targets.gpu.recompute import deferred_operations, recompute_after_reductions
from tilewright.targets.nvidia.assemble import AssemblyOptions, assemble
from tilewright.targets.nvidia.compile import compile_function
from tilewright.targets.nvidia.layout_rules import layout_rules
from tilewright.targets.nvidia.options import NvidiaOptions
from tilewright.targets.nvidia.pipeline import lower
from tilewright.targets.nvidia.target import NvidiaTarget

TARGET = NvidiaTarget.named("sm_90a")
REGISTERS = 65536  # of a multiprocessor
ARRAYS = {"softmax": ("x", "out"), "layer norm": ("x", "weight", "bias", "out"), "sum": ("x", "residual", "out")}
FRACTIONS = ("epsilon", "inverse")


def library_kernel(name, kind, block, rows, mask):
    """The Tile IR of a kernel of the library for blocks of `rows` rows."""
    kernel = gpu_rows.softmax if name == "softmax" else gpu_rows.normalize
    constants = {"ROWS": rows, "BLOCK": block, "MASK": mask}
    if name == "softmax":
        constants["LOG"] = False
    else:
        absent = {"weight", "bias", "residual", "total"} - set(ARRAYS[name])
        constants |= {"CENTER": True, "EARLY": False, **dict.fromkeys(absent)}
    types, parameters = {}, {}
    for entry in (entry.name for entry in kernel.parameters if entry.name not in constants):
        array = entry in ARRAYS[name]
        types[entry] = f"*{kind}" if array else "f32" if entry in FRACTIONS else "i32"
        if entry not in FRACTIONS:
            parameters[entry] = Parameter(entry, 1 if entry == "rows" else 16, array)
    return kernel.trace(types, constants, parameters)


def built(function, warps):
    lowered = lower(function, TARGET, NvidiaOptions.of_launch({"num_warps": warps}))
    return lowered, assemble(lowered.text, lowered.symbol, TARGET, AssemblyOptions())


@pytest.mark.slow(but_every=2)
@pytest.mark.parametrize("name", ["softmax", "layer norm"])
@pytest.mark.parametrize(("columns", "kind"), [(32768, "bf16"), (30000, "bf16"), (32768, "f16")])
def test_two_wide_rows_fit_a_multiprocessor(name, columns, kind):
    config = row_config(4096, columns, 132)
    lowered, assembly = built(
        library_kernel(name, kind, config.block, 1, columns != config.block), (config.threads // 32)
    )
    resources = assembly.resources
    assert lowered.assigned.attributes["gpu.resident"] == 2
    assert 2 * config.threads * resources.registers <= REGISTERS
    assert (resources.spill_stores, resources.spill_loads, resources.stack) == (0, 0, 0)
    # The whole row is asked for before any of it is used.
    vectors = config.block // (config.threads * 8)
    assert len(re.findall(r"\bld\.global\S*\.v4\.b32", assembly.ptx[: assembly.ptx.index("shfl.sync")])) == vectors


@pytest.mark.parametrize(
    ("name", "kind", "block", "warps"),
    [("softmax", "bf16", 8192, 8), ("layer norm", "f32", 16384, 16), ("sum", "bf16", 32768, 16)],
    ids=["many fit as it is", "nothing is narrower", "two rows are no narrower than their sum"],
)
def test_blocks_are_kept_where_nothing_is_gained(name, kind, block, warps):
    assignment = assign(simplify(library_kernel(name, kind, block, 1, False)), TARGET, warps, layout_rules(TARGET))
    assert recompute_after_reductions(assignment, warps) is assignment
    assert not deferred_operations(assignment.function)


@pytest.mark.parametrize("name", ["softmax", "layer norm"])
@pytest.mark.parametrize("columns", [16384, 10000])
def test_computing_again_changes_no_bit(name, columns, rng):
    function = simplify(library_kernel(name, "f16", 16384, 1, columns != 16384))
    assignment = recompute_after_reductions(assign(function, TARGET, 8, layout_rules(TARGET)), 8)
    written = assignment.function
    verify(written)
    parse_function(str(written))
    assert str(written).count("gpu.kept") == 2  # once after each of two reductions
    results = []
    numbers = {"rows": 2, "columns": columns, "epsilon": 1e-5, "inverse": 1.0 / columns}
    arrays = {array: rng.standard_normal(2 * 16384).astype(np.float16) for array in ARRAYS[name]}
    for kernel in (function, written):
        given = {**numbers, **arrays, "out": np.zeros(2 * 16384, np.float16)}
        run(kernel, [given.get(parameter.name, 16384) for parameter in kernel.parameters], (2,))
        results.append(given["out"])
    assert np.array_equal(*results) and np.any(results[0])
    layouts = {value for operation in written.walk() for value in operation.results if value.type.rank}
    assert layouts <= set(assignment.layouts)


@pytest.mark.parametrize("block", [128, 256, 512])
@pytest.mark.parametrize("name", ["softmax", "layer norm"])
def test_warps_have_narrow_rows_for_themselves(name, block):
    config = row_config(65536, block, 132)
    lowered, assembly = built(library_kernel(name, "bf16", block, config.rows, False), config.threads // 32)
    assert config.rows > 1 and lowered.shared_bytes == 0
    assert not re.findall(r"\bbar(rier)?\.(sync|cta)", assembly.ptx)
    assert config.threads * assembly.resources.registers * 8 <= REGISTERS  # 8 CTAs: 32 KB of rows on their way


@tilewright.jit
def sums(x, y, z, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i) + tl.load(y + i))
    tl.store(y + i, tl.load(z + i))


def test_loads_are_done_at_any_time_only_where_nobody_stores():
    types = dict.fromkeys(("x", "y", "z", "out"), "*f32")
    alone = {name: Parameter(name, 16, name != "z") for name in types}
    function = sums.trace(types, {"N": 256}, alone)
    found = [
        operation.operands[0].definition.operands[0].definition.operands[0].name
        for operation in undisturbed_loads(function)
    ]
    assert found == ["x"]  # y is stored to, z may be another's memory


@tilewright.jit
def multiply_again(x, out, n, N: tl.constexpr):
    i = tl.arange(0, N)
    v = tl.load(x + i).to(tl.float32)
    total = tl.sum(v, axis=0)
    for _ in range(n):
        v = v * total
    tl.store(out + i, v)


def test_kernels_with_loops_are_left_alone():
    types = {"x": "*f16", "out": "*f32", "n": "i32"}
    lowered, _ = built(multiply_again.trace(types, {"N": 32768}), 16)
    assert "gpu.resident" not in lowered.assigned.attributes


@tilewright.jit
def odd_softmax(x, out, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    place = tl.program_id(0) * columns + column
    value = tl.load(x + place, mask=column < columns, other=-float("inf")).to(tl.float32)
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + place, power / tl.sum(power, axis=0), mask=column < columns)


def test_rows_are_not_spilled_for_the_sake_of_more_ctas():
    """Of a number of columns of which nothing is known: elements come one by one, and addresses take registers."""
    aligned = {name: Parameter(name, 16) for name in ("x", "out")}
    types = {"x": "*f16", "out": "*f16", "columns": "i32"}
    function = odd_softmax.trace(types, {"BLOCK": 16384}, aligned)
    lowered = lower(function, NvidiaTarget.named("sm_80"), NvidiaOptions.of_launch({"num_warps": 4}))
    assert '"nvvm.minctasm"' in lowered.text
    assembly = assemble(lowered.text, lowered.symbol, NvidiaTarget.named("sm_80"), AssemblyOptions(strict=True))
    (resident,) = re.findall(r"\.minnctapersm (\d+)", assembly.ptx)
    assert int(resident) < lowered.resident and assembly.resources.spill_stores == 0


@tilewright.jit
def scaled(x, weight, out, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    place, inside = tl.program_id(0) * columns + column, column < columns
    row = tl.load(x + place, mask=inside, other=0)
    factor = tl.load(weight + column, mask=inside, other=0)
    value = row.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / columns + 1e-6)
    tl.store(out + place, (value * scale).to(row.dtype) * factor, mask=inside)


def test_blocks_computed_again_leave_room_for_more_ctas_than_a_guess_of_the_registers_says():
    """16 numbers of a thread, and as many weights: all 2,048 threads of a multiprocessor, not half of them."""
    aligned = {name: Parameter(name, 16) for name in ("x", "weight", "out", "columns")}
    types = {**dict.fromkeys(("x", "weight", "out"), "*bf16"), "columns": "i32"}
    lowered, assembly = built(scaled.trace(types, {"BLOCK": 8192}, aligned), 16)
    assert lowered.resident == 4 and assembly.resources.registers <= 32 and assembly.resources.spill_stores == 0


@tilewright.jit
def added(x, y, weight, total, out, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    place, inside = tl.program_id(0) * columns + column, column < columns
    both = tl.load(x + place, mask=inside, other=0) + tl.load(y + place, mask=inside, other=0)
    tl.store(total + place, both, mask=inside)
    value = both.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / columns + 1e-6)
    factor = tl.load(weight + column, mask=inside, other=0)
    tl.store(out + place, (value * scale).to(both.dtype) * factor, mask=inside)


def test_nothing_is_computed_again_where_the_assembler_needs_no_fewer_registers_then():
    aligned = {name: Parameter(name, 16) for name in ("x", "y", "weight", "total", "out", "columns")}
    types = {**dict.fromkeys(("x", "y", "weight", "total", "out"), "*bf16"), "columns": "i32"}
    function, options = added.trace(types, {"BLOCK": 4096}, aligned), NvidiaOptions.of_launch({"num_warps": 8})
    chosen = compile_function(function, TARGET, options)
    plain, again = (lower(function, TARGET, options, recompute=recompute) for recompute in (False, True))
    registers = [
        assemble(kernel.text, kernel.symbol, TARGET, AssemblyOptions()).resources.registers for kernel in (plain, again)
    ]
    assert plain.resident is None and chosen.resources.registers == min(registers)


@tilewright.jit
def sums_of_columns(x, out, R: tl.constexpr, C: tl.constexpr, KEEP: tl.constexpr):
    row, column = tl.arange(0, R)[:, None], tl.arange(0, C)
    value = tl.load(x + row * C + column[None, :])
    total = tl.sum(value, axis=0)
    tl.store(out + column, total * 2.0)
    if KEEP:
        tl.store(x + row * C + column[None, :], value / total[None, :])


@pytest.mark.parametrize(("keep", "vectors", "words"), [(False, 0, 8), (True, 8, 0)], ids=["stored", "used again"])
def test_threads_fetch_the_parts_of_what_they_store(keep, vectors, words):
    """Of eight warps: each thread those of its one column, unless all threads of a column need the sum again."""
    types = {"x": "*f32", "out": "*f32"}
    parameters = {name: Parameter(name, 16, True) for name in types}
    _, assembly = built(sums_of_columns.trace(types, {"R": 32, "C": 128, "KEEP": keep}, parameters), 8)
    assert len(re.findall(r"\bld\.shared\.b32", assembly.ptx)) == words
    assert len(re.findall(r"\bld\.shared\.v4", assembly.ptx)) == vectors
    assert len(re.findall(r"\bst\.shared\.v4", assembly.ptx)) == (not keep)
