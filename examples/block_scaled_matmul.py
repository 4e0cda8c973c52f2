"""A matrix product in 4 and 8 bits with scales for groups of 32 elements (the OCP microscaling formats).

Four-bit floats (e2m1) lie two to a byte, the first in the low half.  Thirty-two consecutive elements along the
inner dimension share a scale, a power of two of which only the biased exponent is stored (e8m0).  `tl.dot_scaled`
takes elements and scales; where a machine has no instruction for it, they are widened, scaled and multiplied.
"""

import ml_dtypes
import numpy as np

import tilewright
import tilewright.language as tl

SHARING = 32  # elements to a scale


@tilewright.jit
def block_scaled_matmul(a, a_scales, b, b_scales, c, m, n, k,
                        BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    pair, element, group = tl.arange(0, BLOCK_K // 2), tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_K // 32)
    row_inside, column_inside = rows[:, None] < m, columns[:, None] < n
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        pairs, elements, groups = start // 2 + pair[None, :], start + element[None, :], start // 32 + group[None, :]
        a_tile = tl.load(a + rows[:, None] * (k // 2) + pairs, mask=row_inside, other=0)
        b_tile = tl.load(b + columns[:, None] * k + elements, mask=column_inside, other=0.0)
        a_scale = tl.load(a_scales + rows[:, None] * (k // 32) + groups, mask=row_inside, other=0)
        b_scale = tl.load(b_scales + columns[:, None] * (k // 32) + groups, mask=column_inside, other=0)
        acc = tl.dot_scaled(a_tile, a_scale, "e2m1", b_tile.T, b_scale, "e4m3", acc)
    tl.store(c + rows[:, None] * n + columns[None, :], acc, mask=row_inside & (columns[None, :] < n))


def quantize(x: np.ndarray, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Elements in `dtype`, and the exponents of their scales, biased by 127, one for 32 elements of a row."""
    groups = x.reshape(len(x), -1, SHARING)
    largest = float(ml_dtypes.finfo(dtype).max)
    exponents = np.ceil(np.log2(np.abs(groups).max(axis=2) / largest))
    elements = (groups / np.exp2(exponents)[:, :, None]).reshape(x.shape).astype(dtype)
    return elements, (exponents + 127).astype(np.uint8)


def widened(elements: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    return elements.astype(np.float64) * np.exp2(exponents.astype(np.float64) - 127).repeat(SHARING, axis=1)


def main() -> None:
    m, n, k = 100, 72, 256
    rng = np.random.default_rng()
    a, b = rng.normal(size=(m, k)), rng.normal(size=(n, k))
    a_elements, a_scales = quantize(a, ml_dtypes.float4_e2m1fn)
    b_elements, b_scales = quantize(b, ml_dtypes.float8_e4m3fn)
    bits = a_elements.view(np.uint8) & 0xF
    packed = bits[:, ::2] | bits[:, 1::2] << 4
    c = np.empty((m, n), np.float32)

    grid = (tilewright.cdiv(m, 32), tilewright.cdiv(n, 32))
    block_scaled_matmul[grid](packed, a_scales, b_elements, b_scales, c, m, n, k, BLOCK_M=32, BLOCK_N=32, BLOCK_K=64)

    product = widened(a_elements, a_scales) @ widened(b_elements, b_scales).T
    error = np.abs(c - product).max()
    assert error < 1e-3
    lost = np.abs(product - a @ b.T).mean() / np.abs(a @ b.T).mean()
    print(f"block-scaled product {m} x {k} x {n}: largest error {error:.1e}; {lost:.0%} lost by quantisation")


if __name__ == "__main__":
    main()
