"""Paged attention on Hopper: chunks of prompts in one launch, sequences with few new tokens in another."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tilewright.language as tl
from tilewright.graph.core import Graph, Value
from tilewright.graph.updates import writes_in_place
from tilewright.library.attention.hopper.config import AttentionConfig
from tilewright.library.attention.hopper.decoding_config import CLUSTER_CTAS
from tilewright.library.attention.hopper.paged_chunks_kernel import paged_chunks
from tilewright.library.attention.hopper.paged_config import PagedConfig
from tilewright.library.attention.hopper.paged_kernel import paged_tokens
from tilewright.library.attention.hopper.paged_narrow_kernel import paged_narrow_tokens
from tilewright.library.candidate import KernelCall, Operand, TiledOperand
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.hopper import is_possible
from tilewright.symbolic import Size, lift, minimum, simplify, upper_bound
from tilewright.targets.base import Target

_LONG_PART = 2048  # keys from which on a sequence may hold up the others
_CHUNK_KEYS = {64: 96, 128: 80}  # of a block, by the width of heads
# Four CTAs have room on a processor, for many sequences: 64 and 128 of 1,024 keys take 73 and 138 us instead of 77 and
# 144 with three, 48 take 63 instead of 58 us (H200, 2026-11-30).
_FOUR_CTAS_TILES = 3
_FOUR_CTAS_REGISTERS = 96  # of a thread
_MOST_SEQUENCES = 4096  # whose starts a CTA looks at together


def paged_config(constants: Mapping[str, Any], operands: Mapping[str, Value], graph: Graph) -> PagedConfig | None:
    """The config without its parts; None where the kernel cannot compute the op."""
    if constants["HEAD"] != constants["VALUE_HEAD"] or operands["q"].dtype.itemsize != 2:
        return None
    if upper_bound(operands["lengths"].shape[0]) > _MOST_SEQUENCES:
        return None
    indices = (operands["tables"], operands["starts"], operands["lengths"])
    common: dict[str, Any] = {
        "D": constants["HEAD"], "ROWS": constants["ROWS"], "GROUP": constants["HEADS"] // constants["KEY_HEADS"],
        "PAGE": constants["PAGE"], "WINDOW": constants["WINDOW"], "SOFTCAP": constants["SOFTCAP"],
        "EARLY": all(value in graph.inputs and value not in graph.mutations for value in indices),
        "TYPE": tl.dtype(operands["q"].dtype),
    }  # fmt: skip
    pools = (operands["keys"], operands["values"])
    if pools[0].dtype != operands["q"].dtype:
        common |= {"POOL": tl.dtype(pools[0].dtype), "SCALED": "scales_0" in operands}
    else:
        common["AHEAD"] = common["EARLY"] and all(_is_there_before(pool, graph) for pool in pools)
    config = PagedConfig(**common)
    return config if all(is_possible(config._replace(SPLITS=splits)) for splits in (1, CLUSTER_CTAS)) else None


def _is_there_before(pool: Value, graph: Graph) -> bool:
    """Whether a call begins with the keys or values of all tokens but the new ones where the kernel reads them: in an
    input, into which at most the new ones are written."""
    if pool in graph.inputs:
        return pool not in graph.mutations
    node = graph.producers().get(pool)
    if node is None or node.op != "scatter_update" or node.inputs[0] not in graph.inputs:
        return False
    return writes_in_place(node, graph.nodes, graph)


def paged_calls(
    config: PagedConfig, operands: Mapping[str, Value], constants: Mapping[str, Any], target: Target
) -> tuple[KernelCall, ...]:
    """The launches, each with the sizes that it is for, of which the first that applies is run."""
    sequences, columns = operands["lengths"].shape[0], operands["tables"].shape[1]
    most = upper_bound(columns)
    long = [(splits, -(-splits * _LONG_PART // config.PAGE)) for splits in (8, 4, 2)]
    long = [(splits, least) for splits, least in long if least <= most]
    calls = []
    key_heads, processors = constants["KEY_HEADS"], target.machine().processors
    for splits, end in _ranges(key_heads, processors):
        while long and long[0][0] > splits:
            condition = simplify(lift(most) - columns), most - long[0][1]
            calls.append(_call(config._replace(SPLITS=long.pop(0)[0]), operands, constants, condition))
        last = None if end is None else (sequences, end)
        calls.append(_call(config._replace(SPLITS=splits), operands, constants, last))
    if (config.D, config.ROWS, config.SOFTCAP, config.POOL) == (128, 16, 0.0, None):
        # Where three CTAs on a processor take all sequences, each has more under way.
        calls[-1] = replace(calls[-1], condition=(sequences, 3 * processors // key_heads))
        four = _call(config._replace(TILES=_FOUR_CTAS_TILES, WEIGHTS=1), operands, constants, None)
        calls.append(replace(four, options={"maxnreg": _FOUR_CTAS_REGISTERS}))
    return tuple(calls)


def _ranges(key_heads: int, processors: int) -> list[tuple[int, int | None]]:
    """In how many parts keys are divided, for numbers of sequences up to an end; of the last range there is none.

    Keys are divided as long as all parts run at once, with two on a processor: parts that wait for others cost more
    than processors that have less to do.
    """
    ends = [(splits, 2 * processors // (splits * key_heads)) for splits in (CLUSTER_CTAS, 4, 2)]
    return [*((splits, end) for splits, end in ends if end), (1, None)]


def _call(
    config: PagedConfig, operands: Mapping[str, Value], constants: Mapping[str, Any],
    condition: tuple[Size, int] | None,
) -> KernelCall:  # fmt: skip
    key_heads, slots = constants["KEY_HEADS"], operands["keys"].shape[0]

    def tiled(value: Value) -> TiledOperand:
        return TiledOperand(value, (key_heads, slots, config.D), (config.D, key_heads * config.D, 1), config.key_block)

    given: dict[str, Operand] = {
        "q": operands["q"], "k": tiled(operands["keys"]), "v": tiled(operands["values"]), "out": operands["out"],
        **{name: operands[name] for name in ("tables", "starts", "lengths")},
        **{name: operands[name] for name in ("scales_0", "scales_1") if name in operands},
        "tokens": operands["q"].shape[0], "slots": slots, "columns": operands["tables"].shape[1],
        "heads": constants["HEADS"], "key_heads": key_heads, "scale": constants["scale"] * math.log2(math.e),
    }  # fmt: skip
    types = {**dict.fromkeys(("tokens", "slots", "columns"), "i64"), "heads": "i32", "key_heads": "i32", "scale": "f32"}
    grid = (simplify(lift(operands["lengths"].shape[0]) * key_heads * config.SPLITS), 1, 1)
    kernel = paged_tokens if config.POOL is None else paged_narrow_tokens
    return KernelCall(kernel, given, types, {"CONFIG": config}, grid, condition)


def chunk_config(few: PagedConfig) -> AttentionConfig | None:
    """The config for chunks of prompts, next to that for few new tokens; None where the kernel has none."""
    if few.POOL is not None or few.D not in _CHUNK_KEYS or few.WINDOW or few.SOFTCAP:
        return None
    config = AttentionConfig(D=few.D, BN=_CHUNK_KEYS[few.D], CONSUMERS=3, CAUSAL=True, FLAT=False, TYPE=few.TYPE,
                         PAGE=few.PAGE)  # fmt: skip
    return config if is_possible(config) else None


def chunk_call(
    config: AttentionConfig,
    few: PagedConfig,
    operands: Mapping[str, Value],
    constants: Mapping[str, Any],
    target: Target,
) -> KernelCall:
    """The launch for chunks of prompts, whose grid is empty where there are too few tokens for one."""
    q, sequences = operands["q"], operands["lengths"].shape[0]
    tokens, slots = q.shape[0], operands["keys"].shape[0]
    heads, key_heads, most = constants["HEADS"], constants["KEY_HEADS"], few.ROWS // few.GROUP
    numbers = simplify(lift(tokens) // config.BM + minimum(sequences, simplify(lift(tokens) // (most + 1))))
    given: dict[str, Operand] = {
        **{name: operands[name] for name in ("tables", "starts", "lengths")}, "results": operands["out"],
        "tokens": tokens, "slots": slots, "columns": operands["tables"].shape[1], "sequences": sequences,
        "numbers": numbers, "heads": heads, "group": heads // key_heads,
        "scale": constants["scale"] * math.log2(math.e),
    }  # fmt: skip
    for name, value, count, rows, block in (
        ("q", q, heads, tokens, config.query_block), ("out", operands["out"], heads, tokens, config.query_block),
        ("k", operands["keys"], key_heads, slots, config.key_block),
        ("v", operands["values"], key_heads, slots, config.key_block),
    ):  # fmt: skip
        row = count * config.D
        given[name] = TiledOperand(value, (1, count, rows, config.D), (row, config.D, row, 1), block)
    types = dict.fromkeys(("tokens", "slots", "columns"), "i64")
    types |= {**dict.fromkeys(("sequences", "numbers", "heads", "group"), "i32"), "scale": "f32"}
    fixed = {"FEW": most, "SEQUENCES": max(2, next_power_of_2(upper_bound(sequences))), "EARLY": few.EARLY}
    grid = (minimum(simplify(lift(numbers) * heads), target.machine().processors), 1, 1)
    return KernelCall(paged_chunks, given, types, {**fixed, "CONFIG": config}, grid)
