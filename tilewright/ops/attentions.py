"""Attention forward on arrays of a GPU: the Hopper kernel with a config by head size, or the portable one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

import tilewright.language as tl
from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph, Value
from tilewright.graph.quantization import integer_range
from tilewright.launch.arguments import stored_array
from tilewright.launch.sizes import cdiv, next_power_of_2
from tilewright.library.attention.hopper.choice import attention_configs, unsupported
from tilewright.library.attention.hopper.config import AttentionConfig, attention_schedule
from tilewright.library.attention.hopper.kernel import attention as hopper_attention
from tilewright.library.attention.hopper.launch import prepare_attention
from tilewright.library.attention.kernel import attention as portable_attention
from tilewright.library.attention.problem import AttentionProblem
from tilewright.library.attention.slots import quantizing
from tilewright.ops import arrays, calls
from tilewright.ops.arrays import ArrayView
from tilewright.runtime import tables
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.tensors import raise_versions
from tilewright.settings import settings

_NARROW = (dtypes.int8, dtypes.uint8, dtypes.float8e4nv, dtypes.float8e5)  # that results are quantized to


def choose_config(problem: AttentionProblem) -> AttentionConfig:
    """The config that promises most for the sizes of a problem."""
    config = attention_configs(problem)[0]
    if problem.output is None:
        return config
    return config._replace(OUTPUT=tl.dtype(problem.output), EPILOGUE=quantizing(problem.output))


class AttentionPlan:
    """A prepared attention: the config, its compiled kernel, and the schedule of tiles on the GPU."""

    def __init__(self, problem: AttentionProblem, ordinal: int | None) -> None:
        self.problem = problem
        self.ordinal = ordinal
        target = arrays.target_at(ordinal)
        self.processors = target.machine().processors
        self.reason = unsupported(problem, target)
        self.config: AttentionConfig | None = None
        self.portions: list[AttentionPlan] = []  # plans for some of the batches each, where one launch cannot take all
        if self.reason:
            self._check_portable()
            return
        self.config = choose_config(problem).check()
        together = max(1, tables.PAIRS // problem.heads)  # batches that one launch takes
        if problem.batches > together:
            counts = [min(together, problem.batches - first) for first in range(0, problem.batches, together)]
            self.portions = [plan_attention(replace(problem, batches=count), ordinal) for count in counts]
            return
        sizes = (problem.batches, problem.heads, problem.queries, problem.keys, problem.heads // problem.key_heads)
        self.table = attention_schedule(self.config, *sizes, self.processors)
        self.captured = False
        if ordinal is not None:
            self.schedule = DeviceArray.from_numpy(self.table, ordinal)
            self.start = compiled(self.config).start(ordinal)

    def _check_portable(self) -> None:
        problem = self.problem
        if problem.window or problem.ragged or problem.statistics or problem.output:
            raise LaunchError(
                f"windows, lengths, log-sum-exp and results of 8 bits need Hopper's tensor copies: {self.reason}"
            )

    def explain(self) -> str:
        """What runs, and why."""
        if self.config is None:
            return f"attention: the portable kernel: {self.reason}"
        config = self.config
        if self.portions:
            return "\n".join(plan.explain() for plan in self.portions)
        return (
            f"attention: {config.BM} queries by {config.BN} keys, {config.CONSUMERS} warpgroups, "
            f"{len(self.table)} CTAs with up to {self.table.shape[1] - 1} tiles"
        )

    def runner(
        self, q: ArrayView, k: ArrayView, v: ArrayView, out: ArrayView, lse: ArrayView | None,
        lengths: ArrayView | None, scale: float, extra: Sequence[float] = (),
    ) -> Callable[[], Any]:  # fmt: skip
        """A call on these arrays, [batch, heads, rows, size] each; `extra` are numbers for the config's epilogue."""
        if self.config is None:
            return self._portable(q, k, v, out, scale)
        if self.portions:
            return self._in_portions((q, k, v, out, lse, lengths), scale, extra)
        problem = self.problem
        if settings.interpret:
            return prepare_attention(
                self.config,
                q.base,
                k.base,
                v.base,
                out.base,
                lse.base if lse else None,
                lengths.base if lengths else None,
                problem.window,
                scale,
                processors=self.processors,
                extra=extra,
            )
        slots: list[Any] = [(found.address, found.shape, found.strides) for found in (q, k, v, out)]
        slots += [lse.address if lse else out.address, lengths.address if lengths else self.schedule.address]
        slots += [self.schedule.address, self.table.shape[1], problem.queries, problem.keys, problem.heads]
        slots += [problem.heads // problem.key_heads, problem.window, scale * math.log2(math.e), *extra]
        views = [found for found in (q, k, v, out, lse, lengths) if found is not None]
        grid, start = len(self.table), self.start
        stored = [stored_array(found.base) for found in (out, lse) if found is not None]

        def run() -> None:
            raise_versions(stored)
            stream = arrays.stream_of(views)
            self._keep_for_graphs(stream)
            start(grid, 1, 1, stream, *slots)

        return run

    def _in_portions(
        self, views: tuple[ArrayView | None, ...], scale: float, extra: Sequence[float]
    ) -> Callable[[], Any]:
        """The calls of `portions`, one after the other, each on its batches."""
        runs, first = [], 0
        for plan in self.portions:
            end = first + plan.problem.batches
            q, k, v, out, lse, lengths = (None if found is None else _batches(found, first, end) for found in views)
            assert q is not None and k is not None and v is not None and out is not None
            runs.append(plan.runner(q, k, v, out, lse, lengths, scale, extra))
            first = end

        def run() -> None:
            for part in runs:
                part()

        return run

    def _keep_for_graphs(self, stream: int) -> None:
        """A graph that captures the launch reads the schedule at every replay, and may outlive this plan."""
        if not self.captured and self.ordinal is not None and arrays.capturing(stream, self.ordinal):
            self.captured = True
            _CAPTURED.append(self.schedule)

    def _portable(self, q: ArrayView, k: ArrayView, v: ArrayView, out: ArrayView, scale: float) -> Callable[[], Any]:
        problem = self.problem
        queries = min(64, max(16, next_power_of_2(problem.queries)))
        grid = (cdiv(problem.queries, queries), problem.heads, problem.batches)
        strides = [stride for found in (q, k, v, out) for stride in found.strides[:3]]
        numbers = (problem.queries, problem.keys, problem.heads // problem.key_heads, scale)
        constants: dict[str, Any] = {
            "HEAD": problem.size, "VALUE_HEAD": problem.size, "BLOCK_S": queries, "BLOCK_T": 64,
            "MASK_S": True, "MASK_T": True, "CAUSAL": problem.causal, "WINDOW": 0, "SOFTCAP": 0.0, "BIAS": 0,
            "TYPE": tl.float32,
        }  # fmt: skip
        operands = (q.base, k.base, v.base, q.base, out.base)
        rest = (0, 0, 0, 0, 0, 0, 0)
        return lambda: portable_attention[grid](*operands, *numbers, *strides, *rest, **constants)


_KERNELS: dict[AttentionConfig, Any] = {}


def compiled(config: AttentionConfig) -> Any:
    """The Hopper kernel of a config."""
    if config not in _KERNELS:
        queries, keys, outs = (
            f"tensormap<{'x'.join(map(str, block))}x{dtype.element}>"
            for block, dtype in ((config.query_block, config.TYPE), (config.key_block, config.TYPE),
                                 (config.query_block, config.stored))
        )  # fmt: skip
        types: dict[str, Any] = {
            "q": queries, "k": keys, "v": keys, "out": outs, "lse": "*f32", "lengths": "*k i32",
            "schedule": "*k i32", "scale": "f32",
            **dict.fromkeys(("tiles_per_cta", "queries", "keys", "heads", "group", "window"), "i32"),
        }  # fmt: skip
        if config.OUTPUT is not None:
            types["extra"] = ("f32",)
        _KERNELS[config] = hopper_attention.compile(types, {"CONFIG": config}, target="cuda:sm_90a")
    return _KERNELS[config]


def _batches(found: ArrayView, first: int, end: int) -> ArrayView:
    """Some of the batches of an array; launches go by the address, the interpreter by the array itself."""
    base = found.base[first:end] if settings.interpret else found.base
    address = found.address + first * found.strides[0] * found.element.itemsize
    return replace(found, base=base, address=address, shape=(end - first, *found.shape[1:]))


def _obstacle(named: dict[str, ArrayView]) -> str:
    reasons = []
    for name, found in named.items():
        steps = [s for s, extent in zip(found.strides[:3], found.shape[:3], strict=True) if extent > 1]
        if any(step * found.element.itemsize % 16 or step <= 0 for step in steps) or found.address % 16:
            reasons.append(f"{name} is not in steps of 16 bytes")
    return "; ".join(reasons)


def _tidy(found: ArrayView) -> ArrayView:
    """Sound strides on axes of one element."""
    packed = arrays.packed_strides(found.shape)
    chosen = [
        whole if extent == 1 else stride
        for extent, stride, whole in zip(found.shape, found.strides, packed, strict=True)
    ]
    return found.changed(found.shape, chosen)


_PLANS: dict[tuple[AttentionProblem, int | None], AttentionPlan] = {}
_MOST_ATTENTION_PLANS = 1024
_CAPTURED: list[DeviceArray] = []  # schedules that graphs may read as long as the process lives


def plan_attention(problem: AttentionProblem, ordinal: int | None) -> AttentionPlan:
    """The prepared attention for a problem on a GPU, made once."""
    key = (problem, ordinal)
    found = _PLANS.get(key)
    if found is None:
        if len(_PLANS) >= _MOST_ATTENTION_PLANS:
            _PLANS.clear()
        found = _PLANS[key] = AttentionPlan(problem, ordinal)
    return found


def _quantized(b: GraphBuilder, y: Value, stored: DType, inverse: float) -> Value:
    """Numbers times `inverse`, to the nearest of a type of 8 bits."""
    y = b.op("multiply", [b.op("cast", [y], dtype=dtypes.float32), b.constant(np.asarray(inverse, np.float32))])
    most = float(ml_dtypes.finfo(stored.numpy).max) if stored.is_float else 0.0
    low, high = integer_range(stored) if stored.is_integer else (-most, most)
    y = b.op("round", [y]) if stored.is_integer else y
    return b.op("cast", [b.op("clip", [y], low=float(low), high=float(high))], dtype=stored)


def _check(q: ArrayView, k: ArrayView, v: ArrayView, lengths: ArrayView | None, causal: bool, window: int) -> None:
    shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if not len(q.shape) == len(k.shape) == len(v.shape) == 4:
        raise LaunchError(f"attention takes [batch, heads, rows, head size] arrays, got {shapes}")
    fits = k.shape == v.shape and q.shape[0] == k.shape[0] and q.shape[3] == k.shape[3]
    if not fits or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise LaunchError(f"{shapes} do not fit each other; query heads are a multiple of key heads")
    if q.element not in (dtypes.bfloat16, dtypes.float16) or not q.element == k.element == v.element:
        raise LaunchError(f"attention takes bfloat16 or float16, of one kind; got {q.element.name}, {k.element.name}")
    if q.shape[3] % 16 or q.shape[3] > 256:
        raise LaunchError(f"head sizes are multiples of 16 up to 256, got {q.shape[3]}")
    if any(found.shape[3] > 1 and found.strides[3] != 1 for found in (q, k, v)):
        raise LaunchError("the last axis of q, k and v must be contiguous")
    if window < 0:
        raise LaunchError(f"a window is a number of keys, 0 for all of them, not {window}")
    if window and not causal:
        raise LaunchError("a window is of causal attention: pass causal=True")
    if lengths is not None and (
        lengths.shape != (q.shape[0], 2) or lengths.element != dtypes.int32 or not lengths.contiguous
    ):
        raise LaunchError(f"lengths must be contiguous int32 [{q.shape[0]}, 2]: queries and keys of each batch")


def _stored_as(element: DType, out: Any, out_dtype: Any, out_scale: float | None) -> tuple[DType, tuple[float, ...]]:
    """The type of results, and of those of 8 bits the inverse of their scale."""
    stored = element if out is None else arrays.view(out, "out").element
    stored = stored if out_dtype is None else arrays.element_type(out_dtype)
    if stored == element:
        if out_scale is not None:
            raise LaunchError(f"out_scale needs 8-bit results: pass out_dtype; {stored.name} is not scaled")
        return stored, ()
    if stored not in _NARROW:
        raise LaunchError(
            f"results are stored as {element.name}, or as {', '.join(each.name for each in _NARROW)}; not {stored.name}"
        )
    scale = 1.0 if out_scale is None else float(out_scale)
    if not (math.isfinite(scale) and scale > 0):
        raise LaunchError(f"out_scale must be a finite number above 0, got {scale}")
    return stored, (1 / scale,)


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    lengths: Any = None,
    return_lse: bool = False,
    out: Any = None,
    out_dtype: Any = None,
    out_scale: float | None = None,
) -> Any:
    """softmax(scale q k^T) v for each head, without the scores in memory.

    `q` [batch, heads, queries, size], `k` and `v` [batch, key heads, keys, size], bfloat16 or float16; heads are a
    multiple of key heads, size a multiple of 16 up to 256.  Any strides but the last, which is 1.  The default `scale`
    is 1 / sqrt(size).  With `causal` the last query sees the last key; with `window` a query sees that many keys, its
    own included.  `lengths` [batch, 2] int32 are the numbers of queries and keys of each batch: results beyond them are
    undefined, and keys and values beyond them must be finite.  `return_lse` also returns the logarithms of the sums,
    float32 [batch, heads, queries].  A query without visible keys gives zeros.  Sums and exponentials are float32.

    The result has q's type, or `out_dtype` (that of `out`): int8, uint8 or float8 (e4m3fn, e5m2) of results divided by
    `out_scale`, rounded to the nearest and saturated.

    Windows, lengths, log-sum-exp and 8-bit results need a GPU of compute capability 9.0.  Raises `LaunchError`.
    """
    first, second, third = arrays.view(q, "q"), arrays.view(k, "k"), arrays.view(v, "v")
    ends = arrays.view(lengths, "lengths") if lengths is not None else None
    _check(first, second, third, ends, causal, window)
    stored, extra = _stored_as(first.element, out, out_dtype, out_scale)
    target = arrays.view(arrays.empty(first, first.shape, stored) if out is None else out, "out")
    if target.shape != first.shape or target.element != stored or target.strides[3] != 1:
        raise LaunchError(
            f"out must be {stored.name} of q's shape {list(first.shape)}, with a contiguous last axis; got "
            f"{target.element.name} {target.described}"
        )
    statistics = None
    if return_lse:
        statistics = arrays.view(arrays.empty(first, first.shape[:3], dtypes.float32), "lse")
    named = {
        name: _tidy(found) for name, found in zip(("q", "k", "v", "out"), (first, second, third, target), strict=True)
    }
    batches, heads, queries, size = first.shape
    problem = AttentionProblem(
        batches, heads, second.shape[1], queries, second.shape[2], size, first.element, causal,
        int(window), lengths is not None, return_lse, _obstacle(named), output=stored if extra else None,
    )  # fmt: skip
    present = [*named.values(), *(found for found in (ends, statistics) if found is not None)]
    place = arrays.common_place(present, "attention")
    if batches * heads * queries and problem.keys:
        plan = plan_attention(problem, place.ordinal if place else None)
        factor = 1 / math.sqrt(size) if scale is None else float(scale)
        plan.runner(named["q"], named["k"], named["v"], named["out"], statistics, ends, factor, extra)()
    elif not problem.keys:
        raise LaunchError("attention needs a key")
    return (target.base, statistics.base) if statistics is not None else target.base


def decode_attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    bias: Any = None,
    scale: float | None = None,
    out: Any = None,
    out_dtype: Any = None,
    out_scale: float | None = None,
) -> Any:
    """softmax(scale q k^T + bias) v of one query for each head against all keys: a step of decoding.

    `q` is [batch, heads, size], `k` and `v` [batch, key heads, keys, size], contiguous, all bfloat16 or float16; heads
    are a multiple of key heads, size a multiple of 16 up to 256.  `bias` [batch, keys], of q's type, is added to
    scores: minus infinity hides a key.  `scale` is 1 / sqrt(size) unless given.  The result is like q, or of 8 bits as
    that of `attention`; a query that sees no key gives zeros.  On compute capability 9.0 the CTAs of a cluster divide
    the keys.  Raises `LaunchError`.
    """
    query, keys, values = arrays.view(q, "q"), arrays.view(k, "k"), arrays.view(v, "v")
    if len(query.shape) != 3:
        raise LaunchError(f"decode_attention takes q [batch, heads, size], got {list(query.shape)}")
    batch, heads, size = query.shape
    alone = query.changed((batch, heads, 1, size), (*query.strides[:2], size, query.strides[2]))
    _check(alone, keys, values, None, False, 0)
    hidden = None if bias is None else arrays.view(bias, "bias")
    if hidden is not None and (hidden.shape != (batch, keys.shape[2]) or hidden.element != query.element):
        raise LaunchError(
            f"bias must be {query.element.name} of shape {[batch, keys.shape[2]]}, got {hidden.described}"
        )
    given = {"q": query, "k": keys, "v": values, "bias": hidden}
    present = {name: found for name, found in given.items() if found is not None}
    for name, found in present.items():
        if not found.contiguous:
            raise LaunchError(f"{name} must be contiguous, got {found.described}")
    stored, inverse = _stored_as(query.element, out, out_dtype, out_scale)
    target = calls.result_like(query, query.shape, stored, out)
    place = arrays.common_place([*present.values(), target], "decode_attention")
    if not keys.shape[2]:
        raise LaunchError("attention needs a key")
    if 0 in query.shape:
        return target.base
    factor = 1 / math.sqrt(size) if scale is None else float(scale)

    def graph() -> Graph:
        b = GraphBuilder("decode_attention")
        shapes = {"q": alone.shape, "k": keys.shape, "v": values.shape, "bias": (batch, 1, 1, keys.shape[2])}
        inputs = [b.input(name, found.element, shapes[name]) for name, found in present.items()]
        y = b.op("attention", inputs, scale=factor)
        b.output(_quantized(b, y, stored, inverse[0]) if inverse else y)
        return b.finish()

    key = ("decode_attention", query.element, query.shape, keys.shape, factor, stored, inverse, *present)
    sizes = (next_power_of_2(batch), heads, size, keys.shape[1], next_power_of_2(keys.shape[2]))
    alike = (query.element.name, sizes, stored.name, *present)
    calls.prepared(key, alike, [*present.values(), target], place, graph).run(present, target)
    return target.base
