"""Attention groups by the Hopper kernel of tensor copies and wgmma, in its best configs for few and many queries."""

from __future__ import annotations

import math
from dataclasses import replace

import tilewright.language as tl
from tilewright.dtypes import bfloat16, float16
from tilewright.graph.core import Graph, Node, Value
from tilewright.graph.fusion import Group
from tilewright.graph.views import StridedView
from tilewright.library.attention.hopper import kernel as hopper
from tilewright.library.attention.hopper.choice import WARPGROUP_QUERIES, attention_configs, seconds_of
from tilewright.library.attention.hopper.config import ATTENTION_PARAMETERS, AttentionConfig
from tilewright.library.attention.problem import SMALLEST, AttentionProblem, typical
from tilewright.library.attention.slots import attention_slots, computes
from tilewright.library.attention.strided import Strided, strided_operands
from tilewright.library.binding import bind_extra, divides
from tilewright.library.candidate import Candidate, KernelCall, Operand, Stage, Table, TiledOperand
from tilewright.library.cost import Cost
from tilewright.library.generated.elementwise import total_bytes
from tilewright.library.generated.source import ExtraReferences
from tilewright.library.slots import Slots
from tilewright.runtime.tables import PAIRS
from tilewright.symbolic import Size, ceil_divide, lift, lower_bound, maximum, minimum, product, simplify, upper_bound
from tilewright.targets.base import Target

_CANDIDATES = 3  # configs that are worth timing
_WIDEST = 256  # numbers of a head
_MOVED_TOGETHER = 8  # numbers of 16 bits that a copy moves together


def hopper_candidates(group: Group, graph: Graph, plain: KernelCall, target: Target) -> list[Candidate]:
    """The Hopper kernel in its best configs; none where tensor copies cannot read the operands.

    `plain` is the launch for sizes that an entry of the kernel's schedule cannot count, where there may be such.
    """
    anchor = group.anchor
    assert anchor is not None
    strided = strided_operands(group)
    if not target.wgmma or not is_tiled(anchor, strided):
        return []
    if computes(group) and not is_whole(strided):
        return []  # what follows would read operands of columns that there are none of
    slots = attention_slots(group, graph, ExtraReferences(first=own_extra(strided)))
    found = []
    for number in range(_CANDIDATES):
        calls, seconds = _hopper_calls(anchor, strided, slots, number, target)
        if not calls:
            break
        configs = {
            f"queries <= {WARPGROUP_QUERIES}" if len(calls) > 1 and call is calls[0] else "queries": call.constants[
                "CONFIG"
            ]
            for call in calls
        }
        flops = simplify(lift(product(strided.views["q"].shape)) * strided.views["k"].shape[2] * 4)
        cost = Cost(total_bytes(group.inputs, group.outputs), flops, seconds)
        reasons = {name: _described(config) for name, config in configs.items()}
        name = _named("hopper attention", calls[-1])
        if calls[-1].condition is not None:
            calls.append(replace(plain, condition=None))
        found.append(Candidate(name, (Stage(tuple(calls)),), cost, (), reasons))
    return found


def is_tiled(anchor: Node, strided: Strided) -> bool:
    """Whether tensor copies can move everything, and a config has the head size."""
    dtype = strided.sources["q"].dtype
    kinds, stored = {value.dtype for value in strided.sources.values()}, strided.out.dtype
    if kinds != {dtype} or dtype not in (float16, bfloat16) or (strided.bias and strided.bias.dtype != dtype):
        return False
    if stored != dtype and stored.bits != 8:
        return False
    if not 0 < head_width(strided) <= _WIDEST:
        return False
    if strided.bias_form and strided.bias_strides[3] != 1:
        return False
    steps = [stride for view in strided.views.values() for stride in (*view.strides[:3], view.offset)]
    written = all(divides(16 // stored.itemsize, step) for step in strided.out_strides[:3])
    return written and all(divides(16 // dtype.itemsize, step) for step in steps)


def head_width(strided: Strided) -> int:
    """The numbers of a head in tiles, of which queries and keys, or values, may have fewer: copies fill tiles up with
    zeros, and store what a result has.  0 where a width is not known, or no whole number of what copies move."""
    widths = [strided.views[name].shape[3] for name in ("q", "v")]
    known = [width for width in widths if isinstance(width, int) and width % _MOVED_TOGETHER == 0]
    return -(-max(known) // SMALLEST) * SMALLEST if len(known) == len(widths) else 0


def is_whole(strided: Strided) -> bool:
    """Whether heads are as wide as their tiles."""
    width = head_width(strided)
    return all(strided.views[name].shape[3] == width for name in ("q", "v"))


def own_extra(strided: Strided) -> int:
    """How many operands the bias of attention adds in front of those of the epilogue."""
    return 0 if strided.bias is None else 5


def _hopper_calls(
    anchor: Node, strided: Strided, slots: Slots, number: int, target: Target
) -> tuple[list[KernelCall], float]:
    """Launches in the configs of a place in the ranking, for few and for many queries, and the expected time.

    The last one has a condition only where sizes may be more than a schedule counts.
    """
    q, k = strided.views["q"], strided.views["k"]
    queries, size = q.shape[2], head_width(strided)
    calls: list[KernelCall] = []
    seconds = 0.0
    for rows, condition in _spans(queries, product(q.shape[:2])):
        pairs = typical(product(q.shape[:2]), 1 << 20)
        problem = AttentionProblem(
            1, pairs, pairs, rows, typical(k.shape[2]), size, strided.sources["q"].dtype,
            bool(anchor.attributes["causal"]), anchor.attributes["window"], bias=strided.bias_form,
            counted=strided.lengths is not None, softcap=float(anchor.attributes["softcap"]),
        )  # fmt: skip
        configs = attention_configs(problem)
        if number >= len(configs):
            return [], 0.0
        calls.append(hopper_call(anchor, strided, slots, configs[number], condition, target))
        seconds = seconds_of(configs[number], problem, target.machine())
    return calls, seconds


def _spans(queries: Size, pairs: Size) -> list[tuple[int, tuple[Size, int] | None]]:
    """Typical numbers of few and of many queries, each with the condition of its launch."""
    counted = upper_bound(pairs) < PAIRS and upper_bound(queries) < PAIRS * WARPGROUP_QUERIES
    few: tuple[Size, int] | None = (queries, WARPGROUP_QUERIES)
    many: tuple[Size, int] | None = None
    if not counted:
        # One comparison for both: of the pairs, and of the queries in a measure in which few are as many.
        few = (maximum(simplify(lift(queries) * (PAIRS // WARPGROUP_QUERIES - 1)), pairs), PAIRS - 1)
        many = (maximum(ceil_divide(queries, WARPGROUP_QUERIES), pairs), PAIRS - 1)
    elif upper_bound(queries) <= WARPGROUP_QUERIES:
        few = None
    spans: list[tuple[int, tuple[Size, int] | None]] = []
    if lower_bound(queries) <= WARPGROUP_QUERIES:
        spans.append((typical(queries, WARPGROUP_QUERIES), few))
    if upper_bound(queries) > WARPGROUP_QUERIES:
        spans.append((typical(queries), many))
    return spans


def hopper_call(
    anchor: Node, strided: Strided, slots: Slots | None, config: AttentionConfig, condition: tuple[Size, int] | None,
    target: Target, sums: Value | None = None,
) -> KernelCall:  # fmt: skip
    """One launch of the Hopper kernel; `sums` are the log-sum-exps of parts of the keys, which have no `slots`."""
    if slots is not None:
        config = config._replace(OUTPUT=tl.dtype(slots.stored.dtype), EPILOGUE=slots.function)
    q, k = strided.views["q"], strided.views["k"]
    batches, heads, queries, _ = q.shape
    keys, size = k.shape[2], strided.views["v"].shape[3]
    all_seen = not config.CAUSAL and not config.LENGTHS and config.SPLITS == 1
    whole = all_seen and divides(config.BN, keys)
    paired = whole and strided.bias is not None and all(divides(2, stride) for stride in strided.bias_strides[:3])
    config = config._replace(WHOLE=whole, PAIRED=paired)
    group = simplify(lift(heads) // k.shape[1])
    parts = simplify(lift(heads) * config.SPLITS)
    processors = target.machine().processors
    row_bytes = config.D * config.TYPE.itemsize
    share = keys if config.SPLITS == 1 else ceil_divide(keys, config.SPLITS)
    sizes = (batches, parts, group, queries, share, config.BM, config.BN, row_bytes, int(config.CAUSAL), processors)
    schedule = Table("attention", sizes)
    scale = float(anchor.attributes["scale"])
    values = {**strided.sources, "out": strided.out}
    views = {**strided.views, "out": StridedView((batches, parts, queries, size), strided.out_strides)}
    operands: dict[str, Operand] = {
        name: tiled(values[name], views[name], ATTENTION_PARAMETERS.block(config, name))
        for name in ATTENTION_PARAMETERS.tiled
    }
    operands |= {
        "lse": schedule if sums is None else sums,
        "lengths": strided.lengths or schedule, "schedule": schedule,
        "tiles_per_cta": Table("attention", sizes, columns=True),
        "queries": queries, "keys": keys, "heads": parts, "group": group, "window": anchor.attributes["window"],
        "scale": scale * math.log2(math.e),
    }  # fmt: skip
    types = ATTENTION_PARAMETERS.numbers
    if strided.bias is not None:
        operands |= {"extra_0": strided.bias, "extra_4": 1 / scale}
        operands |= {f"extra_{number + 1}": stride for number, stride in enumerate(strided.bias_strides[:3])}
        types |= {"extra_1": "i64", "extra_2": "i64", "extra_3": "i64", "extra_4": "f32"}
    if slots is not None:
        bind_extra(slots.extra, operands, types)
    tiles = simplify(lift(ceil_divide(queries, config.BM)) * batches * parts)
    return KernelCall(
        hopper.attention, operands, types, {"CONFIG": config}, (minimum(tiles, processors), 1, 1), condition
    )  # fmt: skip


def tiled(value: Value, view: StridedView, block: tuple[int, ...]) -> TiledOperand:
    """A view as a tensor map's; an axis of one element gets a stride that a map may have."""
    strides = tuple(
        view.shape[3] if extent == 1 else stride for extent, stride in zip(view.shape[:3], view.strides, strict=False)
    )
    return TiledOperand(value, view.shape, (*strides, 1), block, offset=view.offset)


def _described(config: AttentionConfig) -> str:
    return f"{config.BM} queries x {config.BN} keys, {config.CONSUMERS} warpgroups"


def _named(name: str, call: KernelCall) -> str:
    config = call.constants["CONFIG"]
    return f"{name} {config.BM}x{config.BN}"
