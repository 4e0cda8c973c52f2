"""Matrix multiplication with a fused activation.

An instance computes one tile of the result: it walks along the inner dimension and accumulates products of
small blocks. Instances that run close in time work on a group of neighbouring rows of tiles, so that the
blocks they read are still in the cache. What is done with the finished tile is a function passed to the
kernel at compile time; it costs no extra trip to memory.
"""

import numpy as np

import tilewright
import tilewright.language as tl


@tilewright.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@tilewright.jit
def matmul(a, b, c, m, n, k, stride_a, stride_b, stride_c, ACTIVATION: tl.constexpr,
           BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N)
    tile = tl.program_id(0)
    row, column = tl.swizzle2d(tile // tiles_n, tile % tiles_n, tiles_m, tiles_n, GROUP)

    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    a_block = a + rows[:, None] * stride_a + inner[None, :]
    b_block = b + inner[:, None] * stride_b + columns[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        left = k - start
        a_tile = tl.load(a_block, mask=(rows[:, None] < m) & (inner[None, :] < left), other=0.0)
        b_tile = tl.load(b_block, mask=(inner[:, None] < left) & (columns[None, :] < n), other=0.0)
        acc = tl.dot(a_tile, b_tile, acc)
        a_block += BLOCK_K
        b_block += BLOCK_K * stride_b
    if ACTIVATION is not None:
        acc = ACTIVATION(acc)
    c_block = c + rows[:, None] * stride_c + columns[None, :]
    tl.store(c_block, acc, mask=(rows[:, None] < m) & (columns[None, :] < n))


def main() -> None:
    m, n, k = 190, 210, 170
    rng = np.random.default_rng()
    a, b = rng.normal(size=(m, k)).astype(np.float32), rng.normal(size=(k, n)).astype(np.float32)
    c = np.empty((m, n), np.float32)

    blocks = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP": 4}
    grid = (tilewright.cdiv(m, blocks["BLOCK_M"]) * tilewright.cdiv(n, blocks["BLOCK_N"]),)
    matmul[grid](a, b, c, m, n, k, k, n, n, ACTIVATION=leaky_relu, **blocks)

    product = a.astype(np.float64) @ b.astype(np.float64)
    error = np.abs(c - np.where(product >= 0, product, 0.01 * product)).max()
    assert error < 1e-4
    print(f"matmul {m} x {k} x {n} with leaky ReLU: largest error {error:.1e}")


if __name__ == "__main__":
    main()
