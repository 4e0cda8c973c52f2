"""Attention forward on arrays of a GPU: the Hopper kernel with a config by head size, or the portable one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tilewright.language as tl
from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.launch.sizes import cdiv, next_power_of_2
from tilewright.library.attention.hopper.choice import attention_configs, seconds_of, unsupported
from tilewright.library.attention.hopper.config import ATTENTION_PARAMETERS, AttentionConfig, attention_schedule
from tilewright.library.attention.hopper.kernel import attention as hopper_attention
from tilewright.library.attention.problem import AttentionProblem
from tilewright.library.epilogue import quantizing
from tilewright.library.epilogue_parts import quantized
from tilewright.measure.choosing import Choice, closest
from tilewright.ops import arrays, calls
from tilewright.ops.arrays import ArrayView
from tilewright.ops.choosing import Alternatives, TrialCalls
from tilewright.ops.launches import Argument, bound_launch, tiled_views
from tilewright.runtime import tables
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.settings import settings
from tilewright.targets.base import Target

_LEAST_STEP = 16  # of queries, between problems that are timed


def hopper_configs(problem: AttentionProblem) -> list[AttentionConfig]:
    """The configs for the sizes of a problem, the one that promises most first."""
    found = attention_configs(problem)
    if problem.output is None:
        return found
    stored, epilogue = tl.dtype(problem.output), quantizing(problem.output)
    return [config._replace(OUTPUT=stored, EPILOGUE=epilogue) for config in found]


@dataclass(eq=False)
class _Scheduled:
    """A config with its kernel's start, and the schedule of its tiles."""

    view: ArrayView
    start: Callable[[], Callable[..., Any]]
    captured: bool = False  # by a graph, which reads the schedule


class AttentionPlan:
    """A prepared attention: the configs, of which `choice` says which one is taken, their kernels and schedules."""

    def __init__(self, problem: AttentionProblem, ordinal: int | None) -> None:
        self.problem = problem
        self.ordinal = ordinal
        self.target = arrays.target_at(ordinal)
        self.machine = self.target.machine()
        self.reason = unsupported(problem, self.target)
        self.configs: list[AttentionConfig] = []
        self.alternatives: Alternatives | None = None
        self.portions: list[AttentionPlan] = []  # plans for some of the batches each, where one launch cannot take all
        self._scheduled: dict[AttentionConfig, _Scheduled] = {}
        if self.reason:
            self._check_portable()
            return
        self.configs = [config.check() for config in hopper_configs(problem)]
        seconds = [seconds_of(config, problem, self.machine) for config in self.configs]
        text, close = str(_size_class(problem)), sorted({0, *closest(seconds, effort=1)})
        labels = list(map(_described, self.configs))
        self.alternatives = Alternatives("attention", text, ordinal, labels, range(len(labels)), close)
        together = max(1, tables.PAIRS // problem.heads)  # batches that one launch takes
        if problem.batches > together:
            counts = [min(together, problem.batches - first) for first in range(0, problem.batches, together)]
            self.portions = [plan_attention(replace(problem, batches=count), ordinal) for count in counts]

    @property
    def config(self) -> AttentionConfig | None:
        """The config that was chosen, or will be when nothing is timed; None for the portable kernel."""
        return self.configs[self.alternatives.index] if self.alternatives else None

    @property
    def choice(self) -> Choice | None:
        """How the config was found; None until it is."""
        return self.alternatives.choice if self.alternatives else None

    def scheduled(self, config: AttentionConfig) -> _Scheduled:
        """A config made ready for launches."""
        if config not in self._scheduled:
            problem, ordinal = self.problem, self.ordinal
            sizes = (problem.batches, problem.heads, problem.queries, problem.keys, problem.heads // problem.key_heads)
            table = attention_schedule(config, *sizes, self.machine.processors)
            array = table if ordinal is None else DeviceArray.from_numpy(table, ordinal)
            start = partial(self._start, config)
            self._scheduled[config] = _Scheduled(arrays.view(array, "schedule"), start)
        return self._scheduled[config]

    def _start(self, config: AttentionConfig) -> Callable[..., Any]:
        """The launcher of a config on the GPU of the plan."""
        start: Callable[..., Any] = compiled(config, self.target).start(self.ordinal)
        return start

    def _check_portable(self) -> None:
        if self.problem.ragged or self.problem.statistics:
            raise LaunchError(f"lengths and log-sum-exp need Hopper's tensor copies: {self.reason}")

    def explain(self) -> str:
        """What runs, and why."""
        config = self.config
        if config is None:
            return f"attention: the portable kernel: {self.reason}"
        if self.portions:
            return "\n".join(plan.explain() for plan in self.portions)
        ctas, tiles = self.scheduled(config).view.shape
        source = {"timed": ", timed", "recorded": ", timed by an earlier program"}
        how = source.get(self.choice.source if self.choice else "", "")
        return f"attention: {_described(config)}, {ctas} CTAs with up to {tiles - 1} tiles{how}"

    def runner(
        self, q: ArrayView, k: ArrayView, v: ArrayView, out: ArrayView, lse: ArrayView | None,
        lengths: ArrayView | None, scale: float, extra: Sequence[float] = (),
    ) -> Callable[[], Any]:  # fmt: skip
        """A call on these arrays, [batch, heads, rows, size] each; `extra` are numbers for the config's epilogue."""
        views = (q, k, v, out, lse, lengths)
        if not self.configs:
            return self._portable(q, k, v, out, scale, extra)
        if self.portions:
            return self._in_portions(views, scale, extra)
        assert self.alternatives is not None
        if self.alternatives.choice is None:
            self._choose(views, scale, extra)
        return self._call(self.configs[self.alternatives.index], views, scale, extra)

    def _choose(self, views: Sequence[ArrayView | None], scale: float, extra: Sequence[float]) -> None:
        """Find the config, by times on record or by timing the close ones, once for problems of about these sizes."""
        assert self.alternatives is not None
        used = [found for found in views if found is not None]

        def trials() -> TrialCalls:
            own = [None if found is None else arrays.empty_like(found) if number in (3, 4) else found
                   for number, found in enumerate(views)]  # fmt: skip
            return TrialCalls(lambda number: self._call(self.configs[number], own, scale, extra))

        chosen = self.configs[self.alternatives.choose(used, trials if settings.tune else None)]
        if self.choice is not None:  # schedules of the others are not read any more
            self._scheduled = {config: made for config, made in self._scheduled.items() if config == chosen}

    def _call(
        self, config: AttentionConfig, views: Sequence[ArrayView | None], scale: float, extra: Sequence[float]
    ) -> Callable[[], Any]:
        """A call by a config, on q, k, v, out, lse and lengths."""
        q, k, v, out, lse, lengths = views
        assert q is not None and k is not None and v is not None and out is not None
        problem, scheduled = self.problem, self.scheduled(config)
        schedule, (ctas, tiles) = scheduled.view, scheduled.view.shape
        # What the config has not is not read: the schedule stands for it.
        arguments: list[Argument] = [
            *tiled_views(ATTENTION_PARAMETERS, q, k, v, out), lse or schedule, lengths or schedule, schedule, tiles,
            problem.queries, problem.keys, problem.heads, problem.heads // problem.key_heads, problem.window,
            scale * math.log2(math.e), *extra,
        ]  # fmt: skip
        return bound_launch(
            hopper_attention, config, scheduled.start, (ctas, 1, 1), arguments,
            [found for found in views if found is not None], [found for found in (out, lse) if found is not None],
            partial(self._keep_for_graphs, scheduled),
        )  # fmt: skip

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

    def _keep_for_graphs(self, scheduled: _Scheduled, stream: int) -> None:
        """A graph that captures the launch reads the schedule at every replay, and may outlive this plan."""
        if not scheduled.captured and self.ordinal is not None and arrays.capturing(stream, self.ordinal):
            scheduled.captured = True
            _CAPTURED.append(scheduled.view.base)

    def _portable(
        self, q: ArrayView, k: ArrayView, v: ArrayView, out: ArrayView, scale: float, inverse: Sequence[float]
    ) -> Callable[[], Any]:
        """The kernels that engines have for every GPU."""
        problem, given = self.problem, {"q": q, "k": k, "v": v}
        options: dict[str, Any] = {
            "scale": scale, "causal": problem.causal, "window": problem.window, "softcap": problem.softcap
        }  # fmt: skip

        def graph() -> Graph:
            b = GraphBuilder("attention")
            y = b.op("attention", [calls.strided_input(b, name, found) for name, found in given.items()], **options)
            b.output(quantized(b, y, out.element, inverse[0]) if inverse else y)
            return b.finish()

        used = [*given.values(), out]
        key = ("attention", problem, tuple(found.strides for found in given.values()), scale, tuple(inverse))
        place = arrays.common_place(used, "attention")
        prepared = calls.prepared(key, _size_class(problem), used, place, graph)
        return lambda: prepared.run(given, out)


def _size_class(problem: AttentionProblem) -> AttentionProblem:
    """The problem whose choice serves this one: batches and keys are rounded up to a power of two; queries, which
    decide about waves, in steps of an eighth of one."""
    step = max(_LEAST_STEP, next_power_of_2(problem.queries) // 8)
    return replace(
        problem, batches=next_power_of_2(problem.batches), queries=cdiv(problem.queries, step) * step,
        keys=next_power_of_2(problem.keys),
    )  # fmt: skip


def _described(config: AttentionConfig) -> str:
    joined = ", joined tiles" if config.FLAT else ""
    return f"{config.BM} queries by {config.BN} keys, {config.CONSUMERS} warpgroups{joined}"


_KERNELS: dict[tuple[AttentionConfig, str], Any] = {}


def compiled(config: AttentionConfig, target: Target) -> Any:
    """The Hopper kernel of a config for a target."""
    key = (config, target.key)
    if key not in _KERNELS:
        types = ATTENTION_PARAMETERS.types(config, () if config.OUTPUT is None else ("f32",))
        _KERNELS[key] = hopper_attention.compile(types, {"CONFIG": config}, target=target)
    return _KERNELS[key]


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


_PLANS: dict[tuple[AttentionProblem, int | None, bool], AttentionPlan] = {}
_MOST_ATTENTION_PLANS = 1024
_CAPTURED: list[DeviceArray] = []  # schedules that graphs may read as long as the process lives


def plan_attention(problem: AttentionProblem, ordinal: int | None) -> AttentionPlan:
    """The prepared attention for a problem on a GPU, made once."""
    key = (problem, ordinal, settings.tune)
    found = _PLANS.get(key)
    if found is None:
        if len(_PLANS) >= _MOST_ATTENTION_PLANS:
            _PLANS.clear()
        found = _PLANS[key] = AttentionPlan(problem, ordinal)
    return found


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


def _check_cap(softcap: float, scale: float | None) -> None:
    if not 0 <= softcap < math.inf or (softcap and scale == 0):
        raise LaunchError(f"softcap is a finite number from 0, with a scale other than 0; got {softcap} and {scale}")


def _stored_as(element: DType, out: Any, out_dtype: Any, out_scale: float | None) -> tuple[DType, tuple[float, ...]]:
    """The type of results, and of those of 8 bits the inverse of their scale."""
    stored = element if out is None else arrays.view(out, "out").element
    stored = stored if out_dtype is None else arrays.element_type(out_dtype)
    if stored != element and stored not in arrays.NARROW_TYPES:
        narrow = ", ".join(each.name for each in arrays.NARROW_TYPES)
        raise LaunchError(f"results are stored as {element.name}, or as {narrow}; not {stored.name}")
    return stored, calls.scale_of_results(stored, stored == element, out_scale)


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    lengths: Any = None,
    return_lse: bool = False,
    out: Any = None,
    out_dtype: Any = None,
    out_scale: float | None = None,
) -> Any:
    """softmax(scale q k^T) v for each head, without the scores in memory.

    `q` [batch, heads, queries, size], `k` and `v` [batch, key heads, keys, size], bfloat16 or float16; heads are a
    multiple of key heads, size a multiple of 16 up to 256.  Any strides but the last, which is 1.  The default `scale`
    is 1 / sqrt(size); `softcap` c (0: none) makes scores ``c tanh(scores / c)``.  With `causal` the last query sees the
    last key; with `window` a query sees that many keys, its own included.  `lengths` [batch, 2] int32 are the numbers
    of queries and keys of each batch: results beyond them are undefined, keys and values beyond them must be finite.
    `return_lse` also returns the logarithms of the sums, float32 [batch, heads, queries].  A query without visible keys
    gives zeros.  Sums and exponentials are float32.
    The result has q's type, or `out_dtype` (that of `out`): int8, uint8 or float8 (e4m3fn, e5m2) of results divided by
    `out_scale`, rounded to the nearest and saturated.
    Lengths and log-sum-exp need a GPU of compute capability 9.0.  Raises `LaunchError`.
    """
    first, second, third = arrays.view(q, "q"), arrays.view(k, "k"), arrays.view(v, "v")
    ends = arrays.view(lengths, "lengths") if lengths is not None else None
    _check(first, second, third, ends, causal, window)
    _check_cap(softcap, scale)
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
        softcap=float(softcap),
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
        b.output(quantized(b, y, stored, inverse[0]) if inverse else y)
        return b.finish()

    key = ("decode_attention", query.element, query.shape, keys.shape, factor, stored, inverse, *present)
    sizes = (next_power_of_2(batch), heads, size, keys.shape[1], next_power_of_2(keys.shape[2]))
    alike = (query.element.name, sizes, stored.name, *present)
    calls.prepared(key, alike, [*present.values(), target], place, graph).run(present, target)
    return target.base
