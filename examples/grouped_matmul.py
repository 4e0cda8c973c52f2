"""Many matrix products of different sizes in one launch.

The matrices lie anywhere in memory; the kernel gets tables of their addresses and sizes.  A fixed number of
instances shares out the tiles of all products: each takes every n-th tile, and walks through the products to
find the one that its tile belongs to.  An address that was loaded is a number until it is cast to a pointer.
"""

import ml_dtypes
import numpy as np

import tilewright
import tilewright.language as tl


@tilewright.jit
def tile_of_product(a, b, c, m, n, k, row, column,
                    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    rows = row * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = column * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        a_tile = tl.load(
            a + rows[:, None] * k + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0
        )
        b_tile = tl.load(
            b + inner[:, None] * n + columns[None, :], mask=(inner[:, None] < k) & (columns[None, :] < n), other=0.0
        )
        acc = tl.dot(a_tile, b_tile, acc)
    tl.store(c + rows[:, None] * n + columns[None, :], acc, mask=(rows[:, None] < m) & (columns[None, :] < n))


@tilewright.jit
def grouped_matmul(addresses, sizes, products, INSTANCES: tl.constexpr,
                   BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    tile = tl.program_id(0)
    first = 0  # the number of the present product's first tile
    for product in range(products):
        m, n, k = tl.load(sizes + product * 3), tl.load(sizes + product * 3 + 1), tl.load(sizes + product * 3 + 2)
        tiles_n = tl.cdiv(n, BLOCK_N)
        end = first + tl.cdiv(m, BLOCK_M) * tiles_n
        while tile < end:
            a = tl.load(addresses + product * 3).to(tl.pointer_type(tl.bfloat16))
            b = tl.load(addresses + product * 3 + 1).to(tl.pointer_type(tl.bfloat16))
            c = tl.load(addresses + product * 3 + 2).to(tl.pointer_type(tl.float32))
            place = tile - first
            tile_of_product(a, b, c, m, n, k, place // tiles_n, place % tiles_n, BLOCK_M, BLOCK_N, BLOCK_K)
            tile += INSTANCES
        first = end


def main() -> None:
    rng = np.random.default_rng()
    sizes = np.asarray([(130, 70, 90), (33, 128, 64), (1, 200, 48), (64, 64, 257)], np.int32)
    left = [rng.normal(size=(m, k)).astype(ml_dtypes.bfloat16) for m, _, k in sizes]
    right = [rng.normal(size=(k, n)).astype(ml_dtypes.bfloat16) for _, n, k in sizes]
    results = [np.empty((m, n), np.float32) for m, n, _ in sizes]
    arrays = zip(left, right, results, strict=True)
    addresses = np.asarray([[array.ctypes.data for array in group] for group in arrays], np.int64)

    grouped_matmul[(4,)](addresses, sizes, len(sizes), INSTANCES=4, BLOCK_M=32, BLOCK_N=32, BLOCK_K=32)

    products = [a.astype(np.float64) @ b.astype(np.float64) for a, b in zip(left, right, strict=True)]
    error = max(np.abs(result - product).max() for result, product in zip(results, products, strict=True))
    assert error < 1e-3
    print(f"{len(sizes)} matrix products in one launch: largest error {error:.1e}")


if __name__ == "__main__":
    main()
