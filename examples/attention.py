"""Attention in one kernel, without the matrix of scores in memory.

softmax(Q K^T) V needs the maximum and the sum of every row of scores before it can weigh the values. Both
can be corrected as keys come in: when a larger maximum appears, what was accumulated so far is scaled down
(online softmax: Milakov and Gimelshein, 2018; FlashAttention: Dao et al., 2022). An instance owns a block of
queries, walks over the keys once, and writes its rows of the result once.
"""

import numpy as np

import tilewright
import tilewright.language as tl


@tilewright.jit
def attention(q, k, v, out, rows, scale, CAUSAL: tl.constexpr, HEAD: tl.constexpr,
              BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):  # fmt: skip
    first = tl.program_id(0) * BLOCK_Q
    head = tl.program_id(1).to(tl.int64) * rows * HEAD
    query, dim = first + tl.arange(0, BLOCK_Q), tl.arange(0, HEAD)
    q_place = head + query[:, None] * HEAD + dim[None, :]
    q_block = tl.load(q + q_place, mask=query[:, None] < rows, other=0.0)

    maximum = tl.full((BLOCK_Q,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    acc = tl.zeros((BLOCK_Q, HEAD), tl.float32)
    end = tl.minimum(first + BLOCK_Q, rows) if CAUSAL else rows
    for start in range(0, end, BLOCK_K):
        key = start + tl.arange(0, BLOCK_K)
        kv_place = head + key[:, None] * HEAD + dim[None, :]
        k_block = tl.load(k + kv_place, mask=key[:, None] < rows, other=0.0)
        scores = tl.dot(q_block, tl.trans(k_block)) * scale
        visible = key[None, :] < rows
        if CAUSAL:
            visible = visible & (key[None, :] <= query[:, None])
        scores = tl.where(visible, scores, float("-inf"))

        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        weights = tl.exp(scores - new_maximum[:, None])
        correction = tl.exp(maximum - new_maximum)
        total = total * correction + tl.sum(weights, axis=1)
        v_block = tl.load(v + kv_place, mask=key[:, None] < rows, other=0.0)
        acc = tl.dot(weights.to(v_block.dtype), v_block, acc * correction[:, None])
        maximum = new_maximum
    tl.store(out + q_place, acc / total[:, None], mask=query[:, None] < rows)


def main() -> None:
    heads, rows, size = 4, 200, 32
    q, k, v = np.random.default_rng().normal(size=(3, heads, rows, size)).astype(np.float32)
    out = np.empty_like(q)
    grid = (tilewright.cdiv(rows, 64), heads)
    attention[grid](q, k, v, out, rows, size**-0.5, CAUSAL=True, HEAD=size, BLOCK_Q=64, BLOCK_K=32)

    scores = np.einsum("hqd,hkd->hqk", q.astype(np.float64), k) * size**-0.5
    scores = np.where(np.tril(np.ones((rows, rows), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    error = np.abs(out - weights / weights.sum(axis=-1, keepdims=True) @ v).max()
    assert error < 1e-5
    print(f"causal attention, {heads} heads x {rows} rows x {size}: largest error {error:.1e}")


if __name__ == "__main__":
    main()
