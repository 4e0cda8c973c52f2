"""Attention groups on GPUs: on Hopper the kernel of tensor copies and wgmma; else the plain kernel, which takes every
stride, bias and element type."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Any

import tilewright.language as tl
from tilewright.dtypes import bfloat16, float16, float32
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.graph.views import View, dense_view
from tilewright.library.attention.cpu import Copies, Strided, strided_candidate, strided_operands, with_strided_operands
from tilewright.library.attention.hopper import decoding_kernel as hopper_decoding
from tilewright.library.attention.hopper import kernel as hopper
from tilewright.library.attention.hopper.choice import FEW_QUERIES, AttentionProblem, attention_forms
from tilewright.library.attention.hopper.config import AttentionForm
from tilewright.library.attention.hopper.decoding_config import CLUSTER, DecodingForm
from tilewright.library.attention.simt_block import block_attention
from tilewright.library.attention.simt_kernel import attention, combine_parts
from tilewright.library.binding import bind_sizes, divides
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage, Table, TiledOperand
from tilewright.library.cost import Cost
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.generated.generate import next_power_of_2
from tilewright.library.hopper import SHARED_BYTES, is_possible
from tilewright.library.movement.candidates import updates_in_place
from tilewright.runtime.tables import PAIRS
from tilewright.symbolic import (
    Size,
    ceil_divide,
    evaluate,
    free_symbols,
    lift,
    lower_bound,
    maximum,
    minimum,
    product,
    simplify,
    upper_bound,
)
from tilewright.targets.base import Target
from tilewright.targets.machine import Machine

SMALLEST = 16  # rows, columns and depth of an instruction
_TYPICAL = 512  # queries and keys that a run-time number is taken for
_CANDIDATES = 3  # forms that are worth timing
_MOST_PARTS = 32  # of the keys, for one query
_LEAST_KEYS = 64  # of a CTA of a cluster
_STAGES = 4  # blocks of keys under way that are worth their memory
_REACHED = 0.7  # of the rate of tensor cores
_TILE_CLOCKS = 1500.0
_BLOCK_CLOCKS = 1200.0  # of a block of keys that nothing else hides
_FEW_CLOCKS, _KEY_CLOCKS = 500.0, 7.0  # of a block, and of each of its keys, where these are the rows of products


def gpu_attention(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """The candidates of an attention group; raises as `strided_candidate`."""
    blocks = block_attention(group, graph, target)
    group, copies = with_strided_operands(group, graph, target)
    plain = strided_candidate(group, target, _calls)
    (call,) = plain.stages[0].calls
    cost = replace(plain.cost, seconds=_plain_seconds(call, strided_operands(group), target))
    strided = [*(_decoding(group, graph, target) or _hopper(group, call, target)), replace(plain, cost=cost)]
    return [*blocks, *(_behind(copies, candidate, target) for candidate in strided)]


def _behind(copies: Copies, candidate: Candidate, target: Target) -> Candidate:
    """A candidate with its copies, each of which costs at least a launch."""
    count = len(copies.before) + len(copies.after)
    seconds = candidate.cost.seconds + count * target.machine().launches.kernel
    cost = replace(candidate.cost, seconds=seconds)
    return copies.around(replace(candidate, cost=cost))


def _plain_seconds(call: KernelCall, strided: Strided, target: Target) -> float:
    """The expected time of the plain kernel, whose CTAs walk the keys block by block, two on a multiprocessor."""
    machine, dtype = target.machine(), strided.sources["q"].dtype
    q, keys = strided.views["q"], _typical(strided.views["k"].shape[2])
    rows, block = call.constants["BLOCK_S"], call.constants["BLOCK_T"]
    tiles = -(-_typical(q.shape[2]) // rows) * _typical(product(q.shape[:2]), 1 << 20)
    wide = call.constants["BLOCK_D"] + call.constants["BLOCK_V"]
    clocks = _BLOCK_CLOCKS + 2.0 * rows * block * wide / (0.5 * machine.dot_rate(dtype, target.tf32))
    blocks = -(-keys // block) / (2 if call.constants["CAUSAL"] and tiles > 1 else 1)
    return machine.launches.kernel + -(-tiles // (2 * machine.processors)) * (blocks + 1) * clocks / machine.clock


def _calls(
    q: Value, operands: dict[str, Operand], types: dict[str, str], constants: dict[str, Any], keys: Size
) -> list[KernelCall]:
    """One launch: blocks of queries as large as there can be, up to 64 (32 in float32, whose products are slow)."""
    batch, heads, queries, _ = q.shape
    wide = q.dtype.itemsize > 2
    head, value_head = (max(SMALLEST, next_power_of_2(constants[name])) for name in ("HEAD", "VALUE_HEAD"))
    most = 32 if wide or max(head, value_head) > 128 else 64
    block = min(most, max(SMALLEST, next_power_of_2(int(min(upper_bound(queries), most)))))
    key_block = min(most, max(SMALLEST, next_power_of_2(keys))) if isinstance(keys, int) else most
    given = {**constants, "BLOCK_D": head, "BLOCK_V": value_head, "BLOCK_S": block, "BLOCK_T": key_block}
    grid = (ceil_divide(queries, block), heads, batch)
    options = {"num_warps": 4 if block > SMALLEST else 1 if not wide else 2}
    return [KernelCall(attention, dict(operands), dict(types), given, grid, options=options)]


# -- The Hopper kernel ------------------------------------------------------------------------------------------------


def _hopper(group: Group, plain: KernelCall, target: Target) -> list[Candidate]:
    """The Hopper kernel in its best forms; none where tensor copies cannot read the operands.

    `plain` is the launch for sizes that an entry of the kernel's schedule cannot count, where there may be such.
    """
    anchor = group.anchor
    assert anchor is not None
    strided = strided_operands(group)
    if not getattr(target, "wgmma", False) or not _is_tiled(anchor, strided):
        return []
    found = []
    for number in range(_CANDIDATES):
        calls, seconds = _hopper_calls(anchor, strided, number, target)
        if not calls:
            break
        forms = {
            f"queries <= {FEW_QUERIES}" if len(calls) > 1 and call is calls[0] else "queries": call.constants["FORM"]
            for call in calls
        }
        flops = simplify(lift(product(strided.views["q"].shape)) * strided.views["k"].shape[2] * 4)
        cost = Cost(total_bytes(group.inputs, group.outputs), flops, seconds)
        reasons = {name: _described(form) for name, form in forms.items()}
        name = _named("hopper attention", calls[-1])
        if calls[-1].condition is not None:
            calls.append(replace(plain, condition=None))
        found.append(Candidate(name, (Stage(tuple(calls)),), cost, (), reasons))
    return found


def _is_tiled(anchor: Node, strided: Strided) -> bool:
    """Whether tensor copies can move everything, and a form has the head size."""
    q, v = strided.views["q"], strided.views["v"]
    dtype, size = strided.sources["q"].dtype, q.shape[3]
    kinds = {value.dtype for value in (*strided.sources.values(), strided.out)}
    if kinds != {dtype} or dtype not in (float16, bfloat16) or (strided.bias and strided.bias.dtype != dtype):
        return False
    if not isinstance(size, int) or size % SMALLEST or size > 256 or v.shape[3] != size:
        return False
    if strided.bias_form and strided.bias_strides[3] != 1:
        return False
    out = View(q.shape, strided.out_strides)
    steps = [stride for view in (*strided.views.values(), out) for stride in (*view.strides[:3], view.offset)]
    return all(divides(8, step) for step in steps)


def _hopper_calls(anchor: Node, strided: Strided, number: int, target: Target) -> tuple[list[KernelCall], float]:
    """Launches in the forms of a place in the ranking, for few and for many queries, and the expected time.

    The last one has a condition only where sizes may be more than a schedule counts.
    """
    q, k = strided.views["q"], strided.views["k"]
    queries, size = q.shape[2], q.shape[3]
    assert isinstance(size, int)
    calls: list[KernelCall] = []
    seconds = 0.0
    for rows, condition in _spans(queries, product(q.shape[:2])):
        problem = AttentionProblem(
            size, rows, _typical(k.shape[2]), bool(anchor.attributes["causal"]),
            bias=strided.bias_form, type=tl.dtype(strided.sources["q"].dtype),
        )  # fmt: skip
        forms = attention_forms(problem)
        if number >= len(forms):
            return [], 0.0
        calls.append(_hopper_call(anchor, strided, forms[number], condition, target))
        seconds = _seconds(forms[number], problem, _typical(product(q.shape[:2]), 1 << 20), target)
    return calls, seconds


def _spans(queries: Size, pairs: Size) -> list[tuple[int, tuple[Size, int] | None]]:
    """Typical numbers of few and of many queries, each with the condition of its launch."""
    counted = upper_bound(pairs) < PAIRS and upper_bound(queries) < PAIRS * FEW_QUERIES
    few: tuple[Size, int] | None = (queries, FEW_QUERIES)
    many: tuple[Size, int] | None = None
    if not counted:
        # One comparison for both: of the pairs, and of the queries in a measure in which few are as many.
        few = (maximum(simplify(lift(queries) * (PAIRS // FEW_QUERIES - 1)), pairs), PAIRS - 1)
        many = (maximum(ceil_divide(queries, FEW_QUERIES), pairs), PAIRS - 1)
    elif upper_bound(queries) <= FEW_QUERIES:
        few = None
    spans: list[tuple[int, tuple[Size, int] | None]] = []
    if lower_bound(queries) <= FEW_QUERIES:
        spans.append((_typical(queries, FEW_QUERIES), few))
    if upper_bound(queries) > FEW_QUERIES:
        spans.append((_typical(queries), many))
    return spans


def _hopper_call(
    anchor: Node, strided: Strided, form: AttentionForm, condition: tuple[Size, int] | None, target: Target,
    sums: Value | None = None,
) -> KernelCall:  # fmt: skip
    """One launch of the Hopper kernel; `sums` are the log-sum-exps of parts of the keys."""
    q, k = strided.views["q"], strided.views["k"]
    batches, heads, queries, size = q.shape
    keys = k.shape[2]
    group = simplify(lift(heads) // k.shape[1])
    parts = simplify(lift(heads) * form.SPLITS)
    processors = target.machine().processors
    row_bytes = form.D * form.TYPE.itemsize
    share = keys if form.SPLITS == 1 else ceil_divide(keys, form.SPLITS)
    sizes = (batches, parts, group, queries, share, form.BM, form.BN, row_bytes, int(form.CAUSAL), processors)
    schedule = Table("attention", sizes)
    scale = float(anchor.attributes["scale"])
    out = View((batches, parts, queries, size), strided.out_strides)
    operands: dict[str, Operand] = {
        name: _tiled(strided.sources[name], strided.views[name], form.query_block if name == "q" else form.key_block)
        for name in ("q", "k", "v")
    }
    operands |= {
        "out": _tiled(strided.out, out, form.query_block), "lse": schedule if sums is None else sums,
        "lengths": schedule, "schedule": schedule, "tiles_per_cta": Table("attention", sizes, columns=True),
        "queries": queries, "keys": keys, "heads": parts, "group": group, "window": 0,
        "scale": scale * math.log2(math.e),
    }  # fmt: skip
    types = dict.fromkeys(("tiles_per_cta", "queries", "keys", "heads", "group", "window"), "i32")
    types["scale"] = "f32"
    if strided.bias is not None:
        operands |= {"bias_0": strided.bias, "bias_4": 1 / scale}
        operands |= {f"bias_{number + 1}": stride for number, stride in enumerate(strided.bias_strides[:3])}
        types |= {"bias_1": "i64", "bias_2": "i64", "bias_3": "i64", "bias_4": "f32"}
    tiles = simplify(lift(ceil_divide(queries, form.BM)) * batches * parts)
    return KernelCall(
        hopper.attention, operands, types, {"FORM": form}, (minimum(tiles, processors), 1, 1), condition
    )  # fmt: skip


# -- One query --------------------------------------------------------------------------------------------------------


def _decoding(group: Group, graph: Graph, target: Target) -> list[Candidate]:
    """One query for each head against many keys: heads that share keys are the queries of one tile, and where there are
    few of them the keys are divided into parts, whose results the CTAs of a cluster put together, or a second
    launch."""
    anchor = group.anchor
    assert anchor is not None
    strided = strided_operands(group)
    packed = _packed_heads(strided)
    if packed is None or not getattr(target, "wgmma", False) or not _is_tiled(anchor, strided):
        return []
    k = packed.views["k"]
    pairs = _middle(product(k.shape[:2]))
    late = _written_late(packed, graph)
    found = [
        _clustered_candidate(group, packed, form, late, target)
        for form in _clustered_forms(packed, late, pairs, target)
    ]
    if upper_bound(product(k.shape[:2])) * _MOST_PARTS >= PAIRS:
        return found
    block = 128 if packed.views["q"].shape[3] != 256 else 64
    clustered = bool(found)
    for splits in _splits(pairs, _typical(k.shape[2]), block, target.machine().processors):
        if clustered and splits <= CLUSTER:
            continue  # they would need a second launch for what a cluster does
        found.append(_decoding_candidate(group, packed, block, splits, target))
    return found


def _packed_heads(strided: Strided) -> Strided | None:
    """The operands with the query heads that share keys as the queries of one head; None for more queries than one."""
    q, k = strided.views["q"], strided.views["k"]
    heads, key_heads = q.shape[1], k.shape[1]
    if q.shape[2] != 1 or not isinstance(heads, int) or not isinstance(key_heads, int):
        return None
    if heads // key_heads > FEW_QUERIES:
        return None
    group = heads // key_heads
    if strided.bias_form and group > 1 and (strided.bias_strides[1] != 0 or strided.bias_form == 2):
        return None

    def packed(view: View) -> View:
        batch, head, _, column = view.strides
        shape = (view.shape[0], key_heads, group, view.shape[3])
        return View(shape, (batch, simplify(lift(head) * group), head, column), view.offset)

    out = packed(View(q.shape, strided.out_strides))
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


def _row_written(source: Value, view: View, graph: Graph) -> _Late | None:
    """What is written of one operand."""
    if source in graph.inputs:
        return None if source in graph.mutations else _Late(True)
    node = graph.producers().get(source)
    if node is None or node.op != "scatter_update" or not updates_in_place(node, graph):
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


def _clustered_forms(packed: Strided, late: _Late, pairs: int, target: Target) -> list[DecodingForm]:
    """Forms whose CTAs put their results together themselves, the one expected to be fastest first."""
    _, _, rows, size = packed.views["q"].shape
    assert isinstance(rows, int) and isinstance(size, int)
    keys = _typical(packed.views["k"].shape[2])
    form = DecodingForm(
        D=size, ROWS=max(8, next_power_of_2(rows)), BIAS=packed.bias_form > 0, AHEAD=late.ahead,
        FRESH=late.row is not None, TYPE=tl.dtype(packed.sources["q"].dtype),
    )  # fmt: skip
    found = []
    for splits, block in itertools.product((1, 2, 4, CLUSTER), (64, 128, 256)):
        length = -(-keys // splits)
        if (splits > 1 and length <= _LEAST_KEYS) or (block > 64 and block >= 2 * length):
            continue
        blocks = -(-length // block)
        stages = range(min(blocks, 2), min(blocks, _STAGES) + 1)
        forms = [form._replace(SPLITS=splits, BN=block, STAGES=count) for count in stages]
        if possible := list(filter(is_possible, forms)):
            found.append(min(possible, key=lambda form: _clustered_seconds(form, pairs, keys, target)))
    return sorted(found, key=lambda form: _clustered_seconds(form, pairs, keys, target))[:2]


def _clustered_seconds(form: DecodingForm, pairs: int, keys: int, target: Target) -> tuple[float, float, int]:
    """The expected time: of memory, of what a processor loads, or of products one after the other; and what tells
    equals apart, the time of products and the stages, of which more are better."""
    machine = target.machine()
    blocks = -(-keys // (form.BN * form.SPLITS))
    ctas = -(-pairs * form.SPLITS // machine.processors)  # of the busiest processor, some of them at once
    waves = -(-ctas // max(1, SHARED_BYTES // form.shared_bytes))
    row_bytes = form.D * form.TYPE.itemsize
    memory = 2 * keys * pairs * row_bytes / machine.memory
    own = ctas * blocks * 2 * form.BN * row_bytes / machine.l2 / machine.clock
    products = waves * (_TILE_CLOCKS + blocks * (_FEW_CLOCKS + _KEY_CLOCKS * form.BN)) / machine.clock
    return machine.launches.kernel + max(memory, own, products), products, -form.STAGES


def _clustered_candidate(group: Group, packed: Strided, form: DecodingForm, late: _Late, target: Target) -> Candidate:
    """One launch, of a cluster for each batch and head of keys."""
    anchor = group.anchor
    assert anchor is not None
    q, k = packed.views["q"], packed.views["k"]
    batches, key_heads, rows, size = q.shape
    sources, strides, scale = packed.sources, packed.out_strides, float(anchor.attributes["scale"])
    operands: dict[str, Operand] = {
        "q": _tiled(sources["q"], q, form.query_block), "k": _tiled(sources["k"], k, form.key_block),
        "v": _tiled(sources["v"], packed.views["v"], form.key_block),
        "k_rows": _tiled(sources["k"], k, form.fresh_block),
        "v_rows": _tiled(sources["v"], packed.views["v"], form.fresh_block),
        "fresh": packed.out if late.row is None else late.row, "out": packed.out,
        "out_batch": strides[0], "out_head": strides[1], "out_row": strides[2],
        "queries": rows, "keys": k.shape[2], "heads": key_heads, "scale": scale * math.log2(math.e),
    }  # fmt: skip
    types = dict.fromkeys(("out_batch", "out_head", "out_row"), "i64")
    types |= {**dict.fromkeys(("queries", "keys", "heads"), "i32"), "scale": "f32"}
    if packed.bias is not None:
        operands |= {"bias_0": packed.bias, "bias_1": packed.bias_strides[0], "bias_2": packed.bias_strides[1]}
        operands["bias_3"] = 1 / scale
        types |= {"bias_1": "i64", "bias_2": "i64", "bias_3": "f32"}
    grid = (simplify(lift(batches) * key_heads * form.SPLITS), 1, 1)
    call = KernelCall(hopper_decoding.decoding, operands, types, {"FORM": form}, grid)
    flops = simplify(lift(product(q.shape)) * k.shape[2] * 4)
    seconds, *_ = _clustered_seconds(form, _middle(product(k.shape[:2])), _typical(k.shape[2]), target)
    cost = Cost(total_bytes(group.inputs, group.outputs), flops, seconds)
    reasons = {"queries": f"{rows} heads x {form.BN} keys, {form.SPLITS} parts in a cluster"}
    reasons["keys"] = "loaded ahead" if form.AHEAD else "asked for ahead"
    return Candidate("hopper decoding in clusters", (Stage((call,)),), cost, (), reasons)


def _decoding_candidate(group: Group, packed: Strided, block: int, splits: int, target: Target) -> Candidate:
    anchor = group.anchor
    assert anchor is not None
    q, k = packed.views["q"], packed.views["k"]
    batches, key_heads, rows, size = q.shape
    assert isinstance(key_heads, int) and isinstance(rows, int) and isinstance(size, int)
    dtype = packed.sources["q"].dtype
    form = AttentionForm(
        D=size, BN=block, CONSUMERS=1, FLAT=False, TURNS=False, LSE=splits > 1, TYPE=tl.dtype(dtype),
        BIAS=packed.bias_form, SPLITS=splits, DEPENDENT=True,
    ).check()  # fmt: skip
    machine = target.machine()
    tiles = _middle(product(k.shape[:2])) * splits
    blocks = -(-_typical(k.shape[2]) // (block * splits))
    moved = total_bytes(group.inputs, group.outputs)
    turns = -(-tiles // machine.processors)
    read = turns * blocks * 2 * block * size * dtype.itemsize * machine.processors / machine.memory
    clocks = turns * (_TILE_CLOCKS + blocks * _hopper_block_clocks(form, machine))
    seconds = machine.launches.kernel * (2 if splits > 1 else 1) + max(read, clocks / machine.clock)
    flops = simplify(lift(product(q.shape)) * k.shape[2] * 4)
    cost = Cost(moved, flops, seconds)
    reasons = {"queries": f"{rows} heads x {block} keys, {splits} parts"}
    if splits == 1:
        call = _hopper_call(anchor, packed, form, None, target)
        return Candidate("hopper decoding", (Stage((call,)),), cost, (), reasons)
    parts = Value(f"{group.name}.parts", dtype, (batches, key_heads * splits, rows, size))
    sums = Value(f"{group.name}.sums", float32, (batches, key_heads * splits, rows))
    partial = replace(packed, out=parts, out_strides=dense_view(parts.shape).strides)
    call = _hopper_call(anchor, partial, form, None, target, sums)
    together = _combining(packed, parts, sums, splits)
    return Candidate("hopper decoding", (Stage((call,)), Stage((together,))), cost, (parts, sums), reasons)


def _combining(packed: Strided, parts: Value, sums: Value, splits: int) -> KernelCall:
    """The launch that puts parts together."""
    batches, key_heads, rows, size = packed.views["q"].shape
    assert isinstance(key_heads, int) and isinstance(rows, int) and isinstance(size, int)
    operands: dict[str, Operand] = {"parts": parts, "sums": sums, "out": packed.out}
    constants: dict[str, Any] = {
        "GROUP": rows, "SPLITS": splits, "HEAD": size, "BLOCK_P": next_power_of_2(splits),
        "BLOCK_D": next_power_of_2(size), "heads": key_heads * rows,
    }  # fmt: skip
    types: dict[str, str] = {}
    batch, _, head, _ = packed.out_strides
    bind_sizes({"out_batch": batch, "out_head": head}, operands, types, constants)
    grid = (key_heads * rows, batches, 1)
    return KernelCall(combine_parts, operands, types, constants, grid, options={"num_warps": 4})


def _middle(size: Size) -> int:
    """A size that is known, or the geometric mean of its range."""
    return int(math.sqrt(lower_bound(size) * min(upper_bound(size), 1 << 20)))


def _tiled(value: Value, view: View, block: tuple[int, ...]) -> TiledOperand:
    """A view as a tensor map's; an axis of one element gets a stride that a map may have."""
    strides = tuple(
        view.shape[3] if extent == 1 else stride for extent, stride in zip(view.shape[:3], view.strides, strict=False)
    )
    return TiledOperand(value, view.shape, (*strides, 1), block, offset=view.offset)


def _typical(size: Size, most: int = _TYPICAL) -> int:
    """A size that is known, or a typical one of its range."""
    symbols = {symbol.name: min(max(_TYPICAL, symbol.low), symbol.high) for symbol in free_symbols(size)}
    return evaluate(size, symbols) if isinstance(size, int) else min(evaluate(size, symbols), most)


def _seconds(form: AttentionForm, problem: AttentionProblem, pairs: int, target: Target) -> float:
    """The expected time: equal tiles in turns, half of the blocks where the mask is causal."""
    machine = target.machine()
    tiles = -(-problem.queries // form.BM)
    blocks = -(-problem.keys // form.BN)
    if problem.causal and problem.queries > form.BM:
        blocks = -(-blocks // 2)
    clocks = _TILE_CLOCKS + blocks * _hopper_block_clocks(form, machine)
    turns = max(1.0, tiles * pairs / machine.processors) if problem.causal else -(-tiles * pairs // machine.processors)
    return machine.launches.kernel + turns * clocks / machine.clock


def _hopper_block_clocks(form: AttentionForm, machine: Machine) -> float:
    """Clocks of a block of keys: a single warpgroup has nothing to do while it waits for its products."""
    work = form.BM * form.BN * form.D * 4 / (machine.wgmma * _REACHED)
    return work if form.CONSUMERS > 1 else max(work / 0.6, _BLOCK_CLOCKS)


def _described(form: AttentionForm) -> str:
    return f"{form.BM} queries x {form.BN} keys, {form.CONSUMERS} warpgroups"


def _named(name: str, call: KernelCall) -> str:
    form = call.constants["FORM"]
    return f"{name} {form.BM}x{form.BN}"
