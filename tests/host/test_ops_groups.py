"""Operations that are posed as engines pose them, in the interpreter: convolutions, decoding, normed products."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from tilewright import ops
from tilewright.errors import LaunchError
from tilewright.graph import semantics
from tilewright.ops import calls
from tilewright.settings import settings


@pytest.fixture(autouse=True)
def interpreted() -> Iterator[None]:
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


@pytest.mark.parametrize(("heads", "key_heads", "size", "keys"), [(4, 2, 64, 150), (3, 3, 128, 70), (2, 1, 48, 33)])
def test_decoding(heads: int, key_heads: int, size: int, keys: int, rng: np.random.Generator) -> None:
    q = rng.standard_normal((2, heads, size)).astype(np.float16)
    k, v = (rng.standard_normal((2, key_heads, keys, size)).astype(np.float16) for _ in range(2))
    bias = np.where(np.arange(keys) < np.array([[keys], [keys // 2]]), 0, -np.inf).astype(np.float16)
    inputs = [item.astype(np.float64) for item in (q[:, :, None], k, v, bias[:, None, None])]
    exact = semantics.attention(inputs, {"scale": size**-0.5, "causal": False})[:, :, 0]
    close(ops.decode_attention(q, k, v, bias=bias), exact, 4)


@pytest.mark.parametrize(("rows", "dtype", "count"), [(3, ml_dtypes.bfloat16, 1), (12, np.float16, 2)])
@pytest.mark.parametrize("transposed", [True, False])
def test_normed_products(rows: int, dtype, count: int, transposed: bool, rng: np.random.Generator) -> None:
    x = rng.standard_normal((rows, 64)).astype(dtype)
    w = rng.standard_normal((40, 64) if transposed else (64, 40)).astype(dtype)
    wide, matrix = x.astype(np.float64), (w.T if transposed else w).astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) @ matrix
    close(ops.rms_norm_matmul(x, w.T if transposed else w), exact)
    assert len(names()) == count


def test_what_does_not_fit_is_refused() -> None:
    x, w = np.zeros((1, 4, 4, 8), np.float16), np.zeros((8, 8, 3, 3), np.float16)
    for arguments, message in (
        ((x, w[:, :4]), "do not fit"), ((x, w.astype(np.float32)), "must both be"), ((x[..., ::2], w[:, :4]), "contig"),
        ((x, np.zeros((8, 8, 5, 5), np.float16)), "do not fit images"),
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
    calls_of = {
        op.conv2d: (x, w, None, [2, 1], [1, 0]),
        op.decode_attention: (q, k, k),
        op.rms_norm_matmul: (rows, b.t()),
    }
    for call, arguments in calls_of.items():
        found = call(*arguments)
        fake = call(*(item.to("meta") if isinstance(item, torch.Tensor) else item for item in arguments))
        assert fake.shape == found.shape and fake.dtype == found.dtype and bool(found.isfinite().all())
