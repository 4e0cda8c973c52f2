"""Paged attention on GPUs: parts of the keys of sequences with few new tokens, blocks of queries of the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tilewright.dtypes import DType
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.library.attention.hopper.paged import chunk_call, chunk_config, paged_calls, paged_config
from tilewright.library.attention.hopper.paged_config import PagedConfig
from tilewright.library.attention.paged import scales_of
from tilewright.library.attention.paged_simt_kernel import combine_paged_parts, paged_blocks, paged_parts
from tilewright.library.attention.problem import SMALLEST
from tilewright.library.binding import bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.cost import Cost, estimate
from tilewright.library.generated.expressions import compute_type, language_type
from tilewright.library.generated.generate import next_power_of_2
from tilewright.symbolic import Size, ceil_divide, lift, maximum, minimum, product, simplify, upper_bound
from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.launch.jit import JITFunction

MOST_KEY_PARTS = 16  # of the keys of a sequence, at most
PART_KEYS = 32  # of a block, of which one is multiplied while registers take the next
_WIDE_ROW = 256  # bytes of a head from which on blocks are smaller


def gpu_paged_attention(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The launches of `attention.hopper.paged` or of `attention.paged_simt_kernel`; raises `NotImplementedError` where
    the group holds other nodes."""
    anchor = group.anchor
    assert anchor is not None
    if group.nodes != [anchor]:
        raise NotImplementedError(f"{group.name}: attention over pages stands alone")
    operands = _operands(anchor)
    constants = _constants(anchor, operands)
    few = paged_config(constants, operands, graph) if target.wgmma else None
    if few is not None:
        return [_hopper_candidate(few, operands, constants, target)]
    parts, sums = _temporaries(group.name, operands, constants)
    calls = _calls({**operands, "parts": parts, "sums": sums}, constants, target.machine().processors)
    reasons = {
        "keys": f"blocks of {constants['BLOCK_T']}, up to {MOST_KEY_PARTS} parts",
        "rows": [constants["ROWS"], constants["BLOCK"]],
    }
    cost = _cost(operands, constants, calls[0], target)
    return [Candidate("paged attention", tuple(Stage((call,)) for call in calls), cost, (parts, sums), reasons)]


def _hopper_candidate(
    few: PagedConfig, operands: dict[str, Value], constants: dict[str, Any], target: Target
) -> Candidate:
    """Two launches.  Chunks come first: where there are none their launch ends while the next one asks for its keys."""
    many = chunk_config(few)
    if many is None:
        chunks = _calls(operands, constants, target.machine().processors)[-1]
    else:
        chunks = chunk_call(many, few, operands, constants, target)
    calls = paged_calls(few, operands, constants, target)
    reasons = {
        "few tokens": f"{few.ROWS} rows x {few.BN} keys, parts in clusters",
        "chunks": "blocks of registers" if many is None else f"{many.BM} queries x {many.BN} keys",
    }
    cost = _cost(operands, constants, calls[-1], target)
    return Candidate("hopper paged attention", (Stage((chunks,)), Stage(calls)), cost, (), reasons)


def _cost(operands: Mapping[str, Value], constants: Mapping[str, Any], call: KernelCall, target: Target) -> Cost:
    """Of all sequences at their longest."""
    query, tables = operands["q"], operands["tables"]
    page, columns = constants["PAGE"], constants["HEAD"] + constants["VALUE_HEAD"]
    context = simplify(lift(product(tables.shape)) * page)
    of_queries = simplify(lift(query.shape[0]) * constants["HEADS"] * columns)
    of_keys = simplify(lift(context) * constants["KEY_HEADS"] * columns * operands["keys"].dtype.itemsize)
    moved = simplify(lift(of_keys) + of_queries * query.dtype.itemsize)
    flops = simplify(lift(of_queries) * tables.shape[1] * page * 2)
    return estimate(target.machine(), moved, flops, product(call.grid), query.dtype, 0.5)


def _operands(anchor: Node) -> dict[str, Value]:
    """The tensors of the op by the names of the kernels' parameters."""
    names = ("q", "keys", "values", "tables", "starts", "lengths")
    found = {name: value for name, value in zip(names, anchor.inputs[:6], strict=True) if value is not None}
    return {**found, **scales_of(anchor), "out": anchor.output}


def _constants(anchor: Node, operands: Mapping[str, Value]) -> dict[str, Any]:
    """What all kernels know when they are compiled."""
    query, keys, values = operands["q"], operands["keys"], operands["values"]
    heads, width, key_heads, value_width = query.shape[1], query.shape[2], keys.shape[1], values.shape[2]
    assert isinstance(heads, int) and isinstance(width, int) and isinstance(key_heads, int)
    assert isinstance(value_width, int)
    padded, value_padded = (max(SMALLEST, next_power_of_2(size)) for size in (width, value_width))
    block, key_block = _blocks(query.dtype, max(padded, value_padded))
    return {
        "HEADS": heads, "KEY_HEADS": key_heads, "HEAD": width, "VALUE_HEAD": value_width,
        "PAGE": anchor.attributes["page"], "ROWS": max(SMALLEST, next_power_of_2(heads // key_heads)), "BLOCK": block,
        "BLOCK_T": key_block, "BLOCK_D": padded, "BLOCK_V": value_padded, "WINDOW": anchor.attributes["window"],
        "SOFTCAP": float(anchor.attributes["softcap"]), "scale": float(anchor.attributes["scale"]),
        "TYPE": language_type(compute_type(query.dtype)), "SPLITS": MOST_KEY_PARTS,
        "BLOCK_P": next_power_of_2(MOST_KEY_PARTS),
    }  # fmt: skip


def _temporaries(name: str, operands: Mapping[str, Value], constants: Mapping[str, Any]) -> tuple[Value, Value]:
    """The results of parts, and the logarithms of their weights."""
    working = compute_type(operands["q"].dtype)
    shape = (operands["lengths"].shape[0], constants["KEY_HEADS"], MOST_KEY_PARTS, constants["ROWS"])
    return Value(f"{name}.parts", working, (*shape, constants["VALUE_HEAD"])), Value(f"{name}.sums", working, shape)


def _calls(operands: dict[str, Value], constants: dict[str, Any], processors: int) -> tuple[KernelCall, ...]:
    """Parts, what puts them together, and blocks; each sequence is one of the two kinds."""
    tokens, sequences = operands["q"].shape[0], operands["lengths"].shape[0]
    sizes: dict[str, Size] = {
        "tokens": tokens, "slots": operands["keys"].shape[0], "columns": operands["tables"].shape[1],
        "sequences": sequences,
    }  # fmt: skip
    given: dict[str, Operand] = dict(operands)
    types: dict[str, str] = {}
    searches = max(1, int(upper_bound(sequences)).bit_length())
    constants = {**constants, "FULL": max(1, processors // 2), "SEARCHES": searches}
    bind_sizes(sizes, given, types, constants)
    heads, key_heads = constants["HEADS"], constants["KEY_HEADS"]
    few = {**constants, "BLOCK_T": min(constants["BLOCK_T"], PART_KEYS)}
    # As `part_length` has it: parts of no key would be launched to end at once.
    least = lift(maximum(lift(sequences) * key_heads // constants["FULL"], 1)) * few["BLOCK_T"]
    longest = lift(operands["tables"].shape[1]) * constants["PAGE"]
    splits = minimum(ceil_divide(longest, simplify(least)), MOST_KEY_PARTS)
    blocks = simplify(lift(tokens) * (heads // key_heads) // constants["BLOCK"] + sequences)
    return (
        _call(paged_parts, given, types, few, (splits, key_heads, sequences), 128),
        _call(combine_paged_parts, given, types, few, (heads, sequences, 1), 128),
        _call(paged_blocks, given, types, constants, (blocks, key_heads, 1), 256 if constants["BLOCK"] > 32 else 128),
    )


def _blocks(dtype: DType, width: int) -> tuple[int, int]:
    """Rows of a block of queries and keys of a block, which fit registers and shared memory."""
    is_wide = width * dtype.itemsize > _WIDE_ROW
    if dtype.itemsize > 2:
        return SMALLEST, SMALLEST if is_wide else 32
    return (64, 32) if is_wide else (128, 64)


def _call(
    kernel: JITFunction, operands: dict[str, Operand], types: dict[str, str], constants: dict[str, Any],
    grid: tuple[Size, Size, Size], threads: int,
) -> KernelCall:  # fmt: skip
    """A launch that is given of all operands and constants what the kernel takes."""
    names = kernel.argument_names
    scales = ("scales_0", "scales_1") if "scales" in names else ()
    return KernelCall(
        kernel, {name: item for name, item in operands.items() if name in (*names, *scales)},
        {name: item for name, item in types.items() if name in names},
        {name: item for name, item in constants.items() if name in names}, grid, threads=threads,
    )  # fmt: skip
