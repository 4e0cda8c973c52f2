"""Operations on a GPU against float64: element types, epilogues, orders in memory, odd sizes; the same each run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import ops
from tilewright.settings import settings

pytestmark = pytest.mark.capability(9)


@pytest.fixture(autouse=True)
def untuned(cache: Any) -> Any:
    """What is first by cost is taken, so that tests do not depend on times."""
    with settings.scope(tune=False):
        yield


@pytest.fixture
def seed(rng: np.random.Generator) -> int:
    """Of PyTorch's generators."""
    return int(rng.integers(1 << 30))


def relative(result: Any, expected: Any) -> float:
    """Relative Frobenius norm of the difference; NaN counts."""
    import torch

    difference = torch.linalg.vector_norm(result.double() - expected.double())
    return float(difference / torch.linalg.vector_norm(expected.double()))


def normal(torch: Any, seed: int, *shape: int, dtype: Any = None) -> Any:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype or torch.bfloat16)


def close(torch: Any, result: Any, expected: Any) -> None:
    """Within the rounding of the result's type, and of float32 sums."""
    unit = {torch.float32: 2e-5, torch.float16: 5e-4}.get(result.dtype, 2.5e-3)
    assert relative(result, expected) <= unit


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int8"])
@pytest.mark.parametrize("sizes", [(512, 512, 256), (300, 520, 200), (1, 144, 1040), (17, 4112, 528), (100, 264, 4112)])
def test_products_of_every_type(torch: Any, dtype: str, sizes: tuple[int, int, int], seed: int) -> None:
    M, N, K = (-(-size // 16) * 16 if place else size for place, size in enumerate(sizes))
    kind = getattr(torch, dtype)
    if dtype == "int8":
        a, b = (torch.randint(-128, 128, (rows, K), device="cuda", dtype=kind) for rows in (M, N))
    else:
        a, b = normal(torch, seed, M, K, dtype=kind), normal(torch, seed + 1, N, K, dtype=kind)
    expected = a.double() @ b.double().T
    result = ops.matmul(a, b.T)
    if dtype == "int8":
        assert result.dtype == torch.int32 and torch.equal(result.double(), expected)
    elif dtype == "float32":
        assert relative(result, expected) <= 1e-3  # tf32 keeps 10 bits of the operands
        assert relative(ops.matmul(a, b.T, precision="ieee"), expected) <= 2e-6
    else:
        close(torch, result, expected)
        wide = ops.matmul(a, b.T, out_dtype=torch.float32)
        # The tensor cores keep some 14 bits of sums of float8.
        assert relative(wide, expected) <= (2e-3 if kind.itemsize == 1 else 2e-5)
    assert all(torch.equal(ops.matmul(a, b.T), result) for _ in range(3))


@pytest.mark.parametrize("orders", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("batches", [0, 3])
def test_all_orders_in_memory(torch: Any, orders: str, batches: int, seed: int) -> None:
    lead = (batches,) if batches else ()
    a, b = normal(torch, seed, *lead, 200, 136), normal(torch, seed + 1, *lead, 136, 328)
    first = a if orders[0] == "n" else a.mT.contiguous().mT
    second = b if orders[1] == "n" else b.mT.contiguous().mT
    close(torch, ops.matmul(first, second), a.double() @ b.double())


@pytest.mark.parametrize("rows", [3, 77, 500, 1111])
def test_epilogues(torch: Any, rows: int, seed: int) -> None:
    F = torch.nn.functional
    a, b, bias = normal(torch, seed, rows, 264), normal(torch, seed + 1, 520, 264), normal(torch, seed + 2, 520)
    residual = normal(torch, seed + 3, rows, 520)
    plain = a.double() @ b.double().T / 16
    scale = torch.full((1,), 1 / 16, device="cuda")
    curves = {
        "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
        "sigmoid": torch.sigmoid,
    }  # fmt: skip
    for name, curve in curves.items():
        result = ops.matmul(a, b.T, scale_a=scale, bias=bias, activation=name, residual=residual)
        close(torch, result, curve(plain + bias.double()) + residual.double())
        exact = ops.matmul(a, b.T, scale_a=scale, bias=bias, activation=name, out_dtype=torch.float32)
        close(torch, exact, curve(plain + bias.double()))
    gate, up = normal(torch, seed + 4, 136, 264), normal(torch, seed + 5, 136, 264)
    result = ops.matmul(a, ops.interleave_gate(gate, up).T, gate="silu")
    close(torch, result, F.silu(a.double() @ gate.double().T) * (a.double() @ up.double().T))


def test_scales_of_fp8_and_int8(torch: Any, seed: int) -> None:
    M, N, K = 300, 400, 512
    a, b = (normal(torch, seed + n, rows, K, dtype=torch.float8_e4m3fn) for n, rows in enumerate((M, N)))
    product = a.double() @ b.double().T
    left, right = (torch.rand(count, device="cuda") + 0.5 for count in (M, N))
    close(torch, ops.matmul(a, b.T, scale_a=left[:1], scale_b=right[:1]), product * left[0].item() * right[0].item())
    expected = product * left.double()[:, None] * right.double()
    close(torch, ops.matmul(a, b.T, scale_a=left, scale_b=right), expected)
    blocks, columns = torch.rand(M, 4, device="cuda") + 0.5, torch.rand(4, 4, device="cuda") + 0.5
    whole = a.double() * blocks.double().repeat_interleave(128, 1)
    weights = b.double() * columns.double().repeat_interleave(128, 0)[:N].repeat_interleave(128, 1)
    close(torch, ops.matmul(a, b.T, scale_a=blocks, scale_b=columns), whole @ weights.T)
    x, y = (torch.randint(-128, 128, (rows, K), device="cuda", dtype=torch.int8) for rows in (M, N))
    whole = x.double() * blocks.double().repeat_interleave(128, 1)
    weights = y.double() * columns.double().repeat_interleave(128, 0)[:N].repeat_interleave(128, 1)
    result = ops.matmul(x, y.T, scale_a=blocks, scale_b=columns, out_dtype=torch.bfloat16)
    close(torch, result, whole @ weights.T)
    result = ops.matmul(x, y.T, scale_a=left, scale_b=right, out_dtype=torch.bfloat16)
    close(torch, result, x.double() @ y.double().T * left.double()[:, None] * right.double())


@pytest.mark.parametrize("depth", [512, 200, 75])
def test_integers_of_both_kinds_and_results_of_8_bits(torch: Any, depth: int, seed: int) -> None:
    """By the Hopper kernel, and by those that engines have where tensor copies cannot move the arrays."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    kinds = {torch.uint8: (0, 256), torch.int8: (-128, 128)}
    a, b = (torch.randint(*kinds[kind], (rows, depth), device="cuda", dtype=kind, generator=generator)
            for kind, rows in ((torch.uint8, 300), (torch.int8, 400)))  # fmt: skip
    exact = a.double() @ b.double().T
    assert torch.equal(ops.matmul(a, b.T).double(), exact)
    scales, bias = torch.rand(400, device="cuda") * 1e-3, normal(torch, seed, 400)
    x = exact * scales.double() + bias.double()
    wanted = (torch.nn.functional.silu(x) / 0.05).clamp(-128, 127)
    result = ops.matmul(a, b.T, scale_b=scales, bias=bias, activation="silu", out_dtype=torch.int8, out_scale=0.05)
    assert result.dtype == torch.int8 and (result.double() - wanted).abs().max() <= 1


@pytest.mark.parametrize(("channels", "size"), [(64, 3), (64, 1), (20, 3)])
def test_convolutions_of_integers(torch: Any, channels: int, size: int, seed: int) -> None:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x, w = (torch.randint(*limits, shape, device="cuda", dtype=kind, generator=generator)
            for limits, shape, kind in (((0, 256), (2, 14, 14, channels), torch.uint8),
                                        ((-128, 128), (96, channels, size, size), torch.int8)))  # fmt: skip
    y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2).double(), w.double(), padding=size // 2).permute(0, 2, 3, 1)
    assert torch.equal(ops.conv2d(x, w, padding=size // 2).double(), y)
    scales, bias = torch.rand(96, device="cuda") * 1e-3, normal(torch, seed, 96, dtype=torch.float32)
    wanted = ((y * scales.double() + bias.double()).relu() / 0.1).clamp(0, 127)
    given = {"scale_w": scales, "activation": "relu", "padding": size // 2}
    result = ops.conv2d(x, w, bias, **given, out_dtype=torch.int8, out_scale=0.1)
    assert (result.double() - wanted).abs().max() <= 1


@pytest.mark.parametrize("kinds", [("float8_e4m3fn", "float8_e4m3fn"), ("float8_e5m2", "float8_e4m3fn")])
@pytest.mark.parametrize(("channels", "size"), [(64, 3), (64, 1), (256, 3), (20, 3)])
def test_convolutions_of_8_bit_floats(torch: Any, kinds: tuple[str, str], channels: int, size: int, seed: int) -> None:
    """Tensor cores of Hopper cut each product to about 14 bits of the largest of its instruction."""
    x = normal(torch, seed, 2, 14, 14, channels, dtype=getattr(torch, kinds[0]))
    w = normal(torch, seed + 1, 96, channels, size, size, dtype=getattr(torch, kinds[1]))
    y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2).double(), w.double(), padding=size // 2).permute(0, 2, 3, 1)
    result = ops.conv2d(x, w, padding=size // 2)
    assert result.dtype == torch.float32 and relative(result, y) < 1e-3
    scales, bias = torch.rand(96, device="cuda") + 0.5, normal(torch, seed, 96, dtype=torch.float32)
    given = {"scale_w": scales, "activation": "relu", "padding": size // 2}
    wanted = (y * scales.double() + bias.double()).relu()
    close(torch, ops.conv2d(x, w, bias, **given, out_dtype=torch.bfloat16), wanted)
    stored = ops.conv2d(x, w, bias, **given, out_dtype=torch.float8_e4m3fn, out_scale=0.5)
    assert relative(stored, wanted / 0.5) < 0.03


def test_attention_by_the_kernels_of_engines(torch: Any, seed: int) -> None:
    """Rows that are no multiples of 16 bytes apart: windows, soft caps and results of 8 bits are there, too."""
    packed = normal(torch, seed, 2, 130, 3, 4, 68)[..., :64]
    q, k, v = (packed[:, :, part].transpose(1, 2) for part in range(3))
    scores = q.double() @ k.double().mT / 8
    seen = torch.ones(130, 130, device="cuda", dtype=torch.bool).tril().triu(-49)
    exact = torch.where(seen, 20 * torch.tanh(scores / 20), -torch.inf).softmax(-1) @ v.double()
    close(torch, ops.attention(q, k, v, causal=True, window=50, softcap=20.0), exact)
    stored = ops.attention(q, k, v, causal=True, window=50, softcap=20.0, out_dtype=torch.int8, out_scale=0.02)
    assert (stored.double() - (exact / 0.02).clamp(-128, 127)).abs().max() <= 1.5


def test_gates_and_scales_of_blocks_of_any_size(torch: Any, seed: int) -> None:
    a, gate, up = normal(torch, seed, 90, 75), normal(torch, seed + 1, 136, 75), normal(torch, seed + 2, 136, 75)
    result = ops.matmul(a, ops.interleave_gate(gate, up).T, gate="silu")
    exact = torch.nn.functional.silu(a.double() @ gate.double().T) * (a.double() @ up.double().T)
    close(torch, result, exact)
    x, w = (normal(torch, seed + n, rows, 200, dtype=torch.float8_e4m3fn) for n, rows in enumerate((90, 150)))
    left, right = torch.rand(90, 2, device="cuda") + 0.5, torch.rand(2, 2, device="cuda") + 0.5
    rows = x.double() * left.double().repeat_interleave(128, 1)[:, :200]
    columns = right.double().repeat_interleave(128, 0)[:150].repeat_interleave(128, 1)[:, :200] * w.double()
    close(torch, ops.matmul(x, w.T, scale_a=left, scale_b=right, out_dtype=torch.float32), rows @ columns.T)
    apart = torch.zeros(92, 5, device="cuda")
    apart[:90, :2], apart[90:, 2:4] = left, right
    given = {"scale_a": apart[:90, :2], "scale_b": apart[90:, 2:4], "out_dtype": torch.float32}
    close(torch, ops.matmul(x, w.T, **given), rows @ columns.T)
    out = torch.zeros(90, 300, device="cuda", dtype=torch.bfloat16)[:, 20:156]
    assert ops.matmul(a, gate.T, out=out) is out
    close(torch, out, a.double() @ gate.double().T)


def test_every_candidate_of_a_problem_is_right(torch: Any, seed: int) -> None:
    """Clusters, split depths, three consumers, groups: whatever tuning may choose."""
    from tilewright.ops import products

    for sizes in ((64, 1040, 4104), (128, 1040, 4104), (777, 1288, 520), (4100, 520, 200)):
        a, b = normal(torch, seed, sizes[0], sizes[2]), normal(torch, seed + 1, sizes[1], sizes[2])
        expected = a.double() @ b.double().T
        problem, operands = products.describe(a, b.T, None, None, {})
        plan = products.MatmulPlan(problem, 0, 0)
        wrong = []
        for candidate in plan.ranked:
            operands.out.base.fill_(float("nan"))
            plan._runner(candidate.config, operands)()
            if not relative(operands.out.base, expected) <= 2.5e-3:
                wrong.append(str(candidate))
        assert not wrong, sizes


def test_choices_are_timed_once_and_kept(torch: Any, seed: int, tmp_path: Path) -> None:
    a, b = normal(torch, seed, 96, 2048), normal(torch, seed + 1, 4096, 2048)
    from tilewright.ops import products

    with settings.scope(cache_directory=tmp_path):  # a kept cache would hold the choice of the last run
        products._PLANS.clear()
        plan = ops.plan_matmul(a, b.T, effort=1)
        assert plan.choice is not None and plan.choice.source == "timed"
        assert "us measured" in plan.explain()
        products._PLANS.clear()
        again = ops.plan_matmul(a, b.T, effort=1)
    assert again.choice is not None and again.choice.source == "recorded" and again.choice.index == plan.choice.index
    close(torch, again(a, b.T), a.double() @ b.double().T)


def test_a_captured_graph_replays(torch: Any, seed: int) -> None:
    a, b, out = normal(torch, seed, 64, 512), normal(torch, seed + 1, 512, 512), normal(torch, seed, 64, 512)
    q = normal(torch, seed, 1, 4, 200, 64)
    expected = ops.attention(q, q, q, causal=True)  # which chooses the config: nothing is timed in a capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.matmul(a, b.T, out=out, effort=1)
        rows = ops.softmax(out)
        attended = ops.attention(q, q, q, causal=True)
    a.copy_(normal(torch, seed + 2, 64, 512))
    graph.replay()
    close(torch, out, a.double() @ b.double().T)
    close(torch, rows, torch.softmax(out.double(), 1))
    assert torch.equal(attended, expected)


def test_weights_that_are_ready_may_be_read_early(torch: Any, seed: int) -> None:
    """A chain in which each product's activations are the result of the one before."""
    weights = [normal(torch, seed + n, 1024, 1024) / 32 for n in range(4)]
    first = normal(torch, seed, 16, 1024)
    expected = first
    for weight in weights * 8:
        expected = ops.matmul(expected, weight.T)
    for _ in range(3):
        x = first
        for weight in weights * 8:
            x = ops.matmul(x, weight.T, weights_ready=True)
        assert torch.equal(x, expected)


ATTENTION = [
    (2, 4, 4, 300, 300, 64), (1, 8, 2, 257, 513, 128), (1, 2, 2, 200, 1000, 96), (1, 4, 1, 333, 333, 256),
    (1, 8, 8, 1, 700, 128), (1, 4, 4, 50, 90, 64),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("transposed", [True, False])
def test_groups_of_rows(torch: Any, dtype: str, transposed: bool, seed: int) -> None:
    """Groups that end anywhere, some empty, and rows behind the last; columns that tensor copies move, and others."""
    kind, groups, rows, depth = getattr(torch, dtype), 9, 700, 256
    for columns in (264, 131):
        a = normal(torch, seed, rows, depth, dtype=kind)
        b = normal(torch, seed + 1, *((groups, columns, depth) if transposed else (groups, depth, columns)), dtype=kind)
        b = b.mT if transposed else b
        ends = torch.randint(0, rows, (groups,), device="cuda", dtype=torch.int32).sort().values
        result = ops.grouped_matmul(a, b, ends, activation="relu")
        expected, start = torch.zeros(rows, columns, device="cuda", dtype=torch.float64), 0
        for group, end in enumerate(ends.tolist()):
            expected[start:end] = (a[start:end].double() @ b[group].double()).relu()
            start = end
        close(torch, result, expected)
        assert torch.equal(result, ops.grouped_matmul(a, b, ends, activation="relu"))


@pytest.mark.parametrize("shape", ATTENTION, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_attention(torch: Any, shape: tuple[int, ...], causal: bool, seed: int) -> None:
    batches, heads, key_heads, queries, keys, size = shape
    q = normal(torch, seed, batches, queries, heads, size).transpose(1, 2)
    k, v = (normal(torch, seed + n, batches, key_heads, keys, size) for n in (1, 2))
    result, sums = ops.attention(q, k, v, causal=causal, return_lse=True)
    expected, totals = reference(torch, q, k, v, causal, 0)
    assert relative(result, expected) <= 4e-3
    assert (sums.double() - totals).abs().max() <= 1e-3
    assert torch.equal(ops.attention(q, k, v, causal=causal, return_lse=True)[0], result)


def reference(torch: Any, q: Any, k: Any, v: Any, causal: bool, window: int) -> tuple[Any, Any]:
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    scores = q.double() @ k.mT / q.shape[-1] ** 0.5
    row = torch.arange(q.shape[2], device="cuda")[:, None] + k.shape[2] - q.shape[2]
    column = torch.arange(k.shape[2], device="cuda")[None, :]
    if causal:
        scores = scores.masked_fill(column > row, float("-inf"))
    if window:
        scores = scores.masked_fill(column <= row - window, float("-inf"))
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


@pytest.mark.hopper
@pytest.mark.parametrize("kind", ["int8", "float8_e4m3fn"])
def test_attention_quantizes(torch: Any, kind: str, seed: int) -> None:
    """Many queries, and one for each head: what the result in floats gives, but where that is rounded first."""
    dtype = getattr(torch, kind)
    q, k, v = (normal(torch, seed + n, 3, heads, 700, 64) for n, heads in enumerate((4, 2, 2)))
    one = q[:, :, 0].contiguous()
    for found, plain in (
        (ops.attention(q, k, v, out_dtype=dtype, out_scale=0.004), ops.attention(q, k, v)),
        (ops.decode_attention(one, k, v, out_dtype=dtype, out_scale=0.004), ops.decode_attention(one, k, v)),
    ):
        most = 127.0 if kind == "int8" else 448.0
        expected = (plain.double() / 0.004).clamp(-most - (kind == "int8"), most)
        step = 0.5 if kind == "int8" else expected.abs() * 2.0**-4 + 2.0**-10
        assert found.dtype == dtype
        assert bool(((found.double() - expected).abs() <= step + expected.abs() * 2.0**-8 + 0.1).all())


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_more_batches_than_one_launch_counts(torch: Any, causal: bool, seed: int) -> None:
    q, k, v = (normal(torch, seed + n, 16500, 2, 16, 64) for n in range(3))
    lengths = torch.tensor([[16, 16], [9, 12], [1, 5]], dtype=torch.int32, device="cuda").repeat(5500, 1)
    result, sums = ops.attention(q, k, v, causal=causal, return_lse=True)
    expected, totals = reference(torch, q, k, v, causal, 0)
    assert relative(result, expected) <= 4e-3 and relative(result[-200:], expected[-200:]) <= 4e-3
    assert (sums.double() - totals).abs().max() <= 1e-3
    ragged = ops.attention(q, k, v, causal=causal, lengths=lengths)
    assert relative(ragged[::3], expected[::3]) <= 4e-3
    short, _ = reference(torch, q[1::3, :, :9], k[1::3, :, :12], v[1::3, :, :12], causal, 0)
    assert relative(ragged[1::3, :, :9], short) <= 4e-3


def test_windows_and_lengths(torch: Any, seed: int) -> None:
    for size in (64, 128):
        q, k, v = (normal(torch, seed + n, 3, 4, 400, size) for n in range(3))
        expected, _ = reference(torch, q, k, v, True, 100)
        assert relative(ops.attention(q, k, v, causal=True, window=100), expected) <= 4e-3
        pairs = [(400, 400), (130, 250), (1, 77)]
        lengths = torch.tensor(pairs, dtype=torch.int32, device="cuda")
        for causal in (False, True):
            result = ops.attention(q, k, v, causal=causal, lengths=lengths)
            for batch, (queries, keys) in enumerate(pairs):
                one = slice(batch, batch + 1)
                expected, _ = reference(torch, q[one, :, :queries], k[one, :, :keys], v[one, :, :keys], causal, 0)
                assert relative(result[one, :, :queries], expected) <= 4e-3


@pytest.mark.parametrize(
    "shape", [(5, 100), (1000, 64), (77, 8192), (300, 5120), (9, 11008), (3, 40000), (2, 3, 1000)], ids=str
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows(torch: Any, shape: tuple[int, ...], dtype: str, seed: int) -> None:
    F = torch.nn.functional
    kind = getattr(torch, dtype)
    x, residual = normal(torch, seed, *shape, dtype=kind), normal(torch, seed + 1, *shape, dtype=kind)
    weight, bias = (normal(torch, seed + n, shape[-1], dtype=kind) for n in (2, 3))
    close(torch, ops.softmax(x), torch.softmax(x.double(), -1))
    close(torch, ops.softmax(x, log=True), torch.log_softmax(x.double(), -1))
    y = x.double() + residual.double()
    result, total = ops.layer_norm(x, weight, bias, residual=residual, return_sum=True)
    close(torch, result, F.layer_norm(y, shape[-1:], weight.double(), bias.double()))
    close(torch, total, y)
    close(torch, ops.rms_norm(x, weight), F.rms_norm(x.double(), shape[-1:], weight.double(), 1e-6))


@pytest.mark.parametrize("shape", [(7, 1000), (4000, 24), (3, 500, 70), (2, 70000)], ids=str)
@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
def test_reductions(torch: Any, shape: tuple[int, ...], kind: str, seed: int) -> None:
    x = normal(torch, seed, *shape, dtype=torch.float32) + 0.5
    for axis in range(len(shape)):
        expected = {"max": torch.amax, "min": torch.amin}.get(kind, getattr(torch, kind))(x.double(), axis)
        result = ops.reduce(x, kind, axis=axis)
        close(torch, result, expected)
        assert torch.equal(ops.reduce(x, kind, axis=axis), result)


def test_elements(torch: Any, seed: int) -> None:
    from tilewright.library.functions import gelu

    x = normal(torch, seed, 33, 1001)
    close(torch, ops.elementwise(gelu, x), torch.nn.functional.gelu(x.double()))


def test_under_compile_and_export(torch: Any, seed: int) -> None:
    import tilewright.ops.torch_library  # noqa: F401

    op = torch.ops.tilewright

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(normal(torch, seed, 256, 128), requires_grad=False)

        def forward(self, x: Any) -> Any:
            y = op.matmul(x, self.weight.t(), None, "silu") * 0.5
            q = y.view(1, x.shape[0], 4, 64).transpose(1, 2)
            return op.attention(q, q, q, True).sum(1), op.softmax(y)

    block, x = Block(), normal(torch, seed + 1, 80, 128)
    plain = block(x)
    for found in (torch.compile(block, fullgraph=True)(x), torch.export.export(block, (x,)).module()(x)):
        assert all(
            torch.equal(left, right) or relative(left, right) < 4e-3 for left, right in zip(plain, found, strict=True)
        )
    torch.library.opcheck(op.matmul.default, (x, block.weight.t(), None, "gelu"))
    torch.library.opcheck(op.softmax.default, (x,))
    torch.library.opcheck(op.reduce.default, (x.t(), "mean", 0))
    torch.library.opcheck(op.add_layer_norm.default, (x, x.clone()))
    close(torch, op.reduce(x.t(), "mean", 0), x.double().mean(1))


@pytest.mark.parametrize("shape", [(70000, 40, 24), (66000, 700, 3)], ids=str)
def test_reductions_of_more_columns_than_a_grid_counts(torch: Any, shape: tuple[int, ...], seed: int) -> None:
    x = normal(torch, seed, *shape)
    assert relative(ops.reduce(x, axis=1), x.double().sum(1)) <= 4e-3
    assert torch.equal(ops.reduce(x, "max", axis=1), x.amax(1))
