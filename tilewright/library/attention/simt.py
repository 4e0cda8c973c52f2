"""Attention groups on GPUs: on Hopper the kernel of tensor copies and wgmma; else the plain kernel, which takes every
stride, bias and element type."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.library.attention.hopper.candidates import hopper_candidates
from tilewright.library.attention.hopper.choice import BLOCK_CLOCKS
from tilewright.library.attention.hopper.decoding import decoding_candidates
from tilewright.library.attention.problem import SMALLEST, typical
from tilewright.library.attention.simt_block import block_attention
from tilewright.library.attention.simt_kernel import attention
from tilewright.library.attention.slots import attention_slots
from tilewright.library.attention.strided import (
    Copies,
    Strided,
    strided_candidate,
    strided_operands,
    with_strided_operands,
)
from tilewright.library.binding import bind_extra
from tilewright.library.candidate import Candidate, KernelCall, Operand
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.generated.source import ExtraReferences
from tilewright.symbolic import Size, ceil_divide, product, upper_bound
from tilewright.targets.base import Target

# Numbers of a head of which registers hold no more than 16 rows; bytes of one that wants all warps.
_WIDEST_OF_WARPS = 1024
# Blocks of up to so many queries reach this part of the rate of multiply-adds (float32; H200, 2026-12-01).
_SMALL_ROWS, _SMALL_BLOCKS = 32, 0.25
# Threads of a CTA that has the registers of a multiprocessor to itself, scores that an instruction of a warp has, and
# bytes that a thread spills for a block of keys, by numbers of a row of keys and of values (ptxas 13.5, sm_90a).
_WIDE_THREADS, _INSTRUCTION_SCORES = 256, 128
_SPILLED_BYTES = {4096: 4000, 1536: 600}
# By the width of heads: queries and keys of a block of float32, and threads. Without spills from sm_80 on.
_Blocks = tuple[int, int, int]
_BLOCKS: dict[int, _Blocks] = {32: (64, 64, 128), 64: (64, 32, 128), 128: (64, 64, 256)}


def gpu_attention(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of an attention group; raises as `strided_candidate`."""
    blocks = block_attention(group, graph, target)
    group, copies = with_strided_operands(group, graph, target, quantizes=True)
    plain = _plain(group, graph, target, None)
    (call,) = plain.stages[0].calls
    strided = [
        *(decoding_candidates(group, graph, target) or hopper_candidates(group, graph, call, target)),
        *(_plain(group, graph, target, larger) for larger in _larger_blocks(call, strided_operands(group))),
        plain,
    ]
    return [*blocks, *(_with_copies(copies, candidate, target) for candidate in strided)]


def _plain(group: Group, graph: Graph, target: Target, blocks: _Blocks | None) -> Candidate:
    """The plain kernel, in the blocks that any sizes and types take or in other ones."""
    found = strided_candidate(group, target, partial(_calls, group, graph, target.kernels.widest_head, blocks))
    (call,) = found.stages[0].calls
    cost = replace(found.cost, seconds=_plain_seconds(call, strided_operands(group), target))
    reasons = found.reasons if blocks is None else {**found.reasons, "blocks": "{} queries x {} keys".format(*blocks)}
    return replace(found, cost=cost, reasons=reasons)


def _larger_blocks(call: KernelCall, strided: Strided) -> list[_Blocks]:
    """Blocks of float32 that do more with each number from shared memory, where there are queries for them."""
    wide = max(call.constants["BLOCK_D"], call.constants["BLOCK_V"])
    if strided.sources["q"].dtype != float32 or typical(strided.views["q"].shape[2]) <= call.constants["BLOCK_S"]:
        return []
    return [_BLOCKS[wide]] if wide in _BLOCKS else []


def _with_copies(copies: Copies, candidate: Candidate, target: Target) -> Candidate:
    """A candidate with its copies, each of which costs at least a launch."""
    count = len(copies.before) + len(copies.after)
    seconds = candidate.cost.seconds + count * target.machine().launches.kernel
    cost = replace(candidate.cost, seconds=seconds)
    return copies.around(replace(candidate, cost=cost))


def _plain_seconds(call: KernelCall, strided: Strided, target: Target) -> float:
    """The expected time of the plain kernel, whose CTAs walk the keys block by block, two on a multiprocessor; of wide
    heads of 16 bits one, in which not all warps have scores, and none hides the loads and what registers spill."""
    machine, dtype = target.machine(), strided.sources["q"].dtype
    q, keys = strided.views["q"], typical(strided.views["k"].shape[2])
    rows, block = call.constants["BLOCK_S"], call.constants["BLOCK_T"]
    tiles = -(-typical(q.shape[2]) // rows) * typical(product(q.shape[:2]), 1 << 20)
    wide = call.constants["BLOCK_D"] + call.constants["BLOCK_V"]
    reached = _SMALL_BLOCKS if dtype == float32 and rows <= _SMALL_ROWS else 0.5
    rate, resident = reached * machine.dot_rate(dtype, target.tf32), 2
    clocks = BLOCK_CLOCKS + 2.0 * rows * block * wide / rate
    if dtype.bits <= 16 and call.threads >= _WIDE_THREADS:
        idle = max(1.0, machine.warps(call.threads) * _INSTRUCTION_SCORES / (rows * block)) - 1
        spilled = next((spilled for width, spilled in _SPILLED_BYTES.items() if wide >= width), 0)
        clocks += idle * 2.0 * rows * block * call.constants["BLOCK_D"] / rate
        clocks += block * wide * dtype.itemsize / machine.l2 + 2 * spilled * call.threads / machine.lanes
        resident = 1
    blocks = -(-keys // block) / (2 if call.constants["CAUSAL"] and tiles > 1 else 1)
    return (
        machine.launches.kernel + -(-tiles // (resident * machine.processors)) * (blocks + 1) * clocks / machine.clock
    )


def _calls(
    group: Group, graph: Graph, widest: int, blocks: _Blocks | None, q: Value, operands: dict[str, Operand],
    types: dict[str, str], constants: dict[str, Any], keys: Size,
) -> list[KernelCall]:  # fmt: skip
    """One launch: blocks of queries as large as there can be, up to 64 (32 in float32, whose products are slow; 16 of
    wide heads).

    Raises `NotImplementedError` for heads of which no block fits shared memory (`separate_wide_heads` leaves none where
    all programs of an engine are for GPUs).
    """
    batch, heads, queries, _ = q.shape
    wide = q.dtype.itemsize > 2
    head, value_head = (max(SMALLEST, next_power_of_2(constants[name])) for name in ("HEAD", "VALUE_HEAD"))
    row_bytes = max(head, value_head) * q.dtype.itemsize
    if row_bytes > widest:
        raise NotImplementedError(f"heads of {row_bytes} bytes do not fit shared memory; up to {widest} do")
    most = SMALLEST if max(head, value_head) >= _WIDEST_OF_WARPS else 32 if wide or row_bytes > 256 else 64
    block = min(most, max(SMALLEST, next_power_of_2(int(min(upper_bound(queries), most)))))
    key_block = min(most, max(SMALLEST, next_power_of_2(keys))) if isinstance(keys, int) else most
    threads = 256 if row_bytes >= _WIDEST_OF_WARPS else 128 if block > SMALLEST else 32 if not wide else 64
    block, key_block, threads = blocks or (block, key_block, threads)
    given = {**constants, "BLOCK_D": head, "BLOCK_V": value_head, "BLOCK_S": block, "BLOCK_T": key_block}
    lengths = operands.pop("lengths_0", None)
    extra = ExtraReferences(first=0 if lengths is None else 1)
    if lengths is not None:
        operands["extra_0"] = lengths
    given |= {"COUNTED": lengths is not None, "EPILOGUE": attention_slots(group, graph, extra).function}
    bind_extra(extra, operands, types)
    grid = (ceil_divide(queries, block), heads, batch)
    return [KernelCall(attention, dict(operands), dict(types), given, grid, threads=threads, evenly=True)]
