"""The kernels that benchmarks/kernels_cpu.py launches give what float64 does, at small sizes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import kernels_cpu


def test_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_cpu, "SEQUENCE", 40)
    q, k, v = (kernels_cpu.random(1, kernels_cpu.HEADS, 40, kernels_cpu.HEAD) for _ in range(3))
    out, scale = kernels_cpu.aligned(*q.shape), kernels_cpu.HEAD**-0.5
    kernels_cpu.our_attention(q, k, v, out, scale, 1)()
    weights = np.exp(q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) * scale)
    np.testing.assert_allclose(out, weights / weights.sum(3, keepdims=True) @ v, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("packed", [True, False])
def test_matmul(packed: bool) -> None:
    a, b, out = kernels_cpu.random(33, 33), kernels_cpu.random(33, 33), kernels_cpu.aligned(33, 33)
    kernels_cpu.packed_matmul(a, b, out, packed=packed)()
    np.testing.assert_allclose(out, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)  # sums of 33 float32 products
