"""Operations on arrays by the candidates of engines, in the interpreter: convolutions, decoding, normed products."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.host.test_paged_attention import bound, draw_inputs, narrowed, plain
from tilewright import ops
from tilewright.dtypes import float8e4nv, float16, int8
from tilewright.errors import LaunchError, UnsupportedOperationError
from tilewright.graph import semantics
from tilewright.graph.build import GraphBuilder
from tilewright.graph.core import Graph
from tilewright.launch.jit import JITFunction
from tilewright.library.attention.problem import AttentionProblem
from tilewright.library.candidate import Table
from tilewright.ops import arrays, attentions, calls, choosing
from tilewright.ops.arrays import view
from tilewright.runtime.cuda.device import current_device
from tilewright.runtime.cuda.memory import DeviceArray
from tilewright.runtime.cuda.streams import DevicePlace
from tilewright.settings import settings
from tilewright.targets.nvidia.target import NvidiaTarget


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
    calls._PREPARED.clear()  # of which `names` reads the last one
    with settings.scope(interpret=True):
        yield


def close(found: np.ndarray, exact: np.ndarray, steps: float = 2.0) -> None:
    """Within some units in the last place of the largest number."""
    limit = steps * float(ml_dtypes.finfo(found.dtype).eps) * np.abs(exact).max()
    assert np.abs(found.astype(np.float64) - exact).max() <= limit


def names() -> list[str]:
    """What the last operation that was prepared launches."""
    return [candidate.name for candidate in list(calls._PREPARED.values())[-1].chosen]


@pytest.mark.parametrize(
    ("dtype", "channels", "features", "kernel", "options", "hopper"),
    [
        (np.float16, 16, 24, 3, {"padding": 1, "activation": "gelu"}, True),
        (ml_dtypes.bfloat16, 32, 16, 1, {"activation": "relu"}, True),
        (np.float16, 24, 32, 3, {"stride": 2, "padding": (1, 0), "groups": 2}, False),
        (np.float32, 5, 7, 3, {"dilation": 2, "padding": 2}, False),
    ],
)
def test_convolutions(dtype, channels, features, kernel, options, hopper, rng: np.random.Generator) -> None:
    groups = options.get("groups", 1)
    x = rng.standard_normal((2, 7, 6, channels)).astype(dtype)
    w = rng.standard_normal((features, channels // groups, kernel, kernel)).astype(dtype)
    bias = rng.standard_normal(features).astype(dtype)
    pairs = {name: (n, n) if isinstance(n := options.get(name, least), int) else n
             for name, least in (("stride", 1), ("padding", 0), ("dilation", 1))}  # fmt: skip
    attributes = {
        "strides": pairs["stride"], "padding": [(p, p) for p in pairs["padding"]], "dilation": pairs["dilation"],
        "groups": groups, "layout": "NHWC", "dtype": None,
    }  # fmt: skip
    exact = semantics.conv([item.astype(np.float64) for item in (x, w, bias)], attributes)
    residual = rng.standard_normal(exact.shape).astype(dtype)
    exact = exact + residual
    if options.get("activation") == "gelu":
        exact = semantics.gelu([exact], {"approximate": "none"})
    elif options.get("activation") == "relu":
        exact = np.maximum(exact, 0)
    close(ops.conv2d(x, w, bias, residual=residual, **options), exact)
    assert any("hopper" in name for name in names()) == hopper


@pytest.mark.parametrize(
    ("heads", "key_heads", "size", "keys"), [(4, 2, 64, 150), (3, 3, 128, 70), (2, 1, 48, 33), (2, 2, 208, 20)]
)
def test_decoding(heads: int, key_heads: int, size: int, keys: int, rng: np.random.Generator) -> None:
    q = rng.standard_normal((2, heads, size)).astype(np.float16)
    k, v = (rng.standard_normal((2, key_heads, keys, size)).astype(np.float16) for _ in range(2))
    bias = np.where(np.arange(keys) < np.array([[keys], [keys // 2]]), 0, -np.inf).astype(np.float16)
    inputs = [item.astype(np.float64) for item in (q[:, :, None], k, v, bias[:, None, None])]
    exact = semantics.attention(inputs, {"scale": size**-0.5, "causal": False, "window": 0, "softcap": 0.0})[:, :, 0]
    close(ops.decode_attention(q, k, v, bias=bias), exact, 4)


def test_decoding_is_one_kernel_for_all_scales(rng: np.random.Generator) -> None:
    """The scale of quantized results is a number that launches are given; lengths that are near take one choice."""
    q = rng.standard_normal((1, 2, 64)).astype(np.float16)
    k = rng.standard_normal((1, 2, 70, 64)).astype(np.float16)
    for scale, keys in ((0.01, 69), (0.02, 70)):
        ops.decode_attention(q, k[:, :, :keys].copy(), k[:, :, :keys].copy(), out_dtype=np.int8, out_scale=scale)
    assert len({prepared.alike for prepared in list(calls._PREPARED.values())[-2:]}) == 1
    calls._PREPARED.clear()
    for scale in (0.01, 0.02):
        ops.decode_attention(q, k, k, out_dtype=np.int8, out_scale=scale)
    first, second = (
        [call.constants for each in prepared.chosen for stage in each.stages for call in stage.calls]
        for prepared in list(calls._PREPARED.values())[-2:]
    )
    assert first and first == second


def test_the_first_launch_begins_when_all_in_front_has_ended(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Kernels of decoding read keys before those in front have ended, which may still write them."""
    seen: list[bool | None] = []
    launch = JITFunction.__getitem__

    def recorded(kernel: JITFunction, grid: Any) -> Any:
        run = launch(kernel, grid)
        return lambda *given, **options: (seen.append(options.get("dependent_launch")), run(*given, **options))

    monkeypatch.setattr(JITFunction, "__getitem__", recorded)
    q, k = (rng.standard_normal(shape).astype(np.float16) for shape in ((1, 2, 64), (1, 2, 70, 64)))
    ops.decode_attention(q, k, k)
    x, w = (rng.standard_normal(shape).astype(np.float16) for shape in ((12, 64), (64, 40)))
    ops.rms_norm_matmul(x, w)
    assert seen == [False, False, None]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("form", [(4, 2, 64, 64, 16, 0, 0.0), (4, 4, 24, 16, 8, 0, 0.0), (6, 2, 64, 64, 16, 33, 20.0)])
def test_attention_over_pages(form, dtype, rng: np.random.Generator) -> None:
    """Few new tokens, chunks of prompts, and sequences without new tokens; NaN where no token is."""
    _, _, width, _, page, window, softcap = form
    for batch in (([1, 3, 0], [40, 9, 20]), ([5, 1], [70, 1]), ([1] * 3, rng.integers(1, 90, 3).tolist())):
        given = draw_inputs(rng, form, batch)
        given |= {name: given[name].astype(dtype) for name in ("q", "keys", "values")}
        exact = plain(given, form)
        found = ops.paged_attention(*given.values(), page=page, window=window, softcap=softcap)
        unit = float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(found.astype(np.float64), exact, rtol=0, atol=bound(given, unit))
    hopper = dtype != np.float32 and width == 64
    assert names() == ["hopper paged attention" if hopper else "paged attention"]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("kind", "scaled"), [(int8, True), (float8e4nv, True), (float8e4nv, False)])
@pytest.mark.parametrize("form", [(4, 2, 64, 64, 16, 0, 0.0), (4, 4, 24, 16, 8, 0, 0.0), (6, 2, 64, 64, 16, 33, 20.0)])
def test_attention_over_pages_of_8_bits(form, kind, scaled, dtype, rng: np.random.Generator) -> None:
    _, _, width, _, page, window, softcap = form
    for batch in (([1, 3, 0], [40, 9, 20]), ([5, 1], [70, 1])):
        given, read = narrowed(draw_inputs(rng, form, batch), kind, scaled)
        given["q"] = read["q"] = given["q"].astype(dtype)
        found = ops.paged_attention(**given, page=page, window=window, softcap=softcap)
        unit = float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(found.astype(np.float64), plain(read, form), rtol=0, atol=bound(given, unit))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": np.zeros((2, 3), np.int64)}, "tables must be int32"),
        ({"lengths": np.zeros(3, np.int32)}, "do not fit each other"),
        ({"keys": np.zeros((32, 3, 16), np.float16)}, "do not fit each other"),
        ({"q": np.zeros((4, 16), np.float16)}, "q has 3 dimensions"),
        ({"q": np.zeros((0, 4, 16), np.float16), "page": 0}, "do not fit each other.*page"),
        ({"scale": float("nan")}, "scale is a finite number"),
        ({"out": np.zeros((4, 4, 8), np.float16)}, "out must be"),
    ],
)
def test_pages_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "q": np.zeros((4, 4, 16), np.float16), "keys": np.zeros((32, 2, 16), np.float16),
        "values": np.zeros((32, 2, 16), np.float16), "tables": np.zeros((2, 3), np.int32),
        "starts": np.array([0, 1, 4], np.int32), "lengths": np.array([5, 3], np.int32), "page": 16,
    }  # fmt: skip
    assert not ops.paged_attention(**given).any()
    with pytest.raises(LaunchError, match=message):
        ops.paged_attention(**{**given, **change})


@pytest.mark.parametrize(("rows", "dtype", "count"), [(3, ml_dtypes.bfloat16, 1), (12, np.float16, 2)])
@pytest.mark.parametrize("transposed", [True, False])
def test_normed_products(rows: int, dtype, count: int, transposed: bool, rng: np.random.Generator) -> None:
    x = rng.standard_normal((rows, 64)).astype(dtype)
    w = rng.standard_normal((40, 64) if transposed else (64, 40)).astype(dtype)
    wide, matrix = x.astype(np.float64), (w.T if transposed else w).astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) @ matrix
    close(ops.rms_norm_matmul(x, w.T if transposed else w), exact)
    assert len(names()) == count


def shifted(x: np.ndarray) -> np.ndarray:
    """A contiguous copy that begins one element after a multiple of 64 bytes."""
    room = np.zeros(x.size + 64, x.dtype)
    first = -room.ctypes.data % 64 // x.itemsize + 1
    copy = room[first : first + x.size].reshape(x.shape)
    copy[...] = x
    return copy


def test_arrays_that_tensor_copies_cannot_move(rng: np.random.Generator) -> None:
    """The same operation on arrays at multiples of 16 bytes before and after keeps its kernel of tensor copies."""
    x, w = rng.standard_normal((1, 3, 3, 16)), rng.standard_normal((8, 16, 1, 1))
    q, k = rng.standard_normal((1, 2, 64)), rng.standard_normal((1, 1, 9, 64))
    rows, b = rng.standard_normal((3, 64)), rng.standard_normal((16, 64))
    for operation, kind, *given in (
        (ops.conv2d, np.float16, x, w),
        (ops.decode_attention, np.float16, q, k, k),
        (lambda rows, b: ops.rms_norm_matmul(rows, b.T), ml_dtypes.bfloat16, rows, b),
    ):
        arguments = [item.astype(kind) for item in given]
        expected = operation(*arguments)
        assert any("hopper" in name for name in names())
        for place in range(len(arguments)):
            moved = [shifted(item) if at == place else item for at, item in enumerate(arguments)]
            close(operation(*moved), expected.astype(np.float64), 4)
            assert not any("hopper" in name for name in names())
        assert (operation(*arguments) == expected).all()
    out = shifted(np.zeros((1, 3, 3, 8), np.float16))
    halves = [item.astype(np.float16) for item in (x, w)]
    close(ops.conv2d(*halves, out=out), ops.conv2d(*halves).astype(np.float64), 4)


@pytest.mark.parametrize("error", [UnsupportedOperationError, NotImplementedError])
def test_what_has_no_kernel_says_why(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise error("the reason")

    monkeypatch.setattr(calls, "candidates", refuse)
    with pytest.raises(LaunchError, match="conv2d: the library has no kernel for it on sm_90a.*: the reason"):
        ops.conv2d(np.zeros((1, 5, 5, 3), np.float16), np.zeros((2, 3, 2, 5), np.float16))


def test_the_oldest_operations_are_forgotten_with_their_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the tables that a captured graph may read."""
    for name, value in (("_PREPARED", {}), ("_CAPTURED", {}), ("_MOST_PREPARED", 2)):
        monkeypatch.setattr(calls, name, value)
    x, w = np.ones((1, 1, 1, 2), np.float32), np.ones((1, 2, 1, 1), np.float32)
    freed = []
    for captured in (False, True):
        monkeypatch.setattr(calls.arrays, "capturing", lambda *_, captured=captured: captured)
        monkeypatch.setattr(calls.arrays, "stream_of", lambda _: 1)
        ops.conv2d(x, w, padding=int(captured))
        operation = next(reversed(calls._PREPARED.values()))
        table = operation._table(Table("attention", (1, 1, 1, 1, 9, 64, 64, 128, 0, 132)))
        freed.append(weakref.ref(table))
        object.__setattr__(operation, "ordinal", 0)
        operation._keep_for_graphs([replace(view(x, "x"), place=DevicePlace(0, "torch"))])
    del operation, table
    for padding in (2, 3):
        ops.conv2d(x, w, padding=padding)
        assert len(calls._PREPARED) == 2
    gc.collect()
    assert freed[0]() is None and freed[1]() is not None


def test_what_does_not_fit_is_refused() -> None:
    x, w = np.zeros((1, 4, 4, 8), np.float16), np.zeros((8, 8, 3, 3), np.float16)
    for arguments, message in (
        ((x, w[:, :4]), "do not fit"), ((x, w.astype(np.float32)), "must both be"), ((x[..., ::2], w[:, :4]), "contig"),
        ((x, np.zeros((8, 8, 5, 5), np.float16)), "do not fit images"), ((x[..., :0], w[:, :0]), "one channel or more"),
    ):  # fmt: skip
        with pytest.raises(LaunchError, match=message):
            ops.conv2d(*arguments)
    with pytest.raises(LaunchError, match="stride is a number"):
        ops.conv2d(x, w, stride=0)
    with pytest.raises(LaunchError, match="bias must be"):
        ops.decode_attention(np.zeros((1, 2, 16), np.float16), *[np.zeros((1, 2, 5, 16), np.float16)] * 2, bias=x)
    with pytest.raises(LaunchError, match="takes x"):
        ops.rms_norm_matmul(np.zeros((2, 8), np.float16), np.zeros((4, 8), np.float16))


def test_custom_operators() -> None:
    """Fake tensors get the shapes that the operations give."""
    torch = pytest.importorskip("torch")
    import tilewright.ops.torch_library  # noqa: F401  (registers the operators)

    op = torch.ops.tilewright
    half = {"dtype": torch.float16}
    x, w = torch.randn(2, 7, 6, 16, **half), torch.randn(24, 16, 3, 3, **half)
    q, k = torch.randn(2, 4, 64, **half), torch.randn(2, 2, 30, 64, **half)
    rows, b = torch.randn(3, 64, **half), torch.randn(40, 64, **half)
    indices = [torch.tensor(x, dtype=torch.int32) for x in ([[1], [0]], [0, 1, 3], [9, 2])]
    calls_of = {
        op.conv2d: (x, w, None, [2, 1], [1, 0]),
        op.decode_attention: (q, k, k),
        op.rms_norm_matmul: (rows, b.t()),
        op.paged_attention: (rows.view(3, 4, 16), *[torch.ones(32, 2, 16, **half)] * 2, *indices, 16),
    }
    for call, arguments in calls_of.items():
        found = call(*arguments)
        fake = call(*(item.to("meta") if isinstance(item, torch.Tensor) else item for item in arguments))
        assert fake.shape == found.shape and fake.dtype == found.dtype and bool(found.isfinite().all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stride": [1]}, "stride is a number or two"),
        ({"stride": [0, 0]}, "stride is a number or two"),
        ({"padding": [-1, 0]}, "padding is a number or two"),
        ({"dilation": [2, 2]}, "do not fit images"),
        ({"groups": 0}, "do not fit"),
        ({"x": (1, 4, 4, 16), "groups": 2, "w": (7, 8, 3, 3)}, "do not fit"),
        ({"x": (1, 2, 4, 8)}, "do not fit images"),
        ({"w": (8, 8, 0, 3)}, "do not fit images"),
        ({"x": (1, 4, 4, 0), "w": (8, 0, 3, 3)}, "one channel or more"),
    ],
)
def test_operator_refuses_the_same_of_fake_tensors(change: dict, message: str) -> None:
    torch = pytest.importorskip("torch")
    import tilewright.ops.torch_library  # noqa: F401  (registers the operators)

    options = {"x": (1, 4, 4, 8), "w": (8, 8, 3, 3), **change}
    shapes = [options.pop(name) for name in ("x", "w")]
    for device in ("cpu", "meta"):
        given = [torch.zeros(shape, dtype=torch.float16, device=device) for shape in shapes]
        with pytest.raises(LaunchError, match=message):
            torch.ops.tilewright.conv2d(*given, **options)


@pytest.mark.parametrize(
    "change",
    [{"q": (4, 16)}, {"keys": (32, 3, 16)}, {"values": (16, 2, 16)}, {"starts": (2,)}, {"tables": (3, 3)}, {"page": 0}],
)
def test_operator_refuses_the_same_pages_of_fake_tensors(change: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    import tilewright.ops.torch_library  # noqa: F401  (registers the operators)

    pool: dict[str, Any] = {"q": (4, 4, 16), "keys": (32, 2, 16), "values": (32, 2, 16)}
    options = {**pool, "tables": (2, 3), "starts": (3,), "lengths": (2,), "page": 16, **change}
    page = options.pop("page")
    for device in ("cpu", "meta"):
        given = [
            torch.zeros(shape, dtype=torch.float16 if name in pool else torch.int32, device=device)
            for name, shape in options.items()
        ]
        with pytest.raises(LaunchError):
            torch.ops.tilewright.paged_attention(*given, page)


def test_close_candidates_are_timed_once(
    driver: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """On a GPU; not while a graph is captured, and by the record where there is one."""
    timed: list[int] = []
    captured = [True]
    gpu = current_device()
    monkeypatch.setattr(choosing, "device", lambda ordinal: gpu)
    monkeypatch.setattr(arrays, "target_at", lambda ordinal: NvidiaTarget.named("sm_90a"))
    monkeypatch.setattr(arrays, "capturing", lambda stream, ordinal: captured[0])
    monkeypatch.setattr(arrays, "stream_of", lambda views: 0)
    place = DevicePlace(0, "torch")

    def times(runs: Any) -> dict[int, float]:
        timed.append(len(runs))
        return {index: 1.0 if index == max(runs) else 2.0 for index in runs}

    monkeypatch.setattr(choosing.timers, "alone", times)
    x, y = (rng.standard_normal(shape).astype(np.float16) for shape in ((96, 64), (64, 80)))
    given = {"x": arrays.view(x, "x"), "y": arrays.view(y, "y")}

    def graph() -> Graph:
        b = GraphBuilder("product")
        b.output(b.op("matmul", [b.input("x", float16, x.shape), b.input("y", float16, y.shape)]), "z")
        return b.finish()

    for seconds in ("captured", "timed", "recorded"):
        captured[0] = seconds == "captured"
        result = arrays.view(np.zeros((96, 80), np.float16), "out")
        for tune in (False, True):  # what was chosen untimed is not kept
            with settings.scope(tune=tune):
                operation = calls.prepared("product 96x80x64", "", [*given.values(), result], place, graph)
                operation.run(given, result)
        close(result.base, x.astype(np.float64) @ y.astype(np.float64))
        if seconds == "captured":
            assert operation.alternatives[0].choice is None and not timed
            continue
        (choice,) = [each.choice for each in operation.alternatives]
        assert choice is not None and choice.source == seconds
        assert len(timed) == 1 and choice.index == max(choice.microseconds)
        calls._PREPARED.clear()


def _timed_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A GPU on which the last of close candidates is the fastest; gives the numbers of candidates of each timing."""
    timed: list[int] = []
    gpu = current_device()

    def times(runs: Any) -> dict[int, float]:
        timed.append(len(runs))
        return {index: 1.0 if index == max(runs) else 2.0 for index in runs}

    monkeypatch.setattr(choosing, "device", lambda ordinal: gpu)
    monkeypatch.setattr(arrays, "target_at", lambda ordinal: NvidiaTarget.named("sm_90a"))
    monkeypatch.setattr(arrays, "capturing", lambda stream, ordinal: False)
    monkeypatch.setattr(arrays, "stream_of", lambda views: 0)
    monkeypatch.setattr(choosing.timers, "alone", times)
    return timed


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What launches of attention are handed: address, extents and strides of the result."""
    launched: list[tuple[Any, ...]] = []

    class Compiled:
        def start(self, ordinal: int) -> Any:
            return lambda *values: launched.append(values[7])

    monkeypatch.setattr(attentions, "compiled", lambda config, target: Compiled())
    return launched


def test_close_configs_of_attention_are_timed_once(
    driver: Any, attended: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By launches into memory of their own, with the caller's strides; sizes of a class share what is on record, and 0
    times nothing.  The schedule of the chosen config alone is kept."""
    timed = _timed_on_a_gpu(monkeypatch)
    for queries in (1000, 1000, 1020):
        problem = AttentionProblem(2, 4, 4, queries, 1024, 64, causal=True)
        views = [view(np.zeros((2, rows, 4, 64), np.float16).swapaxes(1, 2), "x")
                 for rows in (queries, 1024, 1024, queries)]  # fmt: skip
        for tune in (False, True):
            with settings.scope(tune=tune, interpret=False):
                plan = attentions.AttentionPlan(problem, 0)
                plan._choose((*views, None, None), 1.0, ())
                assert plan.choice is not None and bool(timed) == (plan.choice.source != "estimate")
        assert plan.choice.index == max(plan.choice.microseconds) > 0
        assert plan.config is plan.configs[plan.choice.index]
        address, *form = views[3].address, views[3].shape, views[3].strides
        assert all(found[0] != address and [*found[1:3]] == form for found in attended)
        if attended:
            assert list(plan._scheduled) == [plan.config]
        attended.clear()
    assert len(timed) == 1


def test_prompts_in_chunks_are_timed_a_few_times(
    driver: Any, attended: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = _timed_on_a_gpu(monkeypatch)
    for keys in range(512, 32769, 512):
        views = [view(np.broadcast_to(np.float16(0), (1, 32, rows, 128)), "x") for rows in (512, keys, keys, 512)]
        problem = AttentionProblem(1, 32, 32, 512, keys, 128, causal=True)
        with settings.scope(tune=True, interpret=False):
            attentions.AttentionPlan(problem, 0)._choose((*views, None, None), 1.0, ())
    assert 1 <= len(timed) <= 8


@pytest.mark.parametrize("place", ["host", "GPU"])
def test_memory_for_timed_results_has_their_strides(driver: Any, place: str) -> None:
    made = np.zeros((3, 5, 8), np.float16)
    base = made if place == "host" else DeviceArray.from_numpy(made, 0)
    whole = view(base, "x")
    for found in (whole, whole.changed((5, 3, 8), (8, 40, 1)), whole.changed((3, 2, 8), (40, 16, 1))):
        own = arrays.empty_like(found)
        assert own.address != found.address and (own.shape, own.strides) == (found.shape, found.strides)
        assert own.element == found.element and own.base.nbytes <= made.nbytes


def test_cold_weights_are_copies_that_the_cache_does_not_hold(driver: Any, rng: np.random.Generator) -> None:
    whole = rng.standard_normal((3, 40, 64)).astype(np.float16)
    found = view(DeviceArray.from_numpy(whole, 0), "b")
    for weights, size in ((found, 15360), (found.changed((3, 64, 40), (2560, 1, 64)), 15360),
                          (found.changed((2, 40, 32), (2560, 64, 1)), 2 * (2560 + 39 * 64 + 32))):  # fmt: skip
        cold = arrays.cold(weights, 0, 40000)
        assert len(cold) == -(-80000 // size) and cold[0] is weights
        assert len({each.address for each in cold}) == len(cold)
        for each in cold[1:]:
            assert (each.shape, each.strides, each.element) == (weights.shape, weights.strides, weights.element)
            assert np.array_equal(each.base.numpy().ravel(), whole.ravel()[: size // 2])
    assert arrays.cold(found, 0, 7000) == [found]
