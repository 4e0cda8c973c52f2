"""Operations on arrays, without a GPU: configs ranked, choices kept, arguments described, kernels interpreted."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.language as tl
from tilewright import dtypes, ops
from tilewright.errors import LaunchError
from tilewright.launch.sizes import cdiv
from tilewright.library.epilogue_parts import EpilogueParts
from tilewright.library.matmul.hopper.ranked import candidates, close
from tilewright.library.matmul.problem import MatmulProblem
from tilewright.library.reduce import simt_arrays
from tilewright.library.rows import simt_config as row_configs
from tilewright.library.rows.simt_config import row_config
from tilewright.measure import timers
from tilewright.ops import arrays, choosing, products, reductions
from tilewright.runtime import tables
from tilewright.runtime.cuda import streams
from tilewright.runtime.cuda.device import current_device
from tilewright.runtime.cuda.streams import DevicePlace
from tilewright.settings import settings
from tilewright.targets.nvidia.target import NvidiaTarget

BF16 = np.dtype(ml_dtypes.bfloat16)
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
UNIT = 2.0**-8
H200 = NvidiaTarget.named("sm_90a").machine()


@pytest.fixture
def interpreted() -> Any:
    with settings.scope(interpret=True):
        yield


def normal(rng: np.random.Generator, *shape: int, dtype: Any = BF16) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def check(result: np.ndarray, expected: np.ndarray, tolerance: float = UNIT) -> None:
    assert result.shape == expected.shape
    assert np.linalg.norm(wide(result) - expected) <= tolerance * np.linalg.norm(expected)


def problem(M: int, N: int, K: int, dtype: dtypes.DType = dtypes.bfloat16, **others: Any) -> MatmulProblem:
    return MatmulProblem(M, N, K, 1, dtype, others.pop("output", dtypes.bfloat16), **others)


# Ranking


@pytest.mark.parametrize(
    ("sizes", "tile"),
    [((4096, 4096, 4096), (128, 256)), ((2048, 4096, 14336), (128, 256)), ((512, 14336, 4096), (128, 224)),
     ((1280, 2304, 4160), (128, 192))],
)  # fmt: skip
def test_the_tiles_that_were_fastest_on_an_h200_are_timed(sizes: tuple[int, int, int], tile: tuple[int, int]) -> None:
    chosen = close(problem(*sizes), H200)
    assert tile in [(candidate.config.BM, candidate.config.BN) for candidate in chosen]


def test_warpgroups_take_turns_where_there_is_something_to_hide() -> None:
    def ping_pong(posed: MatmulProblem) -> list[bool]:
        return [candidate.config.PING_PONG for candidate in close(posed, H200)]

    epilogue = EpilogueParts(bias=dtypes.bfloat16, activation="gelu").epilogue
    heavy = problem(4096, 4096, 4096, epilogue=epilogue, operands=("*k bf16", "i32"))
    assert sum(ping_pong(heavy)) == 3 and not ping_pong(heavy)[0]
    assert not any(ping_pong(problem(4096, 4096, 14336))) and any(ping_pong(problem(4096, 4096, 1024)))


def test_few_rows_load_few_rows_and_split_the_depth_where_columns_are_few() -> None:
    best = candidates(problem(16, 14336, 4096), H200)[0].config
    assert best.BM == 64 and best.A_ROWS == 16 and best.EVICT_B == "evict_first"
    chosen = close(problem(64, 4096, 14336), H200)
    assert any(candidate.config.SPLIT == 2 for candidate in chosen)


def test_clusters_are_counted_as_they_are_resident() -> None:
    assert H200.slots(4) == 120 and H200.slots(2) == 132


@pytest.mark.parametrize(
    "posed",
    [problem(300, 520, 200), problem(1, 8, 8), problem(4096, 4096, 4096, dtypes.int8, output=dtypes.int32),
     problem(128, 256, 64, dtypes.float32, output=dtypes.float32), problem(5000, 96, 4096, left_transposed=True),
     problem(700, 3000, 128, right_transposed=True)],
    ids=lambda posed: posed.key,
)  # fmt: skip
def test_every_candidate_can_be_built_and_ranks_by_cost(posed: MatmulProblem) -> None:
    ranked = candidates(posed.shape_class, H200)
    assert ranked and all(candidate.config.check() for candidate in ranked)
    assert [round(c.seconds * 1e9) for c in ranked] == sorted(round(c.seconds * 1e9) for c in ranked)
    assert all(c.config.A_ROWS == 0 or posed.rows <= c.config.A_ROWS for c in ranked)


def test_a_shape_class_rounds_rows_up() -> None:
    classes = [problem(rows, 64, 64).shape_class.rows for rows in (1, 9, 60, 65, 3000)]
    assert classes == [8, 16, 64, 128, 3072]


# Choices


class FakeConfigs:
    """The time of a plan's configs and how often each was run: the second fails, the third is the fastest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[str] = []
        self.timed: list[tuple[str, int]] = []
        self.capturing = False
        gpu = current_device()
        monkeypatch.setattr(choosing, "device", lambda ordinal: gpu)
        monkeypatch.setattr(arrays, "target_at", lambda ordinal: NvidiaTarget.named("sm_90a"))
        monkeypatch.setattr(products.MatmulPlan, "_runner", lambda plan, config, operands: self._runner(plan, config))
        monkeypatch.setattr(products.MatmulPlan, "_launch_of", lambda plan, config, operands: lambda stream: None)
        monkeypatch.setattr(arrays, "cold", lambda weights, ordinal, l2_bytes: [weights] * 3)
        monkeypatch.setattr(arrays, "empty_like", lambda out: out)
        monkeypatch.setattr(arrays, "capturing", lambda stream, ordinal: self.capturing)
        monkeypatch.setattr(arrays, "stream_of", lambda views: 0)
        monkeypatch.setattr(timers, "alone", lambda runs: self._times("alone", runs))
        monkeypatch.setattr(timers, "in_graphs", lambda runs, expected: self._times("in graphs", runs))

    def _runner(self, plan: Any, config: Any) -> Any:
        number = [candidate.config for candidate in plan.ranked].index(config)
        if number == 1:
            raise LaunchError("too large")
        return lambda: self.runs.append(str(number))

    def _times(self, how: str, runs: Any) -> dict[int, float]:
        self.timed.append((how, len(runs)))
        return {index: 2.0 if index == 2 else 3.0 + index for index in runs}


@pytest.mark.parametrize("rows", [64, 1024])
def test_a_plan_times_its_configs_once_and_keeps_the_times(driver: Any, rows: int, monkeypatch, rng) -> None:
    configs = FakeConfigs(monkeypatch)
    asked, operands = products.describe(normal(rng, rows, 256), normal(rng, 256, 512), None, None, {})
    untimed = products.MatmulPlan(asked, 0, 0)
    untimed.launch(operands)
    assert untimed.choice is not None and (untimed.choice.index, untimed.choice.source) == (0, "estimate")
    assert "first by cost" in untimed.explain() and not configs.timed and configs.runs == ["0"]
    plan = products.MatmulPlan(asked, 0, 1)
    configs.capturing = True
    plan.launch(operands)
    assert plan.choice is None and not configs.timed  # it is timed when nothing is captured
    configs.capturing = False
    for _ in range(2):
        plan.launch(operands)
    assert plan.choice is not None and (plan.choice.index, plan.choice.source) == (2, "timed")
    assert configs.timed == [("in graphs" if rows == 64 else "alone", len(plan.ranked) - 1)]
    assert "timed in" in plan.explain() and "2.0 us measured" in plan.explain()
    assert f"failed: {plan.ranked[1]}: LaunchError: too large" in plan.explain()
    for effort in (0, 1):
        again = products.MatmulPlan(asked, 0, effort)
        again.launch(operands)
        assert again.choice is not None and (again.choice.index, again.choice.source) == (2, "recorded")
        assert "timed by an earlier program" in again.explain()
    assert len(configs.timed) == 1 and configs.runs[-1] == "2"


def test_a_plan_without_a_config_that_runs_is_an_error(driver: Any, monkeypatch, rng) -> None:
    FakeConfigs(monkeypatch)
    asked, operands = products.describe(normal(rng, 64, 256), normal(rng, 256, 512), None, None, {})
    plan = products.MatmulPlan(asked, 0, 1)

    def fail(*arguments: Any) -> Any:
        raise LaunchError("too large")

    monkeypatch.setattr(products.MatmulPlan, "_runner", fail)
    with pytest.raises(LaunchError, match="too large"):
        plan.launch(operands)


# Products


@pytest.mark.parametrize("left", ["n", "t"])
@pytest.mark.parametrize("right", ["n", "t"])
def test_products_in_all_orders(left: str, right: str, interpreted: None, rng: np.random.Generator) -> None:
    a, b = normal(rng, 72, 136), normal(rng, 136, 48)
    first = a if left == "n" else np.ascontiguousarray(a.T).T
    second = b if right == "n" else np.ascontiguousarray(b.T).T
    check(ops.matmul(first, second, out_dtype=np.float32), wide(a) @ wide(b), 1e-5)


def test_bias_activation_and_residual(interpreted: None, rng: np.random.Generator) -> None:
    a, b, bias, residual = normal(rng, 2, 30, 72), normal(rng, 48, 72), normal(rng, 48), normal(rng, 2, 30, 48)
    x = wide(a) @ wide(b).T + wide(bias)
    curves = {
        "gelu": 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
        "gelu_tanh": 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "silu": x / (1 + np.exp(-x)), "relu": np.maximum(x, 0),
    }  # fmt: skip
    for name, expected in curves.items():
        result = ops.matmul(a, b.T, bias=bias, activation=name, residual=residual)
        check(result, expected + wide(residual))
        exact = ops.matmul(a, b.T, bias=bias, activation=name, out_dtype=np.float32)
        check(exact, expected, 1e-5)


def test_chunks_of_columns_go_together(interpreted: None, rng: np.random.Generator) -> None:
    """Two full chunks and a smaller one, of a tile that reaches beyond the result."""
    a, b, bias = normal(rng, 70, 72), normal(rng, 144, 72), normal(rng, 144)
    posed, operands = products.describe(a, b.T, None, None, {"bias": bias})
    ranked = candidates(posed.shape_class, H200)
    config = next(c.config for c in ranked if c.config.BN == 136 and c.config.cluster == 1 and c.config.TOGETHER == 2)
    products.MatmulPlan(posed, None, 0)._runner(config, operands)()
    check(operands.out.base, wide(a) @ wide(b).T + wide(bias))


def test_scales(interpreted: None, rng: np.random.Generator) -> None:
    a, b = normal(rng, 40, 256, dtype=FP8), normal(rng, 144, 256, dtype=FP8)
    product = wide(a) @ wide(b).T
    half = np.full(1, 0.5, np.float32)
    check(ops.matmul(a, b.T, scale_a=half, scale_b=half), product * 0.25)
    by_row, by_column = (rng.uniform(0.5, 2, count).astype(np.float32) for count in (40, 144))
    check(ops.matmul(a, b.T, scale_a=by_row, scale_b=by_column), product * by_row[:, None] * by_column)
    left, right = (rng.uniform(0.5, 2, (count, 2)).astype(np.float32) for count in (40, 2))
    parts = (
        (wide(a)[:, part] * left[:, step, None]) @ (wide(b)[:, part] * np.repeat(right[:, step], 128)[:144, None]).T
        for step, part in enumerate((slice(0, 128), slice(128, 256)))
    )
    check(ops.matmul(a, b.T, scale_a=left, scale_b=right), sum(parts))


def test_integers_are_exact(interpreted: None, rng: np.random.Generator) -> None:
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((33, 64), (48, 64)))
    assert np.array_equal(ops.matmul(a, b.T), a.astype(np.int32) @ b.astype(np.int32).T)


def test_a_gate(interpreted: None, rng: np.random.Generator) -> None:
    a, gate, up = normal(rng, 40, 72), normal(rng, 48, 72), normal(rng, 48, 72)
    left, right = wide(a) @ wide(gate).T, wide(a) @ wide(up).T
    result = ops.matmul(a, ops.interleave_gate(gate, up).T, gate="silu")
    check(result, left / (1 + np.exp(-left)) * right)


def test_batches(interpreted: None, rng: np.random.Generator) -> None:
    a, b, residual = normal(rng, 3, 40, 72), normal(rng, 3, 48, 72), normal(rng, 3, 40, 48)
    check(ops.matmul(a, b.swapaxes(1, 2), residual=residual), wide(a) @ wide(b).swapaxes(1, 2) + wide(residual))
    check(ops.matmul(a[::2], b[0].T), wide(a[::2]) @ wide(b[0]).T)


def test_what_copies_cannot_move_takes_the_portable_kernel(interpreted: None, rng: np.random.Generator) -> None:
    a, b, bias = normal(rng, 20, 33), normal(rng, 33, 17), normal(rng, 17)
    check(ops.matmul(a, b, bias=bias), wide(a) @ wide(b) + wide(bias))
    assert "kernel of engines: a: its rows are not multiples of 16 bytes apart" in ops.explain_matmul(a, b)
    x, y = normal(rng, 20, 36, dtype=np.float32), normal(rng, 36, 24, dtype=np.float32)
    check(ops.matmul(x, y, precision="ieee"), wide(x) @ wide(y), 1e-6)


def test_a_plan_tells_what_it_chose_and_takes_only_its_problem(interpreted: None, rng: np.random.Generator) -> None:
    a, b = normal(rng, 40, 72), normal(rng, 48, 72)
    plan = ops.plan_matmul(a, b.T)
    assert plan.config is not None and "-> 64 x " in plan.explain() and "first by cost" in plan.explain()
    check(plan(a, b.T), wide(a) @ wide(b).T)
    out = np.zeros((40, 48), BF16)
    plan.bind(a, b.T, out=out)()
    check(out, wide(a) @ wide(b).T)
    with pytest.raises(LaunchError, match="the plan is for 40x48x72"):
        plan(a[:8], b.T)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"b": (47, 9)}, "do not fit"), ({"bias": (47,)}, "bias must be"), ({"activation": "swish"}, "relu, gelu"),
     ({"scale_a": (3,)}, "scale_a has one number"), ({"out": (40, 47)}, "out must have the shape"),
     ({"gate": "silu", "bias": (48,)}, "nothing else"), ({"residual": (40, 8)}, "residual must have")],
)  # fmt: skip
def test_arguments_that_do_not_fit(change: dict[str, Any], reason: str, rng: np.random.Generator) -> None:
    shapes: dict[str, Any] = {"a": (40, 72), "b": (72, 48), **change}
    given = {
        name: np.zeros(shape, np.float32 if name == "scale_a" else BF16) if isinstance(shape, tuple) else shape
        for name, shape in shapes.items()
    }
    with pytest.raises(LaunchError, match=reason):
        ops.matmul(given.pop("a"), given.pop("b"), **given)


def test_arrays_of_the_cpu_are_for_the_interpreter_only(rng: np.random.Generator) -> None:
    with pytest.raises(LaunchError, match="arrays on a GPU"):
        ops.matmul(normal(rng, 8, 8), normal(rng, 8, 8))


def test_configs_and_arrays_of_every_kind_have_a_type_of_kernel() -> None:
    """The types that a plan compiles for match those the kernel wants, for operands of every kind."""
    posed = problem(64, 128, 128, operands=("*k bf16",))
    plan = products.MatmulPlan(posed, None, 0)
    assert plan.config is not None and plan.ranked[0].config == plan.config


def test_errors_of_arrays_without_streams_say_what_to_make_of_them() -> None:
    place = DevicePlace(0, streams.DLPACK)
    view = arrays.ArrayView(object(), 4096, dtypes.float32, (8, 8), (8, 1), place)
    for refused in (lambda: arrays.empty(view, (8, 8), dtypes.float32), lambda: arrays.stream_of([view])):
        with pytest.raises(LaunchError, match=r"one library that has streams.*torch\.from_dlpack"):
            refused()


def test_no_rows_give_no_results(interpreted: None) -> None:
    x, weight = np.zeros((0, 16), BF16), np.zeros((16, 8), BF16)
    assert ops.matmul(x, weight).shape == (0, 8) and ops.softmax(x).shape == ops.rms_norm(x).shape == (0, 16)
    assert ops.reduce(x).shape == (0,) and ops.attention(*(np.zeros((1, 2, n, 64), BF16) for n in (0, 8, 8))).size == 0
    with pytest.raises(LaunchError, match="one whole number"):
        ops.reduce(x, axis=(0, 1))  # type: ignore[arg-type]


# Attention


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool, interpreted: None, rng: np.random.Generator) -> None:
    q, k, v = normal(rng, 1, 2, 70, 64), normal(rng, 1, 1, 90, 64), normal(rng, 1, 1, 90, 64)
    result, sums = ops.attention(q, k, v, causal=causal, return_lse=True)
    scores = wide(q) @ wide(k).swapaxes(2, 3) / 8
    if causal:
        scores = np.where(np.arange(90)[None, :] <= np.arange(70)[:, None] + 20, scores, -np.inf)
    greatest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - greatest)
    total = powers.sum(-1, keepdims=True)
    check(result, powers / total @ wide(v))
    np.testing.assert_allclose(sums, (np.log(total) + greatest)[..., 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_attention_quantizes(kind: type, interpreted: None, rng: np.random.Generator) -> None:
    """Divided by a scale, to the nearest number; what is beyond the range is at its end."""
    q, k, v = normal(rng, 1, 2, 70, 64), normal(rng, 1, 1, 90, 64), normal(rng, 1, 1, 90, 64)
    one = np.ascontiguousarray(q[:, :, 0])
    integer = np.dtype(kind).kind in "iu"
    limits = ml_dtypes.iinfo(kind) if integer else ml_dtypes.finfo(kind)
    low, most = float(limits.min), float(limits.max)
    for operation, query in ((ops.attention, q), (ops.decode_attention, one)):
        plain = wide(operation(query, k, v))
        scale = float(np.abs(plain).max()) / (1.5 * most)
        result = operation(query, k, v, out_dtype=kind, out_scale=scale)
        exact = np.clip(plain / scale, low, most)
        step = 1.0 if integer else np.abs(exact) * float(limits.eps) + 2.0**-6
        assert result.dtype == kind and len(np.unique(wide(result))) > 20
        assert np.all(np.abs(wide(result) - exact) <= step + 2 * UNIT * np.abs(plain / scale).max())
        assert wide(result).max() == most or wide(result).min() == low


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_more_batches_than_one_launch_counts(
    causal: bool, interpreted: None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PAIRS", 5)
    q, k, v = (normal(rng, 5, 2, 20, 32) for _ in range(3))
    lengths = np.stack([rng.integers(1, 21, 5), np.full(5, 20)], 1).astype(np.int32)
    result, sums = ops.attention(q, k, v, causal=causal, lengths=lengths, return_lse=True)
    for batch, (queries, keys) in enumerate(lengths):
        scores = wide(q[batch]) @ wide(k[batch]).swapaxes(1, 2) / math.sqrt(32)
        if causal:
            scores = np.where(np.arange(20)[None, :] <= np.arange(20)[:, None] + keys - queries, scores, -np.inf)
        powers = np.exp(scores)
        check(result[batch][:, :queries], (powers / powers.sum(-1, keepdims=True) @ wide(v[batch]))[:, :queries])
        np.testing.assert_allclose(sums[batch, :, :queries], np.log(powers.sum(-1))[:, :queries], rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(tables, "TILES", 0)
    with pytest.raises(LaunchError, match="one launch of attention takes at most 5 batches times heads and 0 queries"):
        ops.attention(q[:1], k[:1], v[:1])


@pytest.mark.parametrize("offset", [0, 1])
def test_attention_with_a_soft_cap(offset: int, interpreted: None, rng: np.random.Generator) -> None:
    """By tensor copies, and by the plain kernel where arrays begin elsewhere."""
    q, k, v = (rng.standard_normal((1, heads, rows, 64 + 8 * offset)).astype(BF16)[..., offset:64 + offset]
               for heads, rows in ((4, 70), (2, 90), (2, 90)))  # fmt: skip
    scores = wide(q) @ np.repeat(wide(k), 2, 1).swapaxes(2, 3) / 8
    powers = np.exp(3 * np.tanh(scores / 3))
    expected = powers / powers.sum(-1, keepdims=True) @ np.repeat(wide(v), 2, 1)
    check(ops.attention(q, k, v, softcap=3.0), expected)
    if not offset:
        result, sums = ops.attention(q, k, v, softcap=3.0, return_lse=True)
        check(result, expected)
        np.testing.assert_allclose(sums, np.log(powers.sum(-1)), rtol=0, atol=0.01)
    for softcap, scale in ((-1.0, None), (np.inf, None), (3.0, 0.0)):
        with pytest.raises(LaunchError, match="softcap"):
            ops.attention(q, k, v, softcap=softcap, scale=scale)


def test_attention_where_copies_cannot_move(interpreted: None, rng: np.random.Generator) -> None:
    base = normal(rng, 1, 2, 30, 37)
    q = k = v = base[..., 1:33]  # rows of 74 bytes
    scores = wide(q) @ wide(k).swapaxes(2, 3) / math.sqrt(32)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    check(ops.attention(q, k, v), powers / powers.sum(-1, keepdims=True) @ wide(v))
    with pytest.raises(LaunchError, match="q is not in steps of 16 bytes"):
        ops.attention(q, k, v, return_lse=True)
    packed = normal(rng, 2, 30, 3, 2, 37)[..., :32]  # tokens, of which each has queries, keys and values
    q, k, v = (packed[:, :, part].swapaxes(1, 2) for part in range(3))
    seen = np.tril(np.ones((30, 30), bool)) & ~np.tril(np.ones((30, 30), bool), -9)
    powers = np.where(seen, np.exp(wide(q) @ wide(k).swapaxes(2, 3) / math.sqrt(32)), 0)
    exact = powers / powers.sum(-1, keepdims=True) @ wide(v)
    out = np.zeros((2, 30, 2, 40), BF16)[..., 4:36].swapaxes(1, 2)
    check(ops.attention(q, k, v, causal=True, window=9, out=out), exact)
    stored = ops.attention(q, k, v, causal=True, window=9, out_dtype=np.int8, out_scale=0.02)
    assert np.abs(wide(stored) - np.clip(exact / 0.02, -128, 127)).max() <= 1.5
    apart = np.broadcast_to(q[:, :1, :, :], q.shape)
    with pytest.raises(LaunchError, match="make it contiguous"):
        ops.attention(apart, k, v)


def test_attention_refuses(rng: np.random.Generator) -> None:
    q = np.zeros((1, 2, 8, 64), BF16)
    negative = {"window": -1, "causal": True}
    for change, reason in (
        ({"window": 3}, "causal"),
        (negative, "not -1"),
        ({"lengths": np.zeros((2, 2), np.int32)}, "lengths must be"),
        ({"out_scale": 2.0}, "needs 8-bit results"),
        ({"out_dtype": np.float32}, "results are stored as bfloat16, or as int8"),
        ({"out_dtype": np.int8, "out_scale": 0.0}, "a finite number above 0"),
    ):
        with pytest.raises(LaunchError, match=reason):
            ops.attention(q, q, q, **change)
    with pytest.raises(LaunchError, match="multiples of 16"):
        ops.attention(q[..., :8], q[..., :8], q[..., :8])


# Rows, elements, reductions


@pytest.mark.parametrize("long", [False, True])
def test_rows(long: bool, interpreted: None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    if long:
        monkeypatch.setattr(row_configs, "REGISTER_COLUMNS", 64)
        monkeypatch.setattr(row_configs, "ROW_CHUNK", 64)
    x, weight, bias, residual = normal(rng, 7, 100), normal(rng, 100), normal(rng, 100), normal(rng, 7, 100)
    powers = np.exp(wide(x) - wide(x).max(1, keepdims=True))
    expected = powers / powers.sum(1, keepdims=True)
    check(ops.softmax(x), expected)
    check(ops.softmax(x, log=True), np.log(expected))
    y = wide(x) + wide(residual)
    result, total = ops.layer_norm(x, weight, bias, residual=residual, return_sum=True)
    check(result, (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + 1e-5) * wide(weight) + wide(bias))
    check(total, y)
    check(ops.rms_norm(x, weight), wide(x) / np.sqrt((wide(x) ** 2).mean(1, keepdims=True) + 1e-6) * wide(weight))


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
def test_reductions(kind: str, interpreted: None, rng: np.random.Generator) -> None:
    x = normal(rng, 3, 170, 50, dtype=np.float32)
    for axis in range(3):
        check(ops.reduce(x, kind, axis=axis), getattr(np, kind)(wide(x), axis=axis), 1e-6)


def test_pieces_of_columns_longer_than_registers(
    interpreted: None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simt_arrays, "_PIECES", 2)
    simt_arrays.array_launches.cache_clear()
    x = normal(rng, 700, 20, dtype=np.float32)
    check(ops.reduce(x, axis=0), wide(x).sum(0), 1e-5)
    check(ops.reduce(x, "max", axis=0), wide(x).max(0), 1e-5)
    simt_arrays.array_launches.cache_clear()


def test_more_columns_than_a_grid_counts(
    interpreted: None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = normal(rng, 5, 700, 200, dtype=np.float32)
    element, machine = dtypes.float32, arrays.machine_at(None)
    simt_arrays.array_launches.cache_clear()
    monkeypatch.setattr(simt_arrays, "LARGEST_GRID", (2**31 - 1, 3, 3))
    first, second = simt_arrays.array_launches(element, (5, 700, 200), "sum", True, machine)
    assert first.grid[1:] == second.grid[1:] == (1, 1) and first.options["LARGE"] and second.options["LARGE"]
    check(ops.reduce(x, axis=1), wide(x).sum(1), 1e-5)
    check(ops.reduce(x, "min", axis=1), wide(x).min(1), 1e-5)
    simt_arrays.array_launches.cache_clear()
    (far,) = simt_arrays.array_launches(element, (1, 40, 100_000_000), "sum", True, machine)
    assert far.options["LARGE"] and far.grid == (cdiv(100_000_000, far.options["BLOCK"]), 1, 1)
    for launch in (
        lambda: simt_arrays.array_launches(element, (1, 2, 1 << 31), "sum", True, machine),
        lambda: simt_arrays.array_launches(element, (1, 1 << 31, 2), "sum", True, machine),
        lambda: simt_arrays.array_launches(element, (1 << 31, 2, 1), "sum", True, machine),
    ):
        with pytest.raises(LaunchError, match="at most 2147483520 rows or columns, got 2147483648: reduce parts"):
            launch()


def test_few_long_rows_are_reduced_in_pieces(interpreted: None, rng: np.random.Generator) -> None:
    x = normal(rng, 2, 32768, dtype=np.float32)
    check(ops.reduce(x), wide(x).sum(1), 1e-5)
    check(ops.reduce(x, out_dtype=BF16, axis=0), wide(x).sum(0))


@tilewright.jit
def scaled_sum(x, bias, y):
    return (x + bias) * y


def test_elements(interpreted: None, rng: np.random.Generator) -> None:
    x, bias, y = normal(rng, 5, 40), normal(rng, 40), normal(rng, 5, 40)
    check(ops.elementwise(scaled_sum, x, bias, y), (wide(x) + wide(bias)) * wide(y))
    with pytest.raises(LaunchError, match="does not fit"):
        ops.elementwise(scaled_sum, x, bias[:7], y)


def test_configs_of_rows_fill_processors() -> None:
    assert row_config(16384, 8192, 132).threads == 256
    assert row_config(100000, 64, 132).rows * 64 == 2048 and row_config(10, 64, 132).rows == 1
    assert row_config(10, 100000, 132).long
    config = row_config(16384, 5120, 132)
    assert (config.block, config.threads) == (5120, 128)  # five vectors a thread, none of them cut off


def test_every_name_is_there() -> None:
    assert all(callable(getattr(ops, name)) for name in ops.__all__) and tl.float32 and reductions.reduce is ops.reduce
