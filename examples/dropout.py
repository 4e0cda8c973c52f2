"""Dropout without a stored mask.

Random numbers are a function of a seed and an offset. The backward pass, or a second forward pass, draws
the same ones again from the seed, so that no mask has to be kept in memory.
"""

import numpy as np

import tilewright
import tilewright.language as tl


@tilewright.jit
def dropout(x, out, n, probability, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    survives = tl.rand(seed, offsets) > probability
    value = tl.load(x + offsets, mask=mask)
    tl.store(out + offsets, tl.where(survives, value / (1 - probability), 0.0), mask=mask)


def main() -> None:
    n, probability = 20_000, 0.25
    x = np.ones(n, np.float32)
    first, second, other = np.empty((3, n), np.float32)
    for out, seed in ((first, 123), (second, 123), (other, 512)):
        dropout[(tilewright.cdiv(n, 1024),)](x, out, n, probability, seed, BLOCK=1024)
    share = np.count_nonzero(first) / n
    assert np.array_equal(first, second) and not np.array_equal(first, other)
    assert abs(share - (1 - probability)) < 0.02
    print(f"dropout kept {share:.1%} of {n} elements; the same seed gives the same mask")


if __name__ == "__main__":
    main()
