"""Attention of one query for each head on Hopper: parts of the keys, put together by a cluster or a second launch."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import tilewright.language as tl
from tilewright.dtypes import float32
from tilewright.graph.core import Graph, Value
from tilewright.graph.fusion import Group
from tilewright.graph.updates import writes_in_place
from tilewright.graph.views import StridedView, dense_view
from tilewright.library.attention.hopper import decoding_kernel as hopper_decoding
from tilewright.library.attention.hopper.candidates import hopper_call, is_tiled, is_whole, own_extra, tiled
from tilewright.library.attention.hopper.choice import TILE_CLOCKS, WARPGROUP_QUERIES, block_clocks
from tilewright.library.attention.hopper.config import AttentionConfig
from tilewright.library.attention.hopper.decoding_config import CLUSTER_CTAS, DecodingConfig
from tilewright.library.attention.problem import typical
from tilewright.library.attention.simt_kernel import combine_parts
from tilewright.library.attention.slots import attention_slots
from tilewright.library.attention.strided import Strided, strided_operands
from tilewright.library.binding import bind_extra, bind_sizes
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage
from tilewright.library.cost import Cost
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.hopper import SHARED_BYTES, is_possible
from tilewright.library.slots import Slots
from tilewright.runtime.tables import PAIRS
from tilewright.symbolic import Size, lift, lower_bound, product, simplify, upper_bound
from tilewright.targets.base import Target

_CANDIDATES = 3  # numbers of parts that are worth timing
_MOST_PARTS = 32  # of the keys, for one query
_LEAST_KEYS = 64  # of a CTA of a cluster
_WIDE_HEAD = 192  # the largest head size of which two blocks of 128 keys and values fit shared memory
_STAGES = 4  # blocks of keys under way that are worth their memory
_FEW_CLOCKS, _KEY_CLOCKS = 500.0, 7.0  # of a block, and of each of its keys, where these are the rows of products


def decoding_candidates(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """One query for each head against many keys: heads that share keys are the queries of one tile, and where there are
    few of them the keys are divided into parts, whose results the CTAs of a cluster put together, or a second
    launch."""
    anchor = group.anchor
    assert anchor is not None
    strided = strided_operands(group)
    packed = _packed_heads(strided)
    if packed is None or not target.wgmma or not is_tiled(anchor, strided):
        return []
    if not is_whole(strided):
        return []
    if strided.lengths is not None or anchor.attributes["window"] or anchor.attributes["softcap"]:
        return []
    k = packed.views["k"]
    pairs = _middle(product(k.shape[:2]))
    late = _written_late(packed, graph)
    found = [
        _clustered_candidate(group, graph, packed, config, late, target)
        for config in _clustered_configs(packed, late, pairs, target)
    ]
    if upper_bound(product(k.shape[:2])) * _MOST_PARTS >= PAIRS:
        return found
    block = 128 if upper_bound(packed.views["q"].shape[3]) <= _WIDE_HEAD else 64
    clustered = bool(found)
    for splits in _splits(pairs, typical(k.shape[2]), block, target.machine().processors):
        if clustered and splits <= CLUSTER_CTAS:
            continue  # they would need a second launch for what a cluster does
        found.append(_decoding_candidate(group, graph, packed, block, splits, target))
    return found


def _packed_heads(strided: Strided) -> Strided | None:
    """The operands with the query heads that share keys as the queries of one head; None for more queries than one."""
    q, k = strided.views["q"], strided.views["k"]
    heads, key_heads = q.shape[1], k.shape[1]
    if q.shape[2] != 1 or not isinstance(heads, int) or not isinstance(key_heads, int):
        return None
    group = heads // key_heads
    by_head = strided.bias_form and group > 1 and (strided.bias_strides[1] != 0 or strided.bias_form == 2)
    if by_head or group > WARPGROUP_QUERIES:
        return None

    def packed(view: StridedView) -> StridedView:
        batch, head, _, column = view.strides
        shape = (view.shape[0], key_heads, group, view.shape[3])
        return StridedView(shape, (batch, simplify(lift(head) * group), head, column), view.offset)

    out = packed(StridedView(q.shape, strided.out_strides))
    views = {**strided.views, "q": packed(q)}
    return replace(strided, views=views, out_strides=out.strides)


def _splits(pairs: int, keys: int, block: int, processors: int) -> list[int]:
    """In how many parts the keys may be divided: such that all processors have about the same to do, fewest first."""
    most = max(1, keys // block)
    used = {}
    for splits in range(1, min(most, _MOST_PARTS) + 1):
        tiles = pairs * splits
        blocks = -(-most // splits)
        # Blocks that the busiest processor reads, and what putting parts together takes.
        used[splits] = -(-tiles // processors) * (blocks + 1) + (2 if splits > 1 else 0)
    ranked = sorted(used, key=lambda splits: (used[splits], splits))
    return ranked[:_CANDIDATES]


@dataclass(frozen=True)
class _Late:
    """What of keys and values kernels of the same call write: all (not `ahead`), none, or the row whose number `row`
    holds."""

    ahead: bool
    row: Value | None = None


def _written_late(packed: Strided, graph: Graph) -> _Late:
    """Finds inputs of the graph, as they are or with one row written in place.

    A kernel that starts early may read these before the kernels in front of it have ended: those of earlier calls have,
    for the first kernel of a call does not start early (`CudaSession`).
    """
    rows = {_row_written(packed.sources[name], packed.views[name], graph) for name in ("k", "v")}
    if len(rows) > 1:
        return _Late(False)
    (row,) = rows
    return row or _Late(False)


def _row_written(source: Value, view: StridedView, graph: Graph) -> _Late | None:
    """What is written of one operand."""
    if source in graph.inputs:
        return None if source in graph.mutations else _Late(True)
    node = graph.producers().get(source)
    if node is None or node.op != "scatter_update" or not writes_in_place(node, graph.nodes, graph):
        return None
    cache, row = node.inputs[:2]
    axis = node.attributes["axis"]
    strides = dense_view(source.shape).strides
    if cache not in graph.inputs or list(graph.mutations.values()).count(source) != 1:
        return None
    if row not in graph.inputs or row in graph.mutations or row.shape != (1,) or view.offset != 0:
        return None
    if source.shape[axis] != view.shape[2] or strides[axis] != view.strides[2]:
        return None
    return _Late(True, row)


def _clustered_configs(packed: Strided, late: _Late, pairs: int, target: Target) -> list[DecodingConfig]:
    """Configs whose CTAs put their results together themselves, the one expected to be fastest first."""
    _, _, rows, size = packed.views["q"].shape
    assert isinstance(rows, int) and isinstance(size, int)
    keys = typical(packed.views["k"].shape[2])
    config = DecodingConfig(
        D=size, ROWS=max(8, next_power_of_2(rows)), BIAS=packed.bias_form > 0, AHEAD=late.ahead,
        FRESH=late.row is not None, TYPE=tl.dtype(packed.sources["q"].dtype),
    )  # fmt: skip
    found = []
    for splits, block in itertools.product((1, 2, 4, CLUSTER_CTAS), (64, 128, 256)):
        length = -(-keys // splits)
        if (splits > 1 and length <= _LEAST_KEYS) or (block > 64 and block >= 2 * length):
            continue
        blocks = -(-length // block)
        stages = range(min(blocks, 2), min(blocks, _STAGES) + 1)
        configs = [config._replace(SPLITS=splits, BN=block, STAGES=count) for count in stages]
        if possible := list(filter(is_possible, configs)):
            found.append(min(possible, key=lambda config: _clustered_seconds(config, pairs, keys, target)))
    return sorted(found, key=lambda config: _clustered_seconds(config, pairs, keys, target))[:2]


def _clustered_seconds(config: DecodingConfig, pairs: int, keys: int, target: Target) -> tuple[float, float, int]:
    """The expected time: of memory, of what a processor loads, or of products one after the other; and what tells
    equals apart, the time of products and the stages, of which more are better."""
    machine = target.machine()
    blocks = -(-keys // (config.BN * config.SPLITS))
    ctas = -(-pairs * config.SPLITS // machine.processors)  # of the busiest processor, some of them at once
    waves = -(-ctas // max(1, SHARED_BYTES // config.shared_bytes))
    row_bytes = config.D * config.TYPE.itemsize
    memory = 2 * keys * pairs * row_bytes / machine.memory
    own = ctas * blocks * 2 * config.BN * row_bytes / machine.l2 / machine.clock
    products = waves * (TILE_CLOCKS + blocks * (_FEW_CLOCKS + _KEY_CLOCKS * config.BN)) / machine.clock
    return machine.launches.kernel + max(memory, own, products), products, -config.STAGES


def _clustered_candidate(
    group: Group, graph: Graph, packed: Strided, config: DecodingConfig, late: _Late, target: Target
) -> Candidate:
    """One launch, of a cluster for each batch and head of keys."""
    anchor = group.anchor
    assert anchor is not None
    q, k = packed.views["q"], packed.views["k"]
    batches, key_heads, rows, size = q.shape
    sources, strides, scale = packed.sources, packed.out_strides, float(anchor.attributes["scale"])
    operands: dict[str, Operand] = {
        "q": tiled(sources["q"], q, config.query_block), "k": tiled(sources["k"], k, config.key_block),
        "v": tiled(sources["v"], packed.views["v"], config.key_block),
        "k_rows": tiled(sources["k"], k, config.fresh_block),
        "v_rows": tiled(sources["v"], packed.views["v"], config.fresh_block),
        "fresh": packed.out if late.row is None else late.row, "out": packed.out,
        "out_batch": strides[0], "out_head": strides[1], "out_row": strides[2],
        "queries": rows, "keys": k.shape[2], "heads": key_heads, "scale": scale * math.log2(math.e),
    }  # fmt: skip
    types = dict.fromkeys(("out_batch", "out_head", "out_row"), "i64")
    types |= {**dict.fromkeys(("queries", "keys", "heads"), "i32"), "scale": "f32"}
    if packed.bias is not None:
        operands |= {"extra_0": packed.bias, "extra_1": packed.bias_strides[0], "extra_2": packed.bias_strides[1]}
        operands["extra_3"] = 1 / scale
        types |= {"extra_1": "i64", "extra_2": "i64", "extra_3": "f32"}
    slots = attention_slots(group, graph, ExtraReferences(first=0 if packed.bias is None else 4))
    bind_extra(slots.extra, operands, types)
    config = config._replace(EPILOGUE=slots.function)
    grid = (simplify(lift(batches) * key_heads * config.SPLITS), 1, 1)
    call = KernelCall(hopper_decoding.decoding, operands, types, {"CONFIG": config}, grid)
    flops = simplify(lift(product(q.shape)) * k.shape[2] * 4)
    seconds, *_ = _clustered_seconds(config, _middle(product(k.shape[:2])), typical(k.shape[2]), target)
    cost = Cost(total_bytes(group.inputs, group.outputs), flops, seconds)
    reasons = {"queries": f"{rows} heads x {config.BN} keys, {config.SPLITS} parts in a cluster"}
    reasons["keys"] = "loaded ahead" if config.AHEAD else "asked for ahead"
    return Candidate("hopper decoding in clusters", (Stage((call,)),), cost, (), reasons)


def _decoding_candidate(
    group: Group, graph: Graph, packed: Strided, block: int, splits: int, target: Target
) -> Candidate:
    anchor = group.anchor
    assert anchor is not None
    q, k = packed.views["q"], packed.views["k"]
    batches, key_heads, rows, size = q.shape
    assert isinstance(key_heads, int) and isinstance(rows, int) and isinstance(size, int)
    dtype = packed.sources["q"].dtype
    config = AttentionConfig(
        D=size, BN=block, CONSUMERS=1, FLAT=False, PING_PONG=False, LSE=splits > 1, TYPE=tl.dtype(dtype),
        BIAS=packed.bias_form, SPLITS=splits, DEPENDENT=True,
    ).check()  # fmt: skip
    machine = target.machine()
    tiles = _middle(product(k.shape[:2])) * splits
    blocks = -(-typical(k.shape[2]) // (block * splits))
    moved = total_bytes(group.inputs, group.outputs)
    waves = -(-tiles // machine.processors)
    read = waves * blocks * 2 * block * size * dtype.itemsize * machine.processors / machine.memory
    clocks = waves * (TILE_CLOCKS + blocks * block_clocks(config, machine))
    seconds = machine.launches.kernel * (2 if splits > 1 else 1) + max(read, clocks / machine.clock)
    flops = simplify(lift(product(q.shape)) * k.shape[2] * 4)
    cost = Cost(moved, flops, seconds)
    reasons = {"queries": f"{rows} heads x {block} keys, {splits} parts"}
    if splits == 1:
        slots = attention_slots(group, graph, ExtraReferences(first=own_extra(packed)))
        call = hopper_call(anchor, packed, slots, config, None, target)
        return Candidate("hopper decoding", (Stage((call,)),), cost, (), reasons)
    parts = Value(f"{group.name}.parts", dtype, (batches, key_heads * splits, rows, size))
    sums = Value(f"{group.name}.sums", float32, (batches, key_heads * splits, rows))
    partial = replace(packed, out=parts, out_strides=dense_view(parts.shape).strides)
    call = hopper_call(anchor, partial, None, config, None, target, sums)
    slots = attention_slots(group, graph, ExtraReferences())
    together = _combining(packed, slots, parts, sums, splits)
    return Candidate("hopper decoding", (Stage((call,)), Stage((together,))), cost, (parts, sums), reasons)


def _combining(packed: Strided, slots: Slots, parts: Value, sums: Value, splits: int) -> KernelCall:
    """The launch that puts parts together."""
    batches, key_heads, rows, size = packed.views["q"].shape
    assert isinstance(key_heads, int) and isinstance(rows, int) and isinstance(size, int)
    operands: dict[str, Operand] = {"parts": parts, "sums": sums, "out": packed.out}
    constants: dict[str, Any] = {
        "GROUP": rows, "SPLITS": splits, "HEAD": size, "BLOCK_P": next_power_of_2(splits),
        "BLOCK_D": next_power_of_2(size), "heads": key_heads * rows, "EPILOGUE": slots.function,
    }  # fmt: skip
    types: dict[str, str] = {}
    bind_extra(slots.extra, operands, types)
    batch, _, head, _ = packed.out_strides
    bind_sizes({"out_batch": batch, "out_head": head}, operands, types, constants)
    grid = (key_heads * rows, batches, 1)
    return KernelCall(combine_parts, operands, types, constants, grid, options={"num_warps": 4})


def _middle(size: Size) -> int:
    """A size that is known, or the geometric mean of its range."""
    return int(math.sqrt(lower_bound(size) * min(upper_bound(size), 1 << 20)))
